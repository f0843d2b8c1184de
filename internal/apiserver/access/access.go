// Package access says who a client is, what the client may do, and which of the client's requests are recorded. The
// package asks other servers if it is configured to do so.
//
// Nouns. An issuer is a server of OpenID Connect that signs tokens, which are JWTs, and publishes the keys that verify
// its tokens. A review is the answer in which a webhook names the user of a token. An authorizer decides whether a user
// may do something.
//
// Issuers, reviews and authorizers are configured by files in upstream's formats. A changed file is read again. Nothing
// runs between two requests. The first request that needs a key or an answer fetches it on a connection of its own, and
// later requests use it again. A request holds no seat while it waits.
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

// once asks a webhook a single time. Upstream's default is to try again after a pause, and the request would sleep
// during that pause.
var once = wait.Backoff{Steps: 1}

// seatless sends requests to other servers on behalf of a client's request. The client's request holds no seat while it
// waits for the answer.
type seatless struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (s seatless) RoundTrip(r *http.Request) (*http.Response, error) {
	var response *http.Response
	var failed error
	err := kubestore.WithoutSeat(r.Context(), func() error {
		response, failed = s.RoundTripper.RoundTrip(r)
		return failed
	})
	if failed != nil {
		return nil, failed
	}
	if err != nil {
		return nil, errSeatless{err}
	}
	return response, nil
}

// errSeatless is the error of a request that did not get a seat again.
type errSeatless struct{ error }

// endSeatless ends a request that did not get a seat again. Upstream would treat err as a refusal of the token or the
// request. So endSeatless panics, like a lister that cannot read.
func endSeatless(err error) {
	if lost, ok := errors.AsType[errSeatless](err); ok {
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
	c.Transport = seatless{c.Transport}
	return c, nil
}

// Config configures an Access.
type Config struct {
	Authentication Authentication
	Authorization  Authorization
	// IsOwn says whether a certificate is one of the server's own. The server's own certificates authenticate nobody.
	IsOwn func(*x509.Certificate) bool
	// Accounts verifies the tokens of service accounts; nil if such tokens are not accepted. Audiences are the
	// audiences of this API.
	Accounts  authenticator.Token
	Audiences authenticator.Audiences
	// Rules decides in mode RBAC, and Nodes in mode Node.
	Rules *roles.Index
	Nodes *nodes.Authorizer
}

// Access has the authenticators and authorizers of one server.
type Access struct {
	// Authenticator says who sends a request. Credentials says whose credentials a request shows; TokenReviews use
	// Credentials, too.
	Authenticator, Credentials authenticator.Request
	// Authorizer says whether a user may do something. Rules lists everything that a user may do.
	Authorizer authorizer.Authorizer
	Rules      authorizer.RuleResolver

	audiences authenticator.Audiences
}

// New reads the files of the configuration.
func New(c Config) (*Access, error) {
	var issuers *newestIssuers
	var err error
	if file := c.Authentication.ConfigFile; file != "" {
		issuers, err = newIssuers(file, c.Authentication.ServiceAccounts.Issuers, !c.Authorization.allowsEverything())
		if err != nil {
			return nil, fmt.Errorf("configure authentication: %w", err)
		}
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
