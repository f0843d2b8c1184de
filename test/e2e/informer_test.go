package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/test/product"
)

const (
	informerChanges = 10_000 / eventlogtest.Slowdown
	informerWriters = 4
	informerObjects = 50 // per writer
)

// TestInformers: two SharedInformers, on pods and on a custom resource, see 10,000 random changes from four writers. No
// change is lost, repeated or out of order.
func TestInformers(t *testing.T) {
	t.Parallel()
	changes := informerChanges
	if testing.Short() {
		changes = 500
	}
	server := product.Dev(t, t.TempDir(), "--in-memory")
	_, typed, untyped := clientsFor(t, server.URL())
	defineWidgets(t, untyped)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()

	pods := informers.NewSharedInformerFactory(typed, 0).Core().V1().Pods().Informer()
	custom := dynamicinformer.NewDynamicSharedInformerFactory(untyped, 0).ForResource(widgets).Informer()
	seenPods, seenWidgets := record(t, pods), record(t, custom)
	go pods.RunWithContext(ctx)
	go custom.RunWithContext(ctx)
	require.True(t, cache.WaitForCacheSync(ctx.Done(), pods.HasSynced, custom.HasSynced))

	var writers sync.WaitGroup
	written := make([]*expectation, 2*informerWriters)
	for w := range informerWriters {
		written[2*w], written[2*w+1] = newExpectation(), newExpectation()
		writers.Go(func() {
			random := rand.New(rand.NewPCG(uint64(w), 1))
			for range changes / informerWriters / 2 {
				name := fmt.Sprintf("w%d-%d", w, random.IntN(informerObjects))
				change(ctx, t, random, podStore{typed}, name, written[2*w])
				change(ctx, t, random, widgetStore{untyped}, name, written[2*w+1])
			}
		})
	}
	writers.Wait()
	for w := range informerWriters {
		seenPods.waitFor(ctx, t, written[2*w])
		seenWidgets.waitFor(ctx, t, written[2*w+1])
	}
	require.Equal(t, total(written, 0), seenPods.count(), "pod events")
	for name, revisions := range seenPods.seen {
		removals := len(slices.DeleteFunc(slices.Clone(revisions), func(r uint64) bool { return r != 0 }))
		require.Equal(t, removals, seenPods.deleting[name], "pod %s is marked once for each removal", name)
	}
	require.Equal(t, total(written, 1), seenWidgets.count(), "widget events")
}

// expectation holds, for each name, the revisions that its writer got, in order.
type expectation struct{ revisions map[string][]uint64 }

func newExpectation() *expectation { return &expectation{revisions: map[string][]uint64{}} }

func total(all []*expectation, offset int) int {
	n := 0
	for i := offset; i < len(all); i += 2 {
		for _, revisions := range all[i].revisions {
			n += len(revisions)
		}
	}
	return n
}

// store is one resource, written at random: each call returns the acknowledged revision, 0 for no change.
type store interface {
	create(ctx context.Context, name string) (string, error)
	touch(ctx context.Context, name, value string) (string, error)
	remove(ctx context.Context, name string) error
}

// change creates a missing object, and touches or removes an existing object. A writer does not learn the revision of a
// removal, so 0 stands for that revision.
func change(ctx context.Context, t *testing.T, random *rand.Rand, s store, name string, e *expectation) {
	history := e.revisions[name]
	exists := len(history) > 0 && history[len(history)-1] != 0
	var revision string
	var err error
	switch {
	case !exists:
		revision, err = s.create(ctx, name)
	case random.IntN(4) == 0:
		revision, err = "0", s.remove(ctx, name)
	default:
		revision, err = s.touch(ctx, name, strconv.FormatUint(random.Uint64(), 36))
	}
	if err != nil {
		t.Errorf("change %s: %v", name, err)
		return
	}
	n, err := strconv.ParseUint(revision, 10, 64)
	if err != nil {
		t.Errorf("revision of %s: %v", name, err)
	}
	e.revisions[name] = append(history, n)
}

type podStore struct{ client kubernetes.Interface }

func (s podStore) create(ctx context.Context, name string) (string, error) {
	made, err := s.client.CoreV1().Pods("default").Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return made.ResourceVersion, nil
}

func (s podStore) touch(ctx context.Context, name, value string) (string, error) {
	made, err := s.client.CoreV1().Pods("default").Patch(ctx, name, types.MergePatchType, annotate(value), metav1.PatchOptions{})
	if err != nil {
		return "", err
	}
	return made.ResourceVersion, nil
}

func (s podStore) remove(ctx context.Context, name string) error {
	now := int64(0)
	return s.client.CoreV1().Pods("default").Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &now})
}

type widgetStore struct{ client dynamic.Interface }

func (s widgetStore) create(ctx context.Context, name string) (string, error) {
	made, err := s.client.Resource(widgets).Namespace("default").Create(ctx, widget(name, map[string]any{"a": "b"}), metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return made.GetResourceVersion(), nil
}

func (s widgetStore) touch(ctx context.Context, name, value string) (string, error) {
	made, err := s.client.Resource(widgets).Namespace("default").Patch(ctx, name, types.MergePatchType, annotate(value), metav1.PatchOptions{})
	if err != nil {
		return "", err
	}
	return made.GetResourceVersion(), nil
}

func (s widgetStore) remove(ctx context.Context, name string) error {
	return s.client.Resource(widgets).Namespace("default").Delete(ctx, name, metav1.DeleteOptions{})
}

func annotate(value string) []byte {
	return fmt.Appendf(nil, `{"metadata":{"annotations":{"value":%q}}}`, value)
}

func isConflict(err error) bool { return apierrors.IsConflict(err) }

// recording has the deliveries of an informer: the revisions of each name, in order; 0 stands for a deletion.
type recording struct {
	mu   sync.Mutex
	seen map[string][]uint64 // guarded by mu
	// deleting counts the changes that only mark a pod as being deleted. Upstream makes such a change before it removes
	// a pod, even with a grace period of 0, and tells no client the change's revision.
	deleting map[string]int // guarded by mu
	guessed  []string       // guarded by mu: the deletions that an informer guesses because it has listed again
	changed  *sync.Cond
}

func newRecording() *recording {
	r := &recording{seen: map[string][]uint64{}, deleting: map[string]int{}}
	r.changed = sync.NewCond(&r.mu)
	return r
}

func record(t *testing.T, informer cache.SharedInformer) *recording {
	t.Helper()
	r := newRecording()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { r.note(t, object, false) },
		UpdateFunc: func(_, object any) { r.note(t, object, false) },
		DeleteFunc: func(object any) { r.note(t, object, true) },
	})
	require.NoError(t, err)
	return r
}

func (r *recording) note(t *testing.T, object any, deleted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.changed.Broadcast()
	if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		r.guessed = append(r.guessed, gone.Key)
		return
	}
	about := object.(metav1.Object)
	revision, err := strconv.ParseUint(about.GetResourceVersion(), 10, 64)
	if err != nil {
		t.Error(err)
	}
	if deleted {
		revision = 0
	} else if about.GetDeletionTimestamp() != nil {
		r.deleting[about.GetName()]++
		return
	}
	r.seen[about.GetName()] = append(r.seen[about.GetName()], revision)
}

func (r *recording) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, revisions := range r.seen {
		n += len(revisions)
	}
	return n
}

// waitFor waits until the informer has delivered, for every name, as many events as the name's writer made. It requires
// the same events, in the same order.
func (r *recording) waitFor(ctx context.Context, t *testing.T, e *expectation) {
	t.Helper()
	defer context.AfterFunc(ctx, r.changed.Broadcast)()
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, want := range e.revisions {
		for len(r.seen[name]) < len(want) && ctx.Err() == nil {
			r.changed.Wait()
		}
		require.Equal(t, want, r.seen[name], name)
	}
	require.Empty(t, r.guessed)
}
