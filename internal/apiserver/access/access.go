// Package access says who a client is, what it may do, and which of its requests are recorded. It asks others if it is
// configured so.
//
// Nouns. An issuer is a server of OpenID Connect. It signs tokens, which are JWTs, and publishes the keys that verify
// them. A review is a webhook's answer that names the user of a token. An authorizer decides whether a user may do
// something.
//
// All of them are configured by files in upstream's formats, which are read again when they change. Nothing runs
// between two requests: a request that needs a key or an answer fetches it, on a connection of its own, and later
// requests use it too. A request does not hold a place while it waits.
package access

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/rest"

	"github.com/logplane/logplane/internal/apiserver/listers"
	"github.com/logplane/logplane/internal/apiserver/nodes"
	"github.com/logplane/logplane/internal/apiserver/roles"
	"github.com/logplane/logplane/internal/calls"
	"github.com/logplane/logplane/internal/kubestore"
)

const (
	// maxAnswer is how many bytes of an issuer's answer are read.
	maxAnswer = 1 << 20
	// maxAnswers is how many answers of a webhook are kept, as in upstream's webhook authorizer.
	maxAnswers = 8192
)

// once asks a webhook a single time. By default upstream tries again after a pause, in which the request would sleep.
var once = wait.Backoff{Steps: 1}

// placed sends requests to other servers on behalf of a client's request. The client's request does not hold its place
// until the answer has come.
type placed struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (p placed) RoundTrip(r *http.Request) (*http.Response, error) {
	var response *http.Response
	var failed error
	err := kubestore.WithoutPlace(r.Context(), func() error {
		response, failed = p.RoundTripper.RoundTrip(r)
		return failed
	})
	if failed != nil {
		return nil, failed
	}
	if err != nil {
		return nil, placeless{err}
	}
	return response, nil
}

// placeless is the error of a request that did not get a place again.
type placeless struct{ error }

// endPlaceless ends a request that did not get a place again. Upstream would take that error for a refusal of the token
// or the request, so endPlaceless panics as a lister does that cannot read.
func endPlaceless(err error) {
	var lost placeless
	if errors.As(err, &lost) {
		panic(listers.Unreadable{Err: lost.error})
	}
}

// client returns the configuration for calls of the webhook that a kubeconfig names.
func client(kubeconfig string) (*rest.Config, error) {
	c, err := calls.Webhook(kubeconfig)
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(c.Host, "https://") {
		return nil, fmt.Errorf("the server in '%s' is '%s': it must be an 'https://' URL", kubeconfig, c.Host)
	}
	c.Transport = placed{c.Transport}
	return c, nil
}

// Config of an Access.
type Config struct {
	Authentication Authentication
	Authorization  Authorization
	// IsOwn says whether a certificate is the server's own. Such a one is nobody's credential.
	IsOwn func(*x509.Certificate) bool
	// Accounts knows the tokens of service accounts, nil for none. Audiences are those of this API.
	Accounts  authenticator.Token
	Audiences authenticator.Audiences
	// Rules and Nodes are what the modes RBAC and Node decide by.
	Rules *roles.Index
	Nodes *nodes.Authorizer
}

// Access is that of one server.
type Access struct {
	// Authenticator says who sends a request. Credentials says whose credentials a request shows, also those that a
	// TokenReview asks about.
	Authenticator, Credentials authenticator.Request
	// Authorizer says what a user may do, and Rules lists that.
	Authorizer authorizer.Authorizer
	Rules      authorizer.RuleResolver

	audiences authenticator.Audiences
}

// New reads the files of the configuration.
func New(c Config) (*Access, error) {
	issuers, err := c.Authentication.issuers(c.Authorization)
	if err != nil {
		return nil, fmt.Errorf("configure authentication: %w", err)
	}
	a := &Access{audiences: c.Audiences}
	if a.Credentials, err = c.Authentication.credentials(c.IsOwn, c.Accounts, issuers, c.Audiences); err != nil {
		return nil, fmt.Errorf("configure authentication: %w", err)
	}
	a.Authenticator = c.Authentication.authenticator(a.Credentials, issuers)
	if a.Authorizer, a.Rules, err = c.Authorization.authorizer(c.Rules, c.Nodes); err != nil {
		return nil, fmt.Errorf("configure authorization: %w", err)
	}
	return a, nil
}
