package access

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"

	"github.com/logplane/logplane/internal/apiserver/access/accesstest"
	"github.com/logplane/logplane/internal/apiserver/listers"
	"github.com/logplane/logplane/internal/kubestore"
)

// TestReviews: a webhook is asked about a token once for each audience, and again after a failure.
func TestReviews(t *testing.T) {
	var asked atomic.Int64
	var broken atomic.Bool
	path := accesstest.NewWebhook(t, func(_ *http.Request, review map[string]any) bool {
		asked.Add(1)
		spec := review["spec"].(map[string]any)
		review["status"] = map[string]any{"authenticated": spec["token"] == "good", "user": map[string]any{"username": "bob", "uid": "7", "groups": []string{"a"}}}
		return !broken.Load()
	})
	for _, version := range []string{"v1", "v1beta1"} {
		asked.Store(0)
		reviews, err := newReviews(ReviewsConfig{File: path, Version: version, TTL: time.Minute, Audiences: authenticator.Audiences{"us"}})
		require.NoError(t, err)
		review := func(ctx context.Context, token string) string {
			response, ok, err := reviews.AuthenticateToken(ctx, token)
			switch {
			case err != nil:
				return "failed"
			case !ok:
				return "nobody"
			}
			return response.User.GetName() + response.User.GetUID() + strings.Join(response.User.GetGroups(), "")
		}
		for range 3 {
			require.Equal(t, "bob7a", review(t.Context(), "good"))
			require.Equal(t, "nobody", review(t.Context(), "bad"))
		}
		require.EqualValues(t, 2, asked.Load())
		ours, theirs := authenticator.WithAudiences(t.Context(), authenticator.Audiences{"us"}), authenticator.WithAudiences(t.Context(), authenticator.Audiences{"them"})
		require.Equal(t, "bob7a", review(ours, "good"))
		require.Equal(t, "nobody", review(theirs, "good"))
		require.EqualValues(t, 4, asked.Load())
		broken.Store(true)
		require.Equal(t, "failed", review(t.Context(), "new"))
		require.EqualValues(t, 5, asked.Load(), "it is asked once, without pauses")
		broken.Store(false)
		require.Equal(t, "nobody", review(t.Context(), "new"))
	}
	_, err := newReviews(ReviewsConfig{File: path, Version: "v2"})
	require.ErrorContains(t, err, path)
}

// noSeat is the seat of a request that does not get its seat back.
type noSeat struct{ err error }

func (p noSeat) Wait(_ context.Context, wait func() error) error {
	_ = wait()
	return p.err
}

func (noSeat) TakeHeavy(context.Context) error { return nil }

// TestNoSeatIsNoAnswer: if a request does not get its seat back after a question to a webhook, the request ends with
// the error of the seat. The webhook's answer and failure policy do not matter.
func TestNoSeatIsNoAnswer(t *testing.T) {
	busy := noSeat{apierrors.NewTooManyRequests("busy", 1)}
	ctx := kubestore.Request{Seat: busy}.In(t.Context())
	kubeconfig := accesstest.NewWebhook(t, func(_ *http.Request, review map[string]any) bool {
		review["status"] = map[string]any{"authenticated": true, "allowed": true, "user": map[string]any{"username": "bob"}}
		return true
	})
	reviews, err := newReviews(ReviewsConfig{File: kubeconfig, Version: "v1"})
	require.NoError(t, err)
	require.PanicsWithValue(t, listers.Unreadable{Err: busy.err}, func() { _, _, _ = reviews.AuthenticateToken(ctx, "x") })
	a, err := newAuthorizers(authorizationOf(t, kubeconfig, "NoOpinion", ""), map[string]Authorizer{"RBAC": authorizerfactory.NewAlwaysAllowAuthorizer()})
	require.NoError(t, err)
	require.PanicsWithValue(t, listers.Unreadable{Err: busy.err}, func() { _, _, _ = a.Authorize(ctx, question("ann", "get")) })
	issuer := accesstest.NewIssuer(t)
	require.PanicsWithValue(t, listers.Unreadable{Err: busy.err}, func() {
		_, _, _ = issuersIn(t, issuer.Config(t, "")).AuthenticateToken(ctx, issuer.Token(t, nil))
	})
}

// TestKubeconfigsOfWebhooks: a kubeconfig must lead to an https URL, with credentials that need no command.
func TestKubeconfigsOfWebhooks(t *testing.T) {
	const kubeconfig = `{"apiVersion":"v1","kind":"Config","current-context":"a","contexts":[{"name":"a","context":{"cluster":"a","user":"a"}}],` +
		`"clusters":[{"name":"a","cluster":{"server":%q%s}}],"users":[{"name":"a","user":{%s}}]}`
	for text, says := range map[string]string{
		fmt.Sprintf(kubeconfig, "http://a.example", "", ""): "it must be an 'https://' URL",
		fmt.Sprintf(kubeconfig, "https://a.example", "", `"exec":{"apiVersion":"client.authentication.k8s.io/v1","command":"true","interactiveMode":"Never"}`): "has a command or a plugin",
		fmt.Sprintf(kubeconfig, "https://a.example", `,"certificate-authority":"missing"`, ""):                                                                 "missing",
		"{": "read the kubeconfig of a webhook",
	} {
		path := accesstest.Write(t, text)
		_, err := client(path)
		require.ErrorContains(t, err, says, text)
		require.ErrorContains(t, err, path)
	}
	_, err := client(accesstest.Write(t, fmt.Sprintf(kubeconfig, "https://a.example", "", `"token":"x"`)))
	require.NoError(t, err)
}

// question is a user's request.
func question(who, verb string) authorizer.Attributes {
	return authorizer.AttributesRecord{User: &user.DefaultInfo{Name: who}, Verb: verb, Resource: "configmaps", Namespace: "default", ResourceRequest: true}
}

// authorizationOf writes an AuthorizationConfiguration of a webhook and RBAC. more is added to the webhook's
// configuration.
func authorizationOf(t testing.TB, kubeconfig, policy, more string) string {
	return accesstest.Write(t, fmt.Sprintf(`{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthorizationConfiguration","authorizers":[`+
		`{"type":"Webhook","name":"w.example","webhook":{"timeout":"5s","subjectAccessReviewVersion":"v1","matchConditionSubjectAccessReviewVersion":"v1","failurePolicy":%q,`+
		`"connectionInfo":{"type":"KubeConfigFile","kubeConfigFile":%q}%s}},{"type":"RBAC","name":"rbac"}]}`, policy, kubeconfig, more))
}

// TestAuthorizersInOrder: a webhook's decision to allow or deny is final, and RBAC decides about requests that the
// webhook neither allows nor denies. Answers are kept.
func TestAuthorizersInOrder(t *testing.T) {
	var asked atomic.Int64
	kubeconfig := accesstest.NewWebhook(t, func(_ *http.Request, review map[string]any) bool {
		asked.Add(1)
		who := review["spec"].(map[string]any)["user"]
		review["status"] = map[string]any{"allowed": who == "friend", "denied": who == "enemy"}
		return who != "breaker"
	})
	decide := func(file string, rbac Authorizer, who, verb string) authorizer.Decision {
		a, err := newAuthorizers(file, map[string]Authorizer{"RBAC": rbac})
		require.NoError(t, err)
		decision, _, _ := a.Authorize(t.Context(), question(who, verb))
		return decision
	}
	yes, no := authorizerfactory.NewAlwaysAllowAuthorizer(), authorizerfactory.NewAlwaysDenyAuthorizer()
	open, closed := authorizationOf(t, kubeconfig, "NoOpinion", ""), authorizationOf(t, kubeconfig, "Deny", `,"matchConditions":[{"expression":"request.resourceAttributes.verb != 'list'"}]`)
	for _, c := range []struct {
		file      string
		rbac      Authorizer
		who, verb string
		decision  authorizer.Decision
	}{
		{open, no, "friend", "get", authorizer.DecisionAllow},
		{open, yes, "enemy", "get", authorizer.DecisionDeny},
		{open, yes, "ann", "get", authorizer.DecisionAllow},
		{open, no, "ann", "get", authorizer.DecisionNoOpinion},
		{open, yes, "breaker", "get", authorizer.DecisionAllow},
		{closed, yes, "breaker", "get", authorizer.DecisionDeny},
		{closed, yes, "enemy", "list", authorizer.DecisionAllow},
		{closed, yes, "enemy", "get", authorizer.DecisionDeny},
	} {
		require.Equal(t, c.decision, decide(c.file, c.rbac, c.who, c.verb), "%v", c)
	}
	asked.Store(0)
	a, err := newAuthorizers(open, map[string]Authorizer{"RBAC": no})
	require.NoError(t, err)
	for range 3 {
		_, _, err := a.Authorize(t.Context(), question("friend", "get"))
		require.NoError(t, err)
	}
	require.EqualValues(t, 1, asked.Load())
	_, _, incomplete, _ := a.RulesFor(t.Context(), &user.DefaultInfo{Name: "ann"}, "default")
	require.True(t, incomplete)
}

// TestAuthorizersThatMakeNoSense: a configuration that cannot work is refused at the start, and the message names the
// file.
func TestAuthorizersThatMakeNoSense(t *testing.T) {
	const head = `{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthorizationConfiguration","authorizers":[`
	rbac := map[string]Authorizer{"RBAC": authorizerfactory.NewAlwaysAllowAuthorizer()}
	for text, says := range map[string]string{
		head + `]}`:                              "at least one",
		head + `{"type":"Node","name":"node"}]}`: `supported values: "RBAC", "Webhook"`,
		head + `{"type":"RBAC","name":"rbac"},{"type":"RBAC","name":"rbac2"}]}`:            "Duplicate value",
		head + `{"type":"Webhook","name":"w"}]}`:                                           "required when type=Webhook",
		`{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthenticationConfiguration"}`: "it must hold an AuthorizationConfiguration",
	} {
		path := accesstest.Write(t, text)
		_, err := newAuthorizers(path, rbac)
		require.ErrorContains(t, err, says, text)
		require.ErrorContains(t, err, path)
	}
	_, err := newAuthorizers(authorizationOf(t, accesstest.Write(t, "{"), "Deny", ""), rbac)
	require.ErrorContains(t, err, "w.example")
}
