package projection

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/memory"
	"github.com/logplane/logplane/projection/cache"
)

// cell is a log, a strict bucket and a projection of both, with a writer that knows every key's last event.
type cell struct {
	t      testing.TB
	ctx    context.Context
	conn   *nats.Conn
	log    *eventlog.Log
	bucket *memory.Bucket
	*Projection
	last map[string]lastEvent
	n    int
}

type lastEvent struct {
	revision Revision
	live     bool
}

func newCell(t testing.TB, change ...func(*Config)) *cell {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	conn := eventlogtest.Start(t)
	c := &cell{t: t, ctx: ctx, conn: conn, log: eventlogtest.Open(t, eventlog.Config{Conn: conn, InMemory: true}),
		bucket: memory.Strict(t), last: map[string]lastEvent{}}
	c.Projection = c.another(change...)
	return c
}

// another is a second projection of the same cell.
func (c *cell) another(change ...func(*Config)) *Projection {
	return c.over(c.bucket, change...)
}

func (c *cell) over(b bucket.Bucket, change ...func(*Config)) *Projection {
	config := Config{Log: c.log, Bucket: b}
	for _, f := range change {
		f(&config)
	}
	p, err := Open(config)
	require.NoError(c.t, err)
	return p
}

func podKey(name string) eventlog.Key {
	return eventlog.Key{Cluster: "main", Resource: "pods", Prefix: "/pods", Namespace: "ns", Name: name}
}

// put creates or updates an object, and remove deletes it, with the right base and precondition.
func (c *cell) put(name, value string) Revision {
	w := eventlog.Write{Key: podKey(name), Op: eventlog.Added, ContentType: "application/cbor", Body: []byte(value)}
	last := c.last[name]
	w.Precondition = last.revision
	if last.live {
		w.Op, w.Base = eventlog.Modified, last.revision
	}
	return c.write(w)
}

func (c *cell) remove(name string) Revision {
	last := c.last[name]
	return c.write(eventlog.Write{Key: podKey(name), Op: eventlog.Deleted, Base: last.revision, Precondition: last.revision,
		ContentType: "application/cbor", Body: []byte("last state")})
}

func (c *cell) write(w eventlog.Write) Revision {
	c.t.Helper()
	first, err := c.log.Head(c.ctx)
	require.NoError(c.t, err)
	if w.Precondition < first.First {
		w.Precondition = 0
	}
	c.n++
	rev, err := c.log.Append(c.ctx, basis(c.log, first), fmt.Sprint("request-", c.n), w)
	require.NoError(c.t, err)
	c.last[w.Key.Name] = lastEvent{rev, w.Op != eventlog.Deleted}
	return rev
}

// basis is the basis of a writer that has just asked for the bounds.
func basis(l *eventlog.Log, b eventlog.Bounds) eventlog.Basis {
	return eventlog.Basis{Head: b.Head, Epoch: l.Epoch()}
}

// last is the newest row of a key, tombstones included.
func (v *View) last(ctx context.Context, key eventlog.Key) (Row, bool, error) {
	n, ok, err := v.newest(ctx, key.RowKey(), v.Revision())
	if err != nil || !ok {
		return Row{}, false, err
	}
	row, err := n.row(&recordDecoder{})
	return row, true, err
}

// precondition is the revision that a write of the key must expect in the log.
func (v *View) precondition(ctx context.Context, key eventlog.Key) (Revision, error) {
	s, err := v.State(ctx, key)
	return s.expected, err
}

// inBatches gives events to Learn, each as a whole append.
func inBatches(p *Projection, events ...eventlog.Event) {
	for _, e := range events {
		p.Learn(eventlog.Batch{e})
	}
}

func (c *cell) latest() *View {
	c.t.Helper()
	v, err := c.Latest(c.ctx)
	require.NoError(c.t, err)
	return v
}

func (c *cell) commit() Revision {
	c.t.Helper()
	applied, err := c.Commit(c.ctx)
	require.NoError(c.t, err)
	return applied
}

// state is the state of the view at a revision: values by name.
func state(ctx context.Context, v *View, at Revision) (map[string]string, error) {
	out := map[string]string{}
	for row, err := range v.Scan(ctx, "", "", at) {
		if err != nil {
			return nil, err
		}
		out[row.ID.Name] = fmt.Sprintf("%s@%d", row.Value, row.Revision)
	}
	return out, nil
}

// quiet suppresses the logs of void events that a test makes on purpose.
func quiet(t testing.TB) {
	was := slog.Default()
	slog.SetDefault(slog.New(slog.DiscardHandler))
	t.Cleanup(func() { slog.SetDefault(was) })
}

// barrier appends a barrier. A replicated log has many barriers.
func (c *cell) barrier() {
	c.t.Helper()
	c.n++
	_, err := c.conn.RequestMsgWithContext(c.ctx, &nats.Msg{Subject: "logplane.log.%barrier", Header: nats.Header{
		"ce-specversion": {"1.0"}, "ce-id": {fmt.Sprint("barrier-", c.n)}, "ce-type": {"dev.logplane.barrier"},
		"ce-source": {"/barrier"}, "ce-time": {"2026-01-01T00:00:00Z"}, "Logplane-Epoch": {"0"}}})
	require.NoError(c.t, err)
}

// keysOf lists the bucket.
func keysOf(t testing.TB, c *cell) map[string]bool {
	keys := map[string]bool{}
	require.NoError(t, c.bucket.List(c.ctx, "logplane/", func(a bucket.Attributes) error { keys[a.Key] = true; return nil }))
	return keys
}

// lax is a strict bucket without the rule on reads of deleted objects, for tests that read deleted objects on purpose.
type lax struct{ *memory.Bucket }

func (b lax) Get(ctx context.Context, key string) (body []byte, etag string, err error) {
	err = bucket.ErrNotFound
	_ = b.List(ctx, key, func(a bucket.Attributes) error {
		if a.Key == key {
			body, etag, err = b.Bucket.Get(ctx, key)
		}
		return nil
	})
	return body, etag, err
}

func (b lax) GetRange(ctx context.Context, key string, offset, length int64) (part []byte, err error) {
	err = bucket.ErrNotFound
	_ = b.List(ctx, key, func(a bucket.Attributes) error {
		if a.Key == key {
			part, err = b.Bucket.GetRange(ctx, key, offset, length)
		}
		return nil
	})
	return part, err
}

func (b lax) Copy(ctx context.Context, from, to string) error {
	if _, _, err := b.Get(ctx, from); err != nil {
		return err
	}
	return b.Bucket.Copy(ctx, from, to)
}

// at returns a view of the cell as of the revision.
func (p *Projection) at(ctx context.Context, rev Revision) (*View, error) {
	return p.AsOf(ctx, rev)
}

// become makes the draft the root.
func (c *cell) become(next *draft) {
	c.t.Helper()
	_, err := c.swap(c.ctx, func(ctx context.Context, _ *View) (*draft, error) { return next, c.writeIndex(ctx, next) })
	require.NoError(c.t, err)
	require.Equal(c.t, next.Nonce, c.newest().Nonce)
}

// compactOrJoin does one compaction or one join of event segments, as a projector does.
func (p *Projection) compactOrJoin(ctx context.Context) (bool, error) {
	done, err := p.Compact(ctx)
	if err == nil && !done {
		done, err = p.joinEvents(ctx)
	}
	return done, err
}

// events are the events of the newest view, which is at least as new as upto.
func (p *Projection) events(ctx context.Context, of Keys, after, upto Revision) iter.Seq2[eventlog.Event, error] {
	return func(yield func(eventlog.Event, error) bool) {
		v, err := p.AtLeast(ctx, upto)
		if err != nil {
			yield(eventlog.Event{}, err)
			return
		}
		v.EventsOf(ctx, of, after, upto)(yield)
	}
}

// beginGeneration does the work of a collection whose grace period lets it delete nothing.
func (p *Projection) beginGeneration(ctx context.Context) error {
	_, err := p.swap(ctx, func(_ context.Context, v *View) (*draft, error) {
		next := v.snap.draft()
		next.Generation++
		return next, nil
	})
	return err
}

// rewrite puts every key-ordered segment under a new name and deletes the old segments, as compaction and collection
// do.
func rewrite(t testing.TB, c *cell, p *Projection) {
	v := c.latest()
	next := v.snap.draft()
	next.Segments = nil
	for _, s := range v.snap.root.Segments {
		body, _, err := c.bucket.Get(c.ctx, s.Key)
		require.NoError(t, err)
		s.Key += "-again"
		_, err = c.bucket.Create(c.ctx, s.Key, body)
		require.NoError(t, err)
		next.Segments = append(next.Segments, s)
	}
	c.become(next)
	for _, s := range v.snap.root.Segments {
		require.NoError(t, c.bucket.Delete(c.ctx, s.Key))
	}
	p.cache = newBlockCache(cache.NewBudget(0))
}
