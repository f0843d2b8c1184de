package access

import (
	"context"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"
	authorizationmetrics "k8s.io/apiserver/pkg/authorization/metrics"
	"k8s.io/apiserver/pkg/authorization/union"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook/metrics"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"

	"github.com/logplane/logplane/internal/reload"
)

// Authorizer decides about requests, and lists what a user may do.
type Authorizer interface {
	authorizer.UnconditionalAuthorizer
	authorizer.RuleResolver
}

// named is an authorizer with the name that a refusal shows to clients.
type named struct {
	name string
	Authorizer
}

// inOrder joins the authorizers into one, which first allows everything to members of system:masters. Conditions, an
// alpha feature of upstream's, are off: no authorizer here makes any, and a decision with conditions is refused.
func inOrder(all []named) (authorizers, error) {
	chain := []union.NamedAuthorizer{{
		AuthorizerName: "kubernetes.io/system-privileged-group",
		Authorizer:     authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup),
	}}
	var rules []authorizer.RuleResolver
	for _, a := range all {
		chain = append(chain, union.NamedAuthorizer{AuthorizerName: a.name, Authorizer: authorizer.AuthorizerFunc(a.Authorize)})
		rules = append(rules, a)
	}
	joined, err := union.New(chain...)
	return authorizers{joined, union.NewRuleResolvers(rules...)}, err
}

// authorizers decide one after another.
type authorizers struct {
	authorizer.Authorizer
	authorizer.RuleResolver
}

// newestAuthorizers are the authorizers in the newest content of a file.
type newestAuthorizers struct{ *reload.Value[authorizers] }

// newAuthorizers reads the file of kube-apiserver's --authorization-config. It does not ask webhooks. The file may name
// webhooks and, by their types, the authorizers in the parameter 'others'.
func newAuthorizers(file string, others map[string]Authorizer) (Authorizer, error) {
	newest, err := reload.New(func() (authorizers, error) { return readAuthorizers(file, others) }, file)
	if err != nil {
		return nil, fmt.Errorf("use the authorization configuration '%s': %w", file, err)
	}
	return newestAuthorizers{newest}, nil
}

// Authorize implements authorizer.Authorizer.
func (a newestAuthorizers) Authorize(ctx context.Context, attributes authorizer.Attributes) (authorizer.Decision, string, error) {
	return a.Get().Authorize(ctx, attributes)
}

// RulesFor implements authorizer.RuleResolver. Webhooks cannot list rules, so the rights that webhooks grant are
// missing.
func (a newestAuthorizers) RulesFor(ctx context.Context, who user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return a.Get().RulesFor(ctx, who, namespace)
}

func readAuthorizers(file string, others map[string]Authorizer) (authorizers, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return authorizers{}, err
	}
	decoded, err := runtime.Decode(decoder(), text)
	if err != nil {
		return authorizers{}, err
	}
	config, ok := decoded.(*apiserver.AuthorizationConfiguration)
	if !ok {
		return authorizers{}, fmt.Errorf("it holds a %T: it must hold an AuthorizationConfiguration", decoded)
	}
	compiler := authorizationcel.NewDefaultCompiler()
	known, repeatable := sets.KeySet(others).Insert(modes.ModeWebhook), sets.New(modes.ModeWebhook)
	if err := validation.ValidateAuthorizationConfiguration(compiler, nil, config, known, repeatable).ToAggregate(); err != nil {
		return authorizers{}, err
	}
	var all []named
	for _, c := range config.Authorizers {
		made := others[string(c.Type)]
		if c.Type == apiserver.TypeWebhook {
			if made, err = newWebhook(c, compiler); err != nil {
				return authorizers{}, fmt.Errorf("webhook '%s': %w", c.Name, err)
			}
		}
		counted := authorizationmetrics.InstrumentedAuthorizer(string(c.Type), c.Name, authorizer.AuthorizerFunc(made.Authorize))
		all = append(all, named{c.Name, authorizers{counted, made}})
	}
	return inOrder(all)
}

// asked is a webhook that authorizes requests.
type asked struct{ *webhook.WebhookAuthorizer }

// Authorize implements authorizer.Authorizer.
func (a asked) Authorize(ctx context.Context, attributes authorizer.Attributes) (authorizer.Decision, string, error) {
	decision, reason, err := a.WebhookAuthorizer.Authorize(ctx, attributes)
	endSeatless(err)
	return decision, reason, err
}

func newWebhook(c apiserver.AuthorizerConfiguration, compiler authorizationcel.Compiler) (Authorizer, error) {
	w := c.Webhook
	if w.ConnectionInfo.Type != apiserver.AuthorizationWebhookConnectionInfoTypeKubeConfigFile {
		return nil, fmt.Errorf("'connectionInfo.type' is '%s': it must be '%s'", w.ConnectionInfo.Type, apiserver.AuthorizationWebhookConnectionInfoTypeKubeConfigFile)
	}
	to, err := client(*w.ConnectionInfo.KubeConfigFile)
	if err != nil {
		return nil, err
	}
	to.Timeout = w.Timeout.Duration
	onError := authorizer.DecisionDeny
	if w.FailurePolicy == apiserver.FailurePolicyNoOpinion {
		onError = authorizer.DecisionNoOpinion
	}
	allowedTTL, deniedTTL := w.AuthorizedTTL.Duration, w.UnauthorizedTTL.Duration
	if !w.CacheAuthorizedRequests {
		allowedTTL = 0
	}
	if !w.CacheUnauthorizedRequests {
		deniedTTL = 0
	}
	made, err := webhook.New(to, w.SubjectAccessReviewVersion, allowedTTL, deniedTTL, once, onError, w.MatchConditions, c.Name, newMetrics(), compiler)
	if err != nil {
		return nil, err
	}
	return asked{made}, nil
}

// newMetrics returns kube-apiserver's metrics of authorization webhooks.
func newMetrics() metrics.AuthorizerMetrics {
	return struct {
		metrics.NoopRequestMetrics
		metrics.WebhookMetrics
		authorizationcel.MatcherMetrics
	}{WebhookMetrics: metrics.NewWebhookMetrics(), MatcherMetrics: authorizationcel.NewMatcherMetrics()}
}
