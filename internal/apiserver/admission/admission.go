// Package admission decides about requests by the webhooks and policies that users have installed. Upstream's term is
// dynamic admission control.
//
// Nouns. A webhook is a server of a user that Logplane asks about a request. A policy is a set of expressions in CEL
// that a request must satisfy. A binding says where a policy applies, and with which params. Rules are all webhooks,
// policies and bindings at one revision, compiled.
//
// Upstream follows changes with informers, so older rules may still decide about a request. Here the first request
// after a change makes the rules again before the rules decide about that request, so the change counts for the next
// request on any process. Only changed policies are compiled again. Webhooks are compiled again only when one of their
// configurations has changed.
package admission

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/policy/generic"
	"k8s.io/apiserver/pkg/admission/plugin/policy/matching"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	webhook "k8s.io/apiserver/pkg/admission/plugin/webhook/generic"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/kubeapiserver/admission/exclusion"

	"github.com/logplane/logplane/internal/apiserver/listers"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

// Config configures a Dynamic.
type Config struct {
	Projection *projection.Projection
	Listers    *listers.Factory
	// Services finds endpoints of the webhooks whose configurations name a Service.
	Services Services
	// Client and Instances call the API in this process.
	Client    kubernetes.Interface
	Instances dynamic.Interface
	// Authorizer answers expressions that ask about rights.
	Authorizer authorizer.Authorizer
	// Types converts the built-in types.
	Types managedfields.TypeConverter
	// ResourceOf finds the resource of a policy's params. If there is no such resource, the error is a
	// meta.NoKindMatchError. The result may change with any row that has the prefix Definitions.
	ResourceOf  func(schema.GroupVersionKind) (resource schema.GroupVersionResource, scope meta.RESTScope, err error)
	Definitions string
}

// Dynamic decides about requests. It is safe for concurrent use.
type Dynamic struct {
	config Config
	// authorizer answers expressions that ask about rights.
	authorizer *witness
	matcher    *matching.Matcher
	// configured has the configuration of each plugin, with the credentials for calls of webhooks.
	configured map[string][]byte
	// policies asks the validating policies of the rules.
	policies generic.Dispatcher[validating.PolicyHook]

	mu      sync.Mutex // guards the following fields
	changes listers.Changes
	// rules include every change that was reported so far. They are nil if they must be made again.
	rules              *rules
	mutating           webhookKind[*mutatingwebhook.Plugin]
	validating         webhookKind[*validatingwebhook.Plugin]
	validatingPolicies policyKind[*validating.Policy, *validating.PolicyBinding, validating.PolicyEvaluator]
	mutatingPolicies   policyKind[*mutating.Policy, *mutating.PolicyBinding, mutating.PolicyEvaluator]
	// compilations counts compiled policies and webhook configurations.
	compilations int64
}

// rules are the rules at one revision. They do not change.
type rules struct {
	mutating   *mutatingwebhook.Plugin   // nil for no webhooks
	validating *validatingwebhook.Plugin // nil for no webhooks
	policies   []validating.PolicyHook
	// mutations are the mutating policies. mutate asks the mutations, and is nil if there are none.
	mutations []mutating.PolicyHook
	mutate    generic.Dispatcher[mutating.PolicyHook]
}

// New makes a Dynamic. It reads nothing.
func New(c Config) (*Dynamic, error) {
	matcher := matching.NewMatcher(c.Listers.Core().V1().Namespaces().Lister(), c.Client)
	asked := &witness{Authorizer: c.Authorizer}
	return &Dynamic{
		config: c, authorizer: asked, changes: listers.NewChanges(c.Projection), matcher: matcher, configured: map[string][]byte{},
		policies: validating.NewDispatcher(asked, generic.NewPolicyMatcher(matcher)),
		mutating: webhookKind[*mutatingwebhook.Plugin]{
			name: mutatingwebhook.PluginName, configurations: c.Listers.IndexerOf(&admissionregistrationv1.MutatingWebhookConfiguration{}),
			make: mutatingwebhook.NewMutatingWebhook, callerOf: func(p *mutatingwebhook.Plugin) *webhook.Webhook { return p.Webhook },
		},
		validating: webhookKind[*validatingwebhook.Plugin]{
			name: validatingwebhook.PluginName, configurations: c.Listers.IndexerOf(&admissionregistrationv1.ValidatingWebhookConfiguration{}),
			make: validatingwebhook.NewValidatingAdmissionWebhook, callerOf: func(p *validatingwebhook.Plugin) *webhook.Webhook { return p.Webhook },
		},
		validatingPolicies: policyKind[*validating.Policy, *validating.PolicyBinding, validating.PolicyEvaluator]{
			policies: c.Listers.IndexerOf(&validating.Policy{}), bindings: c.Listers.IndexerOf(&validating.PolicyBinding{}), compile: compileValidating,
			policyOf: func(b *validating.PolicyBinding) string { return b.Spec.PolicyName },
			paramsOf: func(p *validating.Policy) *admissionregistrationv1.ParamKind { return p.Spec.ParamKind },
		},
		mutatingPolicies: policyKind[*mutating.Policy, *mutating.PolicyBinding, mutating.PolicyEvaluator]{
			policies: c.Listers.IndexerOf(&mutating.Policy{}), bindings: c.Listers.IndexerOf(&mutating.PolicyBinding{}), compile: compileMutating,
			policyOf: func(b *mutating.PolicyBinding) string { return b.Spec.PolicyName },
			paramsOf: func(p *mutating.Policy) *admissionregistrationv1.ParamKind { return p.Spec.ParamKind },
		},
	}, nil
}

// Compiled returns how many policies and webhook configurations have been compiled.
func (d *Dynamic) Compiled() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.compilations
}

// current returns rules that are as new as the newest view. It makes the rules again if an event since the last call
// concerns the rules. While one request makes the rules, other requests wait. The reads have the timeouts of listers.
func (d *Dynamic) current(ctx context.Context) (*rules, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.changes.Forward(d.notice, func() { d.rules = nil }); err != nil {
		return nil, err
	}
	if d.rules != nil {
		return d.rules, nil
	}
	made, err := d.read()
	if err != nil {
		return nil, kubestore.Answer(ctx, fmt.Errorf("read webhooks and policies: %w", err))
	}
	d.rules = made
	return made, nil
}

// notice drops the rules if they depend on a row. The caller holds mu.
func (d *Dynamic) notice(row string) {
	for _, prefix := range []string{
		d.mutating.configurations.Prefix(), d.validating.configurations.Prefix(), d.config.Definitions, d.validatingPolicies.policies.Prefix(), d.validatingPolicies.bindings.Prefix(),
		d.mutatingPolicies.policies.Prefix(), d.mutatingPolicies.bindings.Prefix(),
	} {
		if strings.HasPrefix(row, prefix) {
			d.rules = nil
		}
	}
}

// read makes the rules of the newest view. The caller holds mu.
func (d *Dynamic) read() (*rules, error) {
	made := &rules{}
	var err error
	if made.mutating, err = d.mutating.read(d); err != nil {
		return nil, err
	}
	if made.validating, err = d.validating.read(d); err != nil {
		return nil, err
	}
	if made.policies, err = d.validatingPolicies.read(d); err != nil {
		return nil, err
	}
	if made.mutations, err = d.mutatingPolicies.read(d); err != nil || len(made.mutations) == 0 {
		return made, err
	}
	made.mutate = mutating.NewDispatcher(d.authorizer, d.matcher, &schemas{
		builtin: d.config.Types, openapi: d.config.Client.Discovery().OpenAPIV3(), custom: map[schema.GroupVersion]managedfields.TypeConverter{},
	})
	return made, nil
}

// configuration returns a plugin's configuration, nil if the plugin has none.
func (d *Dynamic) configuration(plugin string) io.Reader {
	text, ok := d.configured[plugin]
	if !ok {
		return nil
	}
	return bytes.NewReader(text)
}

// Register registers four plugins under upstream's names, for mutating policies, mutating webhooks, validating policies
// and validating webhooks.
func (d *Dynamic) Register(plugins *admission.Plugins) {
	p := plugin{admission.NewHandler(admission.Connect, admission.Create, admission.Delete, admission.Update), d}
	for name, made := range map[string]admission.Interface{
		mutating.PluginName: mutations{p}, mutatingwebhook.PluginName: mutatingWebhooks{p}, validating.PluginName: policies{p}, validatingwebhook.PluginName: validatingWebhooks{p},
	} {
		plugins.Register(name, func(configuration io.Reader) (_ admission.Interface, err error) {
			if configuration != nil {
				p.configured[name], err = io.ReadAll(configuration)
			}
			return made, err
		})
	}
}

// plugin is one of the four plugins of a Dynamic.
type plugin struct {
	*admission.Handler
	*Dynamic
}

// judged returns the result of judge. If judge needed an object that could not be read, judged returns an answer that
// says so. Upstream would treat the failed read as a failure of the webhook or the policy, and ignore that failure if
// the failure policy is Ignore.
func (d *Dynamic) judged(ctx context.Context, judge func() error) error {
	before := d.authorizer.failure.Load()
	err := judge()
	unread := kubestore.UnreadOf(ctx)
	if after := d.authorizer.failure.Load(); unread == nil && after != before {
		unread = after.Err
	}
	if unread != nil {
		return kubestore.Answer(ctx, unread)
	}
	return err
}

// witness is the authorizer that expressions ask about rights. A witness does not know which request an expression is
// about, and upstream turns a panic of the witness into an error of the expression. So the witness remembers the last
// failure of any request. Another request that is judged at the same time may then fail, too; the client can send that
// request again.
type witness struct {
	authorizer.Authorizer
	failure atomic.Pointer[listers.Unreadable]
}

// Authorize implements authorizer.UnconditionalAuthorizer.
func (w *witness) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	defer func() {
		if reason := recover(); reason != nil {
			if failed, ok := reason.(listers.Unreadable); ok {
				w.failure.Store(&failed)
			}
			panic(reason)
		}
	}()
	return w.Authorizer.Authorize(ctx, a)
}

type mutations struct{ plugin }

// Admit implements admission.MutationInterface. A deletion has no object to mutate.
func (p mutations) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if a.GetOperation() == admission.Delete || unjudged[a.GetResource().GroupResource()] {
		return nil
	}
	r, err := p.current(ctx)
	if err != nil || len(r.mutations) == 0 {
		return err
	}
	return p.judged(ctx, func() error { return r.mutate.Dispatch(ctx, a, o, r.mutations) })
}

type mutatingWebhooks struct{ plugin }

// Admit implements admission.MutationInterface. The request holds no seat while webhooks answer.
func (p mutatingWebhooks) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	r, err := p.current(ctx)
	if err != nil || r.mutating == nil {
		return err
	}
	return kubestore.WithoutSeat(ctx, func() error {
		return p.judged(ctx, func() error { return r.mutating.Admit(ctx, a, o) })
	})
}

type validatingWebhooks struct{ plugin }

// Validate implements admission.ValidationInterface. The request holds no seat while webhooks answer.
func (p validatingWebhooks) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	r, err := p.current(ctx)
	if err != nil || r.validating == nil {
		return err
	}
	return kubestore.WithoutSeat(ctx, func() error {
		return p.judged(ctx, func() error { return r.validating.Validate(ctx, a, o) })
	})
}

// unjudged has the resources about which policies are not asked, as in upstream: policies and their bindings, and
// reviews. Otherwise a policy could keep a cluster from being repaired.
var unjudged = func() map[schema.GroupResource]bool {
	all := map[schema.GroupResource]bool{}
	for _, resource := range exclusion.Excluded() {
		all[resource] = true
	}
	for _, name := range []string{"validatingadmissionpolicies", "validatingadmissionpolicybindings", "mutatingadmissionpolicies", "mutatingadmissionpolicybindings"} {
		all[schema.GroupResource{Group: admissionregistrationv1.GroupName, Resource: name}] = true
	}
	return all
}()

type policies struct{ plugin }

// Validate implements admission.ValidationInterface.
func (p policies) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if unjudged[a.GetResource().GroupResource()] {
		return nil
	}
	r, err := p.current(ctx)
	if err != nil || len(r.policies) == 0 {
		return err
	}
	return p.judged(ctx, func() error { return p.Dynamic.policies.Dispatch(ctx, a, o, r.policies) })
}
