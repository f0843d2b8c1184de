package customresources

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace/noop"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/controller/finalizer"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/yaml"

	"github.com/logplane/logplane/internal/apiserver/customresources/verbatim"
	"github.com/logplane/logplane/internal/apiserver/resources"
)

// schemas are CRD schemas. They differ in how they change values that do not fit.
var schemas = []string{
	`{type: object, properties: {spec: {type: object, properties: {a: {type: string}, b: {type: integer, default: 3}, c: {type: array, items: {type: object, properties: {a: {type: string, nullable: true}}}}}}}}`,
	`{type: object, x-kubernetes-preserve-unknown-fields: true}`,
	`{type: object, properties: {metadata: {type: object, properties: {name: {type: string, maxLength: 9}}}, spec: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {a: {type: object, properties: {b: {type: string}}}}}}}`,
	`{type: object, properties: {spec: {type: object, additionalProperties: {type: object, nullable: true, properties: {a: {x-kubernetes-int-or-string: true}, b: {type: number, default: 1.5}}}}}}`,
	`{type: object, properties: {spec: {type: object, properties: {a: {type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}, b: {type: array, items: {type: array, items: {type: string}}}}}}}`,
	`{type: object, properties: {spec: {type: object, additionalProperties: true}, a: {type: string, default: x}}}`,
}

// codecs are upstream's codec and our codec for one schema.
type codecs struct {
	upstream, ours runtime.Codec
	schema         *verbatim.Schema
}

// notStored gives upstream's handler the options from which the handler makes its codec.
type notStored struct{ codec runtime.Codec }

func (n *notStored) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	return generic.RESTOptions{
		StorageConfig: &storagebackend.ConfigForResource{GroupResource: resource, Config: storagebackend.Config{Codec: resources.CustomCodec()}},
		Decorator: func(config *storagebackend.ConfigForResource, _ string, _ func(runtime.Object) (string, error), _, _ func() runtime.Object,
			_ storage.AttrFunc, _ storage.IndexerFuncs, _ *cache.Indexers,
		) (storage.Interface, factory.DestroyFunc, error) {
			n.codec = config.Codec
			return nil, nil, errors.New("nothing is stored here")
		},
		ResourcePrefix: resource.Group + "/" + resource.Resource,
	}, nil
}

func codecsOf(t testing.TB, openAPI string) codecs {
	t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	require.NoError(t, yaml.UnmarshalStrict([]byte(`{metadata: {name: widgets.example.com}, spec: {group: example.com, scope: Cluster, conversion: {strategy: None}, names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList},
		versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: `+openAPI+`}}]}, status: {acceptedNames: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList}, storedVersions: [v1]}}`), crd))
	one, stored := &definitionHandler{}, &notStored{}
	one.crd.Store(crd)
	upstream, err := crdserver.NewCustomResourceDefinitionHandler(nil, nil, one, nil, stored, nil, nil, webhook.NewDefaultServiceResolver(),
		webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, nil, noop.NewTracerProvider()), 1, nil, time.Second, time.Second, map[string]*spec.Schema{}, 1)
	require.NoError(t, err)
	err = func() (err error) {
		defer func() { err = fmt.Errorf("%v", recover()) }() // upstream panics, because there is no store
		_, err = any(upstream).(finalizer.CRClientGetter).GetCustomResourceListerCollectionDeleter(crd)
		return err
	}()
	require.NotNil(t, stored.codec, "%v", err)
	s := schemasOf(crd)
	return codecs{stored.codec, codec{stored.codec, func(v string) *verbatim.Schema { return s[v] }, "example.com/v1"}, s["example.com/v1"]}
}

func wanted() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget"}}
}

// decode calls Decode, and turns a panic into an error. Upstream panics for an object without metadata. Such an object
// cannot be stored.
func decode(c runtime.Codec, stored []byte, into runtime.Object) (object runtime.Object, err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("panic: %v", reason)
		}
	}()
	object, _, err = c.Decode(stored, nil, into)
	return object, err
}

// compare reports whether the schema leaves the stored object as it is. If so, it requires that both codecs decode the
// stored object to the same object, and that package verbatim encodes the stored object as upstream does.
func (c codecs) compare(t testing.TB, stored []byte) bool {
	_, leaves := c.schema.Leaves(stored)
	expected, failed := decode(c.upstream, stored, wanted())
	decoded, err := decode(c.ours, stored, wanted())
	if failed != nil {
		require.False(t, leaves, "%x: %v", stored, failed)
		require.Error(t, err)
		return false
	}
	require.NoError(t, err)
	require.Equal(t, expected, decoded)
	byDefault, err := decode(c.ours, stored, nil)
	require.NoError(t, err)
	require.Equal(t, expected, byDefault)
	if !leaves {
		return false
	}
	object := expected.(*unstructured.Unstructured)
	object.SetResourceVersion("123")
	asJSON, err := json.Marshal(object.Object)
	require.NoError(t, err)
	require.Equal(t, string(asJSON), string(verbatim.AppendJSON(nil, stored, 123)))
	var fromCBOR map[string]any
	require.NoError(t, direct.Unmarshal(verbatim.AppendCBOR(nil, stored, 123), &fromCBOR))
	require.Equal(t, object.Object, fromCBOR)
	return true
}

const plainMetadata = `"name":"a","uid":"u","generation":1,"creationTimestamp":"2026-11-26T01:02:03Z"`

// stored encodes an object as it is stored.
func stored(t testing.TB, metadata, rest string) []byte {
	u := wanted()
	require.NoError(t, json.Unmarshal([]byte(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{`+metadata+`}`+rest+`}`), &u.Object))
	numbers(u.Object)
	data, err := runtime.Encode(resources.CustomCodec(), u)
	require.NoError(t, err)
	return data
}

// deep returns n objects, nested in each other.
func deep(n int) string { return strings.Repeat(`{"a":`, n-1) + "{}" + strings.Repeat("}", n-1) }

// numbers turns a float into an integer if JSON does not distinguish the two.
func numbers(object map[string]any) {
	var walk func(v any) any
	walk = func(v any) any {
		switch v := v.(type) {
		case map[string]any:
			for name, member := range v {
				v[name] = walk(member)
			}
		case []any:
			for i := range v {
				v[i] = walk(v[i])
			}
		case float64:
			if v == float64(int64(v)) {
				return int64(v)
			}
		}
		return v
	}
	walk(object)
}

// TestVerbatim: Leaves is true only of objects that their schema leaves as they are. All other objects are decoded.
func TestVerbatim(t *testing.T) {
	var all []codecs
	for _, s := range schemas {
		all = append(all, codecsOf(t, s))
	}
	for _, c := range []struct {
		schema         int
		metadata, rest string
		leaves         bool
	}{
		{0, plainMetadata, ``, true},
		{0, plainMetadata, `,"spec":{"b":1}`, true},
		{0, plainMetadata, `,"spec":{"a":"<é\u2028\"\\\u0001>","b":-7,"c":[{"a":null},{"a":"x"},{}]}`, true},
		{0, plainMetadata, `,"spec":{"a":"x"}`, false},                          // b has a default
		{0, plainMetadata, `,"spec":{"b":null}`, false},                         // null is replaced by the default
		{0, plainMetadata, `,"spec":{"b":1,"a":null}`, false},                   // pruned
		{0, plainMetadata, `,"spec":{"b":1,"c":[{"z":1}]}`, false},              // pruned
		{0, plainMetadata, `,"status":{}`, false},                               // pruned
		{0, plainMetadata + `,"resourceVersion":"7"`, ``, false},                // resourceVersion would be there twice
		{0, plainMetadata + `,"selfLink":""`, ``, false},                        // dropped
		{0, plainMetadata + `,"labels":{}`, ``, false},                          // dropped
		{0, plainMetadata + `,"labels":{"a":1}`, ``, false},                     // dropped
		{0, plainMetadata + `,"finalizers":[]`, ``, false},                      // dropped
		{0, plainMetadata + `,"other":1`, ``, false},                            // dropped
		{0, plainMetadata + `,"deletionTimestamp":null`, ``, false},             // dropped
		{0, `"name":"a","creationTimestamp":"2026-11-26T01:02:03Z"`, ``, false}, // a generation is added
		{0, `"name":"a","generation":0,"creationTimestamp":"2026-11-26T01:02:03Z"`, ``, false},
		{0, `"name":"a","generation":1`, ``, false}, // creationTimestamp is added
		{0, `"name":"a","generation":1,"creationTimestamp":"2026-11-26T01:02:03.5Z"`, ``, false},
		{0, `"name":"a","generation":1,"creationTimestamp":"2026-11-26T03:02:03+02:00"`, ``, false},
		{0, `"name":"a","generation":1,"creationTimestamp":"2026-13-26T01:02:03Z"`, ``, false},
		{0, `"name":"a","generation":1,"creationTimestamp":"0001-01-01T00:00:00Z"`, ``, false},
		{0, plainMetadata + `,"namespace":"n","generateName":"g","deletionTimestamp":"2026-11-26T01:02:03Z","deletionGracePeriodSeconds":0,"labels":{"a":""},"annotations":{"<":"é"},"finalizers":["a/b"],` +
			`"ownerReferences":[{"apiVersion":"v1","kind":"K","name":"n","uid":"","controller":true,"blockOwnerDeletion":false}],` +
			`"managedFields":[{"manager":"m","operation":"Update","apiVersion":"v1","time":"2026-11-26T01:02:03Z","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{".":{},"f:a":{},"k:{\"a\":1}":{}}},"subresource":"status"}]`, ``, true},
		{0, plainMetadata + `,"ownerReferences":[{"kind":"K","name":"n","uid":"u"}]`, ``, false},
		{0, plainMetadata + `,"ownerReferences":[{"apiVersion":"v1","kind":"K","name":"n","uid":"u","controller":null}]`, ``, false},
		{0, plainMetadata + `,"managedFields":[{"manager":""}]`, ``, false},
		{0, plainMetadata + `,"managedFields":[{"fieldsV1":{"f:a":1}}]`, ``, false},
		{1, plainMetadata, `,"spec":{"z":[null,1.5,{"y":null},-1,1e300,true,false,[[]],"` + strings.Repeat("x", 300) + `"],"long name":{}}`, true},
		{1, plainMetadata, `,"a":1,"aa":2,"b":3,"B":[{"bb":1,"a":2}]`, true}, // JSON orders the members differently
		{2, plainMetadata, `,"spec":{"z":{"y":null},"a":{"b":"x"}}`, true},
		{2, plainMetadata, `,"spec":{"a":{"c":"x"}}`, false}, // pruned
		{2, plainMetadata, `,"spec":{"a":null}`, false},      // pruned
		{3, plainMetadata, `,"spec":{"x":{"a":"1","b":1},"y":null}`, true},
		{3, plainMetadata, `,"spec":{"x":{"a":"1"}}`, false}, // b has a default
		{4, plainMetadata, `,"spec":{"b":[["x"],[]]}`, true},
		{1, plainMetadata + `,"managedFields":[{"fieldsV1":` + deep(124) + `}]`, `,"spec":` + deep(127), true},
		{1, plainMetadata + `,"managedFields":[{"fieldsV1":` + deep(125) + `}]`, ``, false},
		{1, plainMetadata, `,"spec":` + deep(128), false},
		{4, plainMetadata, `,"spec":{"a":{"apiVersion":"v1","kind":"K"}}`, false}, // embedded
		{4, plainMetadata, `,"spec":{"b":[null]}`, false},
		{5, plainMetadata, `,"a":"x","spec":{"y":1}`, true},
		{5, plainMetadata, `,"a":"x","spec":{"y":{"z":1}}`, false}, // pruned
		{5, plainMetadata, `,"spec":{}`, false},                    // a has a default
	} {
		require.Equal(t, c.leaves, all[c.schema].compare(t, stored(t, c.metadata, c.rest)), "schema %d: %s %s", c.schema, c.metadata, c.rest)
	}

	// Leaves is false for encodings that upstream would not write; upstream's codec refuses or decodes these. The only
	// exception here is a number in a longer form than necessary.
	plain := stored(t, plainMetadata, `,"spec":{"b":1}`)
	for old, other := range map[string]string{
		"\xd9\xd9\xf7": "", "\x44kind": "\x64kind", "\x44spec\xa1": "\x58\x04spec\xa1", "\x41b\x01": "\x41b\x18\x01",
	} {
		require.Contains(t, string(plain), old)
		other := strings.Replace(string(plain), old, other, 1)
		require.Equal(t, old == "\x41b\x01", all[0].compare(t, []byte(other)), "%q", old)
	}
	twice := strings.Replace(string(plain), "\x44spec\xa1\x41b\x01", "\x44spec\xa2\x41b\x01\x61b\x02", 1)
	require.False(t, all[0].compare(t, []byte(twice)))

	// An object that upstream has decoded once and stored again stays as it is. These objects have no nulls and no
	// embedded objects.
	random := rand.New(rand.NewPCG(1, 2))
	left := 0
	for range 5_000 {
		c := all[random.IntN(len(all))]
		first := stored(t, plainMetadata, `,"spec":`+randomJSON(random, 4)+`,"a":`+randomJSON(random, 2))
		c.compare(t, first)
		once, _, err := c.upstream.Decode(first, nil, wanted())
		if err != nil { // the embedded value is not a Kubernetes object
			continue
		}
		again, err := runtime.Encode(resources.CustomCodec(), once)
		require.NoError(t, err)
		if c.compare(t, again) {
			left++
		}
	}
	require.Greater(t, left, 3_500)
}

func randomJSON(random *rand.Rand, depth int) string {
	name := func() string { return []string{"a", "b", "c", "aa", "é<", "kind", "metadata"}[random.IntN(7)] }
	switch n := random.IntN(9); {
	case n < 4 && depth > 0:
		members := map[string]bool{}
		var out []string
		for range random.IntN(4) {
			if m := name(); !members[m] {
				members[m] = true
				out = append(out, fmt.Sprintf("%q:%s", m, randomJSON(random, depth-1)))
			}
		}
		return "{" + strings.Join(out, ",") + "}"
	case n == 4 && depth > 0:
		var out []string
		for range random.IntN(3) {
			out = append(out, randomJSON(random, depth-1))
		}
		return "[" + strings.Join(out, ",") + "]"
	case n == 5:
		return []string{"1", "-5", "1.25", "70000", "5000000000"}[random.IntN(5)]
	case n == 6:
		return []string{"null", "true", "false"}[random.IntN(3)]
	}
	return fmt.Sprintf("%q", name())
}

// FuzzVerbatim: for any stored bytes, if Leaves is true, the object stays as it is.
func FuzzVerbatim(f *testing.F) {
	var all []codecs
	for _, s := range schemas {
		all = append(all, codecsOf(f, s))
	}
	for i, rest := range []string{``, `,"spec":{"z":[null,1.5,-1,true,[[]]]}`, `,"spec":{"a":{"b":"é"}}`, `,"spec":{"x":{"a":"1","b":1.5}}`, `,"spec":{"b":[["x"],[]]}`, `,"a":"x","spec":{"y":1}`} {
		f.Add(uint8(i), stored(f, plainMetadata+`,"labels":{"a":"b"},"finalizers":["x"],"managedFields":[{"manager":"m","time":"2026-11-26T01:02:03Z","fieldsV1":{"f:a":{}}}]`, rest))
	}
	f.Fuzz(func(t *testing.T, which uint8, data []byte) { all[int(which)%len(all)].compare(t, data) })
}
