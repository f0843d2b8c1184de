package projection

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
)

// branches drives a tree of clusters and a model of it. The model copies the whole state of the source when a cluster
// begins, and knows nothing of inheritance.
type branches struct {
	*cell
	*rand.Rand
	names    []string
	clusters map[string]*modelled // also the ended ones, because others may begin where they were
	begun    int
	stalled  []stalled
	pad      string         // after every value
	done     map[string]int // how often the test did what it is about
}

// modelled is a cluster of the model.
type modelled struct {
	Branch
	born  Revision
	depth int
	ended bool
	// states are the states after each revision that changed something. The first is the state of the source.
	revisions []Revision
	states    []map[string]string
	live      map[string]Revision
	versions  map[string][]Revision // of each name, with the inherited one
}

// stalled is a write that was computed long before it is appended.
type stalled struct {
	w    Write
	view *View
}

func (m *modelled) at(rev Revision) map[string]string {
	i := slices.IndexFunc(m.revisions, func(r Revision) bool { return r > rev })
	if i < 0 {
		i = len(m.revisions)
	}
	return m.states[i-1]
}

func inCluster(cluster, name string) eventlog.Key {
	key := podKey(name)
	key.Cluster = cluster
	return key
}

func newBranches(c *cell, seed uint64) *branches {
	b := &branches{cell: c, Rand: rand.New(rand.NewPCG(38, seed)), clusters: map[string]*modelled{}, done: map[string]int{}}
	for i := range 8 {
		b.names = append(b.names, fmt.Sprintf("n%02d", i))
	}
	b.clusters["main"] = &modelled{revisions: []Revision{0}, states: []map[string]string{{}}, live: map[string]Revision{}, versions: map[string][]Revision{}}
	return b
}

// alive are the clusters that have not ended, in order.
func (b *branches) alive() (names []string) {
	for _, name := range slices.Sorted(maps.Keys(b.clusters)) {
		if !b.clusters[name].ended {
			names = append(names, name)
		}
	}
	return names
}

// apply gives the model an event that is in the log. The event is valid if what it replaces is what the cluster has.
func (b *branches) apply(rev Revision, w *eventlog.Write) {
	m, name := b.clusters[w.Key.Cluster], w.Key.Name
	if w.Base != m.live[name] || (w.Op == eventlog.Added) != (w.Base == 0) {
		b.done["void"]++
		return
	}
	state := maps.Clone(m.states[len(m.states)-1])
	delete(state, name)
	m.live[name] = 0
	if w.Op != eventlog.Deleted {
		state[name] = fmt.Sprintf("%s@%d", w.Body, rev)
		m.live[name] = rev
	}
	m.versions[name] = append(m.versions[name], rev)
	m.revisions, m.states = append(m.revisions, rev), append(m.states, state)
}

func (b *branches) append(v *View, w Write) {
	b.n++
	rev, err := v.Append(b.ctx, fmt.Sprint("request-", b.n), w)
	if errors.Is(err, eventlog.ErrConflict) {
		b.done["conflict"]++
		return
	}
	require.NoError(b.t, err)
	b.apply(rev, &w.event)
}

func (b *branches) step(p *Projection) {
	alive := b.alive()
	cluster, name := alive[b.IntN(len(alive))], b.names[b.IntN(len(b.names))]
	v, err := p.Latest(b.ctx)
	require.NoError(b.t, err)
	at, err := v.State(b.ctx, inCluster(cluster, name))
	require.NoError(b.t, err)
	row, live := at.Row()
	require.Equal(b.t, b.clusters[cluster].live[name], row.Revision, "%s of %s", name, cluster)
	w := at.Put("application/cbor", fmt.Append(nil, "v", b.n, b.pad), 0)
	if live && b.IntN(3) == 0 {
		w = at.Delete()
	}
	if live && b.IntN(15) == 0 { // no writer of ours does this
		w.event.Op, w.event.Base = eventlog.Added, 0
	}
	if live && row.Origin != "" {
		b.done[fmt.Sprint("inherited ", w.event.Op)]++
	}
	if b.IntN(6) == 0 {
		b.stalled = append(b.stalled, stalled{w, v})
		return
	}
	b.append(v, w)
	if len(b.stalled) > 3 {
		old := b.stalled[0]
		b.stalled = b.stalled[1:]
		if !b.clusters[old.w.event.Key.Cluster].ended {
			b.append(old.view, old.w)
		}
	}
}

// begin begins a branch of a cluster at a revision that can be read.
func (b *branches) begin(p *Projection) {
	alive := b.alive()
	source := alive[b.IntN(len(alive))]
	m := b.clusters[source]
	v, err := p.Latest(b.ctx)
	require.NoError(b.t, err)
	least := max(v.Floor(), m.revisions[0])
	at := least + Revision(b.IntN(int(v.Revision()-least)+1))
	if m.depth == MaxDepth-1 || len(alive) > 6 {
		return
	}
	of, err := v.Branch(b.ctx, source)
	require.NoError(b.t, err)
	if of != nil && at > of.At && at < of.born { // the source did not exist
		at = of.At
	}
	if err := p.Hold(b.ctx, Branch{Source: source, At: at, Of: of}); errors.Is(err, ErrExpired) { // the floor has risen
		return
	} else {
		require.NoError(b.t, err)
	}
	b.begun++
	name := fmt.Sprintf("b.%d", b.begun)
	begins := Branch{Source: source, At: at, Of: of}
	state, err := v.State(b.ctx, BranchKey(name))
	require.NoError(b.t, err)
	b.n++
	born, err := v.Append(b.ctx, fmt.Sprint("request-", b.n), state.Begin(begins))
	require.NoError(b.t, err)
	was := m.at(at)
	made := &modelled{born: born, Branch: begins, depth: m.depth + 1, revisions: []Revision{at}, states: []map[string]string{was},
		live: map[string]Revision{}, versions: map[string][]Revision{}}
	for name, value := range was {
		var rev Revision
		_, err := fmt.Sscanf(value[strings.Index(value, "@")+1:], "%d", &rev)
		require.NoError(b.t, err)
		made.live[name], made.versions[name] = rev, []Revision{rev}
	}
	b.clusters[name] = made
	b.done[fmt.Sprint("depth ", made.depth)]++
}

func (b *branches) end(p *Projection) {
	alive := b.alive()
	name := alive[b.IntN(len(alive))]
	if name == "main" {
		return
	}
	v, err := p.Latest(b.ctx)
	require.NoError(b.t, err)
	state, err := v.State(b.ctx, BranchKey(name))
	require.NoError(b.t, err)
	b.n++
	_, err = v.Append(b.ctx, fmt.Sprint("request-", b.n), state.Delete())
	require.NoError(b.t, err)
	b.clusters[name].ended = true
	for _, m := range b.clusters {
		if m.Source == name && !m.ended {
			b.done["orphan"]++
		}
	}
}

// endAll ends every branch, and checks that compaction leaves nothing of them once the floor has passed their ends.
func (b *branches) endAll(p *Projection) {
	for len(b.alive()) > 1 {
		b.end(p)
	}
	applied, err := p.Commit(b.ctx)
	require.NoError(b.t, err)
	require.NoError(b.t, p.Retain(b.ctx, applied, applied))
	v := p.Current()
	if len(v.snap.runs) > 0 {
		m := &merge{inputs: v.snap.runs, level: baseLevel, floor: v.Floor(), holds: v.snap.root.Holds, generation: v.snap.root.Generation}
		did, err := v.compact(b.ctx, m)
		require.NoError(b.t, err)
		require.True(b.t, did)
	}
	for _, run := range p.Current().snap.runs {
		for _, part := range run {
			reader, err := part.open(b.ctx)
			require.NoError(b.t, err)
			for r, err := range recordsOf(b.ctx, reader) {
				require.NoError(b.t, err)
				require.False(b.t, IsBranch(r.Key.Cluster), r.key)
			}
		}
	}
	requireClean(b.t, p)
}

// check compares one cluster with the model, at a few revisions.
func (b *branches) check(p *Projection) {
	alive := b.alive()
	cluster := alive[b.IntN(len(alive))]
	m := b.clusters[cluster]
	keys := Keys{inCluster(cluster, "").RowKey(), PrefixEnd(inCluster(cluster, "").RowKey())}
	for range 3 {
		v, err := p.Latest(b.ctx)
		require.NoError(b.t, err)
		least := max(v.Floor(), m.revisions[0])
		at := least + Revision(b.IntN(int(v.Revision()-least)+1))
		if at > m.At && at < m.born {
			_, _, err := v.Get(b.ctx, inCluster(cluster, "n00").RowKey(), at)
			require.ErrorIs(b.t, err, ErrExpired, "it did not exist")
			at = max(v.Floor(), m.born)
		}
		want, got := m.at(at), map[string]string{}
		if at < v.Floor() {
			continue
		}
		if m.At > 0 && m.At < v.Floor() {
			b.done["held"]++
		}
		last := ""
		for row, err := range v.Scan(b.ctx, keys.Start, keys.End, at) {
			require.NoError(b.t, err)
			require.Greater(b.t, row.Key, last)
			require.Equal(b.t, inCluster(cluster, row.ID.Name), eventlog.Key{Cluster: row.ID.Cluster, Resource: row.ID.Resource, Prefix: row.ID.Prefix, Namespace: row.ID.Namespace, Name: row.ID.Name})
			last, got[row.ID.Name] = row.Key, fmt.Sprintf("%s@%d", row.Value, row.Revision)
		}
		require.Equal(b.t, want, got, "%s at %d of %d to %d", cluster, at, v.Floor(), v.Revision())
		name := b.names[b.IntN(len(b.names))]
		row, live, err := v.Get(b.ctx, inCluster(cluster, name).RowKey(), at)
		require.NoError(b.t, err)
		require.Equal(b.t, want[name] != "", live)
		if live {
			require.Equal(b.t, want[name], fmt.Sprintf("%s@%d", row.Value, row.Revision))
		}
		n, err := v.Count(b.ctx, keys.Start, keys.End, at)
		require.NoError(b.t, err)
		require.Len(b.t, want, n)
		n, err = v.CountFrom(b.ctx, keys, v.Revision(), n, at)
		require.NoError(b.t, err)
		require.Len(b.t, m.at(v.Revision()), n)
		b.checkEvents(v, cluster, keys, at)
		b.checkSelection(v, keys, at, want)
		if m.At > 0 {
			_, _, err = v.Get(b.ctx, inCluster(cluster, name).RowKey(), m.At-1)
			require.ErrorIs(b.t, err, ErrExpired)
		}
	}
}

// checkPast compares one branch with the model at a moment that may be below the floor.
func (b *branches) checkPast(p *Projection) {
	alive := b.alive()
	cluster := alive[b.IntN(len(alive))]
	m := b.clusters[cluster]
	head := p.Current().Revision()
	at := m.revisions[0] + Revision(b.IntN(int(head-m.revisions[0])+1))
	if at > m.At && at < m.born {
		return
	}
	v, err := p.AsOf(b.ctx, at)
	if errors.Is(err, ErrExpired) {
		return
	}
	require.NoError(b.t, err)
	if at < p.Current().Floor() {
		b.done[fmt.Sprint("past of a branch ", m.depth > 0)]++
	}
	keys, got := Keys{inCluster(cluster, "").RowKey(), PrefixEnd(inCluster(cluster, "").RowKey())}, map[string]string{}
	for row, err := range v.Scan(b.ctx, keys.Start, keys.End, at) {
		require.NoError(b.t, err)
		got[row.ID.Name] = fmt.Sprintf("%s@%d", row.Value, row.Revision)
	}
	require.Equal(b.t, m.at(at), got, "%s at %d", cluster, at)
	name := b.names[b.IntN(len(b.names))]
	row, live, err := p.GetAt(b.ctx, inCluster(cluster, name).RowKey(), at)
	require.NoError(b.t, err)
	require.Equal(b.t, m.at(at)[name] != "", live)
	if live {
		require.Equal(b.t, m.at(at)[name], fmt.Sprintf("%s@%d", row.Value, row.Revision))
	}
	n, err := v.Count(b.ctx, keys.Start, keys.End, at)
	require.NoError(b.t, err)
	require.Len(b.t, got, n)
}

// checkSelection checks that a selection has every wanted row, and only rows that exist.
func (b *branches) checkSelection(v *View, keys Keys, at Revision, want map[string]string) {
	fact := Fact(b.IntN(4))
	got := map[string]string{}
	for row, err := range v.Select(b.ctx, keys.Start, keys.End, at, numbers(fact)) {
		require.NoError(b.t, err)
		got[row.ID.Name] = fmt.Sprintf("%s@%d", row.Value, row.Revision)
	}
	for name, value := range want {
		if f, ok := numbered(strings.ReplaceAll(value, "@", " ")); f == fact || !ok {
			require.Equal(b.t, value, got[name])
		}
	}
	for name, value := range got {
		require.Equal(b.t, want[name], value)
	}
	if len(got) < len(want) {
		b.done["left out"]++
	}
}

// checkEvents checks that the events after a revision lead from the state there to the newest state.
func (b *branches) checkEvents(v *View, cluster string, keys Keys, after Revision) {
	state := maps.Clone(b.clusters[cluster].at(after))
	for e, err := range v.EventsOf(b.ctx, keys, after, v.Revision()) {
		require.NoError(b.t, err)
		require.Equal(b.t, e.Op == eventlog.Added, state[e.Key.Name] == "")
		delete(state, e.Key.Name)
		if e.Op != eventlog.Deleted {
			state[e.Key.Name] = fmt.Sprintf("%s@%d", e.Body, e.Revision)
		}
	}
	require.Equal(b.t, b.clusters[cluster].at(v.Revision()), state)
}

// checkVersions checks that the versions of a name end with the one that it inherits.
func (b *branches) checkVersions(p *Projection) {
	alive := b.alive()
	cluster, name := alive[b.IntN(len(alive))], b.names[b.IntN(len(b.names))]
	if cluster == "main" { // what main no longer keeps, other tests are about
		return
	}
	var got []Revision
	for below := ^Revision(0); below > 0; {
		rows, next, err := p.Versions(b.ctx, inCluster(cluster, name).RowKey(), below, 1+b.IntN(4), nil)
		require.NoError(b.t, err)
		require.True(b.t, next < below)
		for _, row := range rows {
			require.Equal(b.t, cluster, row.ID.Cluster)
			got = append(got, row.Revision)
		}
		below = next
	}
	kept := slices.Clone(b.clusters[cluster].versions[name])
	slices.Reverse(kept)
	at := p.Current().Floor() // every version above the floor is kept, and the inherited one
	above := func(revs []Revision) []Revision {
		return slices.DeleteFunc(slices.Clone(revs), func(r Revision) bool { return r <= at && r > b.clusters[cluster].At })
	}
	require.Equal(b.t, above(kept), above(got), "%s of %s", name, cluster)
}

// TestBranches: in a tree of random branches, every read of every cluster equals the model, in which a branch begins as
// a copy. Several projections commit, compact, collect, purge, raise the floor and end holds meanwhile. Some writers
// stall, and parents end before their branches.
func TestBranches(t *testing.T) {
	quiet(t)
	done := map[string]int{}
	for seed := range seeds(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			small := func(c *Config) {
				c.InlineBytes = []int{1, 600, 3000}[seed%3]
				c.History, c.Checkpoints = time.Hour, []CheckpointRule{{Every: time.Millisecond, Keep: time.Hour}}
			}
			b := newBranches(newCell(t, small), seed)
			if seed%2 == 1 { // two versions fill a block
				b.pad = strings.Repeat(" ", 30_000)
			}
			cold := func() *Projection {
				p := b.over(lax{b.bucket}, small)
				p.holdTime = -1
				return p
			}
			projections := []*Projection{cold(), cold(), cold()}
			tending := random{cell: b.cell, Rand: b.Rand}
			for i := range 110 {
				p := projections[b.IntN(len(projections))]
				for range 1 + b.IntN(5) {
					b.step(p)
				}
				switch b.IntN(5) {
				case 0:
					b.begin(p)
				case 1:
					b.end(p)
				case 2:
					_, err := p.release(b.ctx)
					require.NoError(t, err)
				}
				tending.tend(p)
				if i%10 == 0 {
					p = cold()
				}
				b.check(p)
				b.checkVersions(p)
				b.checkPast(p)
			}
			for k, n := range b.done {
				done[k] += n
			}
			b.endAll(cold())
		})
	}
	if seeds(4) < 4 {
		return
	}
	for _, what := range []string{"void", "conflict", "inherited 2", "inherited 3", "depth 1", "depth 2", "depth 3", "orphan", "held", "left out", "past of a branch true"} {
		require.NotZero(t, done[what], what)
	}
}

// TestForgetWhatABranchShows: a version that a branch has inherited is forgotten only once the branch has ended.
func TestForgetWhatABranchShows(t *testing.T) {
	c := newCell(t)
	at := c.put("a", "secret")
	c.put("b", "other")
	require.NoError(t, c.Hold(c.ctx, Branch{Source: "main", At: at}))
	row, err := c.latest().State(c.ctx, BranchKey("x.1"))
	require.NoError(t, err)
	_, err = row.view.Append(c.ctx, "begin", row.Begin(Branch{Source: "main", At: at}))
	require.NoError(t, err)
	c.put("a", "public")
	keys := []string{podKey("a").RowKey()}
	_, err = c.Forget(c.ctx, keys, 0)
	require.ErrorIs(t, err, ErrShown)
	require.ErrorContains(t, err, "cluster 'x.1' has inherited revision")
	_, err = c.Forget(c.ctx, []string{podKey("b").RowKey()}, 0)
	require.NoError(t, err, "the branch begins before it")
	row, err = c.latest().State(c.ctx, BranchKey("x.1"))
	require.NoError(t, err)
	_, err = row.view.Append(c.ctx, "end", row.Delete())
	require.NoError(t, err)
	_, err = c.Forget(c.ctx, keys, 0)
	require.NoError(t, err)
}
