package resources

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	appsv1beta2 "k8s.io/api/apps/v1beta2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
)

// fieldManagers returns two of upstream's field managers, one with upstream's converters and one with the converters of
// ManagedBy.
func fieldManagers(t testing.TB, kind schema.GroupVersionKind) (plain, ours *managedfields.FieldManager) {
	t.Helper()
	hub := schema.GroupVersion{Group: kind.Group, Version: runtime.APIVersionInternal}
	manager := func(types managedfields.TypeConverter, versions runtime.ObjectConvertor) *managedfields.FieldManager {
		m, err := managedfields.NewDefaultFieldManager(types, versions, legacyscheme.Scheme, legacyscheme.Scheme, kind, hub, "", nil)
		require.NoError(t, err)
		return m
	}
	return manager(ConvertersOf(legacyscheme.Scheme), runtime.UnsafeObjectConvertor(legacyscheme.Scheme)), manager(ManagedBy(legacyscheme.Scheme))
}

// withoutTimes returns an object's managed fields, with times that do not depend on the clock.
func withoutTimes(t testing.TB, object runtime.Object) []metav1.ManagedFieldsEntry {
	t.Helper()
	m, err := meta.Accessor(object)
	require.NoError(t, err)
	fields := m.GetManagedFields()
	for i := range fields {
		fields[i].Time = &metav1.Time{Time: time.Unix(int64(i), 0)}
	}
	return fields
}

// TestManagedFieldsAreUpstreams: after any writes through two versions, the object and its managed fields are the same
// as with upstream's converters, byte for byte.
func TestManagedFieldsAreUpstreams(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			versions := []schema.GroupVersion{appsv1.SchemeGroupVersion, appsv1beta2.SchemeGroupVersion}
			var live [2]runtime.Object
			for i := range live {
				o, err := legacyscheme.Scheme.New(schema.GroupVersionKind{Group: "apps", Version: runtime.APIVersionInternal, Kind: "Deployment"})
				require.NoError(t, err)
				live[i] = o
			}
			for range 12 {
				version := versions[r.IntN(2)]
				applies, name := r.IntN(3) == 0, fmt.Sprintf("manager-%d", r.IntN(3))
				text := deployment(r, version)
				claimed := claims[r.IntN(len(claims))]
				var managers [2]*managedfields.FieldManager
				managers[0], managers[1] = fieldManagers(t, version.WithKind("Deployment"))
				var failed [2]error
				for i, m := range managers {
					var next runtime.Object
					if applies {
						next, failed[i] = m.Apply(live[i].DeepCopyObject(), unstructuredOf(t, text), name, true)
					} else {
						sent := internalOf(t, text, live[i])
						claim(t, sent, claimed)
						next, failed[i] = m.Update(live[i].DeepCopyObject(), sent, name)
					}
					if failed[i] == nil {
						accessor, err := meta.Accessor(next)
						require.NoError(t, err)
						accessor.SetUID("one")
						accessor.SetManagedFields(withoutTimes(t, next))
						live[i] = next
					}
				}
				require.Equal(t, failed[0], failed[1])
				require.Equal(t, live[0], live[1])
			}
			require.NotEmpty(t, withoutTimes(t, live[1]))
		})
	}
}

// claims are sets of fields that a client may send for another manager, including fields that no manager can own.
var claims = []string{"", "", "", `{"f:metadata":{"f:managedFields":{}}}`, `{"f:metadata":{"f:managedFields":{".":{},"i:0":{"f:time":{}}},"f:labels":{"f:l0":{}}}}`, `{"f:spec":{"f:replicas":{}}}`}

// claim adds a manager of fields to an object.
func claim(t testing.TB, object runtime.Object, fields string) {
	t.Helper()
	m, err := meta.Accessor(object)
	require.NoError(t, err)
	if fields == "" || len(m.GetManagedFields()) == 0 {
		return
	}
	m.SetManagedFields(append(m.GetManagedFields()[:len(m.GetManagedFields()):len(m.GetManagedFields())], metav1.ManagedFieldsEntry{
		Manager: "claimer", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "apps/v1", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields),
	}))
}

// deployment returns the JSON of a random Deployment.
func deployment(r *rand.Rand, version schema.GroupVersion) string {
	var containers []string
	for i := range 1 + r.IntN(3) {
		containers = append(containers, fmt.Sprintf(`{"name":"c%d","image":"i%d","ports":[{"containerPort":%d,"protocol":"TCP"}]}`, i, r.IntN(3), 80+r.IntN(2)))
	}
	return fmt.Sprintf(`{"apiVersion":%q,"kind":"Deployment","metadata":{"name":"x","labels":{"l%d":"v"}},"spec":{"replicas":%d,"selector":{"matchLabels":{"a":"b"}},
		"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[%s]}}}}`, version, r.IntN(3), r.IntN(3), strings.Join(containers, ","))
}

func unstructuredOf(t testing.TB, text string) runtime.Object {
	t.Helper()
	u := &unstructured.Unstructured{}
	require.NoError(t, u.UnmarshalJSON([]byte(text)))
	return u
}

// internalOf decodes the object that a client sends after the client has read the live object.
func internalOf(t testing.TB, text string, live runtime.Object) runtime.Object {
	t.Helper()
	object, err := runtime.Decode(legacyscheme.Codecs.UniversalDecoder(schema.GroupVersion{Group: "apps", Version: runtime.APIVersionInternal}), []byte(text))
	require.NoError(t, err)
	from, err := meta.Accessor(live)
	require.NoError(t, err)
	to, err := meta.Accessor(object)
	require.NoError(t, err)
	to.SetManagedFields(from.GetManagedFields())
	return object
}

// TestUnread: an unread object knows its kind, and converting it gives the whole object.
func TestUnread(t *testing.T) {
	kind := corev1.SchemeGroupVersion.WithKind("ConfigMap")
	types, versions := ManagedBy(legacyscheme.Scheme)
	object := &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Name: "x"}, Data: map[string]string{"a": "b"}}
	value, err := types.ObjectToTyped(object)
	require.NoError(t, err)
	left, err := types.TypedToObject(value)
	require.NoError(t, err)
	require.IsType(t, &unread{}, left)
	require.Equal(t, kind, left.GetObjectKind().GroupVersionKind())
	require.Equal(t, left, left.DeepCopyObject())
	back, err := versions.ConvertToVersion(left, corev1.SchemeGroupVersion)
	require.NoError(t, err)
	require.Equal(t, object, back)
	_, err = runtime.UnsafeObjectConvertor(legacyscheme.Scheme).ConvertToVersion(left, corev1.SchemeGroupVersion)
	require.ErrorContains(t, err, "no kind is registered", "nobody else takes it for an object")
	into := &corev1.ConfigMap{}
	require.NoError(t, versions.Convert(left, into, nil))
	require.Equal(t, object.Data, into.Data)

	object.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "a"}, {Manager: "b"}}
	_, err = types.ObjectToTyped(object)
	require.NoError(t, err)
	require.Len(t, object.ManagedFields, 2, "it is the caller's")

	nameless, err := types.ObjectToTyped(unstructuredOf(t, `{"apiVersion":"v1","kind":"ConfigMap","data":{"a":"b"}}`))
	require.NoError(t, err)
	left, err = types.TypedToObject(nameless)
	require.NoError(t, err)
	require.Equal(t, kind, left.GetObjectKind().GroupVersionKind())
}

// BenchmarkManagedFields measures the cost of managed fields in an update of an object with three managers.
func BenchmarkManagedFields(b *testing.B) {
	kind := appsv1.SchemeGroupVersion.WithKind("Deployment")
	plain, ours := fieldManagers(b, kind)
	r := rand.New(rand.NewPCG(1, 1))
	empty, err := legacyscheme.Scheme.New(schema.GroupVersionKind{Group: "apps", Version: runtime.APIVersionInternal, Kind: "Deployment"})
	require.NoError(b, err)
	live := empty
	for i := range 3 {
		live, err = plain.Update(live.DeepCopyObject(), internalOf(b, deployment(r, appsv1.SchemeGroupVersion), live), fmt.Sprintf("manager-%d", i))
		require.NoError(b, err)
		accessor, err := meta.Accessor(live)
		require.NoError(b, err)
		accessor.SetUID("one")
	}
	sent := internalOf(b, deployment(r, appsv1.SchemeGroupVersion), live)
	for _, way := range []struct {
		name string
		*managedfields.FieldManager
	}{{"upstream", plain}, {"ours", ours}} {
		b.Run(way.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := way.Update(live, sent.DeepCopyObject(), "manager-0"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
