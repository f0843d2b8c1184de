// Package tokens issues and verifies the tokens of service accounts.
//
// Nouns. A token is a JWT. It names a service account, and may be bound to a Pod, a Secret or a Node. A bound token
// becomes invalid when that object is deleted. The token of a Secret, which upstream calls legacy, is stored in the
// Secret to which it is bound. An issuer is the URL that identifies the signer of a token. The keys are one private key
// that signs and any number of public keys that verify. Keys are read again when their files change, so they can be
// rotated without a restart.
package tokens

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"gopkg.in/go-jose/go-jose.v2/jwt"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	apiserverserviceaccount "k8s.io/apiserver/pkg/authentication/serviceaccount"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	admissionlisters "k8s.io/client-go/listers/admissionregistration/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/logplane/logplane/internal/reload"
)

// MaxExtendedExpiration is how long a Pod's token is valid if the token was requested for an hour. Upstream extends the
// hour for clients that read their token only once.
const MaxExtendedExpiration = serviceaccount.ExpirationExtensionSeconds * time.Second

// Config has the issuers, keys and audiences of tokens. Its fields are flags of kube-apiserver.
type Config struct {
	// Issuers are URLs, or names without a colon. New tokens are of the first issuer; tokens of all issuers are
	// accepted. Without issuers, tokens are neither issued nor accepted.
	Issuers []string
	// SigningKeyFile holds the private key that signs. Without this key, tokens are not issued. The public half of this
	// key verifies tokens.
	SigningKeyFile string
	// KeyFiles hold more keys that verify, for example a key that signed formerly. A private key stands for its public
	// half.
	KeyFiles []string
	// Audiences are the audiences of this API. If it is empty, the issuers are the audiences.
	Audiences []string
	// MaxExpiration bounds the life of a token; 0 means no bound.
	MaxExpiration time.Duration
	// NoExtension switches MaxExtendedExpiration off.
	NoExtension bool
	// JWKSURI is the URL of the public keys in discovery. If it is empty, the URL is made of ExternalAddress, the host
	// and port of this API.
	JWKSURI, ExternalAddress string
	// NoSecrets switches the tokens of Secrets off. They name no issuer. So the token of a Secret of one cluster could
	// be taken for the token of another cluster's Secret.
	NoSecrets bool
}

// Check returns an error for an invalid configuration. It does not read the files.
func (c Config) Check() error {
	if len(c.Issuers) == 0 {
		if c.SigningKeyFile != "" || len(c.KeyFiles) > 0 || len(c.Audiences) > 0 || c.MaxExpiration != 0 || c.JWKSURI != "" {
			return errors.New("service account tokens need an issuer: give --service-account-issuer")
		}
		return nil
	}
	for _, issuer := range c.Issuers {
		u, err := url.Parse(issuer)
		if issuer == "" || strings.Contains(issuer, ":") && (err != nil || u.Scheme == "") {
			return fmt.Errorf("--service-account-issuer is '%s': it must be a URL, or a name without a colon", issuer)
		}
	}
	if c.SigningKeyFile == "" && len(c.KeyFiles) == 0 {
		return errors.New("--service-account-issuer needs a key: give --service-account-signing-key-file to issue tokens, or --service-account-key-file to verify those of others")
	}
	if c.MaxExpiration != 0 && (c.MaxExpiration < time.Hour || c.MaxExpiration > 1<<32*time.Second) {
		return fmt.Errorf("--service-account-max-token-expiration is %s: it must be from 1h to 1193046h", c.MaxExpiration)
	}
	if u, err := url.Parse(c.JWKSURI); c.JWKSURI != "" && (err != nil || u.Scheme != "https") {
		return fmt.Errorf("--service-account-jwks-uri is '%s': it must be an 'https://' URL", c.JWKSURI)
	}
	return nil
}

// Tokens issues and verifies tokens. It is safe for concurrent use.
type Tokens struct {
	config Config
	keys   *reload.Value[keys]
}

// keys has the keys that the files hold.
type keys struct {
	generator, ofSecrets serviceaccount.TokenGenerator // nil without a key that signs
	verifying            serviceaccount.PublicKeysGetter
	// discovery is nil if the issuer has no OpenID discovery, for example because its name is not a URL.
	discovery serviceaccount.OpenIDMetadataProvider
}

// New reads the keys. It returns nil for a configuration without issuers.
func New(c Config) (*Tokens, error) {
	if err := c.Check(); err != nil || len(c.Issuers) == 0 {
		return nil, err
	}
	if len(c.Audiences) == 0 {
		c.Audiences = c.Issuers
	}
	files := slices.Clone(c.KeyFiles)
	if c.SigningKeyFile != "" {
		files = append(files, c.SigningKeyFile)
	}
	read, err := reload.New(c.readKeys, files...)
	if err != nil {
		return nil, fmt.Errorf("read the keys of service accounts: %w", err)
	}
	return &Tokens{c, read}, nil
}

func (c Config) readKeys() (k keys, err error) {
	var verifying []any
	if c.SigningKeyFile != "" {
		private, err := keyutil.PrivateKeyFromFile(c.SigningKeyFile)
		if err != nil {
			return k, err
		}
		if k.generator, err = serviceaccount.JWTTokenGenerator(c.Issuers[0], private); err != nil {
			return k, fmt.Errorf("use '%s': %w", c.SigningKeyFile, err)
		}
		if k.ofSecrets, err = serviceaccount.JWTTokenGenerator(serviceaccount.LegacyIssuer, private); err != nil {
			return k, fmt.Errorf("use '%s': %w", c.SigningKeyFile, err)
		}
		verifying = append(verifying, private)
	}
	for _, file := range c.KeyFiles {
		public, err := keyutil.PublicKeysFromFile(file)
		if err != nil {
			return k, err
		}
		verifying = append(verifying, public...)
	}
	if k.verifying, err = serviceaccount.StaticPublicKeysGetter(verifying); err != nil {
		return k, err
	}
	k.discovery, err = serviceaccount.NewOpenIDMetadataProvider(c.Issuers[0], c.JWKSURI, c.ExternalAddress, k.verifying)
	if err != nil {
		slog.Warn("the issuer of service account tokens cannot be discovered: clients that verify tokens by themselves need its keys another way", "error", err)
	}
	return k, nil
}

// Issues reports whether there is a key to sign with.
func (t *Tokens) Issues() bool { return t != nil && t.config.SigningKeyFile != "" }

// Audiences returns the audiences of this API, nil without an issuer.
func (t *Tokens) Audiences() authenticator.Audiences {
	if t == nil {
		return nil
	}
	return t.config.Audiences
}

// MaxExpiration bounds the life of a token; 0 means no bound.
func (t *Tokens) MaxExpiration() time.Duration { return t.config.MaxExpiration }

// Extends reports whether MaxExtendedExpiration applies.
func (t *Tokens) Extends() bool { return !t.config.NoExtension }

// GenerateToken implements serviceaccount.TokenGenerator with the newest key.
func (t *Tokens) GenerateToken(ctx context.Context, claims *jwt.Claims, private any) (string, error) {
	return t.keys.Get().generator.GenerateToken(ctx, claims, private)
}

// Fill adds to a Secret the data that upstream's token controller would add: the token of a service account, the
// account's namespace and the certificate, if there is one. It may be called only if Issues is true.
func (t *Tokens) Fill(ctx context.Context, secret *core.Secret, account *corev1.ServiceAccount, rootCA []byte) error {
	data := maps.Clone(secret.Data)
	if data == nil {
		data = map[string][]byte{}
	}
	if len(rootCA) > 0 {
		data[core.ServiceAccountRootCAKey] = rootCA
	}
	if len(data[core.ServiceAccountNamespaceKey]) == 0 {
		data[core.ServiceAccountNamespaceKey] = []byte(secret.Namespace)
	}
	if len(data[core.ServiceAccountTokenKey]) == 0 {
		public, private := serviceaccount.LegacyClaims(*account, corev1.Secret{ObjectMeta: secret.ObjectMeta})
		token, err := t.keys.Get().ofSecrets.GenerateToken(ctx, public, private)
		if err != nil {
			return fmt.Errorf("issue the token of Secret '%s': %w", secret.Name, err)
		}
		data[core.ServiceAccountTokenKey] = []byte(token)
	}
	annotations := maps.Clone(secret.Annotations)
	annotations[core.ServiceAccountUIDKey] = string(account.UID)
	secret.Data, secret.Annotations = data, annotations
	return nil
}

// Authenticator verifies tokens. It first checks signature, audience and expiration. Then it calls catchUp, which makes
// objects as new as the log. Last it checks that the objects to which the token is bound still exist.
func (t *Tokens) Authenticator(objects Objects, catchUp func(context.Context) error) authenticator.Token {
	ofSecrets, err := serviceaccount.NewLegacyValidator(true, objects, untracked{})
	if err != nil {
		panic(err) // cannot happen: all arguments are given
	}
	bound := serviceaccount.JWTTokenAuthenticator(t.config.Issuers, newestKeys{t}, t.config.Audiences, catchingUp(serviceaccount.NewValidator(objects), catchUp))
	if t.config.NoSecrets {
		return bound
	}
	return tokenunion.New(
		serviceaccount.JWTTokenAuthenticator([]string{serviceaccount.LegacyIssuer}, newestKeys{t}, t.config.Audiences, catchingUp(ofSecrets, catchUp)), bound,
	)
}

// untracked discards the day on which the token of a Secret was used. Upstream writes that day to a label of the
// Secret. Here a read would become a write, before the request has a seat.
type untracked struct{ typedcorev1.SecretInterface }

func (u untracked) Secrets(string) typedcorev1.SecretInterface { return u }

func (untracked) Patch(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (*corev1.Secret, error) {
	return nil, nil
}

// catchingUp makes an exact validator. It infers the type of upstream's private claims, because upstream does not
// export that type.
func catchingUp[T any](v serviceaccount.Validator[T], catchUp func(context.Context) error) serviceaccount.Validator[T] {
	return exact[T]{v, catchUp}
}

type exact[T any] struct {
	serviceaccount.Validator[T]
	catchUp func(context.Context) error
}

// Validate implements serviceaccount.Validator.
func (e exact[T]) Validate(ctx context.Context, token string, public *jwt.Claims, private *T) (*apiserverserviceaccount.ServiceAccountInfo, error) {
	if public.Validate(jwt.Expected{Time: time.Now()}) == nil { // else upstream refuses the token and reads no objects
		if err := e.catchUp(ctx); err != nil {
			return nil, err
		}
	}
	return e.Validator.Validate(ctx, token, public, private)
}

// newestKeys implements serviceaccount.PublicKeysGetter with the keys that the files hold now. It needs no listener.
type newestKeys struct{ *Tokens }

func (newestKeys) AddListener(serviceaccount.Listener) {}

func (k newestKeys) GetCacheAgeMaxSeconds() int {
	return k.keys.Get().verifying.GetCacheAgeMaxSeconds()
}

func (k newestKeys) GetPublicKeys(ctx context.Context, keyID string) []serviceaccount.PublicKey {
	return k.keys.Get().verifying.GetPublicKeys(ctx, keyID)
}

// Objects reads the objects to which tokens are bound, as a serviceaccount.ServiceAccountTokenGetter. The listers must
// answer exactly.
type Objects struct {
	Accounts corelisters.ServiceAccountLister
	Pods     corelisters.PodLister
	Secrets  corelisters.SecretLister
	Nodes    corelisters.NodeLister
	// Tokens of this API's own calls are bound to a webhook's configuration.
	ValidatingWebhooks admissionlisters.ValidatingWebhookConfigurationLister
	MutatingWebhooks   admissionlisters.MutatingWebhookConfigurationLister
}

func (o Objects) GetServiceAccount(_ context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	return o.Accounts.ServiceAccounts(namespace).Get(name)
}

func (o Objects) GetPod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	return o.Pods.Pods(namespace).Get(name)
}

func (o Objects) GetSecret(_ context.Context, namespace, name string) (*corev1.Secret, error) {
	return o.Secrets.Secrets(namespace).Get(name)
}

func (o Objects) GetNode(_ context.Context, name string) (*corev1.Node, error) {
	return o.Nodes.Get(name)
}

func (o Objects) GetValidatingWebhookConfiguration(_ context.Context, name string) (*admissionregistrationv1.ValidatingWebhookConfiguration, error) {
	return o.ValidatingWebhooks.Get(name)
}

func (o Objects) GetMutatingWebhookConfiguration(_ context.Context, name string) (*admissionregistrationv1.MutatingWebhookConfiguration, error) {
	return o.MutatingWebhooks.Get(name)
}

// Paths returns the paths that ServeDiscovery answers.
func (t *Tokens) Paths() []string {
	if t == nil || t.keys.Get().discovery == nil {
		return nil
	}
	return []string{serviceaccount.OpenIDConfigPath, serviceaccount.JWKSPath}
}

// ServeDiscovery answers '/.well-known/openid-configuration' and '/openid/v1/jwks', with which clients can verify
// tokens by themselves. It returns false without answering for any other path, and for an issuer without discovery.
func (t *Tokens) ServeDiscovery(w http.ResponseWriter, r *http.Request) bool {
	if t == nil || r.Method != http.MethodGet {
		return false
	}
	discovery := t.keys.Get().discovery
	if discovery == nil {
		return false
	}
	var body []byte
	var maxAge int
	kind := "application/json"
	switch strings.TrimSuffix(r.URL.Path, "/") {
	case serviceaccount.OpenIDConfigPath:
		body, maxAge = discovery.GetConfigJSON()
	case serviceaccount.JWKSPath:
		body, maxAge = discovery.GetKeysetJSON()
		kind = "application/jwk-set+json" // RFC 7517, section 8.5.1
	default:
		return false
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Cache-Control", fmt.Sprintf("public, max-age=%d", maxAge))
	_, _ = w.Write(body) // an error means that the client has gone
	return true
}
