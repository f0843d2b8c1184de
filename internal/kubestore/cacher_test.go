package kubestore

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// underCacher puts upstream's watch cache over a store.
func underCacher(t testing.TB, s *stepped, keyOf func(string, runtime.Object) (string, error)) storage.Interface {
	t.Helper()
	c, err := cacher.NewCacherFromConfig(cacher.Config{
		Storage: s, Versioner: s.Versioner(), GroupResource: s.GroupResource,
		EventsHistoryWindow: cacher.DefaultEventFreshDuration, ResourcePrefix: "/pods/",
		KeyFunc:      func(obj runtime.Object) (string, error) { return keyOf("/pods/", obj) },
		GetAttrsFunc: attributes, NewFunc: s.NewFunc, NewListFunc: s.NewListFunc,
		IndexerFuncs: storage.IndexerFuncs{"spec.nodeName": func(obj runtime.Object) string { return obj.(*example.Pod).Spec.NodeName }},
		Indexers: &cache.Indexers{
			"f:spec.nodeName":      func(obj any) ([]string, error) { return []string{obj.(*example.Pod).Spec.NodeName}, nil },
			"f:metadata.namespace": func(obj any) ([]string, error) { return []string{obj.(*example.Pod).Namespace}, nil },
		},
		Codec: codecs.LegacyCodec(examplev1.SchemeGroupVersion), Clock: clock.RealClock{},
	})
	require.NoError(t, err)
	d := cacher.NewCacheDelegator(c, s)
	t.Cleanup(func() { d.Stop(); c.Stop() })
	require.NoError(t, c.Wait(t.Context()))
	return d
}

func attributes(obj runtime.Object) (labels.Set, fields.Set, error) {
	p := obj.(*example.Pod)
	return p.Labels, fields.Set{
		"metadata.name": p.Name, "metadata.namespace": p.Namespace, "spec.nodeName": p.Spec.NodeName,
		"spec.restartPolicy": string(p.Spec.RestartPolicy), "status.phase": string(p.Status.Phase),
	}, nil
}

// observed waits after every create until the cache has the object, as upstream's own test of watch semantics does.
// Without the wait the cacher would end watches, which would get dozens of events before they are first read.
type observed struct{ storage.Interface }

func (o observed) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	if err := o.Interface.Create(ctx, key, obj, out, ttl); err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, wait.ForeverTestTimeout, false, func(ctx context.Context) (bool, error) {
		cached := &example.Pod{}
		err := o.Get(ctx, key, storage.GetOptions{ResourceVersion: "0"}, cached)
		if storage.IsNotFound(err) {
			return false, nil
		}
		return cached.ResourceVersion == out.(*example.Pod).ResourceVersion, err
	})
}

// TestUpstreamUnderCacher runs over this store the suites that upstream runs on its own watch cache. RunTestList is
// left out, because it counts requests to etcd.
func TestUpstreamUnderCacher(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for bookmarks")
	}
	conn := eventlogtest.Start(t)
	namespaced, cluster := storage.NamespaceKeyFunc, storage.NoNamespaceKeyFunc
	uncounted := func(*testing.T, uint64, uint64) {}
	type suite func(context.Context, *testing.T, storage.Interface)
	run := func(name string, suite func(context.Context, *testing.T, storage.Interface, *stepped)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStepped(newBed(t, conn, memory.Strict(t)), "random")
			keys := namespaced
			if name == "ClusterScopedWatch" {
				keys = cluster
			}
			ctx := shortly(t)
			c := underCacher(t, s, keys)
			s.bed.expire(ctx)
			suite(ctx, t, c, s)
		})
	}
	for name, suite := range map[string]suite{
		"CreateWithTTL": storagetesting.RunTestCreateWithTTL, "CreateWithKeyExist": storagetesting.RunTestCreateWithKeyExist,
		"Get": storagetesting.RunTestGet, "UnconditionalDelete": storagetesting.RunTestUnconditionalDelete,
		"ConditionalDelete": storagetesting.RunTestConditionalDelete, "DeleteWithSuggestion": storagetesting.RunTestDeleteWithSuggestion,
		"DeleteWithSuggestionAndConflict": storagetesting.RunTestDeleteWithSuggestionAndConflict,
		"DeleteWithConflict":              storagetesting.RunTestDeleteWithConflict,
		"ListPaging":                      storagetesting.RunTestListPaging, "GetListRecursivePrefix": storagetesting.RunTestGetListRecursivePrefix,
		"NamespaceScopedList": storagetesting.RunTestNamespaceScopedList, "GuaranteedUpdateWithTTL": storagetesting.RunTestGuaranteedUpdateWithTTL,
		"GuaranteedUpdateWithConflict":              storagetesting.RunTestGuaranteedUpdateWithConflict,
		"GuaranteedUpdateWithSuggestionAndConflict": storagetesting.RunTestGuaranteedUpdateWithSuggestionAndConflict,
		"Watch": storagetesting.RunTestWatch, "DeleteTriggerWatch": storagetesting.RunTestDeleteTriggerWatch,
		"WatchFromNonZero": storagetesting.RunTestWatchFromNonZero, "DelayedWatchDelivery": storagetesting.RunTestDelayedWatchDelivery,
		"WatcherTimeout": storagetesting.RunTestWatcherTimeout, "WatchDeleteEventObjectHaveLatestRV": storagetesting.RunTestWatchDeleteEventObjectHaveLatestRV,
		"WatchInitializationSignal": storagetesting.RunTestWatchInitializationSignal, "ClusterScopedWatch": storagetesting.RunTestClusterScopedWatch,
		"NamespaceScopedWatch":                     storagetesting.RunTestNamespaceScopedWatch,
		"WatchBookmarksWithCorrectResourceVersion": storagetesting.RunTestOptionalWatchBookmarksWithCorrectResourceVersion,
		"SendInitialEventsBackwardCompatibility":   storagetesting.RunSendInitialEventsBackwardCompatibility,
	} {
		run(name, func(ctx context.Context, t *testing.T, c storage.Interface, _ *stepped) { suite(ctx, t, c) })
	}
	run("ConsistentList", func(ctx context.Context, t *testing.T, c storage.Interface, s *stepped) {
		storagetesting.RunTestConsistentList(ctx, t, c, s.increaseRV, true, true, true)
	})
	run("GetListNonRecursive", func(ctx context.Context, t *testing.T, c storage.Interface, s *stepped) {
		storagetesting.RunTestGetListNonRecursive(ctx, t, s.increaseRV, c)
	})
	run("ListContinuation", func(ctx context.Context, t *testing.T, c storage.Interface, _ *stepped) {
		storagetesting.RunTestListContinuation(ctx, t, c, uncounted)
	})
	run("ListContinuationWithFilter", func(ctx context.Context, t *testing.T, c storage.Interface, _ *stepped) {
		storagetesting.RunTestListContinuationWithFilter(ctx, t, c, uncounted)
	})
	run("ListPaginationRareObject", func(ctx context.Context, t *testing.T, c storage.Interface, _ *stepped) {
		storagetesting.RunTestListPaginationRareObject(ctx, t, c, uncounted)
	})
	run("WatchDispatchBookmarkEvents", func(ctx context.Context, t *testing.T, c storage.Interface, _ *stepped) {
		storagetesting.RunTestWatchDispatchBookmarkEvents(ctx, t, c, true)
	})
	run("Increments", func(ctx context.Context, t *testing.T, c storage.Interface, _ *stepped) {
		p := create(t, c, pod("ns", "counter"))
		for range 20 {
			require.NoError(t, increment(ctx, c, keyOf(p)))
		}
		out := &example.Pod{}
		require.NoError(t, c.Get(ctx, keyOf(p), storage.GetOptions{}, out))
		require.Equal(t, "20", out.Labels["n"])
	})
	// These suites set feature gates, which are those of the whole process.
	for name, suite := range map[string]suite{
		"WatchSemantics": storagetesting.RunWatchSemantics, "WatchSemanticInitialEventsExtended": storagetesting.RunWatchSemanticInitialEventsExtended,
		"WatchListMatchSingle": storagetesting.RunWatchListMatchSingle,
	} {
		t.Run(name, func(t *testing.T) {
			s := newStepped(newBed(t, conn, memory.Strict(t)), "random")
			suite(shortly(t), t, observed{underCacher(t, s, namespaced)})
		})
	}
}
