package bootstrap

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/registry/rest"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
	applynetworkingv1 "k8s.io/client-go/applyconfigurations/networking/v1"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	"k8s.io/kubernetes/pkg/apis/networking"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	_ "k8s.io/kubernetes/pkg/apis/scheduling/install"
	"k8s.io/kubernetes/pkg/registry/networking/servicecidr"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/apiserver/services"
)

var update = flag.Bool("update", false, "write what the test found instead of comparing with it")

// TestManagedIsCurrent compares managedJSON with the managed fields that upstream's field managers compute.
func TestManagedIsCurrent(t *testing.T) {
	found := managedWith(t, services.Ranges{})
	require.Equal(t, found, managedWith(t, services.Ranges{CIDR: "fd00:10:96::/112"}), "the fields of what depends on the ranges are the same")
	if *update {
		require.NoError(t, os.WriteFile("managed.json", []byte(found), 0o644))
		return
	}
	require.Equal(t, found, string(managedJSON), "run 'go generate ./internal/apiserver/bootstrap'")
}

func managedWith(t *testing.T, ranges services.Ranges) string {
	all, err := objects(ranges, []byte("a certificate"), false)
	require.NoError(t, err)
	var found []managedBy
	places := map[string]int{}
	for _, o := range all {
		entries := askUpstream(t, o)
		key, err := json.Marshal(entries)
		require.NoError(t, err)
		if _, ok := places[string(key)]; !ok {
			places[string(key)] = len(found)
			found = append(found, managedBy{ManagedFields: entries})
		}
		same := &found[places[string(key)]]
		same.Objects = append(same.Objects, inManaged(o.resource, o.object))
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetIndent("", "\t")
	require.NoError(t, encoder.Encode(found))
	return out.String()
}

// askUpstream creates the object as the API would, and returns its managed fields.
func askUpstream(t *testing.T, o object) []metav1.ManagedFieldsEntry {
	scheme := o.scheme()
	scheme.Default(o.object)
	kinds, _, err := scheme.ObjectKinds(o.object)
	require.NoError(t, err)
	internal, err := scheme.UnsafeConvertToVersion(o.object, runtime.InternalGroupVersioner)
	require.NoError(t, err)
	empty, err := scheme.New(kinds[0].GroupKind().WithVersion(runtime.APIVersionInternal))
	require.NoError(t, err)
	internal, err = fieldManager(t, scheme, o.strategy, kinds[0], "").Update(empty, internal, "kube-apiserver")
	require.NoError(t, err)
	o.strategy.PrepareForCreate(t.Context(), internal)
	if cidr, ok := internal.(*networking.ServiceCIDR); ok {
		internal = applyReady(t, scheme, cidr)
	}
	accessor, err := meta.Accessor(internal)
	require.NoError(t, err)
	entries := accessor.GetManagedFields()
	for i := range entries {
		entries[i].Time = nil
	}
	return entries
}

func fieldManager(t *testing.T, scheme *runtime.Scheme, strategy any, kind schema.GroupVersionKind, subresource string) *managedfields.FieldManager {
	var reset map[fieldpath.APIVersion]fieldpath.Filter
	if s, ok := strategy.(rest.ResetFieldsStrategy); ok {
		reset = fieldpath.NewExcludeFilterSetMap(s.GetResetFields())
	}
	types, versions := resources.ManagedBy(scheme)
	manager, err := managedfields.NewDefaultFieldManager(types, versions, scheme, scheme, kind,
		schema.GroupVersion{Group: kind.Group, Version: runtime.APIVersionInternal}, subresource, reset)
	require.NoError(t, err)
	return manager
}

// applyReady applies the status that kube-apiserver's controller of ServiceCIDRs applies. Bootstrap itself writes the
// same status without an apply.
func applyReady(t *testing.T, scheme *runtime.Scheme, cidr *networking.ServiceCIDR) runtime.Object {
	now := metav1.NewTime(time.Now().UTC().Truncate(time.Second))
	kind := networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR")
	ready, err := runtime.DefaultUnstructuredConverter.ToUnstructured(applynetworkingv1.ServiceCIDR(cidr.Name).WithStatus(
		applynetworkingv1.ServiceCIDRStatus().WithConditions(applymetav1.Condition().
			WithType(networkingv1.ServiceCIDRConditionReady).WithStatus(metav1.ConditionTrue).WithLastTransitionTime(now).
			WithMessage("Kubernetes default Service CIDR is ready"))))
	require.NoError(t, err)
	applied, err := fieldManager(t, scheme, servicecidr.StatusStrategy, kind, "status").
		Apply(cidr, &unstructured.Unstructured{Object: ready}, "kubernetes-service-cidr-controller", true)
	require.NoError(t, err)
	complete(cidr, now)
	require.True(t, cidr.Status.Conditions[0].LastTransitionTime.Equal(&applied.(*networking.ServiceCIDR).Status.Conditions[0].LastTransitionTime))
	cidr.Status.Conditions[0].LastTransitionTime = applied.(*networking.ServiceCIDR).Status.Conditions[0].LastTransitionTime
	require.Equal(t, cidr.Status, applied.(*networking.ServiceCIDR).Status)
	return applied
}
