package projection

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// model is the fold of invariant 13 in its plainest form: the whole state at every revision.
type model struct {
	revisions []Revision          // of the events; all other revisions are barriers
	states    []map[string]string // after each of the events; the first is the state before all
	live      map[string]Revision
	last      map[string]Revision // the newest event of a key, void events included
	events    map[Revision]string // the valid ones
}

func newModel() *model {
	return &model{states: []map[string]string{{}}, live: map[string]Revision{}, last: map[string]Revision{}, events: map[Revision]string{}}
}

func (m *model) apply(rev Revision, w *eventlog.Write) {
	state := maps.Clone(m.states[len(m.states)-1])
	name := w.Key.Name
	isValid := w.Op == eventlog.Added && w.Base == 0 && m.live[name] == 0 || w.Op != eventlog.Added && w.Base != 0 && w.Base == m.live[name]
	if isValid {
		m.events[rev] = fmt.Sprintf("%d %s %s", w.Op, name, w.Body)
		if w.Op == eventlog.Deleted {
			delete(state, name)
			m.live[name] = 0
		} else {
			state[name] = fmt.Sprintf("%s@%d", w.Body, rev)
			m.live[name] = rev
		}
	}
	m.last[name] = rev
	m.revisions, m.states = append(m.revisions, rev), append(m.states, state)
}

// at is the state at a revision.
func (m *model) at(rev Revision) map[string]string {
	return m.states[sort.Search(len(m.revisions), func(i int) bool { return m.revisions[i] > rev })]
}

// after yields the valid events after a revision, in order.
func (m *model) after(rev Revision) iter.Seq2[Revision, string] {
	return func(yield func(Revision, string) bool) {
		for _, r := range m.revisions {
			if e := m.events[r]; r > rev && e != "" && !yield(r, e) {
				return
			}
		}
	}
}

// random drives a cell and a model with the same random writes, many of which are wrong.
type random struct {
	*cell
	*rand.Rand
	model *model
	names []string
	head  Revision
	since map[bool]int // how often the changes since a revision were known (true) or not (false)
	pad   int          // bytes of padding after every value
	// prefix is the prefix of an object's storage path; by default the prefix of Pods.
	prefix func(name string) string
	left   int // how many rows selections have left out
	bare   int // how many rows of ScanKeys had no value
}

func newRandom(c *cell, seed uint64, names int) *random {
	r := &random{cell: c, Rand: rand.New(rand.NewPCG(7, seed)), model: newModel(), since: map[bool]int{}}
	for i := range names {
		r.names = append(r.names, fmt.Sprintf("n%02d", i))
	}
	return r
}

func (r *random) key(name string) eventlog.Key {
	key := podKey(name)
	if r.prefix != nil {
		key.Prefix = r.prefix(name)
	}
	return key
}

// live runs this many rounds. In each round it appends some events, commits, and calls 'each'. Then it pauses, so that
// the log's clock advances.
func (r *random) live(rounds int, pause time.Duration, each func(i int)) {
	for i := range rounds {
		for range 1 + r.IntN(6) {
			r.step()
		}
		r.commit()
		each(i)
		time.Sleep(pause)
	}
}

// step appends one event: mostly a valid event, sometimes an event that the fold must find void.
func (r *random) step() {
	if r.IntN(12) == 0 {
		r.barrier()
		return
	}
	name := r.names[r.IntN(len(r.names))]
	w := eventlog.Write{Key: r.key(name), Body: []byte(fmt.Sprint("v", r.n, strings.Repeat(" ", r.pad))), Base: r.model.live[name], Precondition: r.model.last[name]}
	switch {
	case w.Base == 0:
		w.Op = eventlog.Added
	case r.IntN(3) == 0:
		w.Op = eventlog.Deleted
	default:
		w.Op = eventlog.Modified
	}
	switch wrong := r.IntN(20); {
	case wrong == 0: // a create of an object that exists; the next case: a base that is not live
		w.Op, w.Base = eventlog.Added, 0
	case wrong == 1 && r.head > 0:
		w.Op, w.Base = eventlog.Modified, Revision(1+r.IntN(int(r.head)))
		if w.Base == w.Precondition && w.Base != r.model.live[name] {
			return // no writer considers a void event or a tombstone live
		}
	}
	r.n++
	var err error
	for range 5 { // a purge between the question and the write causes a conflict
		var bounds eventlog.Bounds
		bounds, err = r.log.Head(r.ctx)
		require.NoError(r.t, err)
		if w.Precondition < bounds.First {
			w.Precondition = 0
		}
		var rev Revision
		if rev, err = r.log.Append(r.ctx, basis(r.log, bounds), fmt.Sprint("request-", r.n), w); err == nil {
			r.head = rev
			break
		}
		require.ErrorIs(r.t, err, eventlog.ErrConflict)
	}
	require.NoError(r.t, err)
	r.model.apply(r.head, &w)
}

// check compares a projection with the model at a few random revisions.
func (r *random) check(ctx context.Context, p *Projection, rng *rand.Rand) {
	v, err := p.Latest(ctx)
	require.NoError(r.t, err)
	r.checkView(ctx, v, rng)
	for checked := false; !checked; {
		floor := p.Current().Floor() // the floor may have risen if a segment of the view was collected
		after := floor + Revision(rng.IntN(int(v.Revision()-floor)+1))
		upto := after + Revision(rng.IntN(int(v.Revision()-after)+1))
		checked = r.checkEvents(ctx, p, after, upto)
	}
}

func (r *random) checkView(ctx context.Context, v *View, rng *rand.Rand) {
	for range 3 {
		at := v.Floor() + Revision(rng.IntN(int(v.Revision()-v.Floor())+1))
		want := r.model.at(at)
		got, err := state(ctx, v, at)
		require.NoError(r.t, err)
		require.Equal(r.t, want, got, "at %d of %d to %d", at, v.Floor(), v.Revision())
		name := r.names[rng.IntN(len(r.names))]
		row, ok, err := v.Get(ctx, podKey(name).RowKey(), at)
		require.NoError(r.t, err)
		value, live := want[name]
		require.Equal(r.t, live, ok)
		if ok {
			require.Equal(r.t, value, fmt.Sprintf("%s@%d", row.Value, row.Revision))
		}
		from, to := podKey(r.names[rng.IntN(len(r.names))]), podKey(r.names[rng.IntN(len(r.names))])
		n, err := v.Count(ctx, from.RowKey(), to.RowKey(), at)
		require.NoError(r.t, err)
		inside := func(state map[string]string) (n int) {
			for k := range state {
				if k >= from.Name && k < to.Name {
					n++
				}
			}
			return n
		}
		require.Equal(r.t, inside(want), n)
		since := at * 2654435761 % (v.Revision() + 1) // any revision; one below the floor is not used
		n, err = v.CountFrom(ctx, Keys{from.RowKey(), to.RowKey()}, at, inside(r.model.at(since)), since)
		require.NoError(r.t, err)
		require.Equal(r.t, inside(want), n, "at %d from %d", at, since)
		r.since[r.checkSince(v, at)]++
		r.checkSelection(ctx, v, at, want, rng)
		r.checkScanKeys(ctx, v, at)
	}
}

// checkScanKeys checks that ScanKeys yields the rows of a scan, each with the same value or none.
func (r *random) checkScanKeys(ctx context.Context, v *View, at Revision) {
	var rows []Row
	for row, err := range v.Scan(ctx, "", "", at) {
		require.NoError(r.t, err)
		require.Len(r.t, row.Value, row.Size)
		row.RequestID, row.Author = "", eventlog.Author{}
		rows = append(rows, row)
	}
	n := 0
	for row, err := range v.ScanKeys(ctx, "", "", at) {
		require.NoError(r.t, err)
		require.Less(r.t, n, len(rows))
		want := rows[n]
		if row.Value == nil && want.Size > 0 {
			r.bare++
			want.Value = nil
		}
		row.RequestID, row.Author = "", eventlog.Author{}
		require.Equal(r.t, want, row)
		n++
	}
	require.Len(r.t, rows, n)
}

// numbered is the fact of a value; false for some values, which stand for rows whose facts cannot be told.
func numbered(value string) (f Fact, ok bool) {
	n, _ := strconv.Atoi(strings.TrimLeft(strings.Fields(value)[0], "v"))
	return Fact(n % 4), n%31 != 0
}

// numbers selects the rows whose value has one of the facts.
func numbers(facts ...Fact) *Selection {
	return &Selection{Kind: "numbers", Demands: [][]Fact{facts}, Facts: func(rows iter.Seq[Row]) (all []Fact, ok bool) {
		for row := range rows {
			f, ok := numbered(string(row.Value))
			if !ok {
				return nil, false
			}
			all = append(all, f)
		}
		return all, true
	}}
}

// checkSelection checks that a selection has every wanted row, and only rows that exist.
func (r *random) checkSelection(ctx context.Context, v *View, at Revision, want map[string]string, rng *rand.Rand) {
	either, or := Fact(rng.IntN(4)), Fact(rng.IntN(4))
	got := map[string]string{}
	for row, err := range v.Select(ctx, "", "", at, numbers(either, or)) {
		require.NoError(r.t, err)
		got[row.ID.Name] = fmt.Sprintf("%s@%d", row.Value, row.Revision)
	}
	for name, value := range want {
		if f, ok := numbered(strings.ReplaceAll(value, "@", " ")); f == either || f == or || !ok {
			require.Equal(r.t, value, got[name], "%s at %d of %d to %d", name, at, v.Floor(), v.Revision())
		}
	}
	for name, value := range got {
		require.Equal(r.t, want[name], value, "%s at %d of %d to %d", name, at, v.Floor(), v.Revision())
	}
	r.left += len(want) - len(got)
}

// checkSince checks that an event since the revision names each difference between the revision and the view. A view
// knows at least all events of its tail.
func (r *random) checkSince(v *View, after Revision) (known bool) {
	seen := map[string]bool{}
	known = v.Since(after, func(key string) { seen[key] = true })
	require.True(r.t, known || after < v.Applied())
	if !known {
		return false
	}
	state := func(at Revision) map[string]string { return r.model.at(at) }
	for _, name := range r.names {
		if state(after)[name] != state(v.Revision())[name] {
			require.True(r.t, seen[podKey(name).RowKey()], "%s changed after %d, in a view of %d to %d", name, after, v.Applied(), v.Revision())
		}
		if r.model.last[name] <= after {
			require.False(r.t, seen[podKey(name).RowKey()], "%s did not change after %d", name, after)
		}
	}
	return true
}

// checkEvents returns false if a segment was collected, and the floor has meanwhile passed the revision 'after'.
func (r *random) checkEvents(ctx context.Context, p *Projection, after, upto Revision) bool {
	var got, want []string
	for e, err := range p.events(ctx, Keys{}, after, upto) {
		if errors.Is(err, ErrExpired) && after < p.Current().Floor() {
			return false
		}
		require.NoError(r.t, err)
		got = append(got, fmt.Sprintf("%d %s %s", e.Op, e.Key.Name, e.Body))
	}
	for rev, e := range r.model.after(after) {
		if rev <= upto {
			want = append(want, e)
		}
	}
	require.Equal(r.t, want, got, "events after %d up to %d", after, upto)

	of := Keys{podKey(r.names[len(r.names)/3]).RowKey(), podKey(r.names[len(r.names)/2]).RowKey()}
	var gotOf, wantOf []string
	for e, err := range p.events(ctx, of, after, upto) {
		require.NoError(r.t, err)
		gotOf = append(gotOf, fmt.Sprintf("%d %s %s", e.Op, e.Key.Name, e.Body))
	}
	for e, err := range p.events(ctx, Keys{}, after, upto) {
		require.NoError(r.t, err)
		if of.has(e.Key.RowKey()) {
			wantOf = append(wantOf, fmt.Sprintf("%d %s %s", e.Op, e.Key.Name, e.Body))
		}
	}
	require.Equal(r.t, wantOf, gotOf, "events after %d up to %d of some keys", after, upto)
	return true
}

func (r *random) checkPreconditions(ctx context.Context, v *View) {
	for name, last := range r.model.last {
		got, err := v.precondition(ctx, podKey(name))
		require.NoError(r.t, err)
		if last < v.first {
			last = 0
		}
		require.Equal(r.t, last, got, name)
		row, _, err := v.last(ctx, podKey(name))
		require.NoError(r.t, err)
		if live := r.model.live[name]; live != 0 {
			require.Equal(r.t, live, row.Revision, name)
		} else {
			require.True(r.t, row.Deleted || row.Revision == 0, name)
		}
	}
}

// TestRandomHistories: at every revision between floor and head, warm and cold projections read the same as the model.
// The histories are random, with void events and barriers (invariants 2, 3, 11, 13). Several projections commit,
// compact, collect, purge and raise the floor meanwhile.
func TestRandomHistories(t *testing.T) {
	quiet(t)
	for seed := range seeds(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			small := func(c *Config) { c.InlineBytes = []int{1, 600, 3000}[seed%3] }
			r := newRandom(newCell(t, small), seed, 25)
			r.pad = []int{40_000, 0}[seed%2] // with padding, two versions fill a block
			cold := func() *Projection { return r.over(lax{r.bucket}, small) }
			projections := []*Projection{cold(), cold(), cold()}
			for i := range 100 {
				for range 1 + r.IntN(5) {
					r.step()
				}
				p := projections[r.IntN(len(projections))]
				if r.IntN(8) == 0 {
					p = cold()
				}
				r.tend(p)
				r.check(r.ctx, projections[r.IntN(len(projections))], r.Rand)
				if i%10 == 0 {
					r.check(r.ctx, p, r.Rand)
					r.checkPreconditions(r.ctx, p.Current())
				}
			}
			v, err := r.Latest(r.ctx)
			require.NoError(t, err)
			require.Less(t, len(v.snap.runs), 3*runsPerLevel)
			require.Greater(t, r.since[true], 10)
			require.Greater(t, r.since[false], 10)
			require.Greater(t, r.bare, 100)
			if r.pad > 0 {
				require.Greater(t, r.left, 100)
			}
		})
	}
}

// TestRandomHistoriesOfSmallParts: projections also agree with the model if runs of every level are cut into small
// parts, and several parts have versions of one key.
func TestRandomHistoriesOfSmallParts(t *testing.T) {
	quiet(t)
	for seed := range seeds(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			config := func(c *Config) { c.InlineBytes = []int{1, 600}[seed%2] }
			r := newRandom(newCell(t, config), 400+seed, []int{2, 6, 25}[seed%3])
			r.pad = []int{40_000, 0, 0}[seed/2%3]
			cold := func() *Projection {
				p := r.over(lax{r.bucket}, config)
				p.partBytes = 100 + int(seed)*20
				return p
			}
			p, back := cold(), Revision(0)
			spanning := map[bool]int{} // by whether the run is the base
			for i := range 90 {
				for range 1 + r.IntN(6) {
					r.step()
				}
				_, err := p.Commit(r.ctx)
				require.NoError(t, err)
				if i%3 > 0 {
					continue
				}
				if v, keep := p.Current(), Revision(20+r.IntN(100)); v.Applied() > keep {
					back = max(back, v.Applied()-keep)
					require.NoError(t, p.Retain(r.ctx, back, back))
				}
				v := p.Current()
				m := &merge{inputs: v.snap.runs, level: baseLevel, floor: v.Floor(), generation: v.snap.root.Generation}
				if i%9 > 0 { // only the runs above the base
					m.inputs, _ = splitBase(m.inputs)
					m.level--
				}
				if len(m.inputs) > 0 {
					out, err := p.merge(r.ctx, m)
					require.NoError(t, err)
					require.NoError(t, out.commit(r.ctx))
				}
				for _, run := range p.Current().snap.runs {
					for n := range len(run) - 1 {
						if string(run[n].ref.MaxKey) == string(run[n+1].ref.MinKey) {
							spanning[run.level() == baseLevel]++
						}
						require.Less(t, run[n].ref.Rows, uint64(100))
					}
				}
				if i%4 == 0 {
					p = cold()
				}
				r.check(r.ctx, p, r.Rand)
				r.checkPreconditions(r.ctx, p.Current())
				name := r.names[r.IntN(len(r.names))]
				rows, err := p.History(r.ctx, podKey(name).RowKey())
				require.NoError(t, err)
				rows = slices.DeleteFunc(rows, func(row Row) bool { return row.Void || row.Revision <= p.Current().Floor() })
				versions, _, err := p.Versions(r.ctx, podKey(name).RowKey(), ^Revision(0), len(rows), nil)
				require.NoError(t, err)
				require.Equal(t, revisionsOf(rows), revisionsOf(versions), name)
			}
			if seed%3 == 0 {
				require.NotZero(t, spanning[true])
				require.NotZero(t, spanning[false])
			}
			requireClean(t, cold())
		})
	}
}

// seeds is how many histories a test has: one in a short run, and two under the race detector.
func seeds(n uint64) uint64 {
	switch {
	case testing.Short():
		return 1
	case eventlogtest.Slowdown > 1:
		return 2
	}
	return n
}

// tend does one of a projector's jobs.
func (r *random) tend(p *Projection) {
	var err error
	switch r.IntN(5) {
	case 0, 1:
		_, err = p.Commit(r.ctx)
	case 2:
		var v *View
		v, err = p.Latest(r.ctx)
		require.NoError(r.t, err)
		if back := Revision(r.IntN(60)); v.Applied() > back {
			err = p.Retain(r.ctx, v.Applied()-back, v.Applied()-min(back, Revision(r.IntN(60))))
		}
	case 3:
		_, err = p.compactOrJoin(r.ctx)
	case 4:
		_, err = p.Collect(r.ctx, 0)
	}
	require.NoError(r.t, err)
}

// TestRandomHistoriesOverAFailingBucket: whichever bucket requests fail, or fail but persist, later commits succeed and
// reads stay correct (invariants 6 and 7).
func TestRandomHistoriesOverAFailingBucket(t *testing.T) {
	if testing.Short() {
		t.Skip("long histories")
	}
	quiet(t)
	for seed := range seeds(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			small := func(c *Config) { c.InlineBytes = []int{1, 900}[seed%2] }
			r := newRandom(newCell(t, small), 100+seed, 25)
			projections := []*Projection{r.over(lax{r.bucket}, small), r.over(lax{r.bucket}, small)}
			faults := rand.New(rand.NewPCG(9, seed))
			for range 60 {
				for range 1 + r.IntN(5) {
					r.step()
				}
				p := projections[r.IntN(len(projections))]
				r.bucket.Inject(func(op memory.Op, _ string) memory.Fault {
					return []memory.Fault{memory.Fails, memory.FailsButPersisted, memory.Works, memory.Works, memory.Works, memory.Works}[faults.IntN(6)]
				})
				_, _ = p.Commit(r.ctx) // whether or not the commit fails, no event may be lost
				_, _ = p.Compact(r.ctx)
				_, _ = p.Collect(r.ctx, 0)
				r.bucket.Inject(nil)
				r.check(r.ctx, p, r.Rand)
				r.check(r.ctx, projections[r.IntN(2)], r.Rand)
			}
			_, err := r.Commit(r.ctx)
			require.NoError(t, err)
			_, err = r.Collect(r.ctx, 0)
			require.NoError(t, err)
			r.check(r.ctx, r.another(small), r.Rand)
			v := r.latest()
			require.Empty(t, holes(v.snap.root))
			_, err = r.Verify(r.ctx, func(problem error) { t.Error(problem) })
			require.NoError(t, err)
			for key := range keysOf(t, r.cell) {
				require.True(t, key == r.rootKey() || v.snap.root.names()[key], "%s is garbage", key)
			}
		})
	}
}

// holes lists the gaps between a root's event segments.
func holes(r *root) (gaps []string) {
	last := r.Floor
	for i, s := range r.Events {
		if s.MinRevision != last+1 && (i > 0 || s.MinRevision > last+1) {
			gaps = append(gaps, fmt.Sprintf("%d to %d", last, s.MinRevision))
		}
		last = s.MaxRevision
	}
	return gaps
}
