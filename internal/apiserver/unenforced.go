package apiserver

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	"k8s.io/kubernetes/pkg/apis/core"
	admissionregistrationrest "k8s.io/kubernetes/pkg/registry/admissionregistration/rest"
	policystore "k8s.io/kubernetes/pkg/registry/admissionregistration/validatingadmissionpolicy/storage"
)

// What protects somebody in kube-apiserver, is stored here and does nothing yet. Whoever writes it is told so.
const (
	policiesUnenforced = "this server stores admission policies and does not enforce them: they neither refuse nor change any request"
	webhooksUnenforced = "this server stores admission webhooks and does not call them: they neither refuse nor change any request"
	quotasUnenforced   = "this server stores resource quotas and does not enforce them: they refuse no request"
)

var unenforcedResources = map[schema.GroupResource]string{
	admissionregistration.Resource("validatingadmissionpolicies"):       policiesUnenforced,
	admissionregistration.Resource("validatingadmissionpolicybindings"): policiesUnenforced,
	admissionregistration.Resource("mutatingadmissionpolicies"):         policiesUnenforced,
	admissionregistration.Resource("mutatingadmissionpolicybindings"):   policiesUnenforced,
	admissionregistration.Resource("validatingwebhookconfigurations"):   webhooksUnenforced,
	admissionregistration.Resource("mutatingwebhookconfigurations"):     webhooksUnenforced,
	core.Resource("resourcequotas"):                                     quotasUnenforced,
}

// unenforced warns who writes an object that does nothing; it refuses nobody.
type unenforced struct{}

var _ admission.ValidationInterface = unenforced{}

// Handles implements admission.Interface.
func (unenforced) Handles(o admission.Operation) bool {
	return o == admission.Create || o == admission.Update
}

// Validate implements admission.ValidationInterface.
func (unenforced) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if text, ok := unenforcedResources[a.GetResource().GroupResource()]; ok && a.GetSubresource() == "" {
		warning.AddWarning(ctx, "", text)
	}
	return nil
}

// newAdmissionRegistrationStorage makes upstream's registries; of their types, ValidatingAdmissionPolicy alone has conditions.
func newAdmissionRegistrationStorage(s *Server) (genericapiserver.APIGroupInfo, error) {
	info, err := admissionregistrationrest.RESTStorageProvider{
		Authorizer: s.generic.Authorization.Authorizer, DiscoveryClient: s.client.Discovery(),
	}.NewRESTStorage(s.generic.MergedResourceConfig, s.stores)
	for _, storage := range info.VersionedResourcesStorageMap {
		if policies, ok := storage["validatingadmissionpolicies"].(*policystore.REST); ok {
			marking(policies.Store, markUnenforced)
		}
	}
	return info, err
}

// marking has a store's objects say in their status that they do nothing, in the write itself: no controller would come along
// later to say so.
func marking(store *genericregistry.Store, mark func(runtime.Object)) {
	store.CreateStrategy = markingCreate{store.CreateStrategy, mark}
	store.UpdateStrategy = markingUpdate{store.UpdateStrategy, mark}
}

type markingCreate struct {
	rest.RESTCreateStrategy
	mark func(runtime.Object)
}

// PrepareForCreate implements rest.RESTCreateStrategy.
func (m markingCreate) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	m.RESTCreateStrategy.PrepareForCreate(ctx, obj)
	m.mark(obj)
}

type markingUpdate struct {
	rest.RESTUpdateStrategy
	mark func(runtime.Object)
}

// PrepareForUpdate implements rest.RESTUpdateStrategy.
func (m markingUpdate) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	m.RESTUpdateStrategy.PrepareForUpdate(ctx, obj, old)
	m.mark(obj)
}

func markUnenforced(obj runtime.Object) {
	policy := obj.(*admissionregistration.ValidatingAdmissionPolicy)
	// The old object may share them.
	policy.Status.Conditions = append([]metav1.Condition(nil), policy.Status.Conditions...)
	meta.SetStatusCondition(&policy.Status.Conditions, metav1.Condition{
		Type: "Enforced", Status: metav1.ConditionFalse, Reason: "PoliciesNotSupported", Message: policiesUnenforced, ObservedGeneration: policy.Generation,
	})
}
