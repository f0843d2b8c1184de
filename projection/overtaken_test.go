package projection

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/bucket"
)

// slowRoot does something once, after the bucket has answered a read of the root and before the answer arrives.
type slowRoot struct {
	lax
	do func()
}

func (b *slowRoot) Get(ctx context.Context, key string) (body []byte, etag string, err error) {
	body, etag, err = b.lax.Get(ctx, key)
	if do := b.do; do != nil && strings.HasSuffix(key, "/root") {
		b.do = nil
		do()
	}
	return body, etag, err
}

// TestAnOlderRootArrivesLate: a reader asks for the root before a commit, and gets this root after the commit. The
// older root does not replace the commit's root. Otherwise no view would have the events that the commit applied.
func TestAnOlderRootArrivesLate(t *testing.T) {
	c, want := spilling(t, 2)
	slow := &slowRoot{lax: lax{c.bucket}}
	p := c.over(slow, func(c *Config) { c.InlineBytes = 1 })
	_, err := p.Latest(c.ctx)
	require.NoError(t, err)
	slow.do = func() {
		want["late"] = fmt.Sprintf("x@%d", c.put("late", "x"))
		_, err := p.Commit(c.ctx)
		require.NoError(t, err)
	}
	_, err = p.Collect(c.ctx, 0) // Collect reads the root while a commit runs
	require.NoError(t, err)
	require.Nil(t, slow.do)
	v, err := p.Latest(c.ctx)
	require.NoError(t, err)
	require.Equal(t, v.Revision(), v.Applied(), "the view's root is not the newest")
	got, err := state(c.ctx, v, v.Revision())
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// overtaken is a cell, a reader that is behind, and the reader's view. Since that view was made, the floor has risen to
// the view's revision, and the segments that the view names were collected.
func overtaken(t *testing.T) (c *cell, behind *Projection, v *View) {
	t.Helper()
	c = newCell(t, func(c *Config) { c.InlineBytes = 1 })
	for i := range runsPerLevel {
		c.put("a", fmt.Sprint(i))
		c.commit()
	}
	behind = c.over(lax{c.bucket})
	v, err := behind.Latest(c.ctx)
	require.NoError(t, err)
	require.NoError(t, c.Retain(c.ctx, v.Revision(), 0))
	c.compacted()
	_, err = c.Collect(c.ctx, 0)
	require.NoError(t, err)
	return c, behind, v
}

// TestACompactionIsOvertakenByACollection: if another projector has compacted and collected a compaction's inputs, the
// compaction ends without an error.
func TestACompactionIsOvertakenByACollection(t *testing.T) {
	c, behind, _ := overtaken(t)
	merged, err := behind.Compact(c.ctx)
	require.NoError(t, err)
	require.False(t, merged)
	v, err := behind.Latest(c.ctx)
	require.NoError(t, err)
	require.Equal(t, c.latest().snap.root.Segments, v.snap.root.Segments)

	// A segment that the newest root names, but that is not in the bucket, is lost. Then the compaction fails.
	for range runsPerLevel {
		c.put("b", "b")
		c.commit()
	}
	require.NoError(t, c.bucket.Delete(c.ctx, c.latest().snap.root.Segments[0].Key))
	_, err = c.over(lax{c.bucket}).Compact(c.ctx)
	require.ErrorIs(t, err, bucket.ErrNotFound)
}

// TestAReaderIsOvertakenByTheFloor: a reader whose segments were collected continues with a newer root, but only at a
// revision that this root still has. Below its floor the newer root is incomplete.
func TestAReaderIsOvertakenByTheFloor(t *testing.T) {
	c, behind, v := overtaken(t)
	head := v.Revision()
	_, _, err := v.Get(c.ctx, podKey("a").RowKey(), head-1)
	require.ErrorIs(t, err, ErrExpired, "a get below the new floor")
	v, err = behind.Latest(c.ctx)
	require.NoError(t, err)
	got, err := state(c.ctx, v, head)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"a": fmt.Sprintf("%d@%d", runsPerLevel-1, head)}, got)
}

// TestAScanIsOvertakenByTheFloor: a scan, too, continues with a newer root only at a revision that the root still has.
// A scan continues in another way than a get.
func TestAScanIsOvertakenByTheFloor(t *testing.T) {
	c, _, v := overtaken(t)
	_, err := state(c.ctx, v, v.Revision()-1)
	require.ErrorIs(t, err, ErrExpired, "a scan below the new floor")
}

// TestEventsBelowTheFloor: events below the floor are refused, even if a segment that reaches above the floor still has
// them. Another process would not have these events, and this process would not have them after its next commit.
func TestEventsBelowTheFloor(t *testing.T) {
	c := newCell(t, func(c *Config) { c.InlineBytes = 1 })
	for i := range 4 {
		c.put("a", fmt.Sprint(i))
	}
	head := c.commit() // one segment has all events
	floor := head - 2
	require.NoError(t, c.Retain(c.ctx, floor, 0))
	read := func(after Revision) (got []Revision, err error) {
		for e, err := range c.events(c.ctx, Keys{}, after, head) {
			if err != nil {
				return got, err
			}
			got = append(got, e.Revision)
		}
		return got, nil
	}
	for after := range floor {
		got, err := read(after)
		require.ErrorIs(t, err, ErrExpired, "events after %d, the floor is %d", after, floor)
		require.Empty(t, got)
	}
	got, err := read(floor)
	require.NoError(t, err)
	require.Equal(t, []Revision{head - 1, head}, got)
	require.NoError(t, c.log.Tail(c.ctx, 0, head, func(eventlog.Event) error { return nil }), "the log still has all of them")
}

// TestAPurgeBetweenHeadAndTail: events that a reader is about to read from the log may be committed and purged first.
// Then a newer root has these events. The reader must read that root, although no newer head of the log suggests it.
func TestAPurgeBetweenHeadAndTail(t *testing.T) {
	c := newCell(t)
	c.put("a", "1")
	c.commit()
	want := map[string]string{}
	for i := range 4 {
		want["a"] = fmt.Sprintf("%d@%d", i, c.put("a", fmt.Sprint(i)))
	}
	slow := &slowRoot{lax: lax{c.bucket}, do: func() {
		require.NoError(t, c.Retain(c.ctx, 0, c.commit()))
	}}
	v, err := c.over(slow).Latest(c.ctx)
	require.NoError(t, err)
	require.Nil(t, slow.do)
	got, err := state(c.ctx, v, v.Revision())
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// TestAHoleInTheEventsIsAnError: no reader of events gets a stream with a hole, whatever the bucket holds (invariant
// 8).
func TestAHoleInTheEventsIsAnError(t *testing.T) {
	at := func(rev, span Revision) *record {
		return &record{Event: eventlog.Event{Write: eventlog.Write{Op: eventlog.Added}, Revision: rev}, span: uint64(span)}
	}
	for _, c := range []struct {
		name    string
		records []*record
		want    []Revision
		hole    bool
	}{
		{"contiguous", []*record{at(5, 1), at(6, 1), at(7, 1)}, []Revision{5, 6, 7}, false},
		{"with barriers between", []*record{at(7, 3), at(9, 2)}, []Revision{7, 9}, false},
		{"from what was delivered before", []*record{at(3, 3), at(4, 1), at(5, 1)}, []Revision{5}, false},
		{"one is missing at the start", []*record{at(6, 1)}, nil, true},
		{"one is missing", []*record{at(5, 1), at(7, 1)}, []Revision{5}, true},
		{"one is missing before barriers", []*record{at(5, 1), at(9, 3)}, []Revision{5}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			after, got := Revision(4), []Revision(nil)
			err := deliver(c.records, Keys{}, &after, 100, taker{yield: func(e eventlog.Event) bool { got = append(got, e.Revision); return true }})
			require.Equal(t, c.want, got)
			if c.hole {
				require.ErrorContains(t, err, "a hole")
			} else {
				require.NoError(t, err)
			}
		})
	}
}

// TestAScanGoesOnOverACollection: if the segment of a scan is collected meanwhile, the scan continues after its last
// row, with a newer root. No row is missing, and none is repeated.
func TestAScanGoesOnOverACollection(t *testing.T) {
	c := newCell(t, func(c *Config) { c.InlineBytes = 1 })
	var want, got []string
	for i := range 64 { // more than a scan reads ahead
		name := fmt.Sprintf("n%02d", i)
		c.put(name, incompressible(32<<10))
		want = append(want, name)
	}
	c.commit()
	cold := c.over(lax{c.bucket})
	v, err := cold.Latest(c.ctx)
	require.NoError(t, err)
	read := v.snap.root.Serial
	for row, err := range v.Scan(c.ctx, "", "", v.Revision()) {
		require.NoError(t, err)
		got = append(got, row.ID.Name)
		if len(got) == 2 {
			rewrite(t, c, cold)
		}
	}
	require.Equal(t, want, got)
	require.Greater(t, cold.Current().snap.root.Serial, read, "the scan has not met the collection")
}

// TestASwapIsWonByItsNonceAlone: two projectors each swap the same root for their own. The loser must not take the
// winner's root for its own: the winner's root has the same serial, but not the events that the loser has folded.
func TestASwapIsWonByItsNonceAlone(t *testing.T) {
	c, want := spilling(t, 2)
	slow := &between{lax: lax{c.bucket}, do: func() { require.NoError(t, c.Retain(c.ctx, 1, 0)) }}
	rev := c.put("late", "x")
	want["late"] = fmt.Sprintf("x@%d", rev)
	applied, err := c.over(slow).Commit(c.ctx)
	require.NoError(t, err)
	require.Nil(t, slow.do)
	require.Equal(t, rev, applied, "the commit's event is not applied")
	c.require(want)
}
