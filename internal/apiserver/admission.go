package apiserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apihelpers "k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	admissionmetrics "k8s.io/apiserver/pkg/admission/metrics"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	dynamicclient "k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/certificates"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/networking"
	"k8s.io/kubernetes/pkg/apis/resource"
	"k8s.io/kubernetes/pkg/apis/scheduling"
	"k8s.io/kubernetes/pkg/apis/storage"
	"k8s.io/kubernetes/plugin/pkg/admission/admit"
	"k8s.io/kubernetes/plugin/pkg/admission/alwayspullimages"
	"k8s.io/kubernetes/plugin/pkg/admission/antiaffinity"
	certapproval "k8s.io/kubernetes/plugin/pkg/admission/certificates/approval"
	"k8s.io/kubernetes/plugin/pkg/admission/certificates/ctbattest"
	certsigning "k8s.io/kubernetes/plugin/pkg/admission/certificates/signing"
	certsubjectrestriction "k8s.io/kubernetes/plugin/pkg/admission/certificates/subjectrestriction"
	"k8s.io/kubernetes/plugin/pkg/admission/defaulttolerationseconds"
	"k8s.io/kubernetes/plugin/pkg/admission/deny"
	"k8s.io/kubernetes/plugin/pkg/admission/eventratelimit"
	"k8s.io/kubernetes/plugin/pkg/admission/extendedresourcetoleration"
	"k8s.io/kubernetes/plugin/pkg/admission/imagepolicy"
	"k8s.io/kubernetes/plugin/pkg/admission/limitranger"
	"k8s.io/kubernetes/plugin/pkg/admission/network/defaultingressclass"
	"k8s.io/kubernetes/plugin/pkg/admission/network/denyserviceexternalips"
	"k8s.io/kubernetes/plugin/pkg/admission/nodedeclaredfeatures"
	"k8s.io/kubernetes/plugin/pkg/admission/noderestriction"
	"k8s.io/kubernetes/plugin/pkg/admission/nodetaint"
	"k8s.io/kubernetes/plugin/pkg/admission/podnodeselector"
	"k8s.io/kubernetes/plugin/pkg/admission/podresize"
	"k8s.io/kubernetes/plugin/pkg/admission/podtolerationrestriction"
	"k8s.io/kubernetes/plugin/pkg/admission/podtopologylabels"
	podpriority "k8s.io/kubernetes/plugin/pkg/admission/priority"
	"k8s.io/kubernetes/plugin/pkg/admission/runtimeclass"
	"k8s.io/kubernetes/plugin/pkg/admission/security/podsecurity"
	"k8s.io/kubernetes/plugin/pkg/admission/serviceaccount"
	"k8s.io/kubernetes/plugin/pkg/admission/storage/persistentvolume/resize"
	"k8s.io/kubernetes/plugin/pkg/admission/storage/storageclass/setdefault"
	"k8s.io/kubernetes/plugin/pkg/admission/storage/storageobjectinuseprotection"

	dynamic "github.com/logplane/logplane/internal/apiserver/admission"
	"github.com/logplane/logplane/internal/apiserver/cost"
	"github.com/logplane/logplane/internal/apiserver/description/spec"
	"github.com/logplane/logplane/internal/apiserver/listers"
	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

// admissionPlugin is a plugin of kube-apiserver.
type admissionPlugin struct {
	name string
	// register is nil for plugins that newAdmission registers: our own plugins, and the plugins of the packages
	// admission and quotas.
	register func(*admission.Plugins)
	on       bool // on unless it is disabled
}

// admissionPlugins are first our own plugin, and then the plugins of kube-apiserver, in kube-apiserver's order.
// NodeRestriction is on, too: it concerns only nodes' users. Three kinds of plugins are left out: plugins that make a
// namespace in the middle of a request, because the request would not see the namespace; plugins that need a mapper of
// kinds; and plugins of features that are off.
var admissionPlugins = []admissionPlugin{
	{cost.PluginName, cost.Register, true},
	{admit.PluginName, admit.Register, false},
	{lifecycle.PluginName, nil, true},
	{antiaffinity.PluginName, antiaffinity.Register, false},
	{limitranger.PluginName, nil, true},
	{serviceaccount.PluginName, nil, true},
	{noderestriction.PluginName, noderestriction.Register, true},
	{nodetaint.PluginName, nodetaint.Register, true},
	{alwayspullimages.PluginName, alwayspullimages.Register, false},
	{imagepolicy.PluginName, imagepolicy.Register, false},
	{podsecurity.PluginName, podsecurity.Register, true},
	{podnodeselector.PluginName, podnodeselector.Register, false},
	{podpriority.PluginName, podpriority.Register, true},
	{defaulttolerationseconds.PluginName, defaulttolerationseconds.Register, true},
	{podtolerationrestriction.PluginName, podtolerationrestriction.Register, false},
	{eventratelimit.PluginName, eventratelimit.Register, false},
	{extendedresourcetoleration.PluginName, extendedresourcetoleration.Register, false},
	{setdefault.PluginName, setdefault.Register, true},
	{storageobjectinuseprotection.PluginName, storageobjectinuseprotection.Register, true},
	{resize.PluginName, resize.Register, true},
	{runtimeclass.PluginName, runtimeclass.Register, true},
	{certapproval.PluginName, certapproval.Register, true},
	{certsigning.PluginName, certsigning.Register, true},
	{ctbattest.PluginName, ctbattest.Register, true},
	{certsubjectrestriction.PluginName, certsubjectrestriction.Register, true},
	{defaultingressclass.PluginName, defaultingressclass.Register, true},
	{denyserviceexternalips.PluginName, denyserviceexternalips.Register, false},
	{podtopologylabels.PluginName, podtopologylabels.Register, true},
	{nodedeclaredfeatures.PluginName, nodedeclaredfeatures.Register, true},
	{podresize.PluginName, podresize.Register, true},
	{mutatingpolicy.PluginName, nil, true},
	{mutatingwebhook.PluginName, nil, true},
	{validatingpolicy.PluginName, nil, true},
	{validatingwebhook.PluginName, nil, true},
	{resourcequota.PluginName, nil, true},
	{deny.PluginName, deny.Register, false},
}

// judges lists, by plugin, the resources that the plugin decides about. A plugin that is not in this map decides about
// all resources.
var judges = map[string][]schema.GroupResource{
	serviceaccount.PluginName:               {core.Resource("pods")},
	nodetaint.PluginName:                    {core.Resource("nodes")},
	podpriority.PluginName:                  {core.Resource("pods"), scheduling.Resource("podgroups"), scheduling.Resource("priorityclasses")},
	defaulttolerationseconds.PluginName:     {core.Resource("pods")},
	setdefault.PluginName:                   {core.Resource("persistentvolumeclaims")},
	storageobjectinuseprotection.PluginName: {core.Resource("persistentvolumes"), core.Resource("persistentvolumeclaims"), storage.Resource("volumeattributesclasses")},
	resize.PluginName:                       {core.Resource("persistentvolumeclaims")},
	runtimeclass.PluginName:                 {core.Resource("pods")},
	certapproval.PluginName:                 {certificates.Resource("certificatesigningrequests")},
	certsigning.PluginName:                  {certificates.Resource("certificatesigningrequests")},
	ctbattest.PluginName:                    {certificates.Resource("clustertrustbundles")},
	certsubjectrestriction.PluginName:       {certificates.Resource("certificatesigningrequests")},
	defaultingressclass.PluginName:          {networking.Resource("ingresses")},
	podtopologylabels.PluginName:            {core.Resource("pods")},
	nodedeclaredfeatures.PluginName:         {core.Resource("pods"), resource.Resource("resourceslices")},
	podresize.PluginName:                    {core.Resource("pods")},
}

// Admission chooses plugins. Its fields are flags of kube-apiserver.
type Admission struct {
	// Enable and Disable are --enable-admission-plugins and --disable-admission-plugins.
	Enable, Disable []string
	// ConfigFile is --admission-control-config-file; empty for none.
	ConfigFile string
}

// chosen are the names of the plugins that are on.
func (c Admission) chosen() ([]string, error) {
	var names, known []string
	for _, p := range admissionPlugins {
		on := p.on
		if p.name != cost.PluginName { // this plugin keeps a process alive, so it cannot be disabled
			known = append(known, p.name)
			on = (on || slices.Contains(c.Enable, p.name)) && !slices.Contains(c.Disable, p.name)
		}
		if on {
			names = append(names, p.name)
		}
	}
	for _, name := range slices.Concat(c.Enable, c.Disable) {
		switch {
		case !slices.Contains(known, name):
			return nil, fmt.Errorf("admission plugin '%s' is not known here: known are %s", name, strings.Join(known, ", "))
		case slices.Contains(c.Enable, name) && slices.Contains(c.Disable, name):
			return nil, fmt.Errorf("admission plugin '%s' is both enabled and disabled", name)
		}
	}
	return names, nil
}

// configuration reads the plugins' configuration as kube-apiserver does.
func (c Admission) configuration(names []string) (admission.ConfigProvider, error) {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	provider, err := admission.ReadAdmissionConfiguration(names, c.ConfigFile, scheme)
	if err != nil {
		return nil, fmt.Errorf("read the configuration of admission in '%s': %w", c.ConfigFile, err)
	}
	return provider, nil
}

// newAdmission makes the chain of plugins.
func newAdmission(s *Server) (admission.Interface, error) {
	names, err := s.config.Admission.chosen()
	if err != nil {
		return nil, err
	}
	configuration, err := s.config.Admission.configuration(names)
	if err != nil {
		return nil, err
	}
	plugins := admission.NewPlugins()
	for _, p := range admissionPlugins {
		if p.register != nil {
			p.register(plugins)
		}
	}
	if s.dynamic, err = newDynamic(s); err != nil {
		return nil, err
	}
	s.dynamic.Register(plugins)
	s.quotas.Register(plugins)
	plugins.Register(lifecycle.PluginName, func(io.Reader) (admission.Interface, error) { return newNamespaceLifecycle(s) })
	plugins.Register(limitranger.PluginName, func(io.Reader) (admission.Interface, error) { return newLimitRanger() })
	plugins.Register(serviceaccount.PluginName, func(io.Reader) (admission.Interface, error) {
		return &serviceAccounts{serviceaccount.NewServiceAccount(), s.listers.Core().V1().ServiceAccounts().Lister()}, nil
	})
	chain, err := plugins.NewFromPlugins(names, configuration, s.initializer(), admission.Decorators{admission.DecoratorFunc(admissionmetrics.WithControllerMetrics), admission.DecoratorFunc(sparing)})
	if err != nil {
		return nil, fmt.Errorf("make the admission plugins: %w", err)
	}
	return admissionmetrics.WithStepMetrics(pluginChain{admission.NewChainHandler(chain, unenforced{})}), nil
}

// pluginChain tells plugins that a request is a dry run if the request, or the transaction that it is part of, writes
// nothing. If a plugin needs an object that cannot be read, the read error becomes the request's answer.
type pluginChain struct{ admission.Interface }

// Admit implements admission.MutationInterface.
func (p pluginChain) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) (err error) {
	defer listers.Catch(ctx, &err)
	return readable(ctx, p.Interface.(admission.MutationInterface).Admit(ctx, dryAttributes(ctx, a), o))
}

// Validate implements admission.ValidationInterface.
func (p pluginChain) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) (err error) {
	defer listers.Catch(ctx, &err)
	return readable(ctx, p.Interface.(admission.ValidationInterface).Validate(ctx, dryAttributes(ctx, a), o))
}

// readable turns the read error of a plugin into the request's answer. It returns verdicts unchanged.
func readable(ctx context.Context, err error) error {
	if errors.As(err, new(*projection.ReadError)) {
		return kubestore.Answer(ctx, err)
	}
	return err
}

type dryRun struct{ admission.Attributes }

// IsDryRun implements admission.Attributes.
func (dryRun) IsDryRun() bool { return true }

func dryAttributes(ctx context.Context, a admission.Attributes) admission.Attributes {
	if kubestore.IsDryRun(ctx) {
		return dryRun{a}
	}
	return a
}

// initializer gives plugins the clients, listers and authorizer that they read from.
func (s *Server) initializer() admission.PluginInitializer {
	return initializer.New(s.client, nil, s.listers, s.generic.Authorization.Authorizer, s.generic.FeatureGate, s.generic.EffectiveVersion, nil, nil)
}

// sparing lets a plugin see only the resources that it decides about. Otherwise the create of a ConfigMap, for example,
// would pass through all plugins for Pods, and would be counted in the metrics of each such plugin.
func sparing(plugin admission.Interface, name string) admission.Interface {
	if of, ok := judges[name]; ok {
		return judge{plugin, of}
	}
	return plugin
}

type judge struct {
	admission.Interface
	of []schema.GroupResource
}

// Admit implements admission.MutationInterface.
func (j judge) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	plugin, ok := j.Interface.(admission.MutationInterface)
	if !ok || !slices.Contains(j.of, a.GetResource().GroupResource()) {
		return nil
	}
	return plugin.Admit(ctx, a, o)
}

// Validate implements admission.ValidationInterface.
func (j judge) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	plugin, ok := j.Interface.(admission.ValidationInterface)
	if !ok || !slices.Contains(j.of, a.GetResource().GroupResource()) {
		return nil
	}
	return plugin.Validate(ctx, a, o)
}

// newDynamic makes the part of admission that asks webhooks and policies.
func newDynamic(s *Server) (*dynamic.Dynamic, error) {
	instances, err := dynamicclient.NewForConfig(s.loopback)
	if err != nil {
		return nil, fmt.Errorf("make the loopback client: %w", err)
	}
	return dynamic.New(dynamic.Config{
		Projection: s.config.Cell.Projection, Listers: s.listers, Services: s.servers, Client: s.client, Instances: instances,
		Authorizer: s.generic.Authorization.Authorizer, Types: resources.ConvertersOf(legacyscheme.Scheme), ResourceOf: s.resourceOf, Definitions: s.definitions.Prefix(),
	})
}

// resourceOf finds the served resource of a kind.
func (s *Server) resourceOf(kind schema.GroupVersionKind) (schema.GroupVersionResource, meta.RESTScope, error) {
	scoped := func(resource string, namespaced bool) (schema.GroupVersionResource, meta.RESTScope, error) {
		if namespaced {
			return kind.GroupVersion().WithResource(resource), meta.RESTScopeNamespace, nil
		}
		return kind.GroupVersion().WithResource(resource), meta.RESTScopeRoot, nil
	}
	for _, g := range spec.Groups() {
		if !s.serves(g.Name) {
			continue
		}
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
		if crd.Spec.Group == kind.Group && crd.Status.AcceptedNames.Kind == kind.Kind && apihelpers.HasServedCRDVersion(crd.CustomResourceDefinition, kind.Version) {
			return scoped(crd.Status.AcceptedNames.Plural, crd.Spec.Scope == apiextensionsv1.NamespaceScoped)
		}
	}
	return schema.GroupVersionResource{}, nil, &meta.NoKindMatchError{GroupKind: kind.GroupKind(), SearchedVersions: []string{kind.Version}}
}

// namespaceLifecycle is upstream's plugin without the wait of 50 ms for a namespace that upstream's cache may not have
// seen yet. Our lister is exact.
type namespaceLifecycle struct {
	*lifecycle.Lifecycle
	namespaces corelisters.NamespaceLister
	// rows reads the same namespaces, and also a namespace that the request's own transaction has made.
	rows *listers.Indexer
}

func newNamespaceLifecycle(s *Server) (admission.Interface, error) {
	l, err := lifecycle.NewLifecycle(sets.New(metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic))
	return &namespaceLifecycle{l, s.listers.Core().V1().Namespaces().Lister(), s.listers.IndexerOf(&corev1.Namespace{})}, err
}

// Admit decides about creates in a namespace that is missing or active. In a transaction it decides about every
// operation in such a namespace, since the transaction may have made the object and the namespace. Upstream's plugin
// decides about all other requests.
func (l *namespaceLifecycle) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	decides := a.GetOperation() == admission.Create || kubestore.InTransaction(ctx)
	if decides && a.GetNamespace() != "" && !isNamespace(a) && !isAccessReview(a) {
		namespace, err := l.get(ctx, a.GetNamespace())
		switch {
		case err == nil && namespace.Status.Phase == corev1.NamespaceActive:
			return nil
		case apierrors.IsNotFound(err):
			missing := apierrors.NewNotFound(corev1.Resource("namespaces"), a.GetNamespace()) // the lister's error says 'namespace'
			if a.GetNamespace() == metav1.NamespaceDefault {                                  // nobody can delete it
				missing.ErrStatus.Message += ": " + uninitialized
			}
			return missing
		}
	}
	return l.Lifecycle.Admit(ctx, a, o)
}

func (l *namespaceLifecycle) get(ctx context.Context, name string) (*corev1.Namespace, error) {
	if kubestore.InTransaction(ctx) {
		object, found, err := l.rows.GetAt(ctx, kubestore.ViewFrom(ctx), name)
		if err == nil && found {
			return object.(*corev1.Namespace), nil
		}
	}
	return l.namespaces.Get(name)
}

func isNamespace(a admission.Attributes) bool {
	return a.GetKind().GroupKind() == corev1.SchemeGroupVersion.WithKind("Namespace").GroupKind()
}

// isAccessReview is true for a review of access in a namespace. The answer must not tell whether the namespace exists,
// because not everybody may know that.
func isAccessReview(a admission.Attributes) bool {
	return a.GetResource().Group == "authorization.k8s.io" && a.GetResource().Resource == "localsubjectaccessreviews"
}

// serviceAccounts is upstream's plugin without the wait of up to 2 s for an account that upstream's cache may not have
// seen yet. Our lister is exact, and every namespace has its default account as soon as the namespace exists.
type serviceAccounts struct {
	*serviceaccount.Plugin
	accounts corelisters.ServiceAccountLister
}

// Admit refuses a Pod at once if its account is missing. Upstream's plugin decides about all other requests.
func (p *serviceAccounts) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if err := p.check(a); err != nil {
		return err
	}
	return p.Plugin.Admit(ctx, a, o)
}

// Validate checks the account in the same way for a Pod that a webhook has changed.
func (p *serviceAccounts) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if err := p.check(a); err != nil {
		return err
	}
	return p.Plugin.Validate(ctx, a, o)
}

func (p *serviceAccounts) check(a admission.Attributes) error {
	if a.GetResource().GroupResource() != core.Resource("pods") || a.GetOperation() != admission.Create || a.GetSubresource() != "" {
		return nil
	}
	pod, ok := a.GetObject().(*core.Pod)
	if !ok {
		return nil
	}
	if _, mirror := pod.Annotations[core.MirrorPodAnnotationKey]; mirror {
		return nil
	}
	name := cmp.Or(pod.Spec.ServiceAccountName, serviceaccount.DefaultServiceAccountName)
	_, err := p.accounts.ServiceAccounts(a.GetNamespace()).Get(name)
	if apierrors.IsNotFound(err) {
		return admission.NewForbidden(a, fmt.Errorf("error looking up service account %s/%s: %w", a.GetNamespace(), name, err))
	}
	return err
}

// limitRanger is upstream's plugin without its live lookup: if its lister finds nothing, upstream asks the API and
// keeps the answer for 30 s. Our lister is exact.
type limitRanger struct {
	*limitranger.LimitRanger
	actions limitranger.DefaultLimitRangerActions
}

func newLimitRanger() (admission.Interface, error) {
	l, err := limitranger.NewLimitRanger(&limitranger.DefaultLimitRangerActions{})
	return &limitRanger{LimitRanger: l}, err
}

// maxLimited bounds the containers of a Pod times the LimitRanges of its namespace, since each LimitRange is applied to
// each container. A Pod of 4,000 containers took 6 s with 5,000 LimitRanges.
const maxLimited = 1 << 20

// Admit implements admission.MutationInterface.
func (l *limitRanger) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if pod, ok := a.GetObject().(*core.Pod); ok && l.actions.SupportsAttributes(a) { // otherwise upstream applies no LimitRange
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

// SetExternalKubeClientSet gives upstream's plugin a client that never finds a LimitRange.
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
