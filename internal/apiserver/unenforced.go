package apiserver

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/kubernetes/pkg/apis/flowcontrol"
	flowschemastore "k8s.io/kubernetes/pkg/registry/flowcontrol/flowschema/storage"
	levelstore "k8s.io/kubernetes/pkg/registry/flowcontrol/prioritylevelconfiguration/storage"
	flowcontrolrest "k8s.io/kubernetes/pkg/registry/flowcontrol/rest"

	"github.com/logplane/logplane/internal/apiserver/resources"
)

// In kube-apiserver these resources limit clients, but here they are only stored. A user who writes them is told so.
const flowsUnenforced = "this server stores flow schemas and priority levels and does not apply them: it gives each user a fair part of its seats"

var unenforcedResources = map[schema.GroupResource]string{
	flowcontrol.Resource("flowschemas"):                 flowsUnenforced,
	flowcontrol.Resource("prioritylevelconfigurations"): flowsUnenforced,
}

// unenforced warns users who write an object that has no effect. It refuses nothing.
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

// enforced is the type of the condition that is set to False.
const enforced = "Enforced"

// marking makes a store's objects say in their status that they have no effect. The write itself sets the status,
// because no controller would set it later.
func marking(store *genericregistry.Store, mark func(runtime.Object)) {
	store.CreateStrategy = markingCreate{resources.CreateStrategyOf(store.CreateStrategy), mark}
	store.UpdateStrategy = markingUpdate{resources.UpdateStrategyOf(store.UpdateStrategy), mark}
}

type markingCreate struct {
	resources.CreateStrategy
	mark func(runtime.Object)
}

// PrepareForCreate implements rest.RESTCreateStrategy.
func (m markingCreate) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	m.RESTCreateStrategy.PrepareForCreate(ctx, obj)
	m.mark(obj)
}

type markingUpdate struct {
	resources.UpdateStrategy
	mark func(runtime.Object)
}

// PrepareForUpdate implements rest.RESTUpdateStrategy.
func (m markingUpdate) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	m.RESTUpdateStrategy.PrepareForUpdate(ctx, obj, old)
	m.mark(obj)
}

// newFlowControlStorage makes upstream's registries, whose objects say that they have no effect.
func newFlowControlStorage(s *Server) (genericapiserver.APIGroupInfo, error) {
	info, err := flowcontrolrest.RESTStorageProvider{InformerFactory: s.listers}.NewRESTStorage(s.generic.MergedResourceConfig, s.stores)
	for _, storage := range info.VersionedResourcesStorageMap {
		if schemas, ok := storage["flowschemas"].(*flowschemastore.REST); ok {
			marking(schemas.Store, markSchemaUnenforced)
		}
		if levels, ok := storage["prioritylevelconfigurations"].(*levelstore.REST); ok {
			marking(levels.Store, markLevelUnenforced)
		}
	}
	return info, err
}

const flowsNotSupported = "PriorityAndFairnessNotSupported"

func markSchemaUnenforced(obj runtime.Object) {
	status := &obj.(*flowcontrol.FlowSchema).Status
	if slices.ContainsFunc(status.Conditions, func(c flowcontrol.FlowSchemaCondition) bool { return c.Type == enforced }) {
		return
	}
	status.Conditions = append(slices.Clip(status.Conditions), flowcontrol.FlowSchemaCondition{
		Type: enforced, Status: flowcontrol.ConditionFalse, LastTransitionTime: metav1.Now(), Reason: flowsNotSupported, Message: flowsUnenforced,
	})
}

func markLevelUnenforced(obj runtime.Object) {
	status := &obj.(*flowcontrol.PriorityLevelConfiguration).Status
	if slices.ContainsFunc(status.Conditions, func(c flowcontrol.PriorityLevelConfigurationCondition) bool { return c.Type == enforced }) {
		return
	}
	status.Conditions = append(slices.Clip(status.Conditions), flowcontrol.PriorityLevelConfigurationCondition{
		Type: enforced, Status: flowcontrol.ConditionFalse, LastTransitionTime: metav1.Now(), Reason: flowsNotSupported, Message: flowsUnenforced,
	})
}
