package apiserver

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/apis/policy"
	podstore "k8s.io/kubernetes/pkg/registry/core/pod/storage"
)

// evictionREST refuses at once an eviction whose UID is not the Pod's. Upstream retries for 10 s, as if the UID could
// change, and holds a seat meanwhile.
type evictionREST struct {
	*podstore.EvictionREST
	pods rest.Getter
}

// Create implements rest.NamedCreater.
func (e evictionREST) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	eviction, ok := obj.(*policy.Eviction)
	if ok && eviction.Name == name && eviction.DeleteOptions != nil && eviction.DeleteOptions.Preconditions != nil && eviction.DeleteOptions.Preconditions.UID != nil {
		pod, err := e.pods.Get(ctx, name, &metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		m, err := meta.Accessor(pod)
		if err != nil {
			return nil, err
		}
		if want := *eviction.DeleteOptions.Preconditions.UID; want != m.GetUID() { // in upstream's words
			return nil, apierrors.NewConflict(schema.GroupResource{Resource: "Pod"}, name, fmt.Errorf(
				"the UID in the precondition (%s) does not match the UID in record (%s). The object might have been deleted and then recreated", want, m.GetUID()))
		}
	}
	return e.EvictionREST.Create(ctx, name, obj, validate, options)
}
