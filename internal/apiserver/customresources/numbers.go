package customresources

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/admission"

	"github.com/logplane/logplane/internal/apiserver/resources"
)

// wholeNumbers turns whole numbers into integers before upstream compares an object with the stored one, which has
// integers. Otherwise a client that sends 1.0 would change the object, and its generation, each time.
type wholeNumbers struct{ admission.Interface }

var (
	_ admission.MutationInterface   = wholeNumbers{}
	_ admission.ValidationInterface = wholeNumbers{}
)

// Handles implements admission.Interface.
func (w wholeNumbers) Handles(operation admission.Operation) bool {
	return operation == admission.Create || operation == admission.Update || w.Interface.Handles(operation)
}

// Admit implements admission.MutationInterface.
func (w wholeNumbers) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if inner, mutates := w.Interface.(admission.MutationInterface); mutates && inner.Handles(a.GetOperation()) {
		if err := inner.Admit(ctx, a, o); err != nil {
			return err
		}
	}
	if u, ok := a.GetObject().(*unstructured.Unstructured); ok { // after the plug-ins, which may add numbers
		if whole, changed := resources.Whole(u.Object); changed {
			u.Object = whole.(map[string]any)
		}
	}
	return nil
}

// Validate implements admission.ValidationInterface.
func (w wholeNumbers) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	inner, validates := w.Interface.(admission.ValidationInterface)
	if !validates || !inner.Handles(a.GetOperation()) {
		return nil
	}
	return inner.Validate(ctx, a, o)
}
