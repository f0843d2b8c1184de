package kubestore

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
)

func inProtobuf(t testing.TB, object runtime.Object) []byte {
	t.Helper()
	encoder := clientscheme.Codecs.EncoderForVersion(protobuf.NewSerializer(clientscheme.Scheme, clientscheme.Scheme), corev1.SchemeGroupVersion)
	data, err := runtime.Encode(encoder, object)
	require.NoError(t, err)
	return data
}

func TestStoredLabels(t *testing.T) {
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: "a", Labels: map[string]string{"app": "web", "empty": ""}, Annotations: map[string]string{"app": "no label"},
	}, Data: map[string]string{"app": "no label"}}
	var l storedLabels
	read := func(data []byte) bool {
		object, ok := rawObject(data)
		return ok && l.read(object)
	}
	require.True(t, read(inProtobuf(t, object)))
	for selector, matches := range map[string]bool{
		"app": true, "app=web": true, "app=db": false, "empty=": true, "!empty": false, "none": false, "!none": true, "app!=web": false, "app in (db,web),empty": true,
	} {
		parsed, err := labels.Parse(selector)
		require.NoError(t, err)
		require.Equal(t, matches, parsed.Matches(&l), selector)
	}
	require.True(t, read(inProtobuf(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "b"}})))
	require.Empty(t, l.pairs, "those of the last object are gone")
	for _, other := range []string{"", "k8s", "k8s\x00\xff", "k8s\x00\x1a\x01x", `{"metadata":{"labels":{"app":"web"}}}`} {
		require.False(t, read([]byte(other)), "%q", other)
	}
}

// FuzzStoredLabels: reading labels from stored bytes gives the same labels as upstream's decoder.
func FuzzStoredLabels(f *testing.F) {
	for _, of := range []map[string]string{nil, {"a": "b"}, {"a": "", "": "c", "long/name": "x"}} {
		f.Add(inProtobuf(f, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: of}, Data: map[string]string{"k": "v"}}))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var l storedLabels
		object, ok := rawObject(data)
		if !ok || !l.read(object) {
			return
		}
		decoded := &corev1.ConfigMap{}
		if _, _, err := protobuf.NewSerializer(clientscheme.Scheme, clientscheme.Scheme).Decode(data, nil, decoded); err != nil {
			return // corrupt, but outside the labels
		}
		found := map[string]string{}
		for _, pair := range l.pairs {
			found[string(pair.key)] = string(pair.value)
		}
		require.Equal(t, len(decoded.Labels), len(found))
		for key, value := range decoded.Labels {
			got, ok := l.Lookup(key)
			require.True(t, ok)
			require.Equal(t, value, got)
		}
	})
}

// BenchmarkSelectNothing measures a list whose selector matches none of many objects.
func BenchmarkSelectNothing(b *testing.B) {
	object := inProtobuf(b, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"app": "web"}}, Data: map[string]string{"k": fmt.Sprintf("%01000d", 1)}})
	selector, err := labels.Parse("app=db")
	require.NoError(b, err)
	b.Run("stored", func(b *testing.B) {
		var l storedLabels
		for b.Loop() {
			raw, ok := rawObject(object)
			require.True(b, ok && l.read(raw))
			require.False(b, selector.Matches(&l))
		}
	})
	b.Run("decoded", func(b *testing.B) {
		serializer := protobuf.NewSerializer(clientscheme.Scheme, clientscheme.Scheme)
		for b.Loop() {
			decoded := &corev1.ConfigMap{}
			_, _, err := serializer.Decode(object, nil, decoded)
			require.NoError(b, err)
			require.False(b, selector.Matches(labels.Set(decoded.Labels)))
		}
	})
}
