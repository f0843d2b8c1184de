package projection

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/cache"
)

// values is the newest state of a view, by name.
func values(ctx context.Context, v *View) (map[string]string, error) {
	got, err := state(ctx, v, v.Revision())
	for name, value := range got {
		got[name], _, _ = strings.Cut(value, "@")
	}
	return got, err
}

// TestPending: a batch of random writes sees its own writes as if each had been appended, and becomes one append with
// each key once. Nobody else sees the batch before the append. If the batch loses, none of its writes takes effect.
// Meanwhile others append, and a projector commits.
func TestPending(t *testing.T) {
	rounds := 60
	if testing.Short() {
		rounds = 20
	}
	c := newCell(t, func(c *Config) { c.InlineBytes = 500 })
	r := rand.New(rand.NewPCG(1, 2))
	all := Keys{Start: "main/pods/ns/", End: "main/pods/ns0"}
	for round := range rounds {
		base := c.latest()
		p := base.Pending()
		require.Equal(t, base, p.Base())
		before, err := values(c.ctx, base)
		require.NoError(t, err)
		model, touched := maps.Clone(before), map[string]bool{}
		for n := range 1 + r.IntN(30) {
			name := fmt.Sprint("p", r.IntN(12))
			at, err := p.View().State(c.ctx, podKey(name))
			require.NoError(t, err)
			row, live := at.Row()
			value, known := model[name]
			require.Equal(t, known, live)
			require.Equal(t, value, string(row.Value))
			w := at.Put("application/cbor", fmt.Append(nil, round, ".", n), 0)
			switch {
			case live && r.IntN(3) == 0:
				w = at.Delete()
				delete(model, name)
			case !live && p.Deleted(podKey(name)):
				continue // callers that check Deleted do not make another object in its place
			default:
				model[name] = fmt.Sprint(round, ".", n)
			}
			rev, err := p.Add("request", w)
			require.NoError(t, err)
			require.Greater(t, rev, Provisional)
			touched[name] = true
			got, err := values(c.ctx, p.View())
			require.NoError(t, err)
			require.Equal(t, model, got)
			count, err := p.View().Count(c.ctx, all.Start, all.End, p.View().Revision())
			require.NoError(t, err)
			require.Equal(t, len(model), count)
		}
		unseen, err := values(c.ctx, base)
		require.NoError(t, err)
		require.Equal(t, before, unseen)

		loses := round%4 == 3
		if loses { // another writer writes one of the keys
			other := c.latest().Pending()
			for name := range touched {
				at, err := other.View().State(c.ctx, podKey(name))
				require.NoError(t, err)
				_, err = other.Add("other", at.Put("application/cbor", []byte("other"), 0))
				require.NoError(t, err)
			}
			_, err := other.Append(c.ctx, fmt.Sprint("other-", round))
			require.NoError(t, err)
		}
		if round%5 == 1 {
			c.put("elsewhere", fmt.Sprint(round))
			model["elsewhere"] = fmt.Sprint(round)
		}
		if round%3 == 1 {
			c.commit()
		}
		size := p.Len()
		rev, err := p.Append(c.ctx, fmt.Sprint("pending-", round))
		now := c.latest()
		got, stateErr := values(c.ctx, now)
		require.NoError(t, stateErr)
		if loses && size > 0 {
			require.ErrorIs(t, err, eventlog.ErrConflict)
			for name := range touched {
				require.Equal(t, "other", got[name])
			}
			continue
		}
		require.NoError(t, err)
		if !loses {
			require.Equal(t, model, got)
		}
		seen := 0
		for key, e := range now.Tail(rev - Revision(size)) {
			if e.Revision > rev {
				break
			}
			require.Equal(t, uint32(size-seen-1), e.Left, key)
			seen++
		}
		require.True(t, seen == size || now.Applied() >= rev-Revision(size), "%d of %d", seen, size)
	}
}

// TestPendingTogether: the writers of batches on one log never see another writer's write before it is appended, and
// each batch takes effect completely or not at all. Each batch adds to two counters.
func TestPendingTogether(t *testing.T) {
	c := newCell(t)
	c.put("a", "0")
	c.put("b", "0")
	const writers, rounds = 8, 20
	var writing sync.WaitGroup
	for writer := range writers {
		writing.Go(func() {
			for n := 0; n < rounds; {
				v, err := c.Latest(c.ctx)
				require.NoError(t, err)
				p := v.Pending()
				var values []string
				for _, name := range []string{"a", "b", "a"} {
					at, err := p.View().State(c.ctx, podKey(name))
					require.NoError(t, err)
					row, _ := at.Row()
					var value int
					_, err = fmt.Sscan(string(row.Value), &value)
					require.NoError(t, err)
					values = append(values, string(row.Value))
					_, err = p.Add("", at.Put("application/cbor", fmt.Append(nil, value+1), 0))
					require.NoError(t, err)
				}
				var a, b int
				_, err = fmt.Sscan(values[0]+" "+values[1], &a, &b)
				require.NoError(t, err)
				require.Equal(t, a, 2*b, "a is counted twice")
				_, err = p.Append(c.ctx, fmt.Sprintf("%d-%d-%d", writer, n, v.Revision()))
				if !errors.Is(err, eventlog.ErrConflict) {
					require.NoError(t, err)
					n++
				}
			}
		})
	}
	writing.Wait()
	v := c.latest()
	got, err := values(c.ctx, v)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"a": fmt.Sprint(2 * writers * rounds), "b": fmt.Sprint(writers * rounds)}, got)
}

// TestRebase: a batch is moved to a newer view unless a key that the batch writes, or that decides about the batch, has
// changed.
func TestRebase(t *testing.T) {
	c := newCell(t, func(c *Config) { c.InlineBytes = 1 })
	c.put("mine", "1")
	nothing := func(eventlog.Key) []Keys { return nil }
	rebase := func(p *Pending, decides func(eventlog.Key) []Keys) eventlog.Key {
		lost, err := p.Rebase(c.ctx, c.latest(), decides)
		require.NoError(t, err)
		return lost
	}
	begin := func() *Pending {
		p := c.latest().Pending()
		at, err := p.View().State(c.ctx, podKey("mine"))
		require.NoError(t, err)
		_, err = p.Add("", at.Put("application/cbor", []byte("2"), 0))
		require.NoError(t, err)
		return p
	}
	p := begin()
	c.put("other", "1")
	require.Equal(t, podKey("mine"), rebase(p, func(of eventlog.Key) []Keys {
		require.Equal(t, podKey("mine"), of)
		return []Keys{OneKey(podKey("other").RowKey())}
	}))
	require.Zero(t, rebase(p, func(eventlog.Key) []Keys { return []Keys{OneKey(podKey("a third").RowKey())} }))
	require.Zero(t, rebase(p, nothing))
	require.Equal(t, c.latest().Revision(), p.Base().Revision())
	_, err := p.Append(c.ctx, "rebased")
	require.NoError(t, err)
	p = begin()
	c.last["mine"] = lastEvent{c.latest().Revision(), true}
	c.put("mine", "3")
	require.Equal(t, podKey("mine"), rebase(p, nothing))
	_, err = p.Append(c.ctx, "lost")
	require.ErrorIs(t, err, eventlog.ErrConflict)
	for _, name := range []string{"other", "mine"} { // also after a commit has moved the events out of the tail
		p = begin()
		c.put(name, "4")
		c.commit()
		require.False(t, c.latest().Since(p.Base().Revision(), func(string) {}))
		require.Equal(t, name == "mine", rebase(p, nothing) == podKey("mine"))
	}
}

// TestPendingMadeAgain: an object that is made, deleted and made again is another object: only the writes of the last
// object became an event.
func TestPendingMadeAgain(t *testing.T) {
	c := newCell(t)
	p := c.latest().Pending()
	var revisions []Revision
	for _, value := range []string{"1", "", "2", "3"} {
		at, err := p.View().State(c.ctx, podKey("a"))
		require.NoError(t, err)
		w := at.Put("application/cbor", []byte(value), 0)
		if value == "" {
			w = at.Delete()
		}
		rev, err := p.Add("", w)
		require.NoError(t, err)
		revisions = append(revisions, rev)
	}
	require.Equal(t, 1, p.Len())
	last, err := p.Append(c.ctx, "again")
	require.NoError(t, err)
	for i, want := range []Revision{0, 0, last, last} {
		require.Equal(t, want, p.Appended(revisions[i]), "write %d", i)
	}
}

// TestPendingIsNotRenewed: a pending view is never combined with a newer root: its provisional revisions are above all
// others, and the root may have events after the view's base. Here every object that the base's root names is collected
// while a batch is computed.
func TestPendingIsNotRenewed(t *testing.T) {
	quiet(t)
	c, _ := spilling(t, runsPerLevel)
	slow := c.over(lax{c.bucket}, func(c *Config) { c.Budget = cache.NewBudget(1) })
	v, err := slow.Latest(c.ctx)
	require.NoError(t, err)
	p := v.Pending()
	c.put("n1", "theirs")
	replaced(t, c)
	_, err = p.View().State(c.ctx, podKey("n1"))
	require.ErrorIs(t, err, ErrExpired)
	_, _, err = p.View().Get(c.ctx, podKey("n1").RowKey(), p.View().Revision())
	require.ErrorIs(t, err, ErrExpired)
}
