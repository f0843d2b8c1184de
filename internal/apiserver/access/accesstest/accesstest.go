// Package accesstest has issuers of tokens and webhooks for tests.
package accesstest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	jose "gopkg.in/go-jose/go-jose.v2"
	"gopkg.in/go-jose/go-jose.v2/jwt"
)

// Audience is the audience of the issuers' tokens.
const Audience = "logplane"

// Issuer is a server of OpenID Connect.
type Issuer struct {
	*httptest.Server
	// Asked counts the questions for keys. While Silent is true, the issuer answers every question with 503.
	Asked  atomic.Int64
	Silent atomic.Bool

	mu      sync.Mutex
	key     *ecdsa.PrivateKey // guarded by mu: the key that signs; no other key is published
	version int               // guarded by mu
}

// NewIssuer starts an issuer, which ends with the test.
func NewIssuer(t testing.TB) *Issuer {
	t.Helper()
	i := &Issuer{}
	i.Rotate(t)
	i.Server = httptest.NewTLSServer(i)
	t.Cleanup(i.Close)
	return i
}

// ServeHTTP implements http.Handler.
func (i *Issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case i.Silent.Load():
		w.WriteHeader(http.StatusServiceUnavailable)
	case r.URL.Path == "/.well-known/openid-configuration":
		_ = json.NewEncoder(w).Encode(map[string]string{"issuer": i.URL, "jwks_uri": i.URL + "/keys"})
	default:
		i.Asked.Add(1)
		i.mu.Lock()
		defer i.mu.Unlock()
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: i.key.Public(), KeyID: fmt.Sprint(i.version), Algorithm: "ES256"}}})
	}
}

// Rotate replaces the key.
func (i *Issuer) Rotate(t testing.TB) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.key = key
	i.version++
}

// Token signs a token of 'ann' in group 'developers'. The token is valid for an hour. Each given claim is added to the
// usual claims, or replaces the usual claim of its name.
func (i *Issuer) Token(t testing.TB, claims map[string]any) string {
	t.Helper()
	i.mu.Lock()
	defer i.mu.Unlock()
	return Sign(t, jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: i.key, KeyID: fmt.Sprint(i.version)}}, i.Claims(claims))
}

// Claims returns the claims of a token. A claim in more is added to the usual claims, or replaces the usual claim of
// its name. A nil claim is left out.
func (i *Issuer) Claims(more map[string]any) map[string]any {
	all := map[string]any{"iss": i.URL, "sub": "ann", "aud": Audience, "exp": time.Now().Add(time.Hour).Unix(), "groups": []string{"developers"}}
	maps.Copy(all, more)
	maps.DeleteFunc(all, func(_ string, value any) bool { return value == nil })
	return all
}

// Sign signs a token.
func Sign(t testing.TB, key jose.SigningKey, claims map[string]any) string {
	t.Helper()
	signer, err := jose.NewSigner(key, nil)
	require.NoError(t, err)
	token, err := jwt.Signed(signer).Claims(claims).CompactSerialize()
	require.NoError(t, err)
	return token
}

// Config writes an AuthenticationConfiguration in which users and groups of the issuer begin with 'its:'. more is added
// to the configuration.
func (i *Issuer) Config(t testing.TB, more string) string {
	t.Helper()
	authority, err := json.Marshal(AuthorityOf(i.Server))
	require.NoError(t, err)
	return Write(t, fmt.Sprintf(`{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthenticationConfiguration","jwt":[{"issuer":{"url":%q,"certificateAuthority":%s,"audiences":[%q]},`+
		`"claimMappings":{"username":{"claim":"sub","prefix":"its:"},"groups":{"claim":"groups","prefix":"its:"}}}]%s}`, i.URL, authority, Audience, more))
}

// NewWebhook starts a webhook and returns a kubeconfig that leads to it. answer gets a review and fills in its status.
// If answer returns false, the webhook answers 500.
func NewWebhook(t testing.TB, answer func(r *http.Request, review map[string]any) bool) string {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review map[string]any
		if json.NewDecoder(r.Body).Decode(&review) != nil || !answer(r, review) {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(server.Close)
	return Kubeconfig(t, server)
}

// Kubeconfig writes a kubeconfig that leads to a server, and returns the file's path.
func Kubeconfig(t testing.TB, server *httptest.Server) string {
	t.Helper()
	authority, err := json.Marshal([]byte(AuthorityOf(server))) // base64
	require.NoError(t, err)
	return Write(t, fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"a","contexts":[{"name":"a","context":{"cluster":"a"}}],`+
		`"clusters":[{"name":"a","cluster":{"server":%q,"certificate-authority-data":%s}}]}`, server.URL+"/review", authority))
}

// AuditPolicy writes a policy that records everything about ConfigMaps, nothing about '/version', and only the metadata
// of all other requests.
func AuditPolicy(t testing.TB) string {
	t.Helper()
	return Write(t, `
apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- {level: None, nonResourceURLs: [/version]}
- {level: RequestResponse, resources: [{group: "", resources: [configmaps]}]}
- {level: Metadata}
`)
}

// Write writes a file and returns its path.
func Write(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// AuthorityOf returns the certificate of a server in PEM. The certificate is its own authority.
func AuthorityOf(s *httptest.Server) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
}
