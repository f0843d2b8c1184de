package apiserver

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/csv"
	"fmt"
	"net/http"
	"os"
	"time"

	"gopkg.in/go-jose/go-jose.v2/jwt"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	authngroup "k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/token/tokenfile"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/util/cert"

	"github.com/logplane/logplane/internal/apiserver/access"
	"github.com/logplane/logplane/internal/apiserver/listers"
	"github.com/logplane/logplane/internal/apiserver/tokens"
	"github.com/logplane/logplane/internal/reload"
)

// Authentication says who a request is from.
type Authentication struct {
	// TokenFile is kube-apiserver's --token-auth-file: token,user,uid,"group1,group2". Unlike there, a change needs no
	// restart.
	TokenFile string
	// ClientCAFile is kube-apiserver's --client-ca-file: a certificate that it signed names user and groups.
	ClientCAFile string
	// ConfigFile is kube-apiserver's --authentication-config: whose tokens are good besides, and which requests may be
	// anonymous. A change needs no restart.
	ConfigFile string
	// Reviews is the webhook that is asked about a token which nobody else knows. Its audiences are filled in.
	Reviews access.ReviewsConfig
	// ServiceAccounts issues and verifies the tokens of service accounts.
	ServiceAccounts tokens.Config
	// Anonymous lets a request without credentials pass as system:anonymous, for the authorizer to judge.
	Anonymous bool
}

// Configured reports whether requests must show credentials. If not, a
// request without any is from system:admin.
func (a Authentication) Configured() bool {
	return a.TokenFile != "" || a.ClientCAFile != "" || a.ConfigFile != "" || a.Reviews.File != ""
}

// admin is everybody's user if authentication is not configured.
var admin = &user.DefaultInfo{Name: "system:admin", Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}}

// everybody authenticates a request without credentials if authentication is not configured.
var everybody = authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
	return &authenticator.Response{User: admin}, true, nil
})

// authenticator combines the authenticators as kube-apiserver does: first the loopback's, then each kind of credentials
// until one is good, then the anonymous one. A client whose credentials are all bad is not anonymous. Issuers may be
// nil.
func (a Authentication) authenticator(credentials authenticator.Request, issuers *access.Issuers) authenticator.Request {
	all := []authenticator.Request{loopbackUser, credentials}
	switch {
	case !a.Configured():
		all = append(all, everybody)
	case a.Anonymous:
		all = append(all, anonymous.NewAuthenticator(nil))
	case issuers != nil:
		all = append(all, issuers)
	}
	return union.NewFailOnError(all...)
}

// issuers are those of the configuration file, nil without one.
func (a Authentication) issuers(authorization Authorization) (*access.Issuers, error) {
	if a.ConfigFile == "" {
		return nil, nil
	}
	return access.NewIssuers(access.IssuersConfig{File: a.ConfigFile, Own: a.ServiceAccounts.Issuers, NoAnonymous: authorization.allowsEverything()})
}

// credentials says whose credentials a request shows. Certificates that are the server's own are nobody's. Accounts
// knows the tokens of service accounts, issuers those of others; both may be nil. Audiences are those of this API.
func (a Authentication) credentials(isOwn func(*x509.Certificate) bool, accounts authenticator.Token, issuers *access.Issuers, audiences authenticator.Audiences) (authenticator.Request, error) {
	var credentials []authenticator.Request
	var known []authenticator.Token
	if a.ClientCAFile != "" {
		options, err := reload.New(func() (x509.VerifyOptions, error) { return readRoots(a.ClientCAFile) }, a.ClientCAFile)
		if err != nil {
			return nil, fmt.Errorf("read the client CA: %w", err)
		}
		trusted := func() (x509.VerifyOptions, bool) { return options.Get(), true }
		credentials = append(credentials, unlessOwn(isOwn, untilCertificateEnds(x509request.NewDynamic(trusted, x509request.CommonNameUserConversion))))
	}
	if a.TokenFile != "" {
		file, err := reload.New(func() (authenticator.Token, error) { return readTokens(a.TokenFile) }, a.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("read the token file: %w", err)
		}
		known = append(known, authenticator.WrapAudienceAgnosticToken(audiences, authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
			return file.Get().AuthenticateToken(ctx, token)
		})))
	}
	if accounts != nil {
		known = append(known, untilTokenEnds(accounts, jwt.DefaultLeeway))
	}
	if issuers != nil {
		known = append(known, authenticator.WrapAudienceAgnosticToken(audiences, untilTokenEnds(issuers, 0)))
	}
	if a.Reviews.File != "" { // last, as in upstream: the others need nobody
		a.Reviews.Audiences = audiences
		reviews, err := access.NewReviews(a.Reviews)
		if err != nil {
			return nil, err
		}
		known = append(known, reviews)
	}
	if len(known) > 0 {
		tokens := tokenunion.New(known...)
		credentials = append(credentials, bearertoken.New(tokens), websocket.NewProtocolAuthenticator(tokens))
	}
	return authngroup.NewAuthenticatedGroupAdder(union.New(credentials...)), nil
}

// unlessOwn takes a request with a certificate of this server's own for one without. Whoever names a node or a remote
// API server could otherwise have this API call itself, as whom the certificate names.
func unlessOwn(isOwn func(*x509.Certificate) bool, certificates authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 && isOwn(r.TLS.PeerCertificates[0]) {
			return nil, false, nil
		}
		return certificates.AuthenticateRequest(r)
	})
}

// isOwn says whether a certificate is one by which kubelets or remote API servers know this server.
func (s *Server) isOwn(c *x509.Certificate) bool {
	is := func(own *tls.Certificate) bool { return own != nil && bytes.Equal(own.Certificate[0], c.Raw) }
	return is(s.aggregator.Certificate()) || s.kubelets != nil && is(s.kubelets.Get().certificate)
}

// untilCertificateEnds ends a watch with the certificate that opened it.
func untilCertificateEnds(certificates authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		response, ok, err := certificates.AuthenticateRequest(r)
		if o, watches := openWatchOf(r.Context()); ok && watches {
			o.endAt(r.TLS.PeerCertificates[0].NotAfter)
		}
		return response, ok, err
	})
}

// untilTokenEnds ends a watch with the token that opened it, which is good for the leeway longer than it says. What has
// verified a token vouches for its claims.
func untilTokenEnds(verifier authenticator.Token, leeway time.Duration) authenticator.Token {
	return authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		response, ok, err := verifier.AuthenticateToken(ctx, token)
		o, watches := openWatchOf(ctx)
		if !ok || !watches {
			return response, ok, err
		}
		var claims struct {
			Expiry *jwt.NumericDate `json:"exp"`
		}
		parsed, unreadable := jwt.ParseSigned(token)
		if unreadable == nil && parsed.UnsafeClaimsWithoutVerification(&claims) == nil && claims.Expiry != nil {
			o.endAt(claims.Expiry.Time().Add(leeway))
		}
		return response, ok, err
	})
}

// newTokens makes what issues and verifies the tokens of service accounts, nil if they have none.
func newTokens(s *Server) (*tokens.Tokens, authenticator.Token, error) {
	c := s.config.Authentication.ServiceAccounts
	c.ExternalAddress = s.generic.ExternalAddress
	t, err := tokens.New(c)
	if t == nil || err != nil {
		return nil, nil, err
	}
	core := s.listers.Core().V1()
	return t, t.Authenticator(tokens.Objects{
		Accounts: core.ServiceAccounts().Lister(), Pods: core.Pods().Lister(), Secrets: core.Secrets().Lister(), Nodes: core.Nodes().Lister(),
	}, s.catchUp), nil
}

// catchUp reads the log for a token, before the request has its view. A log that does not answer is no reason to take a
// good token for a bad one. Upstream answers 401 to every error, so this one takes the way of a lister's.
func (s *Server) catchUp(ctx context.Context) error {
	if _, err := s.config.Cell.Consistent(ctx); err != nil {
		listers.Fail(ctx, err)
	}
	return nil
}

// readTokens reads a token file as upstream does. It refuses a file without a token, which would lock everybody out. It
// also refuses a file that gives one token to two users; upstream takes the last of them.
func readTokens(path string) (authenticator.Token, error) {
	tokens, err := tokenfile.NewCSV(path)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	lines := csv.NewReader(bytes.NewReader(text))
	lines.FieldsPerRecord = -1
	all, err := lines.ReadAll()
	if err != nil {
		return nil, err
	}
	users := map[string]string{} // by token
	for n, line := range all {
		if len(line) < 2 || line[0] == "" {
			continue // upstream has said what is wrong
		}
		if other, twice := users[line[0]]; twice {
			return nil, fmt.Errorf("record %d of '%s' has the token of user '%s' for user '%s'", n+1, path, other, line[1])
		}
		users[line[0]] = line[1]
	}
	if len(users) == 0 {
		return nil, fmt.Errorf("'%s' has no token: write lines of 'token,user,uid,\"group1,group2\"'", path)
	}
	return tokens, nil
}

// readRoots returns the options by which a client's certificate is verified.
func readRoots(path string) (x509.VerifyOptions, error) {
	options := x509request.DefaultVerifyOptions()
	roots, err := cert.NewPool(path)
	options.Roots = roots
	return options, err
}
