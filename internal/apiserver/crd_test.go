package apiserver

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	restregistry "k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/logplane/logplane/internal/apiserver/customresources"
	"github.com/logplane/logplane/internal/kubestore/fanout"
)

var crdResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// clients call a Server behind a real listener.
type clients struct {
	dynamic.Interface
	discovery *discovery.DiscoveryClient
}

func connect(t testing.TB, s *Server) clients {
	t.Helper()
	listener := httptest.NewServer(s)
	t.Cleanup(listener.Close)
	config := &rest.Config{Host: listener.URL, QPS: -1}
	d, err := dynamic.NewForConfig(config)
	require.NoError(t, err)
	describe, err := discovery.NewDiscoveryClientForConfig(config)
	require.NoError(t, err)
	return clients{d, describe}
}

func object(t testing.TB, manifest string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	require.NoError(t, yaml.Unmarshal([]byte(manifest), &u.Object))
	return u
}

func (c clients) createCRD(t testing.TB, manifest string) *unstructured.Unstructured {
	t.Helper()
	crd, err := c.Resource(crdResource).Create(t.Context(), object(t, manifest), metav1.CreateOptions{})
	require.NoError(t, err)
	return crd
}

func condition(crd *unstructured.Unstructured, kind string) string {
	conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
	for _, c := range conditions {
		if m := c.(map[string]any); m["type"] == kind {
			return m["status"].(string)
		}
	}
	return ""
}

var (
	widgets = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	gadgets = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "gadgets"}
)

const widgetCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, shortNames: [wd], categories: [all]}
  versions:
  - name: v1
    served: true
    storage: true
    selectableFields: [{jsonPath: .spec.color}]
    additionalPrinterColumns:
    - {name: Size, type: integer, jsonPath: .spec.size}
    - {name: Color, type: string, jsonPath: .spec.color}
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            description: what the widget should be
            x-kubernetes-validations:
            - {rule: "self.size <= self.limit", message: size must not exceed limit}
            properties:
              size: {type: integer, default: 3}
              limit: {type: integer, default: 10}
              color: {type: string, enum: [red, green, blue]}
              fixed: {type: string, x-kubernetes-validations: [{rule: self == oldSelf, message: fixed is fixed}]}
              replicas: {type: integer, default: 1}
              free: {type: object, x-kubernetes-preserve-unknown-fields: true}
              ports:
                type: array
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [name]
                items: {type: object, required: [name], properties: {name: {type: string}, number: {type: integer}}}
          status:
            type: object
            properties:
              replicas: {type: integer}
              phase: {type: string}
`

func widget(name, spec string) string {
	return fmt.Sprintf("apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: %s, namespace: default}\nspec: %s\n", name, spec)
}

// A CRD's objects can be created as soon as the CRD is acknowledged, and everything in its schema applies (row 7).
func TestCustomResource(t *testing.T) {
	s := newServer(t)
	c := connect(t, s)
	ctx := t.Context()
	crd := c.createCRD(t, widgetCRD)
	require.Equal(t, "True", condition(crd, "NamesAccepted"))
	require.Equal(t, "True", condition(crd, "Established"))
	require.Empty(t, condition(crd, "NonStructuralSchema"))
	stored, _, _ := unstructured.NestedStringSlice(crd.Object, "status", "storedVersions")
	require.Equal(t, []string{"v1"}, stored)

	w := c.Resource(widgets).Namespace("default")
	made, err := w.Create(ctx, object(t, widget("a", "{color: red, unknown: 1, free: {any: thing}}")), metav1.CreateOptions{})
	require.NoError(t, err)
	require.Equal(t, map[string]any{"color": "red", "size": int64(3), "limit": int64(10), "replicas": int64(1), "free": map[string]any{"any": "thing"}}, made.Object["spec"])

	t.Run("validation", func(t *testing.T) {
		for spec, message := range map[string]string{
			"{size: 11}":                      "size must not exceed limit",
			"{color: pink}":                   "Unsupported value",
			"{size: text}":                    "must be of type integer",
			"{ports: [{}]}":                   "Required value",
			"{ports: [{name: x}, {name: x}]}": "Duplicate value",
		} {
			_, err := w.Create(ctx, object(t, widget("b", spec)), metav1.CreateOptions{})
			require.True(t, apierrors.IsInvalid(err), "%s: %v", spec, err)
			require.ErrorContains(t, err, message)
		}
		_, err := w.Create(ctx, object(t, widget("b", "{nope: 1}")), metav1.CreateOptions{FieldValidation: "Strict"})
		require.True(t, apierrors.IsBadRequest(err), "%v", err)
		require.ErrorContains(t, err, `unknown field "spec.nope"`)
	})
	t.Run("transition rule", func(t *testing.T) {
		_, err := w.Patch(ctx, "a", types.MergePatchType, []byte(`{"spec":{"fixed":"one"}}`), metav1.PatchOptions{})
		require.NoError(t, err)
		_, err = w.Patch(ctx, "a", types.MergePatchType, []byte(`{"spec":{"fixed":"two"}}`), metav1.PatchOptions{})
		require.ErrorContains(t, err, "fixed is fixed")
	})
	t.Run("status", func(t *testing.T) {
		got, err := w.Get(ctx, "a", metav1.GetOptions{})
		require.NoError(t, err)
		generation := got.GetGeneration()
		require.NoError(t, unstructured.SetNestedField(got.Object, "Ready", "status", "phase"))
		require.NoError(t, unstructured.SetNestedField(got.Object, int64(2), "status", "replicas"))
		require.NoError(t, unstructured.SetNestedField(got.Object, int64(7), "spec", "size"))
		got, err = w.UpdateStatus(ctx, got, metav1.UpdateOptions{})
		require.NoError(t, err)
		require.Equal(t, "Ready", fieldOf(got.Object, "status.phase"))
		require.EqualValues(t, 3, fieldOf(got.Object, "spec.size"))
		require.Equal(t, generation, got.GetGeneration())
		_, err = w.Update(ctx, got, metav1.UpdateOptions{})
		require.NoError(t, err)
	})
	t.Run("scale", func(t *testing.T) {
		scale, err := w.Get(ctx, "a", metav1.GetOptions{}, "scale")
		require.NoError(t, err)
		require.Equal(t, "Scale", scale.GetKind())
		require.EqualValues(t, 2, fieldOf(scale.Object, "status.replicas"))
		require.NoError(t, unstructured.SetNestedField(scale.Object, int64(5), "spec", "replicas"))
		_, err = w.Update(ctx, scale, metav1.UpdateOptions{}, "scale")
		require.NoError(t, err)
		got, err := w.Get(ctx, "a", metav1.GetOptions{})
		require.NoError(t, err)
		require.EqualValues(t, 5, fieldOf(got.Object, "spec.replicas"))
	})
	t.Run("selectable field", func(t *testing.T) {
		_, err := w.Create(ctx, object(t, widget("green", "{color: green}")), metav1.CreateOptions{})
		require.NoError(t, err)
		list, err := w.List(ctx, metav1.ListOptions{FieldSelector: "spec.color=green"})
		require.NoError(t, err)
		require.Len(t, list.Items, 1)
		require.Equal(t, "green", list.Items[0].GetName())
	})
	t.Run("apply", func(t *testing.T) {
		apply := func(manager, spec string, force bool) (*unstructured.Unstructured, error) {
			return w.Apply(ctx, "applied", object(t, widget("applied", spec)), metav1.ApplyOptions{FieldManager: manager, Force: force})
		}
		_, err := apply("one", "{color: red, ports: [{name: a, number: 1}]}", false)
		require.NoError(t, err)
		_, err = apply("two", "{color: blue}", false)
		require.True(t, apierrors.IsConflict(err), "%v", err)
		both, err := apply("two", "{ports: [{name: b, number: 2}]}", false)
		require.NoError(t, err)
		require.Len(t, fieldOf(both.Object, "spec.ports"), 2, "a map list is merged by its key, so the schema is known")
	})
	t.Run("table", func(t *testing.T) {
		table := request{method: "GET", path: "/apis/example.com/v1/namespaces/default/widgets/a", accept: "application/json;as=Table;g=meta.k8s.io;v=v1"}.do(t, s)
		require.Equal(t, 200, table.code, table.body)
		require.Contains(t, table.body, `"name":"Size"`)
		require.Contains(t, table.body, `"cells":["a",3,"red"]`)
	})
	t.Run("representations", func(t *testing.T) {
		for accept, code := range map[string]int{
			"application/yaml": 200, "application/cbor": 200, "application/vnd.kubernetes.protobuf": 406,
			"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1": 200,
		} {
			require.Equal(t, code, request{method: "GET", path: "/apis/example.com/v1/namespaces/default/widgets/a", accept: accept}.do(t, s).code, accept)
		}
		strategic := request{method: "PATCH", path: "/apis/example.com/v1/namespaces/default/widgets/a", body: `{}`, contentType: "application/strategic-merge-patch+json"}
		require.Equal(t, 415, strategic.do(t, s).code)
		for path, method := range map[string]string{"": "POST", "/a": "PUT", "/a/status": "PUT"} {
			sent := request{method: method, path: "/apis/example.com/v1/namespaces/default/widgets" + path, body: "k8s\x00", contentType: "application/vnd.kubernetes.protobuf; charset=utf-8"}
			require.Equal(t, 415, sent.do(t, s).code, path)
		}
	})
	t.Run("missing namespace", func(t *testing.T) {
		_, err := c.Resource(widgets).Namespace("nowhere").Create(ctx, object(t, strings.ReplaceAll(widget("a", "{}"), "default", "nowhere")), metav1.CreateOptions{})
		require.True(t, apierrors.IsNotFound(err), "%v", err)
	})
	t.Run("unknown", func(t *testing.T) {
		_, err := c.Resource(gadgets).List(ctx, metav1.ListOptions{})
		require.True(t, apierrors.IsNotFound(err), "%v", err)
		require.Equal(t, 404, request{method: "GET", path: "/apis/example.com/v9/namespaces/default/widgets"}.do(t, s).code)
		require.Equal(t, 404, request{method: "GET", path: "/apis/example.com/v1/namespaces/default/widgets/a/nope"}.do(t, s).code)
	})
	t.Run("delete", func(t *testing.T) {
		require.NoError(t, w.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
		list, err := w.List(ctx, metav1.ListOptions{})
		require.NoError(t, err)
		require.Empty(t, list.Items)
	})
}

// Values that a tightened schema would refuse are accepted as long as they do not change.
func TestRatcheting(t *testing.T) {
	c := connect(t, newServer(t))
	ctx := t.Context()
	crd := c.createCRD(t, widgetCRD)
	w := c.Resource(widgets).Namespace("default")
	_, err := w.Create(ctx, object(t, widget("a", "{color: red}")), metav1.CreateOptions{})
	require.NoError(t, err)
	changed := strings.Replace(widgetCRD, "[red, green, blue]", "[green, blue]", 1)
	next := object(t, changed)
	next.SetResourceVersion(crd.GetResourceVersion())
	_, err = c.Resource(crdResource).Update(ctx, next, metav1.UpdateOptions{})
	require.NoError(t, err)
	_, err = w.Patch(ctx, "a", types.MergePatchType, []byte(`{"spec":{"size":4}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	_, err = w.Create(ctx, object(t, widget("b", "{color: red}")), metav1.CreateOptions{})
	require.True(t, apierrors.IsInvalid(err), "%v", err)
}

// A change of a CRD takes effect with the next request, through any server (invariant 4; row 8).
func TestCRDChangesAtOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("asks after each of many changes")
	}
	first := newServer(t)
	second, err := New(Config{Cell: first.config.Cell})
	require.NoError(t, err)
	one, two := connect(t, first), connect(t, second)
	ctx := t.Context()
	for round := range 3 {
		crd := one.createCRD(t, widgetCRD)
		_, err := two.Resource(widgets).Namespace("default").Create(ctx, object(t, widget("a", "{color: red}")), metav1.CreateOptions{})
		require.NoError(t, err, round)
		requireServed(t, two, "example.com/v1", true)
		requireServed(t, two, "example.com/v2", false)

		// A new stored version.
		versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
		require.NoError(t, err)
		v2 := object(t, widgetCRD)
		added, _, err := unstructured.NestedSlice(v2.Object, "spec", "versions")
		require.NoError(t, err)
		added[0].(map[string]any)["name"] = "v2"
		versions[0].(map[string]any)["storage"] = false
		require.NoError(t, unstructured.SetNestedSlice(crd.Object, append(versions, added...), "spec", "versions"))
		crd, err = one.Resource(crdResource).Update(ctx, crd, metav1.UpdateOptions{})
		require.NoError(t, err)
		stored, _, _ := unstructured.NestedStringSlice(crd.Object, "status", "storedVersions")
		require.Equal(t, []string{"v1", "v2"}, stored)
		got, err := two.Resource(widgets.GroupResource().WithVersion("v2")).Namespace("default").Get(ctx, "a", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, "example.com/v2", got.GetAPIVersion())
		requireServed(t, two, "example.com/v2", true)

		// A deleted CRD is terminating. It is gone once its last finalizer is removed.
		require.NoError(t, two.Resource(crdResource).Delete(ctx, crd.GetName(), metav1.DeleteOptions{}))
		crd, err = one.Resource(crdResource).Get(ctx, crd.GetName(), metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, "True", condition(crd, "Terminating"))
		require.Equal(t, []string{"customresourcecleanup.apiextensions.k8s.io"}, crd.GetFinalizers())
		_, err = one.Resource(widgets).Namespace("default").Create(ctx, object(t, widget("b", "{}")), metav1.CreateOptions{})
		require.True(t, apierrors.IsForbidden(err), "%v", err)
		require.NoError(t, one.Resource(widgets).Namespace("default").DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
		crd.SetFinalizers(nil)
		_, err = one.Resource(crdResource).Update(ctx, crd, metav1.UpdateOptions{})
		require.NoError(t, err)
		_, err = two.Resource(widgets).Namespace("default").List(ctx, metav1.ListOptions{})
		require.True(t, apierrors.IsNotFound(err), "%v", err)
		requireServed(t, two, "example.com/v1", false)
	}
}

// requireServed asks plain and aggregated discovery and both OpenAPIs about a version.
func requireServed(t *testing.T, c clients, gv string, served bool) {
	t.Helper()
	resources, err := c.discovery.ServerResourcesForGroupVersion(gv)
	if served {
		require.NoError(t, err)
		require.Equal(t, []string{"widgets", "widgets/status", "widgets/scale"}, namesOf(resources))
	} else {
		require.True(t, apierrors.IsNotFound(err), "%v", err)
	}
	_, all, _, err := c.discovery.GroupsAndMaybeResources()
	require.NoError(t, err)
	version, err := schema.ParseGroupVersion(gv)
	require.NoError(t, err)
	require.Equal(t, served, all[version] != nil, "aggregated discovery of %s", gv)
	paths, err := c.discovery.OpenAPIV3().Paths()
	require.NoError(t, err)
	document, ok := paths["apis/"+gv]
	require.Equal(t, served, ok, "OpenAPI v3 of %s", gv)
	if ok {
		content, err := document.Schema("application/json")
		require.NoError(t, err)
		require.Contains(t, string(content), "what the widget should be")
	}
	v2, err := c.discovery.OpenAPISchema()
	require.NoError(t, err)
	found := false
	for _, definition := range v2.GetDefinitions().GetAdditionalProperties() {
		found = found || definition.GetName() == "com.example."+version.Version+".Widget"
	}
	require.Equal(t, served, found, "OpenAPI v2 of %s", gv)
}

func namesOf(list *metav1.APIResourceList) (names []string) {
	for _, r := range list.APIResources {
		names = append(names, r.Name)
	}
	return names
}

// clashingCRD is a CRD with names that other CRDs may want, too.
func clashingCRD(plural, kind, short string) string {
	return fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[1]s.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: %[1]s, singular: %[1]sone, kind: %[2]s, listKind: %[1]sList, shortNames: [%[3]s]}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`, plural, kind, short)
}

// If several CRDs claim the same name at once, through two servers, exactly one CRD gets the name.
func TestClashingNames(t *testing.T) {
	first := newServer(t)
	second, err := New(Config{Cell: first.config.Cell})
	require.NoError(t, err)
	both := []clients{connect(t, first), connect(t, second)}
	const rivals = 6
	for round := range 3 {
		crds := make([]*unstructured.Unstructured, rivals)
		var writers sync.WaitGroup
		for i := range rivals {
			writers.Go(func() {
				var err error
				manifest := clashingCRD(fmt.Sprintf("things%d-%d", round, i), fmt.Sprintf("Thing%d", round), fmt.Sprintf("th%d", round))
				crds[i], err = both[i%2].Resource(crdResource).Create(context.Background(), object(t, manifest), metav1.CreateOptions{})
				if err != nil {
					t.Error(err)
				}
			})
		}
		writers.Wait()
		require.False(t, t.Failed())
		accepted := 0
		var winner *unstructured.Unstructured
		for _, crd := range crds {
			require.Equal(t, condition(crd, "NamesAccepted"), condition(crd, "Established"))
			if condition(crd, "NamesAccepted") == "True" {
				accepted++
				winner = crd
			}
		}
		require.Equal(t, 1, accepted)

		// After the winner is deleted, the next write of a loser gets the names.
		c := both[round%2].Resource(crdResource)
		require.NoError(t, c.Delete(t.Context(), winner.GetName(), metav1.DeleteOptions{}))
		winner, err := c.Get(t.Context(), winner.GetName(), metav1.GetOptions{})
		require.NoError(t, err)
		winner.SetFinalizers(nil)
		_, err = c.Update(t.Context(), winner, metav1.UpdateOptions{})
		require.NoError(t, err)
		accepted = 0
		for _, crd := range crds {
			if crd.GetName() == winner.GetName() {
				continue
			}
			crd, err := c.Update(t.Context(), crd, metav1.UpdateOptions{})
			require.NoError(t, err)
			if condition(crd, "Established") == "True" {
				accepted++
			}
		}
		require.Equal(t, 1, accepted)
	}
}

// Serving custom resources leaves no goroutine behind.
func TestCustomResourcesOwnNoGoroutine(t *testing.T) {
	if testing.Short() {
		t.Skip("serves and removes again and again")
	}
	s := newServer(t)
	get := func(version string) int {
		return request{method: "GET", path: "/apis/example.com/" + version + "/namespaces/default/widgets"}.do(t, s).code
	}
	create := request{method: "POST", path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body: widgetCRD, contentType: "application/yaml"}.do(t, s)
	require.Equal(t, 201, create.code, create.body)
	require.Equal(t, 200, get("v1"))
	request{method: "GET", path: "/openapi/v2"}.do(t, s)
	before := runtime.NumGoroutine()
	for range 100 {
		require.Equal(t, 200, get("v1"))
		require.Equal(t, 200, request{method: "GET", path: "/apis"}.do(t, s).code)
		require.Equal(t, 200, request{method: "GET", path: "/openapi/v3"}.do(t, s).code)
	}
	for deadline := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before && time.Now().Before(deadline); {
		runtime.Gosched() // the log's own goroutines come and go
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), before)
}

// Two writers see that a name is free. The log gives the name to one writer, and the other writer then finds the name
// taken.
func TestNameRace(t *testing.T) {
	first := newServer(t)
	second, err := New(Config{Cell: first.config.Cell})
	require.NoError(t, err)
	var prepared sync.WaitGroup // done when both have found no clash
	prepared.Add(2)
	crds := make([]*unstructured.Unstructured, 2)
	var writers sync.WaitGroup
	for i, s := range []*Server{first, second} {
		built, err := s.groups["apiextensions.k8s.io"].get()
		require.NoError(t, err)
		registry := built.info.VersionedResourcesStorageMap["v1"]["customresourcedefinitions"].(customresources.REST)
		lookedOnce := &meetingStrategy{RESTCreateStrategy: registry.CreateStrategy, prepared: &prepared}
		registry.CreateStrategy = lookedOnce
		c := connect(t, s)
		writers.Go(func() {
			var err error
			crds[i], err = c.Resource(crdResource).Create(context.Background(), object(t, clashingCRD(fmt.Sprintf("rival%d", i), "Rival", "rv")), metav1.CreateOptions{})
			if err != nil {
				t.Error(err)
			}
			if tries := lookedOnce.tries.Load(); condition(crds[i], "NamesAccepted") == "False" && tries != 2 {
				t.Errorf("the loser tried %d times", tries)
			}
		})
	}
	writers.Wait()
	require.False(t, t.Failed())
	require.ElementsMatch(t, []string{"True", "False"}, []string{condition(crds[0], "Established"), condition(crds[1], "Established")})
}

// meetingStrategy delays each writer's first try until every writer has made its first try.
type meetingStrategy struct {
	restregistry.RESTCreateStrategy
	prepared *sync.WaitGroup
	tries    atomic.Int32
}

func (s *meetingStrategy) Canonicalize(obj kruntime.Object) {
	s.RESTCreateStrategy.Canonicalize(obj)
	if s.tries.Add(1) == 1 {
		s.prepared.Done()
		s.prepared.Wait()
	}
}

// Custom resources are stored in the log as CBOR (architecture.md), CRDs as protobuf.
func TestCustomResourceEncoding(t *testing.T) {
	s := newServer(t)
	c := connect(t, s)
	c.createCRD(t, widgetCRD)
	_, err := c.Resource(widgets).Namespace("default").Create(t.Context(), object(t, widget("a", "{}")), metav1.CreateOptions{})
	require.NoError(t, err)
	view, err := s.config.Cell.Projection.Latest(t.Context())
	require.NoError(t, err)
	for key, want := range map[string]struct{ contentType, prefix string }{
		"main/example.com/widgets/default/a":                                      {"application/cbor", "\xd9\xd9\xf7"},
		"main/apiextensions.k8s.io/customresourcedefinitions/widgets.example.com": {"application/vnd.kubernetes.protobuf", "k8s\x00"},
	} {
		row, ok, err := view.Get(t.Context(), key, view.Revision())
		require.NoError(t, err)
		require.True(t, ok, key)
		require.Equal(t, want.contentType, row.ContentType)
		require.True(t, strings.HasPrefix(string(row.Value), want.prefix), "%s: %q", key, row.Value[:4])
	}
}

// A watch of custom resources ends when their CRD changes or is deleted, because later objects may have another schema.
func TestWatchEndsWithCRD(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := newServer(t, func(c *Config) {
		c.Cell.Feed = fanout.NewFeed(c.Cell.Projection)
		var feed sync.WaitGroup
		feed.Go(func() { _ = c.Cell.Feed.Run(ctx) })
		t.Cleanup(func() { cancel(); feed.Wait() })
	})
	c := connect(t, s)
	crd := c.createCRD(t, widgetCRD)
	w := c.Resource(widgets).Namespace("default")
	watchNow := func() watch.Interface {
		list, err := w.List(ctx, metav1.ListOptions{})
		require.NoError(t, err)
		watcher, err := w.Watch(ctx, metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
		require.NoError(t, err)
		return watcher
	}
	// The CRD's event is too old to be watched.
	_, err := w.Create(ctx, object(t, widget("old", "{}")), metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, w.Delete(ctx, "old", metav1.DeleteOptions{}))
	applied, err := s.config.Cell.Projection.Commit(ctx)
	require.NoError(t, err)
	require.NoError(t, s.config.Cell.Projection.Retain(ctx, applied, 0))

	watcher := watchNow()
	_, err = w.Create(ctx, object(t, widget("a", "{}")), metav1.CreateOptions{})
	require.NoError(t, err)
	require.Equal(t, watch.Added, (<-watcher.ResultChan()).Type)

	// A change of metadata does not end the watch.
	crd.SetLabels(map[string]string{"a": "b"})
	crd, err = c.Resource(crdResource).Update(ctx, crd, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.NoError(t, w.Delete(ctx, "a", metav1.DeleteOptions{}))
	require.Equal(t, watch.Deleted, (<-watcher.ResultChan()).Type)

	changed := object(t, strings.Replace(widgetCRD, "default: 3", "default: 4", 1))
	changed.SetResourceVersion(crd.GetResourceVersion())
	_, err = c.Resource(crdResource).Update(ctx, changed, metav1.UpdateOptions{})
	require.NoError(t, err)
	_, open := <-watcher.ResultChan()
	require.False(t, open)

	watcher = watchNow()
	require.NoError(t, c.Resource(crdResource).Delete(ctx, crd.GetName(), metav1.DeleteOptions{}))
	terminating, err := c.Resource(crdResource).Get(ctx, crd.GetName(), metav1.GetOptions{})
	require.NoError(t, err)
	terminating.SetFinalizers(nil)
	_, err = c.Resource(crdResource).Update(ctx, terminating, metav1.UpdateOptions{})
	require.NoError(t, err)
	_, open = <-watcher.ResultChan()
	require.False(t, open)
}

// Objects that are stored in one version are read in another version through the CRD's conversion webhook.
func TestConversionWebhook(t *testing.T) {
	calls := &atomic.Int32{}
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		var review apiextensionsv1.ConversionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
			return
		}
		review.Response = &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: "Success"}}
		for _, raw := range review.Request.Objects {
			u := &unstructured.Unstructured{}
			if err := u.UnmarshalJSON(raw.Raw); err != nil {
				t.Error(err)
				return
			}
			u.SetAPIVersion(review.Request.DesiredAPIVersion)
			u.Object["spec"] = map[string]any{"convertedTo": review.Request.DesiredAPIVersion}
			review.Response.ConvertedObjects = append(review.Response.ConvertedObjects, kruntime.RawExtension{Object: u})
		}
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(hook.Close)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw})
	c := connect(t, newServer(t))
	c.createCRD(t, fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.example.com}
spec:
  group: example.com
  scope: Cluster
  names: {plural: gadgets, singular: gadget, kind: Gadget, listKind: GadgetList}
  conversion:
    strategy: Webhook
    webhook: {conversionReviewVersions: [v1], clientConfig: {url: %q, caBundle: %s}}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
  - {name: v2, served: true, storage: false, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`, hook.URL, base64.StdEncoding.EncodeToString(authority)))
	_, err := c.Resource(gadgets).Create(t.Context(), object(t, "apiVersion: example.com/v1\nkind: Gadget\nmetadata: {name: a}\nspec: {made: here}\n"), metav1.CreateOptions{})
	require.NoError(t, err)
	got, err := c.Resource(gadgets.GroupResource().WithVersion("v2")).Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "example.com/v2", fieldOf(got.Object, "spec.convertedTo"))
	require.Positive(t, calls.Load())

	hook.Close() // the failure is not a mistake of the client that patches
	apply := object(t, "apiVersion: example.com/v2\nkind: Gadget\nmetadata: {name: b}\nspec: {made: here}\n")
	_, err = c.Resource(gadgets.GroupResource().WithVersion("v2")).Apply(t.Context(), "b", apply, metav1.ApplyOptions{FieldManager: "one"})
	require.ErrorContains(t, err, "conversion webhook for example.com/v2, Kind=Gadget failed")
	status := apierrors.APIStatus(nil)
	require.ErrorAs(t, err, &status)
	require.EqualValues(t, 500, status.Status().Code)
}

// CRDs are applied with the schema of their own types: conditions are merged by type.
func TestApplyCRD(t *testing.T) {
	c := connect(t, newServer(t))
	crds := c.Resource(crdResource)
	_, err := crds.Apply(t.Context(), "widgets.example.com", object(t, widgetCRD), metav1.ApplyOptions{FieldManager: "one"})
	require.NoError(t, err)
	_, err = crds.Apply(t.Context(), "widgets.example.com", object(t, strings.Replace(widgetCRD, "default: 3", "default: 4", 1)), metav1.ApplyOptions{FieldManager: "two"})
	require.True(t, apierrors.IsConflict(err), "%v", err)
	both, err := crds.ApplyStatus(t.Context(), "widgets.example.com", object(t, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
status: {conditions: [{type: Ours, status: "True", reason: Because, message: "", lastTransitionTime: "2026-01-01T00:00:00Z"}]}
`), metav1.ApplyOptions{FieldManager: "two"})
	require.NoError(t, err)
	require.Equal(t, "True", condition(both, "Established"))
	require.Equal(t, "True", condition(both, "Ours"))
}

// A write of a CRD also sets the status that upstream's controllers would set. No name is claimed by a status that a
// client writes.
func TestCRDConditions(t *testing.T) {
	c := connect(t, newServer(t))
	crds := c.Resource(crdResource)
	bad := strings.NewReplacer("example.com", "things.k8s.io").Replace(clashingCRD("gadgets", "Gadget", "gd"))
	_, err := crds.Create(t.Context(), object(t, bad), metav1.CreateOptions{})
	require.True(t, apierrors.IsInvalid(err), "%v", err)
	require.ErrorContains(t, err, "api-approved.kubernetes.io")
	approved := object(t, bad)
	approved.SetAnnotations(map[string]string{"api-approved.kubernetes.io": "https://github.com/kubernetes/kubernetes/pull/78458"})
	crd, err := crds.Create(t.Context(), approved, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Equal(t, "True", condition(crd, "KubernetesAPIApprovalPolicyConformant"))

	first := c.createCRD(t, clashingCRD("gadgets", "Gadget", "gd"))
	second := c.createCRD(t, clashingCRD("widgets", "Gadget", "wd"))
	require.Equal(t, "False", condition(second, "NamesAccepted"))
	require.NoError(t, unstructured.SetNestedField(second.Object, "Gadget", "status", "acceptedNames", "kind"))
	second, err = crds.UpdateStatus(t.Context(), second, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Empty(t, fieldOf(second.Object, "status.acceptedNames.kind"))
	require.Equal(t, "False", condition(second, "Established"))
	_, err = c.Resource(widgets).List(t.Context(), metav1.ListOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)

	// An update that changes nothing appends nothing, conditions included (row 48).
	again, err := crds.Update(t.Context(), first, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Equal(t, first.GetResourceVersion(), again.GetResourceVersion())

	// The loser takes another name.
	require.NoError(t, unstructured.SetNestedField(second.Object, "Other", "spec", "names", "kind"))
	second, err = crds.Update(t.Context(), second, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Equal(t, "True", condition(second, "Established"))
	_, err = c.Resource(widgets).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)

	// A name that a CRD gives up is free at once.
	first, err = crds.Get(t.Context(), first.GetName(), metav1.GetOptions{})
	require.NoError(t, err)
	require.NoError(t, unstructured.SetNestedStringSlice(first.Object, []string{"new"}, "spec", "names", "shortNames"))
	_, err = crds.Update(t.Context(), first, metav1.UpdateOptions{})
	require.NoError(t, err)
	heir := c.createCRD(t, clashingCRD("heirs", "Heir", "gd"))
	require.Equal(t, "True", condition(heir, "NamesAccepted"))
	late := c.createCRD(t, clashingCRD("lates", "Late", "new"))
	require.Equal(t, "False", condition(late, "NamesAccepted"))

	// A dry run does not claim names.
	_, err = crds.Create(t.Context(), object(t, clashingCRD("dry", "Dry", "dr")), metav1.CreateOptions{DryRun: []string{"All"}})
	require.NoError(t, err)
	wet := c.createCRD(t, clashingCRD("wet", "Dry", "dr"))
	require.Equal(t, "True", condition(wet, "NamesAccepted"))
}

// TestWholeNumbers: if a client sends back a custom resource unchanged, nothing changes, however the numbers were
// written at first.
func TestWholeNumbers(t *testing.T) {
	s := newServer(t)
	s.must(t, 201, request{method: "POST", path: crdsPath, body: widgetCRD, contentType: "application/yaml"})
	const numbers = `{"a":1.0,"b":-0.0,"c":1e3,"d":9007199254740993.0,"e":[1.0,{"f":100.00}],"g":1.5,"h":1e30,"i":9223372036854775808,"j":-5,"k":1234567890123456800.0}`
	created := s.must(t, 201, request{method: "POST", path: customs, body: `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"},"spec":{"free":` + numbers + `}}`})
	const read = `"free":{"a":1,"b":0,"c":1000,"d":9007199254740992,"e":[1,{"f":100}],"g":1.5,"h":1e+30,"i":9223372036854776000,"j":-5,"k":1234567890123456800}`
	require.Contains(t, created.body, read)
	got := s.must(t, 200, request{method: "GET", path: customs + "/a"})
	require.Equal(t, created.body, got.body)
	require.Equal(t, got.body, s.must(t, 200, request{method: "PUT", path: customs + "/a", body: got.body}).body)
	require.Contains(t, s.must(t, 200, request{method: "GET", path: customs}).body, read)

	// Nothing changes if the client sends its first body again, with numbers as some clients write them.
	again := strings.Replace(got.body, `"a":1,`, `"a":1.0,`, 1)
	require.NotEqual(t, got.body, again)
	require.Equal(t, got.body, s.must(t, 200, request{method: "PUT", path: customs + "/a", body: again}).body)
	patch := request{method: "PATCH", path: customs + "/a", body: `{"spec":{"free":{"c":1e3}}}`, contentType: "application/merge-patch+json"}
	require.Equal(t, got.body, s.must(t, 200, patch).body)

	// Nothing changes if a webhook adds such a number each time.
	w := newWebhookServer(t)
	w.decides(patching(`[{"op":"add","path":"/spec/free/w","value":1.0}]`))
	about := strings.NewReplacer(`"apiGroups":[""]`, `"apiGroups":["example.com"]`, `"configmaps"`, `"widgets"`, `"CREATE"`, `"CREATE","UPDATE"`)
	s.must(t, 201, request{method: "POST", path: mutatingWebhooks, body: about.Replace(w.configuration("w", ""))})
	added := s.must(t, 200, request{method: "PUT", path: customs + "/a", body: got.body}).body
	require.Contains(t, added, `"w":1}`)
	require.Equal(t, added, s.must(t, 200, request{method: "PUT", path: customs + "/a", body: added}).body)
}
