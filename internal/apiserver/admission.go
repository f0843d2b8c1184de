package apiserver

import (
	"context"
	"fmt"
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apihelpers "k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	admissionmetrics "k8s.io/apiserver/pkg/admission/metrics"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	dynamicclient "k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/kubernetes/pkg/apis/core"
	certapproval "k8s.io/kubernetes/plugin/pkg/admission/certificates/approval"
	"k8s.io/kubernetes/plugin/pkg/admission/certificates/ctbattest"
	certsigning "k8s.io/kubernetes/plugin/pkg/admission/certificates/signing"
	certsubjectrestriction "k8s.io/kubernetes/plugin/pkg/admission/certificates/subjectrestriction"
	"k8s.io/kubernetes/plugin/pkg/admission/defaulttolerationseconds"
	"k8s.io/kubernetes/plugin/pkg/admission/limitranger"
	"k8s.io/kubernetes/plugin/pkg/admission/network/defaultingressclass"
	podpriority "k8s.io/kubernetes/plugin/pkg/admission/priority"
	"k8s.io/kubernetes/plugin/pkg/admission/runtimeclass"
	"k8s.io/kubernetes/plugin/pkg/admission/security/podsecurity"
	"k8s.io/kubernetes/plugin/pkg/admission/storage/persistentvolume/resize"
	"k8s.io/kubernetes/plugin/pkg/admission/storage/storageclass/setdefault"

	dynamic "github.com/logplane/logplane/internal/apiserver/admission"
	"github.com/logplane/logplane/internal/apiserver/description/spec"
)

// admissionPlugins are the plugins of kube-apiserver's defaults that decide by what they read, in its order. The first
// is ours; the last three ask webhooks and policies (package admission). Left out are plugins that need a controller to
// finish their work (ServiceAccount, TaintNodesByCondition, StorageObjectInUseProtection) and, for now, ResourceQuota
// and mutating policies (unenforced.go).
var admissionPlugins = []string{
	boundsName,
	lifecycle.PluginName,
	limitranger.PluginName,
	podsecurity.PluginName,
	podpriority.PluginName,
	defaulttolerationseconds.PluginName,
	setdefault.PluginName,
	resize.PluginName,
	runtimeclass.PluginName,
	certapproval.PluginName,
	certsigning.PluginName,
	ctbattest.PluginName,
	certsubjectrestriction.PluginName,
	defaultingressclass.PluginName,
	mutatingwebhook.PluginName,
	validatingpolicy.PluginName,
	validatingwebhook.PluginName,
}

// newAdmission is the chain of plugins.
func newAdmission(s *Server) (admission.Interface, error) {
	plugins := admission.NewPlugins()
	for _, register := range []func(*admission.Plugins){
		podsecurity.Register, podpriority.Register, defaulttolerationseconds.Register, setdefault.Register, resize.Register, runtimeclass.Register,
		certapproval.Register, certsigning.Register, ctbattest.Register, certsubjectrestriction.Register, defaultingressclass.Register,
	} {
		register(plugins)
	}
	var err error
	if s.dynamic, err = newDynamic(s); err != nil {
		return nil, err
	}
	s.dynamic.Register(plugins)
	plugins.Register(boundsName, newBounds)
	plugins.Register(lifecycle.PluginName, func(io.Reader) (admission.Interface, error) { return newNamespaceLifecycle(s) })
	plugins.Register(limitranger.PluginName, func(io.Reader) (admission.Interface, error) { return newLimitRanger() })
	initialize := initializer.New(s.client, nil, s.listers, s.generic.Authorization.Authorizer, s.generic.FeatureGate, s.generic.EffectiveVersion, nil, nil)
	chain, err := plugins.NewFromPlugins(admissionPlugins, noAdmissionConfig{}, initialize, admission.Decorators{admission.DecoratorFunc(admissionmetrics.WithControllerMetrics)})
	if err != nil {
		return nil, err
	}
	return admissionmetrics.WithStepMetrics(admission.NewChainHandler(chain, unenforced{})), nil
}

// newDynamic makes what decides by webhooks and policies.
func newDynamic(s *Server) (*dynamic.Dynamic, error) {
	instances, err := dynamicclient.NewForConfig(s.loopback)
	if err != nil {
		return nil, fmt.Errorf("make the loopback client: %w", err)
	}
	return dynamic.New(dynamic.Config{
		Projection: s.config.Cell.Projection, Listers: s.listers, Client: s.client, Instances: instances,
		Authorizer: s.generic.Authorization.Authorizer, ResourceOf: s.resourceOf, Definitions: s.definitions.Prefix(),
	})
}

// resourceOf finds the resource of a kind that is served.
func (s *Server) resourceOf(kind schema.GroupVersionKind) (schema.GroupVersionResource, meta.RESTScope, error) {
	scoped := func(resource string, namespaced bool) (schema.GroupVersionResource, meta.RESTScope, error) {
		if namespaced {
			return kind.GroupVersion().WithResource(resource), meta.RESTScopeNamespace, nil
		}
		return kind.GroupVersion().WithResource(resource), meta.RESTScopeRoot, nil
	}
	builtins, err := spec.Groups()
	if err != nil {
		return schema.GroupVersionResource{}, nil, err
	}
	for _, g := range builtins {
		for _, v := range g.Versions {
			for _, r := range v.Resources {
				if g.Name == kind.Group && v.Name == kind.Version && r.Kind == kind.Kind && !strings.Contains(r.Name, "/") {
					return scoped(r.Name, r.Namespaced)
				}
			}
		}
	}
	set, err := s.definitions.All()
	if err != nil {
		return schema.GroupVersionResource{}, nil, err
	}
	for _, crd := range set.Definitions {
		if crd.Spec.Group == kind.Group && crd.Status.AcceptedNames.Kind == kind.Kind && apihelpers.HasServedCRDVersion(crd, kind.Version) {
			return scoped(crd.Status.AcceptedNames.Plural, crd.Spec.Scope == apiextensionsv1.NamespaceScoped)
		}
	}
	return schema.GroupVersionResource{}, nil, &meta.NoKindMatchError{GroupKind: kind.GroupKind(), SearchedVersions: []string{kind.Version}}
}

// noAdmissionConfig leaves every plugin at its defaults.
type noAdmissionConfig struct{}

func (noAdmissionConfig) ConfigFor(string) (io.Reader, error) { return nil, nil }

// namespaceLifecycle is upstream's plugin without its wait of 50 ms for a namespace that its cache may not have seen
// yet. Our lister is exact.
type namespaceLifecycle struct {
	*lifecycle.Lifecycle
	namespaces corelisters.NamespaceLister
	// uninitialized says why there is no namespace 'default', which nobody can delete.
	uninitialized string
}

func newNamespaceLifecycle(s *Server) (admission.Interface, error) {
	l, err := lifecycle.NewLifecycle(sets.New(metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic))
	return &namespaceLifecycle{l, s.listers.Core().V1().Namespaces().Lister(), s.uninitialized()}, err
}

// Admit refuses a create in a missing namespace at once and leaves the rest to upstream.
func (l *namespaceLifecycle) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if a.GetOperation() == admission.Create && a.GetNamespace() != "" && !isNamespace(a) && !isAccessReview(a) {
		if _, err := l.namespaces.Get(a.GetNamespace()); apierrors.IsNotFound(err) {
			missing := apierrors.NewNotFound(corev1.Resource("namespaces"), a.GetNamespace()) // the lister's says 'namespace'
			if a.GetNamespace() == metav1.NamespaceDefault {
				missing.ErrStatus.Message += ": " + l.uninitialized
			}
			return missing
		}
	}
	return l.Lifecycle.Admit(ctx, a, o)
}

func isNamespace(a admission.Attributes) bool {
	return a.GetKind().GroupKind() == corev1.SchemeGroupVersion.WithKind("Namespace").GroupKind()
}

// isAccessReview is true for a review of access in a namespace. The answer must not tell whether the namespace exists,
// because not everybody may know that.
func isAccessReview(a admission.Attributes) bool {
	return a.GetResource().Group == "authorization.k8s.io" && a.GetResource().Resource == "localsubjectaccessreviews"
}

// limitRanger is upstream's plugin without its live lookup. If upstream's lister finds nothing, upstream asks the API
// and remembers the answer for 30 s. Our lister is exact.
type limitRanger struct {
	*limitranger.LimitRanger
	actions limitranger.DefaultLimitRangerActions
}

func newLimitRanger() (admission.Interface, error) {
	l, err := limitranger.NewLimitRanger(&limitranger.DefaultLimitRangerActions{})
	return &limitRanger{LimitRanger: l}, err
}

// maxLimited bounds containers of a Pod times LimitRanges of its namespace: each looks at each container. A Pod
// of 4,000 containers took 6 s beside 5,000 LimitRanges.
const maxLimited = 1 << 20

// Admit implements admission.MutationInterface.
func (l *limitRanger) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if pod, ok := a.GetObject().(*core.Pod); ok && l.actions.SupportsAttributes(a) { // otherwise upstream looks at none
		limits, err := l.GetLimitRanges(a)
		if err != nil {
			return err
		}
		containers := len(pod.Spec.Containers) + len(pod.Spec.InitContainers)
		if containers*len(limits) > maxLimited {
			return admission.NewForbidden(a, fmt.Errorf("it has %d containers, and namespace '%s' has %d LimitRanges: the product may be %d",
				containers, a.GetNamespace(), len(limits), maxLimited))
		}
	}
	return l.LimitRanger.Admit(ctx, a, o)
}

// SetExternalKubeClientSet gives upstream's plugin a client that finds no limit ranges either.
func (l *limitRanger) SetExternalKubeClientSet(kubernetes.Interface) {
	l.LimitRanger.SetExternalKubeClientSet(noLimits{})
}

type noLimits struct{ kubernetes.Interface }
type noCoreLimits struct{ corev1client.CoreV1Interface }
type noLimitRanges struct {
	corev1client.LimitRangeInterface
}

func (noLimits) CoreV1() corev1client.CoreV1Interface                    { return noCoreLimits{} }
func (noCoreLimits) LimitRanges(string) corev1client.LimitRangeInterface { return noLimitRanges{} }
func (noLimitRanges) List(context.Context, metav1.ListOptions) (*corev1.LimitRangeList, error) {
	return &corev1.LimitRangeList{}, nil
}
