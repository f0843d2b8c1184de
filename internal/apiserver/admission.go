package apiserver

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// newAdmission is the chain of plugins in upstream's order.
func newAdmission(s *Server) (admission.Interface, error) {
	namespaces, err := newNamespaceLifecycle(s)
	if err != nil {
		return nil, err
	}
	return admission.NewChainHandler(namespaces), nil
}

// namespaceLifecycle is upstream's plugin without its wait of 50 ms for a namespace that its cache may not
// have seen yet: our lister is exact.
type namespaceLifecycle struct {
	*lifecycle.Lifecycle
	namespaces corelisters.NamespaceLister
}

func newNamespaceLifecycle(s *Server) (admission.Interface, error) {
	l, err := lifecycle.NewLifecycle(sets.New(metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic))
	if err != nil {
		return nil, err
	}
	l.SetExternalKubeClientSet(s.client)
	l.SetExternalKubeInformerFactory(s.informers)
	return &namespaceLifecycle{l, s.informers.Core().V1().Namespaces().Lister()}, l.ValidateInitialization()
}

var localReviews = "localsubjectaccessreviews"

// Admit refuses a create in a missing namespace at once and leaves the rest to upstream.
func (l *namespaceLifecycle) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if a.GetOperation() == admission.Create && a.GetNamespace() != "" &&
		a.GetKind().GroupKind() != corev1.SchemeGroupVersion.WithKind("Namespace").GroupKind() && a.GetResource().Resource != localReviews {
		if _, err := l.namespaces.Get(a.GetNamespace()); apierrors.IsNotFound(err) {
			return err
		}
	}
	return l.Lifecycle.Admit(ctx, a, o)
}
