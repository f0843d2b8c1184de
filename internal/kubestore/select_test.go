package kubestore

import (
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	clientscheme "k8s.io/client-go/kubernetes/scheme"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/memory"
	"github.com/logplane/logplane/projection/cache"
)

// corePods are Pods in protobuf, as Kubernetes stores them.
func corePods() Resource {
	return Resource{
		GroupResource: schema.GroupResource{Resource: "pods"}, Prefix: "/pods", Namespaced: true,
		Codec: clientscheme.Codecs.CodecForVersions(protobuf.NewSerializer(clientscheme.Scheme, clientscheme.Scheme),
			clientscheme.Codecs.UniversalDeserializer(), corev1.SchemeGroupVersion, corev1.SchemeGroupVersion),
		ContentType:  runtime.ContentTypeProtobuf,
		StoredFields: map[string][]int32{"spec.nodeName": {2, 10}, "status.phase": {3, 1}},
		NewFunc:      func() runtime.Object { return &corev1.Pod{} },
		NewListFunc:  func() runtime.Object { return &corev1.PodList{} },
	}
}

// selecting returns a predicate of Pods. An empty selector selects everything.
func selecting(t testing.TB, byLabels, byFields string) storage.SelectionPredicate {
	l, err := labels.Parse(byLabels)
	require.NoError(t, err)
	f, err := fields.ParseSelector(byFields)
	require.NoError(t, err)
	return storage.SelectionPredicate{Label: l, Field: f, GetAttrs: podAttributes}
}

func podAttributes(obj runtime.Object) (labels.Set, fields.Set, error) {
	p := obj.(*corev1.Pod)
	of := fields.Set{"metadata.name": p.Name, "spec.nodeName": p.Spec.NodeName, "status.phase": string(p.Status.Phase)}
	return p.Labels, of, nil
}

func selected(t testing.TB, s storage.Interface, opts storage.ListOptions) *corev1.PodList {
	t.Helper()
	opts.Recursive = true
	list := &corev1.PodList{}
	require.NoError(t, s.GetList(t.Context(), "/pods", opts, list))
	return list
}

// manyPods returns a bucket whose snapshot has n Pods of about the given number of bytes each, in namespaces of 1,000
// Pods. Each of n/100 nodes has a hundred Pods, scattered among the names.
func manyPods(b testing.TB, n, bytes int) (*eventlog.Log, *bucket.Counted) {
	log := eventlogtest.Open(b, eventlog.Config{Conn: eventlogtest.Start(b), InMemory: true})
	counted := bucket.Count(memory.New())
	p, err := projection.Open(projection.Config{Log: log, Bucket: counted})
	require.NoError(b, err)
	s := newStore(Cell{Log: log, Projection: p, Cluster: "main"}, corePods())
	random := rand.New(rand.NewPCG(1, 2))
	flush := func(writes []eventlog.Write) []eventlog.Write {
		rev, err := log.Append(b.Context(), eventlog.Basis{}, fmt.Sprintf("fill-%d", beds.Add(1)), writes...)
		require.NoError(b, err)
		if beds.Load()%40 == 0 {
			_, err := p.Commit(b.Context())
			require.NoError(b, err)
			require.NoError(b, p.Retain(b.Context(), rev, rev))
			_, err = p.Compact(b.Context())
			require.NoError(b, err)
		}
		return writes[:0]
	}
	var writes []eventlog.Write
	for i := range n {
		path := fmt.Sprintf("/pods/ns-%04d/pod-%07d", i/1000, i)
		data, err := s.encode(somePod(random, i, n, bytes))
		require.NoError(b, err)
		writes = append(writes, eventlog.Write{Key: s.key(path), Op: eventlog.Added, ContentType: s.ContentType, Body: data})
		if len(writes) == 250 || i == n-1 {
			writes = flush(writes)
		}
	}
	_, err = p.Commit(b.Context())
	require.NoError(b, err)
	return log, counted
}

func somePod(random *rand.Rand, i, n, bytes int) *corev1.Pod {
	noise := make([]byte, bytes/3)
	for i := range noise {
		noise[i] = byte(random.Uint32())
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("pod-%07d", i), Namespace: fmt.Sprintf("ns-%04d", i/1000),
			Labels: map[string]string{
				"app":               fmt.Sprintf("app-%d", i/10),
				"pod-template-hash": fmt.Sprintf("%x", i/10*7919),
				"tier":              []string{"web", "db"}[i%2],
			},
			Annotations: map[string]string{"noise": fmt.Sprintf("%x", noise)},
		},
		Spec: corev1.PodSpec{
			NodeName:   fmt.Sprintf("node-%d", random.IntN(max(1, n/100))),
			Containers: []corev1.Container{{Name: "c", Image: "registry.example/app:1"}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
}

// tellFactsApart sets a seed for which all facts differ in their hashes: the facts in manyPods, and the facts that a
// test looks for in vain. With most seeds some hashes are equal, and then a list reads a block that it does not need.
func tellFactsApart(n, bytes int) {
	type named struct {
		what        byte
		name, value string
	}
	all := map[named]bool{{hasLabel, "none", ""}: true, {hasLabelValue, "app", "none"}: true, {hasLabelValue, "app", "no-one"}: true, {hasFieldValue, "spec.nodeName", "none"}: true}
	random := rand.New(rand.NewPCG(1, 2))
	for i := range n {
		pod := somePod(random, i, n, bytes)
		for key, value := range pod.Labels {
			all[named{hasLabel, key, ""}], all[named{hasLabelValue, key, value}] = true, true
		}
		all[named{hasFieldValue, "spec.nodeName", pod.Spec.NodeName}], all[named{hasFieldValue, "status.phase", string(pod.Status.Phase)}] = true, true
	}
	for {
		hashes := map[projection.Fact]bool{}
		for f := range all {
			hashes[fact(f.what, f.name, f.value)] = true
		}
		if len(hashes) == len(all) {
			return
		}
		factSeed = maphash.MakeSeed()
	}
}

// TestSelectedListsReadWhatTheyNeed: once the facts of all blocks are known, a list reads only the blocks that have the
// selected objects, even if the cache has no room for other blocks.
func TestSelectedListsReadWhatTheyNeed(t *testing.T) {
	tellFactsApart(3000, 1200)
	log, counted := manyPods(t, 3000, 1200)
	p, err := projection.Open(projection.Config{Log: log, Bucket: counted, Budget: cache.NewBudget(1 << 20)})
	require.NoError(t, err)
	s := newStore(Cell{Log: log, Projection: p, Cluster: "main", Objects: NewObjects(cache.NewBudget(1 << 20))}, corePods())
	reads := func(byLabels, byFields string, found int) int64 {
		before := counted.Counts().GetRange
		require.Len(t, selected(t, s, storage.ListOptions{Predicate: selecting(t, byLabels, byFields)}).Items, found)
		return counted.Counts().GetRange - before
	}
	require.Positive(t, reads("app=none", "", 0))
	require.Zero(t, reads("app=none", "", 0))
	require.Zero(t, reads("none", "", 0))
	require.Zero(t, reads("app in (none,no-one)", "", 0))
	require.Zero(t, reads("tier=db", "spec.nodeName=none", 0))
	require.LessOrEqual(t, reads("app=app-7", "", 10), int64(3))
	require.LessOrEqual(t, reads("app in (app-7,app-201)", "", 20), int64(5))
	require.LessOrEqual(t, reads(fmt.Sprintf("app,tier=db,pod-template-hash=%x", 7*7919), "status.phase=Running", 5), int64(3))
	require.Positive(t, reads("app!=app-7", "", 2990), "there is nothing that it must have")
	p.Shrink()
	require.Positive(t, reads("app=none", "", 0), "facts are let go when memory is")
}

// TestSelectedListsAreExact: at every revision, and page by page, a list by labels and fields has exactly the matching
// objects of the whole list. Neither commits nor compactions nor known facts of blocks change the list. The state with
// which a watch begins is as exact.
func TestSelectedListsAreExact(t *testing.T) {
	b := newBed(t, eventlogtest.Start(t), memory.Strict(t))
	p, err := projection.Open(projection.Config{Log: b.Log, Bucket: b.bucket, InlineBytes: 600})
	require.NoError(t, err)
	b.Cell.Projection = p
	s := newStore(b.Cell, corePods())
	random := rand.New(rand.NewPCG(3, 4))
	any := func(of ...string) string { return of[random.IntN(len(of))] }
	make := func(n int) *corev1.Pod {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p-%02d", n), Namespace: "ns"}}
		pod.Labels = map[string]string{}
		for _, key := range []string{"a", "b"} {
			if value := any("", "1", "2", "3", "none"); value != "none" {
				pod.Labels[key] = value
			}
		}
		pod.Spec.NodeName, pod.Status.Phase = any("", "n1", "n2", "n3", "n4"), corev1.PodPhase(any("Running", "Failed"))
		pod.Annotations = map[string]string{"padding": strings.Repeat(" ", 30_000)} // so that a block has few Pods
		return pod
	}
	live := map[int]bool{}
	write := func() {
		n := random.IntN(40)
		path := fmt.Sprintf("/pods/ns/p-%02d", n)
		switch {
		case !live[n]:
			require.NoError(t, s.Create(t.Context(), path, make(n), nil, 0))
		case random.IntN(3) == 0:
			require.NoError(t, s.Delete(t.Context(), path, &corev1.Pod{}, nil, storage.ValidateAllObjectFunc, nil,
				storage.DeleteOptions{}))
		default:
			change := func(was runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
				pod := make(n)
				pod.ResourceVersion = was.(*corev1.Pod).ResourceVersion
				return pod, nil, nil
			}
			require.NoError(t, s.GuaranteedUpdate(t.Context(), path, &corev1.Pod{}, false, nil, change, nil))
			return
		}
		live[n] = !live[n]
	}
	at := func(rev uint64) storage.ListOptions {
		return storage.ListOptions{ResourceVersion: fmt.Sprint(rev), ResourceVersionMatch: metav1.ResourceVersionMatchExact}
	}
	for range 120 {
		for range 1 + random.IntN(4) {
			write()
		}
		switch random.IntN(4) {
		case 0, 1:
			b.commit(t.Context())
		case 2:
			_, err := p.Compact(t.Context())
			require.NoError(t, err)
		case 3:
			v, err := p.Latest(t.Context())
			require.NoError(t, err)
			require.NoError(t, p.Retain(t.Context(), v.Applied()-min(v.Applied(), 40), v.Applied()))
		}
		v, err := p.Latest(t.Context())
		require.NoError(t, err)
		rev := uint64(v.Floor()) + 1 + random.Uint64N(uint64(v.Revision()-v.Floor()))
		opts := at(rev)
		opts.Predicate = storage.Everything
		whole := selected(t, s, opts).Items
		opts.Predicate = selecting(t,
			any("", "a", "a=1", "b=2", "a=1,b=2", "a in (2,3)", "a=none", "a!=1", "!b", "b>1", "a="),
			any("", "", "spec.nodeName=n1", "spec.nodeName=", "spec.nodeName!=n2", "status.phase=Failed,spec.nodeName=n3",
				"spec.nodeName=none", "metadata.name=p-07"))
		opts.Predicate.Limit = int64(random.IntN(4))
		about := fmt.Sprintf("%v %v of %d at %d", opts.Predicate.Label, opts.Predicate.Field, opts.Predicate.Limit, rev)
		for {
			page := selected(t, s, opts)
			for _, pod := range page.Items {
				for len(whole) > 0 && whole[0].Name != pod.Name {
					require.False(t, matches(t, opts.Predicate, &whole[0]), "%s lacks %s", about, whole[0].Name)
					whole = whole[1:]
				}
				require.NotEmpty(t, whole, "%s has %s", about, pod.Name)
				require.Equal(t, whole[0], pod, about)
				require.True(t, matches(t, opts.Predicate, &pod), about)
				whole = whole[1:]
			}
			full := opts.Predicate.Limit > 0 && int64(len(page.Items)) == opts.Predicate.Limit
			require.Equal(t, full && len(whole) > 0, page.Continue != "", about)
			if page.Continue == "" {
				break
			}
			opts.Predicate.Continue, opts.ResourceVersion, opts.ResourceVersionMatch = page.Continue, "", ""
		}
		for _, pod := range whole {
			require.False(t, matches(t, opts.Predicate, &pod), "%s lacks %s", about, pod.Name)
		}
		beginsWithTheState(t, s, opts.Predicate)
	}
}

func matches(t testing.TB, p storage.SelectionPredicate, pod *corev1.Pod) bool {
	matched, err := p.Matches(pod)
	require.NoError(t, err)
	return matched
}

// beginsWithTheState checks the objects with which a watch begins.
func beginsWithTheState(t *testing.T, s *store, p storage.SelectionPredicate) {
	p.Limit, p.Continue, p.AllowWatchBookmarks = 0, "", true
	want := selected(t, s, storage.ListOptions{Predicate: p})
	yes := true
	w, err := s.Watch(t.Context(), "/pods", storage.ListOptions{Recursive: true, Predicate: p, SendInitialEvents: &yes})
	require.NoError(t, err)
	defer w.Stop()
	for i := range want.Items {
		require.Equal(t, &want.Items[i], (<-w.ResultChan()).Object)
	}
	require.Equal(t, watch.Bookmark, (<-w.ResultChan()).Type)
}

// TestFactsThatNobodyCanTell: no facts are kept of objects that cannot be read, nor of objects whose content must not
// be kept.
func TestFactsThatNobodyCanTell(t *testing.T) {
	b := newBed(t, eventlogtest.Start(t), memory.Strict(t))
	s := newStore(b.Cell, corePods())
	for _, name := range []string{"a", "c"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns"}}
		require.NoError(t, s.Create(t.Context(), "/pods/ns/"+name, pod, nil, 0))
	}
	v, err := b.Projection.Latest(t.Context())
	require.NoError(t, err)
	_, err = b.Log.Append(t.Context(), eventlog.Basis{Head: v.Revision()}, "garbage", eventlog.Write{
		Key: s.key("/pods/ns/b"), Op: eventlog.Added, ContentType: s.ContentType, Body: []byte("k8s\x00garbage")})
	require.NoError(t, err)
	b.purge(t.Context())
	for range 3 {
		opts := storage.ListOptions{Recursive: true, Predicate: selecting(t, "x=y", "")}
		err := s.GetList(t.Context(), "/pods", opts, &corev1.PodList{})
		require.ErrorContains(t, causesOf(t, err), "/pods/ns/b")
	}

	predicate := selecting(t, "x=y", "spec.nodeName=n")
	require.Len(t, s.judge(&predicate, "").wanted().Demands, 2)
	sealed := corePods()
	sealed.Transformer = storagetesting.NewPrefixTransformer([]byte(prefix), false)
	require.Nil(t, newStore(b.Cell, sealed).judge(&predicate, "").wanted())
	defaulted := corePods()
	defaulted.DecodesLabels = true
	require.Len(t, newStore(b.Cell, defaulted).judge(&predicate, "").wanted().Demands, 1, "the field")

	custom := newStore(b.Cell, Resource{NewFunc: func() runtime.Object { return &unstructured.Unstructured{} }})
	labelled := map[string]any{"labels": map[string]any{"x": "y"}}
	stored, err := direct.Marshal(map[string]any{"apiVersion": "example.com/v1", "metadata": labelled})
	require.NoError(t, err)
	rows := slices.Values([]projection.Row{{Value: stored}})
	told, ok := custom.judge(&predicate, "example.com/v1").facts(rows)
	require.True(t, ok)
	require.Equal(t, []projection.Fact{fact(hasLabel, "x", ""), fact(hasLabelValue, "x", "y")}, told)
	_, ok = custom.judge(&predicate, "example.com/v2").facts(rows)
	require.False(t, ok, "a conversion may change labels")
}

// BenchmarkSelect lists by a label that no Pod has, by one node many times, and by each node in turn. The process's
// cache has room for a tenth of all Pods. LOGPLANE_BENCH_OBJECTS is the number of Pods.
func BenchmarkSelect(b *testing.B) {
	n, err := strconv.Atoi(os.Getenv("LOGPLANE_BENCH_OBJECTS"))
	if err != nil {
		n = 300_000
	}
	log, counted := manyPods(b, n, 1200)
	open := func() *store {
		p, err := projection.Open(projection.Config{Log: log, Bucket: counted, Budget: cache.NewBudget(64 << 20)})
		require.NoError(b, err)
		return newStore(Cell{Log: log, Projection: p, Cluster: "main", Objects: NewObjects(cache.NewBudget(64 << 20))}, corePods())
	}
	for _, c := range []struct {
		name string
		of   func(i int) storage.SelectionPredicate
	}{
		{"none", func(int) storage.SelectionPredicate { return selecting(b, "app=none", "") }},
		{"node", func(int) storage.SelectionPredicate { return selecting(b, "", "spec.nodeName=node-7") }},
		{"nodes", func(i int) storage.SelectionPredicate {
			return selecting(b, "", fmt.Sprintf("spec.nodeName=node-%d", i%(n/100)))
		}},
	} {
		for _, temperature := range []string{"cold", "warm"} {
			b.Run(c.name+"/"+temperature, func(b *testing.B) {
				s := open()
				if temperature == "warm" { // the first list learns the facts, the second fills the cache
					selected(b, s, storage.ListOptions{Predicate: c.of(0)})
					selected(b, s, storage.ListOptions{Predicate: c.of(0)})
				}
				before, found := counted.Counts(), 0
				for i := 1; b.Loop(); i++ {
					if temperature == "cold" {
						b.StopTimer()
						s = open()
						b.StartTimer()
					}
					found += len(selected(b, s, storage.ListOptions{Predicate: c.of(i)}).Items)
				}
				b.ReportMetric(float64(counted.Counts().GetRange-before.GetRange)/float64(b.N), "reads/op")
				b.ReportMetric(float64(found)/float64(b.N), "found/op")
			})
		}
	}
}
