package kubestore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"k8s.io/apimachinery/pkg/api/apitesting"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/storage"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/kubestore/fanout"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/filesystem"
	"github.com/logplane/logplane/projection/bucket/memory"
	"github.com/logplane/logplane/projection/cache"
)

var (
	scheme = runtime.NewScheme()
	codecs = serializer.NewCodecFactory(scheme)
)

func init() {
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	utilruntime.Must(example.AddToScheme(scheme))
	utilruntime.Must(examplev1.AddToScheme(scheme))
}

// prefix is the text that the transformer of upstream's suites puts before every value.
const prefix = "test!"

// kinds are the buckets on which the suites run.
var kinds = map[string]func(testing.TB) bucket.Bucket{
	"filesystem": func(t testing.TB) bucket.Bucket {
		b, err := filesystem.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		return b
	},
	"strict": func(t testing.TB) bucket.Bucket { return memory.Strict(t) },
}

// bed is a cell with one process: a log of its own on a shared server, a projection, a feed.
type bed struct {
	Cell
	t      testing.TB
	bucket bucket.Bucket
	stream string
}

var beds atomic.Int64

// newBed makes an empty cell; small snapshots spill to segments at once.
func newBed(t testing.TB, conn *nats.Conn, b bucket.Bucket) *bed {
	t.Helper()
	name := fmt.Sprintf("cell%d", beds.Add(1))
	_, onDisk := b.(*filesystem.Bucket)
	log := eventlogtest.Open(t, eventlog.Config{Conn: conn, Stream: name, Prefix: name, InMemory: !onDisk})
	bd := &bed{Cell: Cell{Log: log, Cluster: "main"}, t: t, bucket: b, stream: name}
	bd.barrier()
	bd.Cell = process(t, log, b)
	return bd
}

// expire stands in for the lifecycle: it follows the log and deletes objects whose time to live has passed.
func (b *bed) expire(ctx context.Context) {
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		var seen eventlog.Revision
		follow := func(batch eventlog.Batch) error {
			e := batch[0] // objects with a time to live have no claims
			seen = batch[len(batch)-1].Revision
			if e.TTL == 0 || e.Op == eventlog.Deleted {
				return nil
			}
			running.Go(func() {
				select {
				case <-time.After(time.Duration(e.TTL) * time.Second):
				case <-ctx.Done():
					return
				}
				_, err := b.Log.Append(ctx, eventlog.Basis{}, fmt.Sprintf("expire-%d", e.Revision), eventlog.Write{
					Key: e.Key, Op: eventlog.Deleted, Base: e.Revision, Precondition: e.Revision,
					ContentType: e.ContentType, Body: e.Body,
				})
				if err != nil && ctx.Err() == nil {
					b.t.Errorf("expire %s: %v", e.Key.Path(), err)
				}
			})
			return nil
		}
		for ctx.Err() == nil { // a busy machine may break the follow off
			if err := b.Log.Follow(ctx, eventlog.Position{Revision: seen}, follow); ctx.Err() == nil {
				b.t.Logf("following the log for what expires: %v", err)
			}
		}
	})
	b.t.Cleanup(func() { stop(); running.Wait() })
}

// process is another process of the cell.
func process(t testing.TB, log *eventlog.Log, b bucket.Bucket) Cell {
	t.Helper()
	p, err := projection.Open(projection.Config{Log: log, Bucket: b, InlineBytes: 4 << 10})
	if err != nil {
		t.Fatal(err)
	}
	feed := fanout.NewFeed(p)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- feed.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil && !errors.Is(err, eventlog.ErrFenced) {
			t.Errorf("the feed failed: %v", err)
		}
	})
	return Cell{Log: log, Projection: p, Cluster: "main", Objects: NewObjects(cache.NewBudget(8 << 20)), Feed: feed}
}

// barrier appends an event that changes no object of the suites, and returns the new head.
func (b *bed) barrier() int64 {
	b.t.Helper()
	rev, err := b.Log.Append(b.t.Context(), eventlog.Basis{}, fmt.Sprintf("barrier-%d", beds.Add(1)), eventlog.Write{
		Key: eventlog.Key{Cluster: b.Cluster, Resource: "steps", Prefix: "/steps", Name: fmt.Sprintf("step-%d", beds.Add(1))},
		Op:  eventlog.Added, ContentType: "text/plain",
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return int64(rev)
}

func (b *bed) commit(ctx context.Context) {
	b.t.Helper()
	if _, err := b.Projection.Commit(ctx); err != nil && ctx.Err() == nil {
		b.t.Errorf("commit: %v", err)
	}
}

// purge commits, and then purges every event that may leave the log. After that, all reads come from segments and all
// preconditions are 0.
func (b *bed) purge(ctx context.Context) {
	b.t.Helper()
	b.commit(ctx)
	v := b.Projection.Current()
	if v != nil && ctx.Err() == nil {
		if err := b.Projection.Retain(ctx, 0, v.Applied()); err != nil && ctx.Err() == nil {
			b.t.Errorf("purge: %v", err)
		}
	}
}

func pods(t value.Transformer) Resource {
	return Resource{
		GroupResource: schema.GroupResource{Resource: "pods"}, Prefix: "/pods", Namespaced: true,
		Codec:       apitesting.TestCodec(codecs, examplev1.SchemeGroupVersion),
		ContentType: "application/json",
		NewFunc:     func() runtime.Object { return &example.Pod{} },
		NewListFunc: func() runtime.Object { return &example.PodList{} },
		Transformer: t,
		Indexers:    storage.IndexerFuncs{"spec.nodeName": func(obj runtime.Object) string { return obj.(*example.Pod).Spec.NodeName }},
	}
}

// swapped is a transformer that the suites replace under a running store.
type swapped struct {
	mu sync.RWMutex
	t  value.Transformer
}

func (s *swapped) get() value.Transformer {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.t
}

func (s *swapped) set(t value.Transformer) (before value.Transformer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, s.t = s.t, t
	return before
}

func (s *swapped) TransformFromStorage(ctx context.Context, data []byte, dataCtx value.Context) ([]byte, bool, error) {
	return s.get().TransformFromStorage(ctx, data, dataCtx)
}

func (s *swapped) TransformToStorage(ctx context.Context, data []byte, dataCtx value.Context) ([]byte, error) {
	return s.get().TransformToStorage(ctx, data, dataCtx)
}

// stepped is a store that forces commits between its calls, so that reads cross snapshot and tail.
type stepped struct {
	*store
	bed         *bed
	transformer *swapped
	// step is called after every write, and before every read.
	step func(ctx context.Context)
	// chunks makes every list come in chunks.
	chunks bool
}

// modes say when a commit is forced.
var modes = map[string]func(b *bed) func(context.Context){
	"never":  func(*bed) func(context.Context) { return func(context.Context) {} },
	"always": func(b *bed) func(context.Context) { return b.commit },
	"purged": func(b *bed) func(context.Context) { return b.purge },
	"random": func(b *bed) func(context.Context) {
		var mu sync.Mutex
		r := rand.New(rand.NewPCG(1, 2))
		return func(ctx context.Context) {
			mu.Lock()
			commit := r.IntN(3) == 0
			mu.Unlock()
			if commit {
				b.commit(ctx)
			}
		}
	},
}

func newStepped(b *bed, mode string) *stepped {
	t := &swapped{t: storagetesting.NewPrefixTransformer([]byte(prefix), false)}
	return &stepped{store: newStore(b.Cell, pods(t)), bed: b, transformer: t, step: modes[mode](b)}
}

// Create has a deadline of its own. A suite of watches gives all of its hundred writes three seconds. On a busy machine
// that is too short, and the suite counts every write that is not finished in time as a failure.
func (s *stepped) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	defer s.step(ctx)
	return s.store.Create(ctx, key, obj, out, ttl)
}

func (s *stepped) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, cached runtime.Object, opts storage.DeleteOptions) error {
	defer s.step(ctx)
	return s.store.Delete(ctx, key, out, preconditions, validate, cached, opts)
}

func (s *stepped) GuaranteedUpdate(ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc, cached runtime.Object) error {
	defer s.step(ctx)
	return s.store.GuaranteedUpdate(ctx, key, destination, ignoreNotFound, preconditions, tryUpdate, cached)
}

func (s *stepped) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	s.step(ctx)
	return s.store.Get(ctx, key, opts, out)
}

func (s *stepped) GetList(ctx context.Context, key string, opts storage.ListOptions, out runtime.Object) error {
	s.step(ctx)
	if s.chunks {
		return listInChunks(ctx, s.store, key, opts, out)
	}
	return s.store.GetList(ctx, key, opts, out)
}

// UpdatePrefixTransformer is upstream's hook.
func (s *stepped) UpdatePrefixTransformer(modify storagetesting.PrefixTransformerModifier) func() {
	changed := *s.transformer.get().(*storagetesting.PrefixTransformer)
	before := s.transformer.set(modify(&changed))
	return func() { s.transformer.set(before) }
}

// UpdateTransformer is upstream's hook.
func (s *stepped) UpdateTransformer(modify storagetesting.TransformerModifier) func() {
	before := s.transformer.set(modify(s.transformer.get()))
	return func() { s.transformer.set(before) }
}

// setFailing is upstream's hook: it makes every transformation of a stored value fail, or succeed again.
func (s *stepped) setFailing(failing bool) {
	if failing {
		s.transformer.set(corrupting{s.transformer.get()})
	} else if c, ok := s.transformer.get().(corrupting); ok {
		s.transformer.set(c.Transformer)
	}
}

type corrupting struct{ value.Transformer }

func (corrupting) TransformFromStorage(context.Context, []byte, value.Context) ([]byte, bool, error) {
	return nil, true, errFlipped
}

var errFlipped = errors.New("bits flipped")

// validate is upstream's hook that checks the stored value.
func (s *stepped) validate(ctx context.Context, t *testing.T, key string) {
	t.Helper()
	v, err := s.Consistent(ctx)
	if err != nil {
		t.Fatal(err)
	}
	row, found, err := v.Get(ctx, s.rowKey(key), v.Revision())
	if err != nil || !found {
		t.Fatalf("row of %s: found=%v, %v", key, found, err)
	}
	decoded, err := runtime.Decode(s.Codec, []byte(strings.TrimPrefix(string(row.Value), prefix)))
	if err != nil {
		t.Fatalf("decode %q: %v", row.Value, err)
	}
	pod := decoded.(*example.Pod)
	if pod.ResourceVersion != "" {
		t.Errorf("the stored object has resourceVersion %q", pod.ResourceVersion)
	}
}

// reads is upstream's hook that counts the values which a list has read.
func (s *stepped) reads(t *testing.T, _, want uint64) {
	t.Helper()
	if s.transformer == nil { // nothing counts the values
		return
	}
	got := s.transformer.get().(*storagetesting.PrefixTransformer).GetReadsAndReset()
	if got != want {
		t.Errorf("%d values were read, want %d", got, want)
	}
}

// increaseRV is upstream's hook. Any read of etcd sees the new revision, so increaseRV makes the process learn the
// revision.
func (s *stepped) increaseRV(ctx context.Context, t *testing.T) int64 {
	t.Helper()
	rev := s.bed.barrier()
	if _, err := s.Projection.Latest(ctx); err != nil {
		t.Fatal(err)
	}
	return rev
}

// shortly returns a context that bounds the time of one suite.
func shortly(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// compact is upstream's hook that makes the revision the oldest readable revision. Like etcd's compaction it moves the
// head forward.
func (s *stepped) compact(ctx context.Context, t *testing.T, resourceVersion string) {
	t.Helper()
	rev, err := s.versioner.ParseResourceVersion(resourceVersion)
	if err != nil {
		t.Fatal(err)
	}
	s.increaseRV(ctx, t)
	s.bed.commit(ctx)
	if err := s.Projection.Retain(ctx, eventlog.Revision(rev), 0); err != nil {
		t.Fatal(err)
	}
}

func withEnd(ctx context.Context, end <-chan struct{}) context.Context {
	r := RequestOf(ctx)
	r.End = end
	return r.In(ctx)
}

func withWatchWriter(ctx context.Context, to WatchWriter) context.Context {
	r := RequestOf(ctx)
	r.WatchWriter = to
	return r.In(ctx)
}

func attributes(obj runtime.Object) (labels.Set, fields.Set, error) {
	p := obj.(*example.Pod)
	return p.Labels, fields.Set{
		"metadata.name": p.Name, "metadata.namespace": p.Namespace, "spec.nodeName": p.Spec.NodeName,
		"spec.restartPolicy": string(p.Spec.RestartPolicy), "status.phase": string(p.Status.Phase),
	}, nil
}
