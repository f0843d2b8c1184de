package plans

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/logplane/logplane/internal/sides"
)

// ranks orders the kinds: kinds that other kinds need come first, and kinds whose objects may refuse or change later
// writes come last. Kinds without a rank are in the middle.
var ranks = map[schema.GroupResource]int{
	{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}: 1,
	{Resource: "namespaces"}:                                                               2,
	{Group: "scheduling.k8s.io", Resource: "priorityclasses"}:                              3,
	{Group: "storage.k8s.io", Resource: "storageclasses"}:                                  3,
	{Group: "rbac.authorization.k8s.io", Resource: "clusterroles"}:                         3,
	{Group: "rbac.authorization.k8s.io", Resource: "clusterrolebindings"}:                  4,
	{Resource: "serviceaccounts"}:                                                          6,
	{Resource: "secrets"}:                                                                  7,
	{Resource: "configmaps"}:                                                               8,
	{Resource: "persistentvolumeclaims"}:                                                   9,
	{Resource: "services"}:                                                                 10,
	{Group: "rbac.authorization.k8s.io", Resource: "roles"}:                                11,
	{Group: "rbac.authorization.k8s.io", Resource: "rolebindings"}:                         12,
	{Resource: "limitranges"}:                                                              30,
	{Resource: "resourcequotas"}:                                                           30,
	{Group: "apiregistration.k8s.io", Resource: "apiservices"}:                             31,
	{Group: "admissionregistration.k8s.io", Resource: "mutatingadmissionpolicies"}:         32,
	{Group: "admissionregistration.k8s.io", Resource: "validatingadmissionpolicies"}:       32,
	{Group: "admissionregistration.k8s.io", Resource: "mutatingadmissionpolicybindings"}:   33,
	{Group: "admissionregistration.k8s.io", Resource: "validatingadmissionpolicybindings"}: 33,
	{Group: "admissionregistration.k8s.io", Resource: "mutatingwebhookconfigurations"}:     33,
	{Group: "admissionregistration.k8s.io", Resource: "validatingwebhookconfigurations"}:   33,
}

const (
	rankOfCluster   = 5
	rankOfNamespace = 20
)

func rankOf(k sides.Kind) int {
	if rank, ok := ranks[k.GroupResource()]; ok {
		return rank
	}
	if !k.Namespaced {
		return rankOfCluster
	}
	return rankOfNamespace
}

// objectID identifies an object as an owner reference does, but without the uid. An object that is made again keeps its
// objectID.
type objectID struct{ group, kind, namespace, name string }

func idOf(object *unstructured.Unstructured) objectID {
	kind := object.GroupVersionKind()
	return objectID{kind.Group, kind.Kind, object.GetNamespace(), object.GetName()}
}

// ownerIDs returns the IDs that an owner reference may mean: an owner is in the same namespace, or cluster-scoped.
func ownerIDs(r metav1.OwnerReference, namespace string) []objectID {
	group, _ := schema.ParseGroupVersion(r.APIVersion) // a version that cannot be parsed names no owner
	ids := []objectID{{group.Group, r.Kind, namespace, r.Name}}
	if namespace != "" {
		ids = append(ids, objectID{group.Group, r.Kind, "", r.Name})
	}
	return ids
}

// inOrder sorts the objects that a plan writes: by rank, and owners before the objects that they own. So each object
// comes after the objects that it needs.
func inOrder[T any](all []T, of func(T) (sides.Kind, *unstructured.Unstructured)) []T {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b T) int {
		x, first := of(a)
		y, second := of(b)
		return cmp.Or(cmp.Compare(rankOf(x), rankOf(y)), cmp.Compare(x.Group, y.Group), cmp.Compare(x.Resource, y.Resource),
			cmp.Compare(first.GetNamespace(), second.GetNamespace()), cmp.Compare(first.GetName(), second.GetName()))
	})
	places := map[objectID]int{}
	for i, item := range all {
		_, object := of(item)
		places[idOf(object)] = i
	}
	var out []T
	visited := make([]bool, len(all))
	var visit func(i int)
	visit = func(i int) {
		if visited[i] {
			return // this also ends cycles of owners
		}
		visited[i] = true
		_, object := of(all[i])
		for _, r := range object.GetOwnerReferences() {
			for _, id := range ownerIDs(r, object.GetNamespace()) {
				if owner, ok := places[id]; ok {
					visit(owner)
				}
			}
		}
		out = append(out, all[i])
	}
	for i := range all {
		visit(i)
	}
	return out
}
