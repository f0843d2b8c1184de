package kubestore

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/storage"
)

// versioner is upstream's versioner with one difference. If an object's `metadata.resourceVersion` is not a number, the
// error says that the object is invalid. Upstream returns an internal error, although the value comes from the client
// of an update.
type versioner struct {
	storage.APIObjectVersioner
	resource schema.GroupResource
}

// ObjectResourceVersion implements storage.Versioner.
func (v versioner) ObjectResourceVersion(obj runtime.Object) (uint64, error) {
	rev, err := v.APIObjectVersioner.ObjectResourceVersion(obj)
	if err == nil {
		return rev, nil
	}
	about, noMeta := meta.Accessor(obj)
	if noMeta != nil {
		return 0, err
	}
	kind := schema.GroupKind{Group: v.resource.Group, Kind: v.resource.Resource} // as upstream does without a kind
	return 0, apierrors.NewInvalid(kind, about.GetName(), field.ErrorList{field.Invalid(
		field.NewPath("metadata", "resourceVersion"), about.GetResourceVersion(), "must be one that the server gave, or be left out")})
}
