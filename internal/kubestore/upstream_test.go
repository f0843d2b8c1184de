package kubestore

import (
	"context"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"github.com/logplane/logplane/eventlog/eventlogtest"
)

// suites are upstream's storage suites.
var suites = map[string]func(context.Context, *testing.T, *stepped){
	"Create": func(ctx context.Context, t *testing.T, s *stepped) {
		storagetesting.RunTestCreate(ctx, t, s, s.validate)
	},
	"CreateWithTTL": func(ctx context.Context, t *testing.T, s *stepped) {
		s.bed.expire(ctx)
		storagetesting.RunTestCreateWithTTL(ctx, t, s)
	},
	"CreateWithKeyExist":                      plain(storagetesting.RunTestCreateWithKeyExist),
	"Get":                                     plain(storagetesting.RunTestGet),
	"UnconditionalDelete":                     plain(storagetesting.RunTestUnconditionalDelete),
	"ConditionalDelete":                       plain(storagetesting.RunTestConditionalDelete),
	"DeleteWithSuggestion":                    plain(storagetesting.RunTestDeleteWithSuggestion),
	"DeleteWithSuggestionAndConflict":         plain(storagetesting.RunTestDeleteWithSuggestionAndConflict),
	"DeleteWithConflict":                      plain(storagetesting.RunTestDeleteWithConflict),
	"DeleteWithSuggestionOfDeletedObject":     plain(storagetesting.RunTestDeleteWithSuggestionOfDeletedObject),
	"ValidateDeletionWithSuggestion":          plain(storagetesting.RunTestValidateDeletionWithSuggestion),
	"ValidateDeletionWithOnlySuggestionValid": plain(storagetesting.RunTestValidateDeletionWithOnlySuggestionValid),
	"PreconditionalDeleteWithSuggestion":      plain(storagetesting.RunTestPreconditionalDeleteWithSuggestion),
	"PreconditionalDeleteWithOnlySuggestion":  plain(storagetesting.RunTestPreconditionalDeleteWithOnlySuggestionPass),
	"List": func(ctx context.Context, t *testing.T, s *stepped) {
		storagetesting.RunTestList(ctx, t, s, s.compact, false, nil)
	},
	"ConsistentList": func(ctx context.Context, t *testing.T, s *stepped) {
		storagetesting.RunTestConsistentList(ctx, t, s, s.increaseRV, false, true, false)
	},
	"GetListNonRecursive": func(ctx context.Context, t *testing.T, s *stepped) {
		storagetesting.RunTestGetListNonRecursive(ctx, t, s.increaseRV, s)
	},
	"GetListRecursivePrefix": plain(storagetesting.RunTestGetListRecursivePrefix),
	"ListContinuation": func(ctx context.Context, t *testing.T, s *stepped) {
		storagetesting.RunTestListContinuation(ctx, t, s, s.reads)
	},
	"ListPaginationRareObject": func(ctx context.Context, t *testing.T, s *stepped) {
		storagetesting.RunTestListPaginationRareObject(ctx, t, s, s.reads)
	},
	"ListContinuationWithFilter": func(ctx context.Context, t *testing.T, s *stepped) {
		storagetesting.RunTestListContinuationWithFilter(ctx, t, s, s.reads)
	},
	"ListInconsistentContinuation": func(ctx context.Context, t *testing.T, s *stepped) {
		storagetesting.RunTestListInconsistentContinuation(ctx, t, s, s.compact)
	},
	"ListResourceVersionMatch": func(ctx context.Context, t *testing.T, s *stepped) {
		storagetesting.RunTestListResourceVersionMatch(ctx, t, s)
	},
	"GuaranteedUpdate": func(ctx context.Context, t *testing.T, s *stepped) {
		storagetesting.RunTestGuaranteedUpdate(ctx, t, s, s.validate)
	},
	"GuaranteedUpdateWithTTL": func(ctx context.Context, t *testing.T, s *stepped) {
		s.bed.expire(ctx)
		storagetesting.RunTestGuaranteedUpdateWithTTL(ctx, t, s)
	},
	"GuaranteedUpdateChecksStoredData": func(ctx context.Context, t *testing.T, s *stepped) {
		storagetesting.RunTestGuaranteedUpdateChecksStoredData(ctx, t, s)
	},
	"GuaranteedUpdateWithConflict":              plain(storagetesting.RunTestGuaranteedUpdateWithConflict),
	"GuaranteedUpdateWithSuggestionAndConflict": plain(storagetesting.RunTestGuaranteedUpdateWithSuggestionAndConflict),
	"TransformationFailure": func(ctx context.Context, t *testing.T, s *stepped) {
		storagetesting.RunTestTransformationFailure(ctx, t, s)
	},
	"Stats": func(ctx context.Context, t *testing.T, s *stepped) {
		// Without sizes: EnableResourceSizeEstimation estimates nothing.
		storagetesting.RunTestStats(ctx, t, s, s.Codec, s.transformer, false)
	},
	"ListPaging":          plain(storagetesting.RunTestListPaging),
	"NamespaceScopedList": plain(storagetesting.RunTestNamespaceScopedList),
	"CompactRevision": func(ctx context.Context, t *testing.T, s *stepped) {
		storagetesting.RunTestCompactRevision(ctx, t, s, s.increaseRV, s.compact)
	},
	"KeySchema": func(ctx context.Context, t *testing.T, s *stepped) {
		storagetesting.RunTestKeySchema(ctx, t, named{s})
	},

	"Watch":                plain(storagetesting.RunTestWatch),
	"ClusterScopedWatch":   plain(storagetesting.RunTestClusterScopedWatch),
	"NamespaceScopedWatch": plain(storagetesting.RunTestNamespaceScopedWatch),
	"DeleteTriggerWatch":   plain(storagetesting.RunTestDeleteTriggerWatch),
	"WatchFromZero": func(ctx context.Context, t *testing.T, s *stepped) {
		storagetesting.RunTestWatchFromZero(ctx, t, s, s.compact)
	},
	"WatchFromNonZero":     plain(storagetesting.RunTestWatchFromNonZero),
	"DelayedWatchDelivery": plain(storagetesting.RunTestDelayedWatchDelivery),
	"WatchError": func(ctx context.Context, t *testing.T, s *stepped) {
		storagetesting.RunTestWatchError(ctx, t, s)
	},
	"WatchWithUnsafeDelete": func(ctx context.Context, t *testing.T, s *stepped) {
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.AllowUnsafeMalformedObjectDeletion, true)
		storagetesting.RunTestWatchWithUnsafeDelete(ctx, t, s)
	},
	"WatchContextCancel":                 plain(storagetesting.RunTestWatchContextCancel),
	"WatcherTimeout":                     plain(storagetesting.RunTestWatcherTimeout),
	"WatchDeleteEventObjectHaveLatestRV": plain(storagetesting.RunTestWatchDeleteEventObjectHaveLatestRV),
	"WatchInitializationSignal":          plain(storagetesting.RunTestWatchInitializationSignal),
	"ProgressNotify": func(ctx context.Context, t *testing.T, s *stepped) {
		storagetesting.RunOptionalTestProgressNotify(ctx, t, s, s.increaseRV)
	},
	"WatchDispatchBookmarkEvents": func(ctx context.Context, t *testing.T, s *stepped) {
		storagetesting.RunTestWatchDispatchBookmarkEvents(ctx, t, s, true)
	},
	"WatchBookmarksWithCorrectResourceVersion": plain(storagetesting.RunTestOptionalWatchBookmarksWithCorrectResourceVersion),
	"SendInitialEventsBackwardCompatibility":   plain(storagetesting.RunSendInitialEventsBackwardCompatibility),
	"WatchSemantics":                           plain(storagetesting.RunWatchSemantics),
	"WatchSemanticInitialEventsExtended":       plain(storagetesting.RunWatchSemanticInitialEventsExtended),
	"WatchListMatchSingle":                     plain(storagetesting.RunWatchListMatchSingle),
	"WatchErrorIsBlockingFurtherEvents": func(ctx context.Context, t *testing.T, s *stepped) {
		storagetesting.RunWatchErrorIsBlockingFurtherEvents(ctx, t, s)
	},
}

func plain(suite func(context.Context, *testing.T, storage.Interface)) func(context.Context, *testing.T, *stepped) {
	return func(ctx context.Context, t *testing.T, s *stepped) { suite(ctx, t, s) }
}

// TestUpstream runs upstream's suites on every kind of bucket, with commits forced between their steps.
//
// Left out, and why:
//   - of RunTestStats, the sizes: EnableResourceSizeEstimation estimates nothing.
//   - of RunTestKeySchema, an object whose key is the resource's prefix itself: a Key has a name.
//   - of RunTestList, RunTestListContinuation and those like it, the counts of etcd requests: there are
//     none; the counts of values read are checked.
//   - the benchmarks (RunBenchmark…), and etcd3's own tests of leases, its compactor and its client.
func TestUpstream(t *testing.T) {
	conn := eventlogtest.Start(t)
	for kind, open := range kinds {
		for mode := range modes {
			if testing.Short() && (kind != "strict" || mode != "random") {
				continue
			}
			if eventlogtest.Slowdown > 1 && kind != "strict" && mode != "random" { // minutes, and other tests cover them
				continue
			}
			for name, suite := range suites {
				t.Run(kind+"/"+mode+"/"+name, func(t *testing.T) {
					if waits[name] {
						t.Parallel()
					}
					ctx := shortly(t)
					suite(ctx, t, newStepped(newBed(t, conn, open(t)), mode))
				})
			}
		}
	}
}

// waits has the suites that spend seconds waiting (for a bookmark, an expiry, a revision that never comes). They run in
// parallel. The other suites set feature gates, or count what the process does, or have too much to do within their
// deadlines beside others.
var waits = map[string]bool{
	"CreateWithTTL": true, "GuaranteedUpdateWithTTL": true, "Get": true, "GetListNonRecursive": true,
	"DelayedWatchDelivery": true, "ProgressNotify": true, "WatchDispatchBookmarkEvents": true,
	"WatchBookmarksWithCorrectResourceVersion": true,
}

// named gives a name to the one key of upstream's schema suite that has none.
type named struct{ storage.Interface }

func withName(key string) string {
	if key == "/pods/" {
		return "/pods/unnamed"
	}
	return key
}

func (n named) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	return n.Interface.Create(ctx, withName(key), obj, out, ttl)
}

func (n named) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	return n.Interface.Get(ctx, withName(key), opts, out)
}

func (n named) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, cached runtime.Object, opts storage.DeleteOptions) error {
	return n.Interface.Delete(ctx, withName(key), out, preconditions, validate, cached, opts)
}

func (n named) GuaranteedUpdate(ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc, cached runtime.Object) error {
	return n.Interface.GuaranteedUpdate(ctx, withName(key), destination, ignoreNotFound, preconditions, tryUpdate, cached)
}
