package projection

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/memory"
	"github.com/logplane/logplane/projection/cache"
	"github.com/logplane/logplane/projection/segment"
)

// replaced makes every segment of a cell's root garbage, and collects it.
func replaced(t *testing.T, c *cell) {
	t.Helper()
	c.commit()
	done, err := c.Compact(c.ctx)
	require.NoError(t, err)
	require.True(t, done)
	n, err := c.Collect(c.ctx, 0)
	require.NoError(t, err)
	require.NotZero(t, n)
}

// TestStateComesFromOneView: a write is computed from one view, whatever root names the segments that are read. Here,
// before the write reads its state, another process changes the object, and every object that the view's root names is
// collected (invariant 13).
func TestStateComesFromOneView(t *testing.T) {
	quiet(t)
	c, _ := spilling(t, runsPerLevel)
	slow := c.over(lax{c.bucket}, func(c *Config) { c.Budget = cache.NewBudget(1) })
	v, err := slow.Latest(c.ctx) // the request's view
	require.NoError(t, err)
	base := c.last["n1"].revision
	theirs := c.put("n1", "theirs")
	replaced(t, c)

	at, err := v.State(c.ctx, podKey("n1"))
	require.NoError(t, err)
	row, live := at.Row()
	require.True(t, live)
	require.Equal(t, base, row.Revision)
	require.Equal(t, base, at.expected)
	_, err = v.Append(c.ctx, "ours", at.Put("application/cbor", []byte("ours"), 0))
	require.ErrorIs(t, err, eventlog.ErrConflict)
	got, err := state(c.ctx, c.latest(), c.latest().Revision())
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("theirs@%d", theirs), got["n1"])

	// Once the floor has passed the view, no write can be computed from it.
	require.NoError(t, c.Retain(c.ctx, theirs, 0))
	for range runsPerLevel {
		c.put("n2", "more")
		c.commit()
	}
	replaced(t, c)
	_, err = v.State(c.ctx, podKey("n1"))
	require.ErrorIs(t, err, ErrExpired)
	_, _, err = v.Get(c.ctx, podKey("n1").RowKey(), v.Revision())
	require.ErrorIs(t, err, ErrExpired)
	_, err = state(c.ctx, v, v.Revision())
	require.ErrorIs(t, err, ErrExpired)
}

// TestAppendTakesOneView: writes of two views cannot be one append.
func TestAppendTakesOneView(t *testing.T) {
	c := newCell(t)
	old := c.latest()
	c.put("a", "1")
	v := c.latest()
	at, err := old.State(c.ctx, podKey("b"))
	require.NoError(t, err)
	_, err = v.Append(c.ctx, "mixed", at.Put("text/plain", nil, 0))
	require.ErrorContains(t, err, "another view")
}

// TestNothingIsAppendedFromAnOldView: nothing is appended from a view that is old by either clock. Events after the
// view may have left the log, and without these events no precondition reveals that the write has lost.
func TestNothingIsAppendedFromAnOldView(t *testing.T) {
	quiet(t)
	c := newCell(t)
	c.put("a", "old")
	c.put("z", "1")
	applied := c.commit()
	require.NoError(t, c.Retain(c.ctx, 0, applied-1))
	v := c.latest()
	long := time.Now().Add(-11 * time.Second)
	for _, asked := range []time.Time{long, long.Round(0)} {
		old := *v
		old.asked = asked
		at, err := old.State(c.ctx, podKey("a"))
		require.NoError(t, err)
		require.Zero(t, at.expected)
		other := c.put("a", "another's, acknowledged first")
		c.put("z", "2")
		c.commit()
		require.NoError(t, c.Retain(c.ctx, 0, other))
		_, err = old.Append(c.ctx, "late", at.Put("application/cbor", []byte("late"), 0))
		require.ErrorIs(t, err, eventlog.ErrConflict)
		require.Equal(t, other+1, c.latest().Revision())
	}
}

// TestNothingIsAppendedOnAnotherConnection: if the log went back, it may have another event in place of an event from
// which a write is computed. So a write is appended only on the connection on which its view was proven.
func TestNothingIsAppendedOnAnotherConnection(t *testing.T) {
	c, s := onDisk(t, t.TempDir())
	conn, link := eventlogtest.ConnectThrough(t, s)
	c.log = eventlogtest.Open(t, eventlog.Config{Conn: conn})
	c.Projection = c.another()
	c.put("a", "1")
	old := c.latest()
	at, err := old.State(c.ctx, podKey("a"))
	require.NoError(t, err)
	link.Cut()
	eventlogtest.Eventually(t, "the connection is lost", func() bool { return !conn.IsConnected() })
	link.Resume()
	eventlogtest.Eventually(t, "it is back", conn.IsConnected)
	_, err = old.Append(c.ctx, "old", at.Put("application/cbor", []byte("2"), 0))
	require.ErrorIs(t, err, eventlog.ErrConflict)
	now := c.latest()
	require.Equal(t, old.Revision(), now.Revision())
	at, err = now.State(c.ctx, podKey("a"))
	require.NoError(t, err)
	_, err = now.Append(c.ctx, "now", at.Put("application/cbor", []byte("2"), 0))
	require.NoError(t, err)
}

// TestStateExpectsVoidEvents: the precondition is the revision of the key's last event, even if that event is void, but
// only as long as the log has that event.
func TestStateExpectsVoidEvents(t *testing.T) {
	quiet(t)
	c := newCell(t)
	base := c.put("a", "1")
	void := c.write(eventlog.Write{Key: podKey("a"), Op: eventlog.Added, Precondition: base, ContentType: "text/plain"})
	check := func(expected Revision) {
		t.Helper()
		at, err := c.latest().State(c.ctx, podKey("a"))
		require.NoError(t, err)
		row, live := at.Row()
		require.True(t, live)
		require.Equal(t, base, row.Revision)
		require.Equal(t, expected, at.expected)
	}
	check(void) // in the tail
	c.commit()
	check(void) // inline
	c.config.InlineBytes = 1
	c.put("b", "1")
	c.commit()
	check(void) // in a segment
	require.NoError(t, c.Retain(c.ctx, 0, void))
	check(0)
}

// TestViewsHoldWholeBatches: a view never ends inside a batch, however its events were learned. Here two followers, one
// projector and readers learn events at the same time.
func TestViewsHoldWholeBatches(t *testing.T) {
	c := newCell(t)
	c.latest()
	ctx, stop := context.WithCancel(c.ctx)
	var all sync.WaitGroup
	const size = 10
	whole := func(r Revision) bool {
		if r%size != 0 {
			t.Errorf("a view ends at %d, inside a batch", r)
			stop()
		}
		return ctx.Err() == nil
	}
	for range 2 {
		all.Go(func() {
			_ = c.log.Follow(ctx, eventlog.Position{}, func(b eventlog.Batch) error {
				c.Learn(b)
				if len(b) != size {
					t.Errorf("a batch of %d", len(b))
				}
				return nil
			})
		})
	}
	all.Go(func() {
		for ctx.Err() == nil {
			if applied, err := c.Commit(ctx); err == nil {
				whole(applied)
			}
		}
	})
	for range 2 {
		all.Go(func() {
			for v := c.Current(); whole(v.Revision()) && whole(c.Current().Revision()); {
				var err error
				if v, err = c.Latest(ctx); err != nil {
					return
				}
			}
		})
	}
	for i := range 200 {
		var batch []eventlog.Write
		for k := range size {
			batch = append(batch, eventlog.Write{Key: podKey(fmt.Sprintf("%05d-%d", i, k)), Op: eventlog.Added, ContentType: "application/cbor", Body: []byte("c")})
		}
		_, err := c.log.Append(c.ctx, eventlog.Basis{}, fmt.Sprint("batch-", i), batch...)
		require.NoError(t, err)
	}
	stop()
	all.Wait()
}

// TestLongTailsAreCutBetweenBatches: a tail that is too long for one read is cut at the end of a batch.
func TestLongTailsAreCutBetweenBatches(t *testing.T) {
	c := newCell(t)
	body := []byte(strings.Repeat("x", 100<<10))
	const size = 30 // 3 MB
	for i := range 4 {
		var batch []eventlog.Write
		for k := range size {
			batch = append(batch, eventlog.Write{Key: podKey(fmt.Sprint(i, "-", k)), Op: eventlog.Added, ContentType: "text/plain", Body: body})
		}
		_, err := c.log.Append(c.ctx, eventlog.Basis{}, fmt.Sprint("batch-", i), batch...)
		require.NoError(t, err)
	}
	bounds, err := c.log.Head(c.ctx)
	require.NoError(t, err)
	require.EqualValues(t, 4*size, bounds.Head)
	require.NoError(t, c.reading.enter(c.ctx))
	for steps := 0; c.Current() == nil || c.Current().Revision() < bounds.Head; steps++ {
		require.Less(t, steps, 10)
		_, err := c.step(c.ctx, bounds)
		require.NoError(t, err)
		require.Zero(t, c.Current().Revision()%size)
	}
	c.reading.leave()
}

// afterRoot does something after each read of the root.
type afterRoot struct {
	bucket.Bucket
	do func()
}

func (b *afterRoot) Get(ctx context.Context, key string) ([]byte, string, error) {
	body, etag, err := b.Bucket.Get(ctx, key)
	if strings.HasSuffix(key, "/root") && b.do != nil {
		b.do()
	}
	return body, etag, err
}

// TestAnOldRootProvesNoHole: a root does not prove a hole if another process committed and purged after the root was
// read. Here a request ends between its reads of the root and of the tail, and the next request reads the root again.
func TestAnOldRootProvesNoHole(t *testing.T) {
	c := newCell(t)
	for range 5 {
		c.put("a", "1")
	}
	c.commit()
	for range 5 {
		c.put("b", "1")
	}
	b := &afterRoot{Bucket: c.bucket}
	reader, err := Open(Config{Log: eventlogtest.Open(t, eventlog.Config{Conn: c.conn, InMemory: true}), Bucket: b})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(c.ctx)
	b.do = cancel
	_, err = reader.Latest(ctx)
	require.ErrorIs(t, err, context.Canceled)
	b.do = nil
	head := c.commit()
	require.NoError(t, c.Retain(c.ctx, 8, 8))
	v, err := reader.Latest(c.ctx)
	require.NoError(t, err)
	require.Equal(t, head, v.Revision())
}

// TestValid: only the fold's rule decides which events are part of the history. An event of an older epoch is not part
// of the history, and neither is a change without a base. All callers get the same answer.
func TestValid(t *testing.T) {
	quiet(t)
	c := newCell(t)
	live := c.put("live", "1")
	c.put("gone", "1")
	gone := c.remove("gone")
	var events []eventlog.Event
	bad := func(w eventlog.Write) { c.write(w) }
	bad(eventlog.Write{Op: eventlog.Modified, Key: podKey("never")})                                                // base 0 of an absent key
	bad(eventlog.Write{Op: eventlog.Deleted, Key: podKey("gone"), Precondition: gone})                              // base 0 of a tombstone
	bad(eventlog.Write{Op: eventlog.Added, Key: podKey("live"), Precondition: live})                                // it exists
	bad(eventlog.Write{Op: eventlog.Modified, Key: podKey("absent"), Base: live})                                   // another key's base
	good := c.write(eventlog.Write{Op: eventlog.Modified, Key: podKey("live"), Base: live, Precondition: live + 5}) // after the void one
	head := c.latest().Revision()
	require.NoError(t, c.log.Tail(c.ctx, 0, head, func(e eventlog.Event) error { events = append(events, e); return nil }))
	want := map[Revision]bool{1: true, 2: true, 3: true, good: true}
	check := func(p *Projection) {
		t.Helper()
		passed := map[Revision]bool{}
		for e, err := range p.events(c.ctx, Keys{}, 0, head) {
			require.NoError(t, err)
			passed[e.Revision] = true
		}
		require.Equal(t, want, passed)
		for i := range events {
			valid, err := p.Valid(c.ctx, &events[i])
			require.NoError(t, err)
			require.Equal(t, want[events[i].Revision], valid, "revision %d", events[i].Revision)
		}
	}
	check(c.another())
	c.commit()
	check(c.another())
	check(c.Projection)
	for op := eventlog.Barrier; op <= eventlog.Deleted; op++ {
		old := eventlog.Event{Write: eventlog.Write{Op: op, Base: 3, Precondition: 3}, Epoch: 1}
		require.False(t, valid(&old, 2, 3))
		require.True(t, hopeless(&old, 2))
		require.False(t, certain(&old, 2))
	}
}

// beforeEvents does something once, before the first read of an event segment.
type beforeEvents struct {
	bucket.Bucket
	once sync.Once
	do   func()
}

func (b *beforeEvents) GetRange(ctx context.Context, key string, offset, length int64) ([]byte, error) {
	if strings.Contains(key, "/events/") {
		b.once.Do(b.do)
	}
	return b.Bucket.GetRange(ctx, key, offset, length)
}

// TestRevisionAtExpires: a time has expired if its events disappear during the search for them. Such a disappearance
// does not count as a missing segment.
func TestRevisionAtExpires(t *testing.T) {
	c, _ := spilling(t, 6)
	p := c.over(&beforeEvents{Bucket: lax{c.bucket}, do: func() {
		require.NoError(t, c.Retain(c.ctx, 4, 0))
		n, err := c.Collect(c.ctx, 0)
		require.NoError(t, err)
		require.NotZero(t, n)
	}})
	_, err := p.RevisionAt(c.ctx, time.Now().Add(-time.Hour))
	require.ErrorIs(t, err, ErrExpired)
}

// TestPinsEndWithTheirCheckpoint: when a checkpoint has expired, the names that it pinned are forgotten.
func TestPinsEndWithTheirCheckpoint(t *testing.T) {
	c := newCell(t, func(c *Config) { c.Checkpoints = []CheckpointRule{{Every: time.Nanosecond, Keep: time.Nanosecond}} })
	for i := range 5 {
		c.put("a", fmt.Sprint(i))
		c.commit()
		_, err := c.needed(c.ctx, c.Current().snap.root, nil)
		require.NoError(t, err)
	}
	pinned := 0
	c.pins.Range(func(any, any) bool { pinned++; return true })
	require.Equal(t, len(c.Current().snap.root.Checkpoints), pinned)
	require.Less(t, pinned, 5)
}

// TestABlockLargerThanTheCache: a block that is larger than the cache pushes out no other block.
func TestABlockLargerThanTheCache(t *testing.T) {
	c := newBlockCache(cache.NewBudget(1100))
	c.Keep("a", 0, &segment.Block{Bytes: 600})
	c.Keep("b", 0, &segment.Block{Bytes: 1101})
	_, ok := c.Block("a", 0)
	require.True(t, ok)
	_, ok = c.Block("b", 0)
	require.False(t, ok)
}

// TestSummariesTakeLittle: a summary takes the memory that it counts, and keeps no value of the block.
func TestSummariesTakeLittle(t *testing.T) {
	var entries []segment.Entry
	for i := range 50 {
		r := newRecord(eventlog.Event{RequestID: strings.Repeat("r", 36), Write: eventlog.Write{
			Key: podKey(fmt.Sprint("pod-", i)), Op: eventlog.Added, Body: make([]byte, 1<<10), ContentType: "application/x-other",
			Author: eventlog.Author{User: "system:serviceaccount:kube-system:replicaset-controller"}}})
		r.Revision = Revision(i + 1)
		entries = append(entries, r.keyEntry())
	}
	o := summaryOf(&segment.Block{Entries: entries})
	require.Less(t, o.Bytes, 50*200)
	held, decoder := len(o.Entries)*int(unsafe.Sizeof(segment.Entry{})), recordDecoder{}
	for i, e := range o.Entries {
		held += len(e.Key) + cap(e.Value)
		row, err := decoder.row(e)
		require.NoError(t, err)
		require.Equal(t, 1<<10, row.Size)
		require.Empty(t, row.Value)
		require.Equal(t, "application/x-other", row.ContentType)
		require.Equal(t, fmt.Sprint("pod-", i), row.ID.Name)
	}
	require.Equal(t, o.Bytes, held)
	first := unsafe.SliceData(entries[0].Value)
	require.NotSame(t, first, unsafe.SliceData(o.Entries[0].Value))
}

// TestReadOncePushesOutNothing: a block that was read by a once or a summaries reader is the first to be dropped,
// however often such readers read it.
func TestReadOncePushesOutNothing(t *testing.T) {
	budget := cache.NewBudget(1 << 20)
	c := newBlockCache(budget)
	single, summary := c, c
	single.how, summary.how = once, summaries
	c.Keep("used", 0, &segment.Block{Bytes: 100})
	for range 2 {
		for _, through := range []segment.Cache{single, summary} {
			_, ok := through.Block("once", 0)
			if !ok {
				through.Keep("once", 0, &segment.Block{Bytes: 100})
			}
		}
	}
	_, found := single.Block("once", 0)
	require.True(t, found)
	budget.DropCold()
	_, found = single.Block("once", 0)
	require.False(t, found)
	_, found = c.Block("used", 0)
	require.True(t, found)
}

// TestAProjectorOutlivesABucketThatFails: a projector that starts while the bucket refuses writes keeps trying, and
// readers still work meanwhile. A fault that an operator must repair ends the projector.
func TestAProjectorOutlivesABucketThatFails(t *testing.T) {
	quiet(t)
	c := newCell(t)
	head := c.put("a", "1")
	tried := make(chan struct{}, 100)
	c.bucket.Inject(func(op memory.Op, _ string) memory.Fault {
		if op == memory.OpCreate {
			tried <- struct{}{}
			return memory.Fails
		}
		return memory.Works
	})
	ctx, stop := context.WithCancel(c.ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx, time.Millisecond) }()
	for range swapAttempts + 1 { // the projector has started over
		<-tried
	}
	require.Equal(t, head, c.latest().Revision())
	c.bucket.Inject(nil)
	for c.Current().Applied() < head {
		require.NoError(t, c.ctx.Err())
		time.Sleep(time.Millisecond)
	}
	stop()
	require.NoError(t, <-ended)

	c.put("a", "2")
	c.put("a", "3")
	require.NoError(t, c.log.Purge(c.ctx, head+1)) // no process purges so much
	require.ErrorIs(t, c.another().Run(c.ctx, time.Millisecond), ErrHole)
}

// refusing accepts everything but a root.
type refusing struct{ lax }

func (b *refusing) Replace(context.Context, string, []byte, string) (string, error) {
	return "", errors.New("503 Slow Down")
}

// TestAProjectorEndsWithItsLog: a projector whose log is gone returns an error, even while the bucket refuses the root
// or while the projector waits for its next commit.
func TestAProjectorEndsWithItsLog(t *testing.T) {
	quiet(t)
	for name, b := range map[string]func(*cell) bucket.Bucket{
		"the bucket refuses": func(c *cell) bucket.Bucket { return &refusing{lax{c.bucket}} },
		"it waits":           func(c *cell) bucket.Bucket { return c.bucket },
	} {
		t.Run(name, func(t *testing.T) {
			c := newCell(t)
			c.put("a", "1")
			c.commit()
			p := c.over(b(c))
			ended := make(chan error, 1)
			go func() { ended <- p.Run(t.Context(), time.Hour) }()
			eventlogtest.Eventually(t, "there is a view", func() bool { return p.Current() != nil })
			rev := c.put("b", "1")
			eventlogtest.Eventually(t, "it learns of the event", func() bool { return p.Current().Revision() >= rev })
			c.conn.Close()
			select {
			case err := <-ended:
				require.Error(t, err)
			case <-time.After(20 * time.Second):
				t.Fatal("it goes on without a log")
			}
		})
	}
}
