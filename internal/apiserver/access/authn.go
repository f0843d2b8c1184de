package access

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/csv"
	"fmt"
	"net/http"
	"os"
	"time"

	"gopkg.in/go-jose/go-jose.v2/jwt"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	authngroup "k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/token/tokenfile"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/util/cert"

	"github.com/logplane/logplane/internal/apiserver/gate"
	"github.com/logplane/logplane/internal/apiserver/loopback"
	"github.com/logplane/logplane/internal/apiserver/tokens"
	"github.com/logplane/logplane/internal/reload"
)

// Authentication says how the user of a request is found.
type Authentication struct {
	// TokenFile is kube-apiserver's --token-auth-file: token,user,uid,"group1,group2". Unlike in kube-apiserver, a
	// changed file is read without a restart.
	TokenFile string
	// ClientCAFile is kube-apiserver's --client-ca-file: a certificate signed by this CA names the user and the groups.
	ClientCAFile string
	// ConfigFile is kube-apiserver's --authentication-config: it names further issuers whose tokens are accepted, and
	// says which requests may be anonymous. A change needs no restart.
	ConfigFile string
	// Reviews configures the webhook that is asked about a token that no other authenticator knows. The field Audiences
	// of Reviews need not be set.
	Reviews ReviewsConfig
	// ServiceAccounts issues and verifies the tokens of service accounts.
	ServiceAccounts tokens.Config
}

// Configured reports whether requests must show credentials. If not, a request without credentials is from
// system:admin.
func (a Authentication) Configured() bool {
	return a.TokenFile != "" || a.ClientCAFile != "" || a.ConfigFile != "" || a.Reviews.File != ""
}

// admin is the user of every request without credentials if authentication is not configured.
var admin = &user.DefaultInfo{Name: "system:admin", Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}}

// everybody authenticates every request without credentials as admin, if authentication is not configured.
var everybody = authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
	return &authenticator.Response{User: admin}, true, nil
})

// authenticator combines the authenticators as kube-apiserver does: first the loopback's authenticator, then the
// authenticators of credentials until one accepts, and last the anonymous authenticator. A client that shows only bad
// credentials does not become anonymous. issuers may be nil.
func (a Authentication) authenticator(credentials authenticator.Request, issuers *newestIssuers) authenticator.Request {
	all := []authenticator.Request{loopback.Authenticator, credentials}
	switch {
	case !a.Configured():
		all = append(all, everybody)
	case issuers != nil:
		all = append(all, issuers)
	}
	return union.NewFailOnError(all...)
}

// credentials authenticates the credentials that a request shows. Certificates of the server itself authenticate
// nobody. accounts verifies the tokens of service accounts, and issuers verifies the tokens of other issuers; both may
// be nil. audiences are the audiences of this API.
func (a Authentication) credentials(isOwn func(*x509.Certificate) bool, accounts authenticator.Token, issuers *newestIssuers, audiences authenticator.Audiences) (authenticator.Request, error) {
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
	if a.Reviews.File != "" { // last, as in upstream: only this one asks another server
		a.Reviews.Audiences = audiences
		reviews, err := newReviews(a.Reviews)
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

// unlessOwn ignores a client certificate that is one of this server's own. Otherwise a user who can register a node or
// a remote API server could make this API call itself, as the user that the certificate names.
func unlessOwn(isOwn func(*x509.Certificate) bool, certificates authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 && isOwn(r.TLS.PeerCertificates[0]) {
			return nil, false, nil
		}
		return certificates.AuthenticateRequest(r)
	})
}

// untilCertificateEnds ends a watch when the certificate that opened it expires.
func untilCertificateEnds(certificates authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		response, ok, err := certificates.AuthenticateRequest(r)
		if open := gate.WatchOf(r.Context()); ok && open != nil {
			open.EndAt(r.TLS.PeerCertificates[0].NotAfter)
		}
		return response, ok, err
	})
}

// untilTokenEnds ends a watch when the token that opened it expires. The verifier still accepts a token during the
// leeway after the token's expiry. The claims are read without verification because the verifier has verified the
// token.
func untilTokenEnds(verifier authenticator.Token, leeway time.Duration) authenticator.Token {
	return authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		response, ok, err := verifier.AuthenticateToken(ctx, token)
		open := gate.WatchOf(ctx)
		if !ok || open == nil {
			return response, ok, err
		}
		var claims struct {
			Expiry *jwt.NumericDate `json:"exp"`
		}
		parsed, unreadable := jwt.ParseSigned(token)
		if unreadable == nil && parsed.UnsafeClaimsWithoutVerification(&claims) == nil && claims.Expiry != nil {
			open.EndAt(claims.Expiry.Time().Add(leeway))
		}
		return response, ok, err
	})
}

// readTokens reads a token file as upstream does. It refuses a file without a token, because nobody could then use the
// API. It also refuses a file that gives one token to two users; upstream gives the token to the last of these users.
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
			continue // upstream has already reported the mistake
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
