package sides

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Passing has the kinds whose objects are replaced all the time, by the control plane or by the machine that they
// describe. An old object would mislead its readers. docs/history.md has these kinds in a table. ControllerRevisions
// are not among these kinds, because no controller can make an old ControllerRevision again.
var Passing = map[schema.GroupResource]bool{
	{Resource: "nodes"}:  true, // with each kubelet's report about its machine
	{Resource: "events"}: true, {Group: "events.k8s.io", Resource: "events"}: true,
	{Group: "coordination.k8s.io", Resource: "leases"}:                     true,
	{Group: "coordination.k8s.io", Resource: "leasecandidates"}:            true,
	{Resource: "endpoints"}:                                                true,
	{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}: true,
	{Group: "certificates.k8s.io", Resource: "podcertificaterequests"}:     true,
	{Group: "networking.k8s.io", Resource: "ipaddresses"}:                  true, // made with their Services
	{Group: "storage.k8s.io", Resource: "volumeattachments"}:               true,
	{Group: "storage.k8s.io", Resource: "csinodes"}:                        true,
	{Group: "storage.k8s.io", Resource: "csistoragecapacities"}:            true,
	{Group: "resource.k8s.io", Resource: "resourceslices"}:                 true,
	{Group: "internal.apiserver.k8s.io", Resource: "storageversions"}:      true,
	{Group: "clusters.logplane.dev", Resource: "clusters"}:                 true, // what a deleted one had is gone
}

// EndpointSlices are passing if they have a controller.
var EndpointSlices = schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}

// Passes says that an object is derived from other objects.
func (k Kind) Passes(object *unstructured.Unstructured) bool {
	switch k.GroupResource() {
	case schema.GroupResource{Resource: "pods"}: // a mirror Pod stands for a kubelet's own Pod
		return object.GetAnnotations()[corev1.MirrorPodAnnotationKey] != ""
	case EndpointSlices:
		return metav1.GetControllerOf(object) != nil
	case schema.GroupResource{Group: "apiregistration.k8s.io", Resource: "apiservices"}:
		return object.GetLabels()["kube-aggregator.kubernetes.io/automanaged"] != ""
	}
	return false
}

// PassingNames returns, for people, the kinds that are never restored, and the passing objects of other kinds.
func PassingNames() []string {
	var names []string
	for of := range Passing {
		names = append(names, of.String())
	}
	slices.Sort(names)
	return append(names, "endpoint slices and Pods that a controller or a kubelet keeps for itself")
}
