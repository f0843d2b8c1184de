package apiserver

import (
	"crypto/x509"
	"errors"
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
)

// Authentication says who a request is from.
type Authentication struct {
	// TokenFile is kube-apiserver's --token-auth-file: token,user,uid,"group1,group2".
	TokenFile string
	// ClientCAFile is kube-apiserver's --client-ca-file: a certificate that it signed names user and groups.
	ClientCAFile string
	// Anonymous lets a request without credentials pass as system:anonymous, for the authorizer to judge.
	Anonymous bool
}

// Configured reports whether requests must show credentials. Without, everybody is system:admin.
func (a Authentication) Configured() bool { return a.TokenFile != "" || a.ClientCAFile != "" }

// admin is who everybody is where authentication is not configured.
var admin = &user.DefaultInfo{Name: "system:admin", Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}}

// configureAuthentication makes the authenticators, the loopback's first.
func (s *Server) configureAuthentication() error {
	authenticators, err := s.config.Authentication.authenticators()
	if err != nil {
		return fmt.Errorf("configure authentication: %w", err)
	}
	// fail on error: a bad credential must not fall through to anonymous.
	s.generic.Authentication.Authenticator = union.NewFailOnError(append([]authenticator.Request{loopbackUser}, authenticators...)...)
	return nil
}

func (a Authentication) authenticators() ([]authenticator.Request, error) {
	if !a.Configured() {
		return []authenticator.Request{authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
			return &authenticator.Response{User: admin}, true, nil
		})}, nil
	}
	var all []authenticator.Request
	if a.ClientCAFile != "" {
		roots, err := readRoots(a.ClientCAFile)
		if err != nil {
			return nil, err
		}
		options := x509request.DefaultVerifyOptions()
		options.Roots = roots
		all = append(all, authngroup.NewAuthenticatedGroupAdder(x509request.New(options, x509request.CommonNameUserConversion)))
	}
	if a.TokenFile != "" {
		tokens, err := tokenfile.NewCSV(a.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("read the token file: %w", err)
		}
		all = append(all, authngroup.NewAuthenticatedGroupAdder(bearertoken.New(tokens)))
	}
	if a.Anonymous {
		all = append(all, anonymous.NewAuthenticator(nil))
	}
	return all, nil
}

func readRoots(path string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the client CA: %w", err)
	}
	certs, err := cert.ParseCertsPEM(pem)
	if err != nil {
		return nil, fmt.Errorf("read the client CA %s: %w", path, err)
	}
	if len(certs) == 0 {
		return nil, errors.New("the client CA file holds no certificate")
	}
	roots := x509.NewCertPool()
	for _, c := range certs {
		roots.AddCert(c)
	}
	return roots, nil
}
