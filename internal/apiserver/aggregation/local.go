package aggregation

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/controllers/autoregister"
	controlplane "k8s.io/kubernetes/pkg/controlplane/apiserver"

	"github.com/logplane/logplane/internal/apiserver/description/spec"
)

// The values of the label that upstream puts on each APIService that a server makes for itself.
const (
	// OnStart marks the APIService of a built-in version. Such an APIService is made with the cluster, and again for a
	// new version of Kubernetes.
	OnStart = "onstart"
	// Always marks the APIService of a version of custom resources. Such an APIService exists as long as a CRD serves
	// the version.
	Always = "true"
)

// Managed returns the manager of an APIService: OnStart or Always for this server, anything else for users.
func Managed(service *apiregistrationv1.APIService) string {
	return service.Labels[autoregister.AutoRegisterManagedLabel]
}

// Local returns the APIService of a version that this server serves itself. It returns nil for a built-in version
// without an APIService: in upstream, too, the aggregator's own group has no APIService.
func Local(version schema.GroupVersion, managed string) *apiregistrationv1.APIService {
	priority := controlplane.APIServicePriority{Group: 1000, Version: 100} // of custom resources
	if managed == OnStart {
		var ok bool
		if priority, ok = priorities[version]; !ok {
			return nil
		}
	}
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: nameOf(version), Labels: map[string]string{autoregister.AutoRegisterManagedLabel: managed}},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: version.Group, Version: version.Version, GroupPriorityMinimum: priority.Group, VersionPriority: priority.Version,
		},
	}
}

// Builtin returns the APIServices of the built-in versions, in the order of discovery.
func Builtin() []*apiregistrationv1.APIService {
	var all []*apiregistrationv1.APIService
	for _, g := range spec.Groups() {
		for _, v := range g.Versions {
			if service := Local(schema.GroupVersion{Group: g.Name, Version: v.Name}, OnStart); service != nil {
				all = append(all, service)
			}
		}
	}
	return all
}

// priorities are the priorities of kube-apiserver. One half of kube-apiserver's table is not exported; a test compares
// that half with kubePriorities.
var priorities = func() map[schema.GroupVersion]controlplane.APIServicePriority {
	all := controlplane.DefaultGenericAPIServicePriorities()
	for version, priority := range kubePriorities {
		all[version] = priority
	}
	return all
}()

var kubePriorities = map[schema.GroupVersion]controlplane.APIServicePriority{
	{Group: "", Version: "v1"}:                        {Group: 18000, Version: 1},
	{Group: "apps", Version: "v1"}:                    {Group: 17800, Version: 15},
	{Group: "autoscaling", Version: "v1"}:             {Group: 17500, Version: 15},
	{Group: "autoscaling", Version: "v2"}:             {Group: 17500, Version: 30},
	{Group: "autoscaling", Version: "v2beta1"}:        {Group: 17500, Version: 9},
	{Group: "autoscaling", Version: "v2beta2"}:        {Group: 17500, Version: 1},
	{Group: "batch", Version: "v1"}:                   {Group: 17400, Version: 15},
	{Group: "batch", Version: "v1beta1"}:              {Group: 17400, Version: 9},
	{Group: "batch", Version: "v2alpha1"}:             {Group: 17400, Version: 9},
	{Group: "networking.k8s.io", Version: "v1"}:       {Group: 17200, Version: 15},
	{Group: "networking.k8s.io", Version: "v1beta1"}:  {Group: 17200, Version: 9},
	{Group: "policy", Version: "v1"}:                  {Group: 17100, Version: 15},
	{Group: "policy", Version: "v1beta1"}:             {Group: 17100, Version: 9},
	{Group: "storage.k8s.io", Version: "v1"}:          {Group: 16800, Version: 15},
	{Group: "storage.k8s.io", Version: "v1beta1"}:     {Group: 16800, Version: 9},
	{Group: "storage.k8s.io", Version: "v1alpha1"}:    {Group: 16800, Version: 1},
	{Group: "scheduling.k8s.io", Version: "v1"}:       {Group: 16600, Version: 15},
	{Group: "scheduling.k8s.io", Version: "v1beta1"}:  {Group: 16600, Version: 9},
	{Group: "scheduling.k8s.io", Version: "v1alpha3"}: {Group: 16600, Version: 3},
	{Group: "node.k8s.io", Version: "v1"}:             {Group: 16300, Version: 15},
	{Group: "node.k8s.io", Version: "v1alpha1"}:       {Group: 16300, Version: 1},
	{Group: "node.k8s.io", Version: "v1beta1"}:        {Group: 16300, Version: 9},
	{Group: "resource.k8s.io", Version: "v1"}:         {Group: 16200, Version: 21},
	{Group: "resource.k8s.io", Version: "v1beta2"}:    {Group: 16200, Version: 15},
	{Group: "resource.k8s.io", Version: "v1beta1"}:    {Group: 16200, Version: 9},
	{Group: "resource.k8s.io", Version: "v1alpha3"}:   {Group: 16200, Version: 1},
	{Group: "lifecycle.k8s.io", Version: "v1alpha1"}:  {Group: 15700, Version: 1},
}
