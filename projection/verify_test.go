package projection

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/memory"
	"github.com/logplane/logplane/projection/segment"
)

// rewritten replaces a cell's snapshot by one segment of these rows and one of these events, with correct checksums.
func (c *cell) rewritten(rows, events []*record) {
	v := c.latest()
	next := v.snap.root.clone()
	next.Segments, next.Events, next.Inline, next.Spilled = nil, nil, nil, next.Applied
	file, sum, err := sealRecords(events)
	require.NoError(c.t, err)
	sum.MinRevision, sum.MaxRevision = 1, uint64(next.Applied)
	ref, err := c.create(c.ctx, "events", 0, file, sum)
	require.NoError(c.t, err)
	next.Events = []segmentRef{ref}
	w := segment.NewWriter(segment.Keys)
	for _, r := range keyOrdered(rows) {
		require.NoError(c.t, w.Add(r.keyEntry()))
	}
	file, sum = w.Finish()
	ref, err = c.create(c.ctx, "seg/0", 0, file, sum)
	require.NoError(c.t, err)
	next.Segments = []segmentRef{ref}
	body := encodeRoot(next)
	_, err = c.Projection.config.Bucket.Replace(c.ctx, c.rootKey(), body, v.snap.etag)
	require.NoError(c.t, err)
}

// TestContradictionsAreFound: a comparison of rows, events and log finds wrong contents that have correct checksums.
func TestContradictionsAreFound(t *testing.T) {
	changed := func(records []*record, at int, change func(*record)) []*record {
		out := slices.Clone(records)
		r := *out[at]
		change(&r)
		out[at] = &r
		return out
	}
	less := func(records []*record, at int) []*record { return slices.Delete(slices.Clone(records), at, at+1) }
	body := func(r *record) { r.Body = []byte("other") }
	for name, test := range map[string]struct {
		make func([]*record) (rows, events []*record)
		want string
	}{
		"nothing":         {func(r []*record) ([]*record, []*record) { return r, r }, ""},
		"a row is gone":   {func(r []*record) ([]*record, []*record) { return less(r, 2), r }, "the event at revision 3 has no row"},
		"an event is not": {func(r []*record) ([]*record, []*record) { return r, less(r, 2) }, "a hole between revisions 2 and 4"},
		"an event turned into a barrier": {func(r []*record) ([]*record, []*record) {
			return r, changed(r, 2, func(r *record) { *r = record{span: 1, Event: eventlog.Event{Revision: 3, Time: r.Time}} })
		}, "the row at revision 3 has no event"},
		"another value": {func(r []*record) ([]*record, []*record) { return changed(r, 1, body), r }, "row and event at revision 2 differ"},
		"another request": {func(r []*record) ([]*record, []*record) {
			return r, changed(r, 1, func(r *record) { r.RequestID = "x" })
		}, "row and event at revision 2 differ"},
		"both are wrong": {func(r []*record) ([]*record, []*record) { r = changed(r, 1, body); return r, r }, "log and snapshot differ at revision 2"},
		"a lost event": {func(r []*record) ([]*record, []*record) {
			r = changed(r, 1, func(r *record) { r.void = true })
			return r, r
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCell(t)
			for _, name := range []string{"a", "b", "c", "a", "b"} {
				c.put(name, "x")
			}
			c.commit()
			rows, events := test.make(c.latest().snap.records)
			c.rewritten(rows, events)
			var problems []string
			v, err := c.another().Verify(c.ctx, func(problem error) { problems = append(problems, problem.Error()) })
			require.NoError(t, err)
			if test.want == "" {
				require.Empty(t, problems)
				require.EqualValues(t, 5, v.LogEvents)
				return
			}
			require.Contains(t, strings.Join(problems, "\n"), test.want)
		})
	}
}

// TestOrphansAreCounted: orphans and foreign objects are counted, and are not a problem. A named object that is missing
// is a problem.
func TestOrphansAreCounted(t *testing.T) {
	c, _ := spilling(t, 3)
	for _, key := range []string{"logplane/seg/0/orphan", "logplane/ckpt/orphan", "logplane/notes"} {
		_, err := c.bucket.Create(c.ctx, key, []byte("1234"))
		require.NoError(t, err)
	}
	v, err := c.Verify(c.ctx, func(problem error) { t.Error(problem) })
	require.NoError(t, err)
	require.Equal(t, 2, v.Orphans)
	require.EqualValues(t, 8, v.OrphanBytes)
	require.Equal(t, 1, v.Foreign)
	gone := c.latest().snap.root.Segments[0].Key
	var problems []string
	_, err = c.over(without{c.bucket, gone}).Verify(c.ctx, func(problem error) { problems = append(problems, problem.Error()) })
	require.NoError(t, err)
	require.Len(t, problems, 1)
	require.Contains(t, problems[0], gone)
}

// without is a bucket that has lost an object.
type without struct {
	*memory.Bucket
	gone string
}

func (b without) Get(ctx context.Context, key string) ([]byte, string, error) {
	if key == b.gone {
		return nil, "", bucket.ErrNotFound
	}
	return b.Bucket.Get(ctx, key)
}

// TestRowsAtTheFloorAreCompared: at the floor the newest version of each key has a row; older versions need none. The
// facts of all rows and events take 32 bytes each, and no more memory than that was allocated.
func TestRowsAtTheFloorAreCompared(t *testing.T) {
	require.EqualValues(t, 32, unsafe.Sizeof(fact{}))
	for gone, want := range map[int]string{0: "", 3: "the event at revision 4, its key's last at the floor, has no row"} {
		c := newCell(t, func(c *Config) { c.History = time.Hour })
		for _, name := range []string{"a", "b", "c", "a", "b"} {
			c.put(name, "x")
		}
		c.commit()
		require.NoError(t, c.Retain(c.ctx, 4, 0))
		records := c.latest().snap.records
		c.rewritten(slices.Delete(slices.Clone(records), gone, gone+1), records)
		v := &verification{p: c.another()}
		require.NoError(t, v.run(c.ctx))
		require.Len(t, v.rows, 4)
		require.Len(t, v.events, 5)
		require.Equal(t, 4+5, cap(v.rows)+cap(v.events))
		require.Equal(t, want, strings.Join(texts(v.problems), "\n"))
	}
}

func texts(problems []error) (all []string) {
	for _, problem := range problems {
		all = append(all, problem.Error())
	}
	return all
}
