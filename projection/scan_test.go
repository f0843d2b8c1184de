package projection

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/cache"
	"github.com/logplane/logplane/projection/segment"
)

// TestSelectionWithoutRoom: a selection reads no more than a scan even if most of the wanted rows in the base have
// changed since, and no cache has room for the blocks.
func TestSelectionWithoutRoom(t *testing.T) {
	c := newCell(t, func(c *Config) { c.InlineBytes = 1 })
	const objects = 400
	update := func(fact string, every int) {
		for i := 0; i < objects; i += every {
			c.put(fmt.Sprintf("%03d", i), fact+incompressible(10<<10+i)) // about six in a block
		}
		c.commit()
	}
	update("a", 1)
	require.NoError(t, c.flatten(c.ctx))
	update("b", 1)
	update("c", 4)
	counted := bucket.Count(c.bucket)
	p := c.over(counted)
	v, err := p.Latest(c.ctx)
	require.NoError(t, err)
	require.Len(t, v.snap.runs, 3)
	letters := func(rows iter.Seq[Row]) (all []Fact, ok bool) {
		for row := range rows {
			all = append(all, Fact(row.Value[0]))
		}
		return all, true
	}
	wanted := &Selection{Kind: "first letters", Demands: [][]Fact{{'a'}}, Facts: letters}
	read := func(wanted *Selection) (found, reads int) {
		p.cache = newBlockCache(cache.NewBudget(0))
		reopen(t, c, v)
		before := counted.Counts().GetRange
		for row, err := range v.Select(c.ctx, "", "", v.Revision(), wanted) {
			require.NoError(t, err)
			if row.Value[0] == 'a' {
				found++
			}
		}
		return found, int(counted.Counts().GetRange - before)
	}
	_, scan := read(nil)
	read(wanted) // learns the facts
	found, selection := read(wanted)
	require.Zero(t, found)
	require.LessOrEqual(t, selection, 2*scan, "reads of %d objects that are not selected any more", objects)
}

// TestSelectionOfAFewPods selects one in a thousand of 100,000 Pods, a tenth of which were updated since. The selection
// reads the blocks that have the selected Pods, and the blocks of each newer run in the key ranges of these blocks. In
// all there are 2,079 blocks.
func TestSelectionOfAFewPods(t *testing.T) {
	const pods, labels, size, most = 100_000, 1000, 1200, 250
	label := func(i int) uint16 { return uint16(i * 7919 % 104729 % labels) }
	wanted := &Selection{Kind: "labels", Demands: [][]Fact{{7}}, Facts: func(rows iter.Seq[Row]) (all []Fact, ok bool) {
		for row := range rows {
			all = append(all, Fact(binary.LittleEndian.Uint16(row.Value)))
		}
		return all, true
	}}
	for _, runs := range []int{1, 4, 8} {
		c, rng := newCell(t), rand.New(rand.NewPCG(1, 1))
		c.put("inline", "x")
		c.commit()
		next, updated := c.latest().snap.draft(), rng.Perm(pods)[:pods/10]
		next.Segments = nil
		for depth := range runs + 1 {
			o := &output{p: c.Projection, merge: &merge{level: baseLevel}}
			layer := upTo(pods, 1)
			if depth > 0 {
				o.merge.level = 0
				layer = updated[(depth-1)*len(updated)/runs : depth*len(updated)/runs]
				slices.Sort(layer)
			}
			for _, i := range layer {
				r := newRecord(eventlog.Event{Revision: Revision(depth + 1), RequestID: "r", Write: eventlog.Write{Key: benchKey(i),
					Op: eventlog.Added, ContentType: "application/cbor", Body: binary.LittleEndian.AppendUint16(make([]byte, 0, size), label(i))[:size]}})
				require.NoError(t, o.add(c.ctx, r.keyEntry()))
			}
			require.NoError(t, o.cut(c.ctx))
			next.Segments = slices.Concat(o.refs, next.Segments)
			next.footers = append(next.footers, o.footers...)
		}
		c.become(next)
		v := c.latest()
		read := func() (found, blocks int) {
			c.cache = newBlockCache(cache.NewBudget(1 << 30))
			reopen(t, c, v)
			for row, err := range v.Select(c.ctx, "main/pods/ns-", "main/pods/ns.", v.Revision(), wanted) {
				require.NoError(t, err)
				if binary.LittleEndian.Uint16(row.Value) == 7 {
					found++
				}
			}
			for part := range eachPart(v) {
				for block := range part.reader.Load().Blocks() {
					if _, ok := c.cache.Block(part.ref.Key, block); ok {
						blocks++
					}
				}
			}
			return found, blocks
		}
		all, blocks := read()
		require.Greater(t, blocks, 2000, "the first one learns of all blocks")
		again, blocks := read()
		require.Equal(t, all, again)
		require.InDelta(t, pods/labels, all, 5)
		require.LessOrEqual(t, blocks, most, "%d newer runs", runs)
	}
}

func eachPart(v *View) iter.Seq[*part] { return slices.Values(slices.Concat(v.snap.runs...)) }

// reopen opens all key-ordered segments of a view with its projection's present cache.
func reopen(t *testing.T, c *cell, v *View) {
	for part := range eachPart(v) {
		part.reader.Store(nil)
		_, err := part.open(c.ctx)
		require.NoError(t, err)
	}
}

// TestSelectionsAreExact compares selections with all versions of every key, in random runs: with tombstones and void
// rows, keys in several blocks and parts, events of the tail that depend on older versions, and facts of some blocks
// only.
func TestSelectionsAreExact(t *testing.T) {
	c, left := newCell(t), 0
	c.latest()
	for seed := range uint64(150) {
		rng := rand.New(rand.NewPCG(seed, 3))
		h := newHistories(c, rng)
		for range 12 {
			at := 1 + Revision(rng.IntN(int(h.view.Revision())))
			want, got := h.at(at), map[string]Revision{}
			fact := 'a' + Fact(rng.IntN(4))
			for row, err := range h.view.Select(c.ctx, "", "", at, h.wanted(fact)) {
				require.NoError(t, err)
				got[row.Key] = row.Revision
			}
			for key, revision := range got {
				require.Equal(t, want[key].revision, revision, "%s at %d of seed %d", key, at, seed)
			}
			for key, r := range want {
				if r.letter == fact || r.letter == '?' {
					require.Contains(t, got, key, "at %d of seed %d", at, seed)
				}
			}
			left += len(want) - len(got)
			for part := range eachPart(h.view) { // forget what a cache may forget
				if rng.IntN(3) == 0 {
					c.facts.Remove(factsID{"letters", part.ref.Key})
				}
				if rng.IntN(3) == 0 {
					part.reader.Store(nil)
				}
			}
		}
	}
	require.Greater(t, left, 1000)
}

// histories are random versions of some keys, in a view of runs and a tail.
type histories struct {
	view *View
	all  []*record // ascending
}

func newHistories(c *cell, rng *rand.Rand) *histories {
	h, live, last := &histories{}, map[string]Revision{}, Revision(0)
	next := func(size int) *record {
		name := fmt.Sprintf("n%02d", rng.IntN(20))
		last++
		r := newRecord(eventlog.Event{Revision: last, Write: eventlog.Write{Key: podKey(name), Op: eventlog.Modified, Base: live[name],
			Body: append([]byte{"abcd?"[rng.IntN(5)*rng.IntN(2)]}, make([]byte, rng.IntN(size))...)}})
		switch {
		case rng.IntN(8) == 0: // mostly void
			r.Base = Revision(rng.IntN(int(last)))
		case r.Base == 0:
			r.Op = eventlog.Added
		case rng.IntN(5) == 0:
			r.Op, r.Body = eventlog.Deleted, nil
		case rng.IntN(2) == 0:
			r.Precondition = r.Base // certainly valid
		}
		r.void = !valid(&r.Event, 0, live[name])
		if !r.void {
			live[name] = last
			if r.Op == eventlog.Deleted {
				live[name] = 0
			}
		}
		h.all = append(h.all, r)
		return r
	}
	snap := &snapshot{}
	for range 1 + rng.IntN(4) {
		var records []*record
		for range 1 + rng.IntN(40) {
			records = append(records, next(50_000))
		}
		var parts run
		for rows := keyOrdered(records); len(rows) > 0; {
			w, n := segment.NewWriter(segment.Keys), 1+rng.IntN(len(rows))
			for _, r := range rows[:n] {
				require.NoError(c.t, w.Add(r.keyEntry()))
			}
			file, sum := w.Finish()
			ref, err := c.create(c.ctx, "seg/0", 0, file, sum)
			require.NoError(c.t, err)
			rows, parts = rows[n:], append(parts, new(root).newPart(c.Projection, ref))
		}
		snap.runs = slices.Concat([]run{parts}, snap.runs)
	}
	snap.root = &root{Applied: last}
	var events []eventlog.Event
	for range rng.IntN(10) {
		events = append(events, next(10).Event)
	}
	h.view = &View{p: c.Projection, snap: snap, tail: emptyTail(snap.root).extend(events)}
	return h
}

type lettered struct {
	revision Revision
	letter   Fact
}

// at returns the live rows at a revision.
func (h *histories) at(rev Revision) map[string]lettered {
	state := map[string]lettered{}
	for _, r := range h.all {
		switch {
		case r.Revision > rev || r.void:
		case r.Op == eventlog.Deleted:
			delete(state, r.key)
		default:
			state[r.key] = lettered{r.Revision, Fact(r.Body[0])}
		}
	}
	return state
}

func (h *histories) wanted(fact Fact) *Selection {
	return &Selection{Kind: "letters", Demands: [][]Fact{{fact}}, Facts: func(rows iter.Seq[Row]) (all []Fact, ok bool) {
		for row := range rows {
			if row.Value[0] == '?' {
				return nil, false
			}
			all = append(all, Fact(row.Value[0]))
		}
		return all, true
	}}
}
