package access

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"
	"k8s.io/client-go/util/cert"

	"github.com/logplane/logplane/internal/calls"
	"github.com/logplane/logplane/internal/reload"
)

// issuers are the issuers whose tokens are accepted. They also decide which requests may be anonymous.
type issuers struct {
	authenticator.Token
	// anonymous is nil if no request may be anonymous.
	anonymous authenticator.Request
}

// newestIssuers are the issuers in the newest content of a file.
type newestIssuers struct{ *reload.Value[issuers] }

// newIssuers reads an AuthenticationConfiguration from the file. It does not fetch the keys of the issuers; the first
// token makes the server fetch these keys. The file must not name one of the server's own issuers, because the tokens
// of these issuers are verified elsewhere. The file must not allow anonymous requests if every user may do everything.
func newIssuers(file string, own []string, mayBeAnonymous bool) (*newestIssuers, error) {
	newest, err := reload.New(func() (issuers, error) { return readIssuers(file, own, mayBeAnonymous) }, file)
	if err != nil {
		return nil, fmt.Errorf("use the authentication configuration '%s': %w", file, err)
	}
	return &newestIssuers{newest}, nil
}

// AuthenticateToken implements authenticator.Token.
func (i *newestIssuers) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	return i.Get().AuthenticateToken(ctx, token)
}

// AuthenticateRequest implements authenticator.Request for requests without credentials.
func (i *newestIssuers) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	if anonymous := i.Get().anonymous; anonymous != nil {
		return anonymous.AuthenticateRequest(r)
	}
	return nil, false, nil
}

func readIssuers(file string, own []string, mayBeAnonymous bool) (made issuers, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return made, err
	}
	decoded, err := runtime.Decode(decoder(), text)
	if err != nil {
		return made, err
	}
	config, ok := decoded.(*apiserver.AuthenticationConfiguration)
	if !ok {
		return made, fmt.Errorf("it holds a %T: it must hold an AuthenticationConfiguration", decoded)
	}
	compiler := authenticationcel.NewDefaultCompiler()
	if err := validation.ValidateAuthenticationConfiguration(compiler, config, own).ToAggregate(); err != nil {
		return made, err
	}
	var tokens []authenticator.Token
	for _, j := range config.JWT {
		verifier, err := newIssuer(j, compiler)
		if err != nil {
			return made, fmt.Errorf("issuer '%s': %w", j.Issuer.URL, err)
		}
		tokens = append(tokens, verifier)
	}
	made.Token = tokenunion.NewFailOnError(tokens...)
	if a := config.Anonymous; a != nil && a.Enabled {
		if !mayBeAnonymous {
			return made, errors.New("'anonymous.enabled' must not be true where everybody may do everything: choose --authorization-mode RBAC")
		}
		made.anonymous = anonymous.NewAuthenticator(a.Conditions)
	}
	return made, nil
}

// newIssuer makes upstream's verifier, with a keySet that fetches keys when they are needed.
func newIssuer(j apiserver.JWTAuthenticator, compiler authenticationcel.Compiler) (authenticator.Token, error) {
	if j.Issuer.EgressSelectorType != "" {
		return nil, errors.New("'issuer.egressSelectorType' must be empty: there is no egress selector")
	}
	certificates := &tls.Config{}
	if pem := j.Issuer.CertificateAuthority; pem != "" {
		var err error
		if certificates.RootCAs, err = cert.NewPoolFromBytes([]byte(pem)); err != nil {
			return nil, fmt.Errorf("read 'issuer.certificateAuthority': %w", err)
		}
	}
	client := &http.Client{Transport: seatless{calls.Whole(calls.NewTransport(certificates, nil), maxAnswer)}}
	keys := newKeySet(j, client)
	j.Issuer.DiscoveryURL = "" // keys has this URL, and upstream does not accept the URL beside a KeySet
	return oidc.New(context.Background(), oidc.Options{
		JWTAuthenticator: j, KeySet: keys, Client: client, Compiler: compiler, SupportedSigningAlgs: oidc.AllValidSigningAlgorithms(),
	})
}

// decoder decodes upstream's configuration files, strictly.
var decoder = sync.OnceValue(func() runtime.Decoder {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder()
})
