package apiserver

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/csv"
	"fmt"
	"net/http"
	"os"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	authngroup "k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/union"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/token/tokenfile"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/util/cert"

	"github.com/logplane/logplane/internal/reload"
)

// Authentication says who a request is from.
type Authentication struct {
	// TokenFile is kube-apiserver's --token-auth-file: token,user,uid,"group1,group2". Unlike there, a change needs no
	// restart.
	TokenFile string
	// ClientCAFile is kube-apiserver's --client-ca-file: a certificate that it signed names user and groups.
	ClientCAFile string
	// Anonymous lets a request without credentials pass as system:anonymous, for the authorizer to judge.
	Anonymous bool
}

// Configured reports whether requests must show credentials. If not, everybody is system:admin.
func (a Authentication) Configured() bool { return a.TokenFile != "" || a.ClientCAFile != "" }

// admin is everybody's user if authentication is not configured.
var admin = &user.DefaultInfo{Name: "system:admin", Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}}

// authenticator combines the authenticators as kube-apiserver does: first the given one, then each kind of credentials
// until one is good, then the anonymous one. A client whose credentials are all bad is not anonymous.
func (a Authentication) authenticator(first authenticator.Request) (authenticator.Request, error) {
	others, err := a.authenticators()
	if err != nil {
		return nil, fmt.Errorf("configure authentication: %w", err)
	}
	return union.NewFailOnError(append([]authenticator.Request{first}, others...)...), nil
}

func (a Authentication) authenticators() ([]authenticator.Request, error) {
	if !a.Configured() {
		return []authenticator.Request{authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
			return &authenticator.Response{User: admin}, true, nil
		})}, nil
	}
	var credentials []authenticator.Request
	if a.ClientCAFile != "" {
		options, err := reload.New(func() (x509.VerifyOptions, error) { return readRoots(a.ClientCAFile) }, a.ClientCAFile)
		if err != nil {
			return nil, fmt.Errorf("read the client CA: %w", err)
		}
		trusted := func() (x509.VerifyOptions, bool) { return options.Get(), true }
		credentials = append(credentials, x509request.NewDynamic(trusted, x509request.CommonNameUserConversion))
	}
	if a.TokenFile != "" {
		tokens, err := reload.New(func() (authenticator.Token, error) { return readTokens(a.TokenFile) }, a.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("read the token file: %w", err)
		}
		known := authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
			return tokens.Get().AuthenticateToken(ctx, token)
		})
		credentials = append(credentials, bearertoken.New(known))
	}
	all := []authenticator.Request{authngroup.NewAuthenticatedGroupAdder(union.New(credentials...))}
	if a.Anonymous {
		all = append(all, anonymous.NewAuthenticator(nil))
	}
	return all, nil
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
