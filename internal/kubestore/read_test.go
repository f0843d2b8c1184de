package kubestore

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/bucket/memory"
	"github.com/logplane/logplane/projection/cache"
)

// model is the content that a store must have. The model has the resourceVersion of each row path, and whether the
// label is set.
type model map[string]modelled

type modelled struct {
	revision string
	labelled bool
}

// list returns the model's list without a limit.
func (m model) list(namespace string, labelled bool) (items []string) {
	for _, path := range slices.Sorted(maps.Keys(m)) {
		o := m[path]
		if (namespace == "" || len(path) > len(namespace) && path[:len(namespace)+1] == namespace+"/") && (!labelled || o.labelled) {
			items = append(items, path+" "+o.revision)
		}
	}
	return items
}

// TestListPages lists in pages of random size, with and without selectors, in all namespaces and in one. Two processes
// serve the pages while objects change, events are committed and the log is purged. The pages are exactly the model's
// list at the first page's revision, or end with 410 and continue at a new revision (rows 30 to 32).
func TestListPages(t *testing.T) {
	conn := eventlogtest.Start(t)
	for mode, step := range modes {
		t.Run(mode, func(t *testing.T) {
			b := newBed(t, conn, memory.Strict(t))
			stores := []*store{newStore(b.Cell, pods(nil)), newStore(process(t, b.Log, b.bucket), pods(nil))}
			r := rand.New(rand.NewPCG(11, uint64(len(mode))))
			now, step := model{}, step(b)
			for range 150 {
				changeModel(t, stores[r.IntN(2)], r, now)
			}
			for range 25 {
				step(t.Context())
				pageThrough(t, stores, r, now)
			}
		})
	}
}

// changeModel makes one random change to store and model.
func changeModel(t *testing.T, s storage.Interface, r *rand.Rand, m model) {
	t.Helper()
	// The dash sorts before the slash: 'ns-a' comes before 'ns'.
	p := pod([]string{"ns", "ns-a", "ns.b"}[r.IntN(3)], fmt.Sprintf("p%d", r.IntN(40)))
	path := p.Namespace + "/" + p.Name
	o, exists := m[path]
	switch {
	case !exists:
		m[path] = modelled{create(t, s, p).ResourceVersion, false}
	case r.IntN(4) == 0:
		_, err := remove(t.Context(), s, keyOf(p))
		require.NoError(t, err)
		delete(m, path)
	default:
		out, err := relabel(t.Context(), s, keyOf(p), "on", fmt.Sprint(!o.labelled))
		require.NoError(t, err)
		m[path] = modelled{out.ResourceVersion, !o.labelled}
	}
}

// pageThrough lists in pages, and changes the model between two pages.
func pageThrough(t *testing.T, stores []*store, r *rand.Rand, m model) {
	t.Helper()
	namespace := []string{"", "ns", "ns-a", "none"}[r.IntN(4)]
	labelled := r.IntN(2) == 0
	key := "/pods"
	if namespace != "" {
		key += "/" + namespace
	}
	want, left := m.list(namespace, labelled), 0
	var got []string
	var revision string
	opts := storage.ListOptions{Recursive: true, Predicate: storage.SelectionPredicate{
		Label: labels.Everything(), Field: fields.Everything(), Limit: int64(1 + r.IntN(20)),
		GetAttrs: func(obj runtime.Object) (labels.Set, fields.Set, error) { return obj.(*example.Pod).Labels, nil, nil },
	}}
	if labelled {
		opts.Predicate.Label = labels.SelectorFromSet(labels.Set{"on": "true"})
	}
	for first := true; first || opts.Predicate.Continue != ""; first = false {
		list := &example.PodList{}
		require.NoError(t, stores[r.IntN(2)].GetList(t.Context(), key, opts, list))
		if revision == "" {
			revision = list.ResourceVersion
		}
		require.Equal(t, revision, list.ResourceVersion)
		require.LessOrEqual(t, len(list.Items), int(opts.Predicate.Limit))
		for _, p := range list.Items {
			got = append(got, p.Namespace+"/"+p.Name+" "+p.ResourceVersion)
		}
		left = len(want) - len(got)
		switch {
		case labelled || list.Continue == "":
			require.Nil(t, list.RemainingItemCount)
		default:
			require.Equal(t, int64(left), *list.RemainingItemCount)
		}
		opts.Predicate.Continue = list.Continue
		for range r.IntN(3) {
			changeModel(t, stores[r.IntN(2)], r, m)
		}
	}
	require.Equal(t, want, got)
}

// TestRevisionsOutOfReach: rows 28, 29 and 32, and forged revisions.
func TestRevisionsOutOfReach(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for revisions that never come")
	}
	b := newBed(t, eventlogtest.Start(t), memory.Strict(t))
	s := newStore(b.Cell, pods(nil))
	for _, name := range []string{"a", "b", "c"} {
		create(t, s, pod("ns", name))
	}
	list := func(rv string, match metav1.ResourceVersionMatch, limit int64, token string) (*example.PodList, error) {
		out, pred := &example.PodList{}, storage.Everything
		pred.Limit, pred.Continue = limit, token
		err := s.GetList(t.Context(), "/pods", storage.ListOptions{
			ResourceVersion: rv, ResourceVersionMatch: match, Predicate: pred, Recursive: true,
		}, out)
		return out, err
	}
	page, err := list("", "", 1, "")
	require.NoError(t, err)
	create(t, s, pod("ns", "aa"))
	b.commit(t.Context())
	head, err := s.GetCurrentResourceVersion(t.Context())
	require.NoError(t, err)
	require.NoError(t, b.Projection.Retain(t.Context(), eventlog.Revision(head), 0))

	_, err = list(page.ResourceVersion, metav1.ResourceVersionMatchExact, 0, "")
	require.True(t, apierrors.IsResourceExpired(err), "%v", err)
	_, err = list("", "", 1, page.Continue)
	require.True(t, apierrors.IsResourceExpired(err), "%v", err)
	var status apierrors.APIStatus
	require.ErrorAs(t, err, &status)
	rest, err := list("", "", 0, status.Status().Continue)
	require.NoError(t, err)
	require.Equal(t, fmt.Sprint(head), rest.ResourceVersion)
	require.Equal(t, []string{"aa", "b", "c"}, names(rest))

	for _, rv := range []string{fmt.Sprint(head + 1000), fmt.Sprint(math.MaxInt64), fmt.Sprint(uint64(math.MaxUint64))} {
		for _, match := range []metav1.ResourceVersionMatch{metav1.ResourceVersionMatchExact, metav1.ResourceVersionMatchNotOlderThan} {
			t.Run(rv+string(match), func(t *testing.T) {
				t.Parallel()
				_, err := list(rv, match, 0, "")
				require.True(t, storage.IsTooLargeResourceVersion(err), "%v", err)
				var status apierrors.APIStatus
				require.ErrorAs(t, err, &status)
				require.Positive(t, status.Status().Details.RetryAfterSeconds)
			})
		}
	}
	for _, token := range []string{"x", "e30", "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiIuLi9zZWNyZXRzIn0"} {
		_, err = list("", "", 1, token)
		require.True(t, apierrors.IsBadRequest(err), "%v", err)
	}
	_, err = list("minus one", "", 0, "")
	require.True(t, apierrors.IsBadRequest(err), "%v", err)
}

func names(list *example.PodList) (names []string) {
	for _, p := range list.Items {
		names = append(names, p.Name)
	}
	return names
}

// TestNothingAliasesTheCache: if a caller changes an object that it was given, nobody else sees the change. This is
// true for the items of a list as long as the caller only sets their fields, as under upstream's cacher.
func TestNothingAliasesTheCache(t *testing.T) {
	b := newBed(t, eventlogtest.Start(t), memory.Strict(t))
	s := newStore(b.Cell, pods(nil))
	p := pod("ns", "a")
	p.Labels = map[string]string{"kept": "yes"}
	created := create(t, s, p)
	want := created.DeepCopy()
	spoil := func(p *example.Pod) {
		p.Labels["kept"], p.ResourceVersion = "no", "spoilt"
	}
	spoil(created)

	for range 2 {
		out, list := &example.Pod{}, &example.PodList{}
		require.NoError(t, s.Get(t.Context(), keyOf(p), storage.GetOptions{}, out))
		require.Equal(t, want, out)
		spoil(out)
		require.NoError(t, s.GetList(t.Context(), "/pods", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, list))
		require.Equal(t, []example.Pod{*want}, list.Items)
		list.Items[0].Labels, list.Items[0].ResourceVersion = map[string]string{"kept": "no"}, "spoilt"
		event := <-watchFrom(t, s, "").ResultChan()
		require.Equal(t, want, event.Object)
		spoil(event.Object.(*example.Pod))
		refusal := fmt.Errorf("refused")
		err := s.GuaranteedUpdate(t.Context(), keyOf(p), &example.Pod{}, false, nil,
			storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
				require.Equal(t, want, obj)
				spoil(obj.(*example.Pod))
				return nil, refusal
			}), nil)
		require.Equal(t, refusal, err)
	}
}

// TestObjectsBudget: the cache drops the least recently used objects, and keeps to its budget.
func TestObjectsBudget(t *testing.T) {
	at := func(n int) version { return version{rowKey: "r", revision: eventlog.Revision(n)} }
	ample := cache.NewBudget(1 << 20)
	NewObjects(ample).add(at(100), "ns", pod("ns", "0"))
	one, _ := ample.Used()
	o := NewObjects(cache.NewBudget(10 * one))
	for n := range 20 {
		o.add(at(n), "ns", pod("ns", fmt.Sprint(n)))
		require.NotNil(t, o.get(at(min(n, 3))), "recently used")
	}
	var kept []int
	for n := range 20 {
		if o.get(at(n)) != nil {
			kept = append(kept, n)
		}
	}
	require.Equal(t, []int{3, 11, 12, 13, 14, 15, 16, 17, 18, 19}, kept)
	o.add(version{rowKey: "large"}, "ns", pod("ns", strings.Repeat("large", 10_000)))
	require.Nil(t, o.get(version{rowKey: "large"}))
	var none *Objects
	none.add(at(1), "ns", pod("ns", "a"))
	require.Nil(t, none.get(at(1)))
}

// TestUnstructured: custom resources are stored, cached, listed and watched too.
func TestUnstructured(t *testing.T) {
	b := newBed(t, eventlogtest.Start(t), memory.Strict(t))
	newWidget := func() *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget"}}
	}
	s := newStore(b.Cell, Resource{
		GroupResource: schema.GroupResource{Group: "example.com", Resource: "widgets"}, Prefix: "/example.com/widgets", Namespaced: true,
		Codec: unstructured.UnstructuredJSONScheme, ContentType: "application/json",
		NewFunc:     func() runtime.Object { return newWidget() },
		NewListFunc: func() runtime.Object { return &unstructured.UnstructuredList{} },
	})
	w := newWidget()
	w.SetNamespace("ns")
	w.SetName("a")
	created := newWidget()
	require.NoError(t, s.Create(t.Context(), "/example.com/widgets/ns/a", w, created, 0))
	want := created.DeepCopy()
	for range 2 {
		out := newWidget()
		require.NoError(t, s.Get(t.Context(), "/example.com/widgets/ns/a", storage.GetOptions{}, out))
		require.Equal(t, want, out)
		out.SetLabels(map[string]string{"spoilt": "yes"})
		list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "WidgetList"}}
		require.NoError(t, s.GetList(t.Context(), "/example.com/widgets", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, list))
		require.Equal(t, []unstructured.Unstructured{*want}, list.Items)
		list.Items[0].SetLabels(map[string]string{"spoilt": "yes"})
		watched, err := s.Watch(t.Context(), "/example.com/widgets", storage.ListOptions{Recursive: true, Predicate: storage.Everything})
		require.NoError(t, err)
		require.Equal(t, want, (<-watched.ResultChan()).Object)
		watched.Stop()
	}
	changed := newWidget()
	require.NoError(t, s.GuaranteedUpdate(t.Context(), "/example.com/widgets/ns/a", changed, false, nil,
		storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
			obj.(*unstructured.Unstructured).SetLabels(map[string]string{"changed": "yes"})
			return obj, nil
		}), nil))
	require.NotEqual(t, want.GetResourceVersion(), changed.GetResourceVersion())
	gone := newWidget()
	require.NoError(t, s.Delete(t.Context(), "/example.com/widgets/ns/a", gone, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}))
	require.Equal(t, "yes", gone.GetLabels()["changed"])
}

// TestKeys: the key of any path gives that path back, so rows and events of one object agree.
func TestKeys(t *testing.T) {
	s := newStore(Cell{Cluster: "main"}, pods(nil))
	for path, namespace := range map[string]string{
		"/pods/ns/a": "ns", "/pods/a": "", "/pods//a": "", "/pods/ns/a/b": "ns", "/pods/ns/": "",
	} {
		k := s.key(path)
		require.Equal(t, path, k.Path())
		require.Equal(t, s.rowKey(path), k.RowKey())
		require.Equal(t, namespace, k.Namespace)
	}
	r := pods(nil)
	r.Namespaced = false
	require.Equal(t, "a/b", newStore(Cell{Cluster: "main"}, r).key("/pods/a/b").Name)
}

// FuzzKey: a path that a client makes up is refused, or its key is exactly the key of that path.
func FuzzKey(f *testing.F) {
	for _, key := range []string{"/pods/ns/a", "/pods//a", "/pods/a/b/c/", "/pods/../secrets/a", "pods/a", "/pods/*", "/pods/ns\x00/a"} {
		f.Add(key, true)
		f.Add(key, false)
	}
	namespaced, r := newStore(Cell{Cluster: "main"}, pods(nil)), pods(nil)
	r.Namespaced = false
	cluster := newStore(Cell{Cluster: "main"}, r)
	f.Fuzz(func(t *testing.T, key string, recursive bool) {
		for _, s := range []*store{namespaced, cluster} {
			path, err := s.path(key, recursive)
			if err != nil {
				continue
			}
			got := s.key(path).RowKey()
			if got != s.rowKey(path) {
				t.Errorf("path %q has row key %q and key %q", path, s.rowKey(path), got)
			}
		}
	})
}
