package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	clientfeatures "k8s.io/client-go/features"
	clientfeaturestesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/test/product"
)

var (
	configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	widgets    = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	crds       = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
)

// clientsFor returns clients without client-side rate limits.
func clientsFor(t testing.TB, url string) (*rest.Config, *kubernetes.Clientset, *dynamic.DynamicClient) {
	t.Helper()
	config := &rest.Config{Host: url, QPS: -1}
	typed, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	untyped, err := dynamic.NewForConfig(config)
	require.NoError(t, err)
	return config, typed, untyped
}

// defineWidgets creates the CRD that the tests use.
func defineWidgets(t testing.TB, client dynamic.Interface) { define(t, client, "widget", "Widget") }

// define creates a CRD in the group example.com.
func define(t testing.TB, client dynamic.Interface, name, kind string) {
	t.Helper()
	schemaProps := map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
	crd := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": name + "s.example.com"},
		"spec": map[string]any{
			"group": "example.com", "scope": "Namespaced",
			"names": map[string]any{"plural": name + "s", "singular": name, "kind": kind, "listKind": kind + "List"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true,
				"subresources": map[string]any{"status": map[string]any{}},
				"schema":       map[string]any{"openAPIV3Schema": schemaProps},
			}},
		},
	}}
	_, err := client.Resource(crds).Create(t.Context(), crd, metav1.CreateOptions{})
	require.NoError(t, err)
}

func widget(name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget",
		"metadata": map[string]any{"name": name}, "spec": spec,
	}}
}

// asJSON returns an object as a client sees it. The text is the same for all representations, so texts can be compared.
func asJSON(t testing.TB, object runtime.Object) string {
	t.Helper()
	text, err := json.Marshal(object)
	require.NoError(t, err)
	var fields map[string]any
	require.NoError(t, json.Unmarshal(text, &fields))
	delete(fields, "apiVersion") // typed clients leave this and 'kind' empty
	delete(fields, "kind")
	text, err = json.Marshal(fields)
	require.NoError(t, err)
	return string(text)
}

// TestRepresentationsAgree reads the same objects through the typed client in protobuf, and through the dynamic client
// in JSON and in CBOR. The test does not run in parallel with other tests, because it turns on a feature for all
// clients of this process.
func TestRepresentationsAgree(t *testing.T) {
	server := product.Dev(t, t.TempDir(), "--in-memory")
	config, typed, asDynamic := clientsFor(t, server.URL())
	protobuf := rest.CopyConfig(config)
	protobuf.ContentType = runtime.ContentTypeProtobuf
	protobuf.AcceptContentTypes = runtime.ContentTypeProtobuf
	asProtobuf, err := kubernetes.NewForConfig(protobuf)
	require.NoError(t, err)
	clientfeaturestesting.SetFeatureDuringTest(t, clientfeatures.ClientsAllowCBOR, true)
	clientfeaturestesting.SetFeatureDuringTest(t, clientfeatures.ClientsPreferCBOR, true)
	asCBOR, err := dynamic.NewForConfig(config)
	require.NoError(t, err)

	for i := range 20 {
		created, err := asProtobuf.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("c-%d", i), Labels: map[string]string{"i": fmt.Sprint(i)}},
			Data:       map[string]string{"text": "größer\x00", "n": fmt.Sprint(i)},
			BinaryData: map[string][]byte{"bytes": {0, 1, 0xff}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		inJSON, err := asDynamic.Resource(configMaps).Namespace("default").Get(t.Context(), created.Name, metav1.GetOptions{})
		require.NoError(t, err)
		inCBOR, err := asCBOR.Resource(configMaps).Namespace("default").Get(t.Context(), created.Name, metav1.GetOptions{})
		require.NoError(t, err)
		plain, err := typed.CoreV1().ConfigMaps("default").Get(t.Context(), created.Name, metav1.GetOptions{})
		require.NoError(t, err)
		require.JSONEq(t, asJSON(t, created), asJSON(t, inJSON))
		require.JSONEq(t, asJSON(t, created), asJSON(t, inCBOR))
		require.JSONEq(t, asJSON(t, created), asJSON(t, plain))
	}

	defineWidgets(t, asDynamic)
	spec := map[string]any{"text": "größer", "count": int64(7), "ratio": 0.5, "list": []any{"a", int64(1), true, nil}}
	created, err := asCBOR.Resource(widgets).Namespace("default").Create(t.Context(), widget("one", spec), metav1.CreateOptions{})
	require.NoError(t, err)
	inJSON, err := asDynamic.Resource(widgets).Namespace("default").Get(t.Context(), "one", metav1.GetOptions{})
	require.NoError(t, err)
	require.JSONEq(t, asJSON(t, created), asJSON(t, inJSON))
	applied, err := asCBOR.Resource(widgets).Namespace("default").Apply(t.Context(), "two", widget("two", spec), metav1.ApplyOptions{FieldManager: "cbor"})
	require.NoError(t, err)
	inJSON, err = asDynamic.Resource(widgets).Namespace("default").Get(t.Context(), "two", metav1.GetOptions{})
	require.NoError(t, err)
	require.JSONEq(t, asJSON(t, applied), asJSON(t, inJSON))
}

// TestOptimisticIncrements: 1,000 concurrent read-modify-writes of one object end at exactly 1,000.
func TestOptimisticIncrements(t *testing.T) {
	if testing.Short() {
		t.Skip("thousands of writes")
	}
	t.Parallel()
	server := product.Dev(t, t.TempDir(), "--in-memory")
	_, typed, _ := clientsFor(t, server.URL())
	increment(t, increments, typed)
}

// increment counts up to total in one object. Several writers, spread over the clients, count at once.
func increment(t testing.TB, total int, through ...kubernetes.Interface) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	_, err := through[0].CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "counter"}, Data: map[string]string{"n": "0"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	work := make(chan int, total)
	for i := range total {
		work <- i
	}
	close(work)
	failures := make(chan error, incrementers)
	for w := range incrementers {
		client := through[w%len(through)]
		go func() {
			for range work {
				if err := incrementOnce(ctx, client); err != nil {
					failures <- err
					return
				}
			}
			failures <- nil
		}()
	}
	for range incrementers {
		require.NoError(t, <-failures)
	}
	for _, client := range through {
		counter, err := client.CoreV1().ConfigMaps("default").Get(ctx, "counter", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint(total), counter.Data["n"])
	}
}

const (
	increments   = 1000 / eventlogtest.Slowdown
	incrementers = 8
)

// incrementOnce reads the object, adds one, and updates the object with the resourceVersion that it read. It tries
// again until nobody else writes in between.
func incrementOnce(ctx context.Context, client kubernetes.Interface) error {
	for {
		counter, err := client.CoreV1().ConfigMaps("default").Get(ctx, "counter", metav1.GetOptions{})
		if err != nil {
			return err
		}
		var n int
		if _, err := fmt.Sscan(counter.Data["n"], &n); err != nil {
			return err
		}
		counter.Data["n"] = fmt.Sprint(n + 1)
		_, err = client.CoreV1().ConfigMaps("default").Update(ctx, counter, metav1.UpdateOptions{})
		if err == nil || !isConflict(err) {
			return err
		}
	}
}

// TestPatchTypesOverHTTP sends a patch of each type for the same object, and reads the result back.
func TestPatchTypesOverHTTP(t *testing.T) {
	t.Parallel()
	server := product.Dev(t, t.TempDir(), "--in-memory")
	_, typed, _ := clientsFor(t, server.URL())
	maps := typed.CoreV1().ConfigMaps("default")
	_, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Data: map[string]string{"a": "1"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	for _, patch := range []struct {
		kind types.PatchType
		body string
	}{
		{types.JSONPatchType, `[{"op":"add","path":"/data/json","value":"x"}]`},
		{types.MergePatchType, `{"data":{"merge":"x"}}`},
		{types.StrategicMergePatchType, `{"data":{"strategic":"x"}}`},
		{types.ApplyPatchType, "apiVersion: v1\nkind: ConfigMap\ndata: {apply: x}"},
	} {
		options := metav1.PatchOptions{}
		if patch.kind == types.ApplyPatchType {
			options.FieldManager = "test"
		}
		_, err := maps.Patch(t.Context(), "p", patch.kind, []byte(patch.body), options)
		require.NoError(t, err, patch.kind)
	}
	got, err := maps.Get(t.Context(), "p", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"a": "1", "json": "x", "merge": "x", "strategic": "x", "apply": "x"}, got.Data)
}
