package kubestore

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apiserver/pkg/storage"
	clientscheme "k8s.io/client-go/kubernetes/scheme"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// corePods are Pods as Kubernetes stores them, in protobuf.
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

// selecting is a predicate of Pods; an empty selector selects everything.
func selecting(t testing.TB, byLabels, byFields string) storage.SelectionPredicate {
	l, err := labels.Parse(byLabels)
	require.NoError(t, err)
	f, err := fields.ParseSelector(byFields)
	require.NoError(t, err)
	return storage.SelectionPredicate{Label: l, Field: f, GetAttrs: func(obj runtime.Object) (labels.Set, fields.Set, error) {
		p := obj.(*corev1.Pod)
		return p.Labels, fields.Set{"metadata.name": p.Name, "spec.nodeName": p.Spec.NodeName, "status.phase": string(p.Status.Phase)}, nil
	}}
}

func selected(t testing.TB, s storage.Interface, opts storage.ListOptions) *corev1.PodList {
	t.Helper()
	opts.Recursive = true
	list := &corev1.PodList{}
	require.NoError(t, s.GetList(t.Context(), "/pods", opts, list))
	return list
}

// manyPods is a bucket whose snapshot has n Pods of about that many bytes in namespaces of 1,000. Each of n/100
// nodes has a hundred of them, in no order.
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
			Labels:      map[string]string{"app": fmt.Sprintf("app-%d", i/10), "pod-template-hash": fmt.Sprintf("%x", i/10*7919), "tier": []string{"web", "db"}[i%2]},
			Annotations: map[string]string{"noise": fmt.Sprintf("%x", noise)},
		},
		Spec:   corev1.PodSpec{NodeName: fmt.Sprintf("node-%d", random.IntN(max(1, n/100))), Containers: []corev1.Container{{Name: "c", Image: "registry.example/app:1"}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
}

// BenchmarkSelect is a list of the Pods of one node, and of a label that none has, by a process whose cache has room
// for a tenth of all Pods.
func BenchmarkSelect(b *testing.B) {
	const n, bytes = 300_000, 1200
	log, counted := manyPods(b, n, bytes)
	open := func() *store {
		p, err := projection.Open(projection.Config{Log: log, Bucket: counted, CacheBytes: 64 << 20})
		require.NoError(b, err)
		return newStore(Cell{Log: log, Projection: p, Cluster: "main", Objects: NewObjects(64 << 20)}, corePods())
	}
	for _, c := range []struct {
		name string
		storage.SelectionPredicate
	}{{"none", selecting(b, "app=none", "")}, {"node", selecting(b, "", "spec.nodeName=node-7")}} {
		for _, temperature := range []string{"cold", "warm"} {
			b.Run(c.name+"/"+temperature, func(b *testing.B) {
				s := open()
				if temperature == "warm" {
					selected(b, s, storage.ListOptions{Predicate: c.SelectionPredicate})
				}
				before, found := counted.Counts(), 0
				for b.Loop() {
					if temperature == "cold" {
						b.StopTimer()
						s = open()
						b.StartTimer()
					}
					found = len(selected(b, s, storage.ListOptions{Predicate: c.SelectionPredicate}).Items)
				}
				b.ReportMetric(float64(counted.Counts().GetRange-before.GetRange)/float64(b.N), "reads/op")
				b.ReportMetric(float64(found), "found")
			})
		}
	}
}
