package apiserver

import (
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	jose "gopkg.in/go-jose/go-jose.v2"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/access"
	"github.com/logplane/logplane/internal/apiserver/access/accesstest"
	"github.com/logplane/logplane/internal/apiserver/tokens"
)

const issuer = "https://cell.example"

// writeKey makes a signing key and returns the path of its file.
func writeKey(t testing.TB, name string) string {
	t.Helper()
	text, err := keyutil.MakeEllipticPrivateKeyPEM()
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, text, 0o600))
	return path
}

// withAccounts configures RBAC, a token file, and tokens of service accounts.
func withAccounts(t testing.TB, c tokens.Config) func(*Config) {
	file := withTokens(t)
	return func(config *Config) {
		file(config)
		config.Authentication.ServiceAccounts = c
		config.Authorization = access.Authorization{Mode: "RBAC"}
	}
}

func (r request) bearing(token string) request {
	r.header = http.Header{"Authorization": {"Bearer " + token}}
	return r
}

const accounts = "/api/v1/namespaces/default/serviceaccounts"

// whoami asks which user the server takes the client for.
var whoami = request{method: "POST", path: "/apis/authentication.k8s.io/v1/selfsubjectreviews", body: "{}"}

// issue returns a token of the service account 'builder'.
func (s *Server) issue(t testing.TB, spec string) string {
	t.Helper()
	got := s.must(t, 201, request{method: "POST", path: accounts + "/builder/token", body: `{"spec":{` + spec + `}}`}.as("root"))
	token := fieldOf(got.object(t), "status.token")
	require.NotEmpty(t, token, got.body)
	return token.(string)
}

// newAccounts makes two processes of a cell with the service account 'builder', which may list ConfigMaps.
func newAccounts(t testing.TB, c tokens.Config) (one, other *Server) {
	t.Helper()
	one, other, _ = twoServers(t, withAccounts(t, c))
	require.NoError(t, one.Bootstrap(t.Context()))
	one.must(t, 201, request{method: "POST", path: accounts, body: `{"metadata":{"name":"builder"}}`}.as("root"))
	one.must(t, 201, request{method: "POST", path: rbacPath + "/clusterroles", body: `{"metadata":{"name":"reader"},"rules":[{"apiGroups":[""],"resources":["configmaps"],"verbs":["list"]}]}`}.as("root"))
	one.must(t, 201, request{method: "POST", path: rbacPath + "/namespaces/default/rolebindings", body: `{"metadata":{"name":"builder"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"reader"},"subjects":[{"kind":"ServiceAccount","name":"builder","namespace":"default"}]}`}.as("root"))
	return one, other
}

// TestServiceAccountTokens: a token that one process has issued is valid in the next request to another process, with
// the rights of its account. A token is invalid once the object that it is bound to is gone.
func TestServiceAccountTokens(t *testing.T) {
	one, other := newAccounts(t, tokens.Config{Issuers: []string{issuer}, SigningKeyFile: writeKey(t, "key")})
	list := request{method: "GET", path: configMaps}
	token := one.issue(t, "")
	other.must(t, 200, list.bearing(token))
	other.must(t, 403, request{method: "GET", path: "/api/v1/namespaces/default/secrets"}.bearing(token))
	me := other.must(t, 201, whoami.bearing(token)).object(t)
	require.Equal(t, "system:serviceaccount:default:builder", fieldOf(me, "status.userInfo.username"))
	require.ElementsMatch(t, []any{"system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"}, fieldOf(me, "status.userInfo.groups"))

	for _, bound := range []struct{ kind, path, body string }{
		{"Pod", "/api/v1/namespaces/default/pods", `{"metadata":{"name":"x"},"spec":{"serviceAccountName":"builder","containers":[{"name":"a","image":"a"}]}}`},
		{"Secret", "/api/v1/namespaces/default/secrets", `{"metadata":{"name":"x"}}`},
		{"Node", "/api/v1/nodes", `{"metadata":{"name":"x"}}`},
	} {
		one.must(t, 201, request{method: "POST", path: bound.path, body: bound.body}.as("root"))
		token := one.issue(t, `"boundObjectRef":{"kind":"`+bound.kind+`","apiVersion":"v1","name":"x"}`)
		other.must(t, 200, list.bearing(token))
		one.must(t, 200, request{method: "DELETE", path: bound.path + "/x?gracePeriodSeconds=0"}.as("root"))
		other.must(t, 401, list.bearing(token))
		one.must(t, 201, request{method: "POST", path: bound.path, body: bound.body}.as("root"))
		other.must(t, 401, list.bearing(token)) // another object of the same name
	}
	one.must(t, 404, request{method: "POST", path: accounts + "/builder/token", body: `{"spec":{"boundObjectRef":{"kind":"Pod","apiVersion":"v1","name":"missing"}}}`}.as("root"))
	one.must(t, 422, request{method: "POST", path: accounts + "/builder/token", body: `{"spec":{"expirationSeconds":10}}`}.as("root"))
	one.must(t, 403, request{method: "POST", path: accounts + "/builder/token", body: `{}`}.bearing(token))

	one.must(t, 200, request{method: "DELETE", path: accounts + "/builder"}.as("root"))
	other.must(t, 401, list.bearing(token))
	one.must(t, 201, request{method: "POST", path: accounts, body: `{"metadata":{"name":"builder"}}`}.as("root"))
	other.must(t, 401, list.bearing(token))
	one.must(t, 401, list.bearing(token))
	other.must(t, 200, list.bearing(one.issue(t, "")))
}

// secretOf is a Secret for a token of a service account.
func secretOf(name, account, more string) string {
	return `{"metadata":{"name":"` + name + `","annotations":{"kubernetes.io/service-account.name":"` + account + `"}},"type":"kubernetes.io/service-account-token"` + more + `}`
}

// TestTokensOfSecrets: a Secret for a token of a service account gets the token when it is created. The token is valid
// on every process while the Secret and the account exist.
func TestTokensOfSecrets(t *testing.T) {
	key := writeKey(t, "key")
	ca := filepath.Join(t.TempDir(), "ca.crt")
	require.NoError(t, os.WriteFile(ca, []byte("CERTIFICATE"), 0o600))
	accounted := withAccounts(t, tokens.Config{Issuers: []string{issuer}, SigningKeyFile: key})
	one, other, _ := twoServers(t, func(c *Config) { accounted(c); c.RootCAFile = ca })
	require.NoError(t, one.Bootstrap(t.Context()))
	const secrets = "/api/v1/namespaces/default/secrets"
	account := one.must(t, 201, request{method: "POST", path: accounts, body: `{"metadata":{"name":"builder"}}`}.as("root")).object(t)
	read := func(a answer) (token string) {
		t.Helper()
		var secret corev1.Secret
		require.NoError(t, json.Unmarshal([]byte(a.body), &secret))
		require.Equal(t, "default", string(secret.Data["namespace"]))
		require.Equal(t, "CERTIFICATE", string(secret.Data["ca.crt"]))
		require.Equal(t, fieldOf(account, "metadata.uid"), secret.Annotations["kubernetes.io/service-account.uid"])
		return string(secret.Data["token"])
	}
	token := read(one.must(t, 201, request{method: "POST", path: secrets, body: secretOf("s", "builder", "")}.as("root")))
	require.Equal(t, token, read(other.must(t, 200, request{method: "GET", path: secrets + "/s"}.as("root"))))
	me := other.must(t, 201, whoami.bearing(token)).object(t)
	require.Equal(t, "system:serviceaccount:default:builder", fieldOf(me, "status.userInfo.username"))
	review := one.must(t, 201, request{method: "POST", path: "/apis/authentication.k8s.io/v1/tokenreviews", body: `{"spec":{"token":"` + token + `"}}`}.as("root")).object(t)
	require.Equal(t, true, fieldOf(review, "status.authenticated"))
	require.Equal(t, []any{issuer}, fieldOf(review, "status.audiences"))

	// Removing a token from its Secret revokes the token. The same update puts a new token into the Secret.
	patch := request{method: "PATCH", path: secrets + "/s", contentType: "application/merge-patch+json", body: `{"data":{"token":null,"namespace":null,"ca.crt":"b3RoZXI="}}`}.as("root")
	again := read(one.must(t, 200, patch))
	other.must(t, 201, whoami.bearing(again))
	kept := one.must(t, 200, request{method: "PATCH", path: secrets + "/s", contentType: "application/merge-patch+json", body: `{"metadata":{"labels":{"a":"b"}}}`}.as("root"))
	require.Equal(t, again, read(kept))
	require.NotEqual(t, token, again)
	other.must(t, 401, whoami.bearing(token))

	// The token becomes invalid when the Secret or the account is deleted, even if another object of the same name
	// exists.
	one.must(t, 200, request{method: "DELETE", path: secrets + "/s"}.as("root"))
	other.must(t, 401, whoami.bearing(again))
	token = read(one.must(t, 201, request{method: "POST", path: secrets, body: secretOf("t", "builder", "")}.as("root")))
	other.must(t, 201, whoami.bearing(token))
	one.must(t, 200, request{method: "DELETE", path: accounts + "/builder"}.as("root"))
	other.must(t, 401, whoami.bearing(token))
	refused := one.must(t, 422, request{method: "POST", path: secrets, body: secretOf("u", "builder", "")}.as("root"))
	require.Contains(t, refused.body, "there is no such service account: create it first, and then this Secret")
	one.must(t, 201, request{method: "POST", path: accounts, body: `{"metadata":{"name":"builder"}}`}.as("root"))
	other.must(t, 401, whoami.bearing(token))
	one.must(t, 200, request{method: "PATCH", path: secrets + "/t", contentType: "application/merge-patch+json", body: `{"data":{"token":null}}`}.as("root"))
	got := one.must(t, 200, request{method: "GET", path: secrets + "/t"}.as("root")).object(t)
	require.Nil(t, fieldOf(got, "data.token"), "it is of another account")
}

// TestTokensOfSecretsWithoutAKey: a Secret that would stay empty is refused. A Secret that already has its token is
// accepted.
func TestTokensOfSecretsWithoutAKey(t *testing.T) {
	s := bootstrapped(t)
	const secrets = "/api/v1/namespaces/default/secrets"
	refused := s.must(t, 422, request{method: "POST", path: secrets, body: secretOf("s", "default", "")})
	require.Contains(t, refused.body, "start each process with --service-account-issuer and --service-account-signing-key-file")
	s.must(t, 201, request{method: "POST", path: secrets, body: secretOf("s", "default", `,"data":{"token":"YQ=="}`)})
	s.must(t, 201, request{method: "POST", path: secrets, body: secretOf("t", "nobody", `,"data":{"token":"YQ=="}`)})
}

// signToken signs a token of a service account, valid for an hour, with the key in a file. Before that, change may
// change the claims.
func signToken(t testing.TB, account corev1.ServiceAccount, path, by string, change func(*jwt.Claims)) string {
	t.Helper()
	private, err := keyutil.PrivateKeyFromFile(path)
	require.NoError(t, err)
	generator, err := serviceaccount.JWTTokenGenerator(by, private)
	require.NoError(t, err)
	of := core.ServiceAccount{}
	of.Name, of.Namespace, of.UID = account.Name, account.Namespace, account.UID
	public, claims, err := serviceaccount.Claims(of, nil, nil, nil, nil, nil, 3600, 0, []string{issuer}, nil)
	require.NoError(t, err)
	change(public)
	token, err := generator.GenerateToken(t.Context(), public, claims)
	require.NoError(t, err)
	return token
}

// TestTokensThatAreNoGood: every process refuses a token whose signature, issuer, audience, life or form is wrong.
func TestTokensThatAreNoGood(t *testing.T) {
	key := writeKey(t, "key")
	s, other := newAccounts(t, tokens.Config{Issuers: []string{issuer}, SigningKeyFile: key})
	account := s.account(t)
	signed := func(path, by string, change func(*jwt.Claims)) string { return signToken(t, account, path, by, change) }
	same := func(*jwt.Claims) {}
	good := signed(key, issuer, same)
	parts := strings.Split(good, ".")
	list := request{method: "GET", path: configMaps}
	s.must(t, 200, list.bearing(good))
	other.must(t, 200, list.bearing(good))
	// With a symmetric algorithm, everybody who knows the public key could sign.
	claims, err := base64.RawURLEncoding.DecodeString(parts[1])
	require.NoError(t, err)
	public, err := os.ReadFile(publicHalf(t, key))
	require.NoError(t, err)
	var said map[string]any
	require.NoError(t, json.Unmarshal(claims, &said))
	unsigned := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`))
	for name, token := range map[string]string{
		"another key":      signed(writeKey(t, "other"), issuer, same),
		"another issuer":   signed(key, "https://other.example", same),
		"another audience": s.issue(t, `"audiences":["elsewhere"]`),
		"expired":          signed(key, issuer, func(c *jwt.Claims) { c.Expiry = jwt.NewNumericDate(time.Now().Add(-2 * time.Minute)) }),
		"not yet":          signed(key, issuer, func(c *jwt.Claims) { c.NotBefore = jwt.NewNumericDate(time.Now().Add(time.Hour)) }),
		"alg none":         unsigned + "." + parts[1] + ".",
		"alg none, signed": unsigned + "." + parts[1] + "." + parts[2],
		"alg of a secret":  accesstest.Sign(t, jose.SigningKey{Algorithm: jose.HS256, Key: public}, said),
		"no signature":     parts[0] + "." + parts[1] + ".",
		"other claims":     parts[0] + "." + base64.RawURLEncoding.EncodeToString([]byte(`{"iss":"`+issuer+`","sub":"system:serviceaccount:kube-system:admin","aud":["`+issuer+`"],"exp":99999999999}`)) + "." + parts[2],
		"two parts":        parts[0] + "." + parts[1],
		"nothing in it":    "..",
	} {
		require.Equal(t, 401, list.bearing(token).do(t, s).code, name)
		require.Equal(t, 401, list.bearing(token).do(t, other).code, name)
	}
}

// account is the service account 'builder'.
func (s *Server) account(t testing.TB) (account corev1.ServiceAccount) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(s.must(t, 200, request{method: "GET", path: accounts + "/builder"}.as("root")).body), &account))
	return account
}

// TestTokensExpire: a token is valid on every process until it expires, and on no process afterwards. As in upstream,
// it expires a minute after the time in its claims.
func TestTokensExpire(t *testing.T) {
	key := writeKey(t, "key")
	one, other := newAccounts(t, tokens.Config{Issuers: []string{issuer}, SigningKeyFile: key})
	expiry := time.Now().Add(2 * time.Second).Truncate(time.Second) // claims have no fractions
	token := signToken(t, one.account(t), key, issuer, func(c *jwt.Claims) { c.Expiry = jwt.NewNumericDate(expiry.Add(-jwt.DefaultLeeway)) })
	list := request{method: "GET", path: configMaps}.bearing(token)
	for _, s := range []*Server{one, other} {
		for {
			began := time.Now()
			code := list.do(t, s).code
			if code == 200 {
				require.False(t, began.After(expiry))
				continue
			}
			require.Equal(t, 401, code)
			require.True(t, time.Now().After(expiry), "it was refused too early")
			break
		}
	}
	one.must(t, 401, list)
}

// TestSigningKeysRotateOnTheWay: running processes use the keys that are in their files. The processes first get the
// new key to verify with, then get it to sign with, and then lose the old key. No token is refused before its key is
// gone.
func TestSigningKeysRotateOnTheWay(t *testing.T) {
	old, next := writeKey(t, "old"), writeKey(t, "next")
	folder := t.TempDir()
	signing, verifying := filepath.Join(folder, "signing"), filepath.Join(folder, "verifying")
	write := func(path string, from ...string) {
		var all []byte
		for _, file := range from {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			all = append(all, text...)
		}
		require.NoError(t, os.WriteFile(path, all, 0o600))
		rested := time.Now().Add(-time.Hour) // a file that was just written is left alone for a second
		require.NoError(t, os.Chtimes(path, rested, rested))
	}
	write(signing, old)
	write(verifying, publicHalf(t, old))
	one, other := newAccounts(t, tokens.Config{Issuers: []string{issuer}, SigningKeyFile: signing, KeyFiles: []string{verifying}})
	list := request{method: "GET", path: configMaps}
	byOld, account := one.issue(t, ""), one.account(t)
	byNext := signToken(t, account, next, issuer, func(*jwt.Claims) {})
	until := func(code int, token string) {
		t.Helper()
		for _, s := range []*Server{one, other} {
			require.Eventually(t, func() bool { return list.bearing(token).do(t, s).code == code }, time.Minute, time.Millisecond)
		}
	}
	other.must(t, 200, list.bearing(byOld))
	other.must(t, 401, list.bearing(byNext))
	write(verifying, publicHalf(t, old), publicHalf(t, next))
	until(200, byNext)
	write(signing, next)
	signedBy := func(token string) string { header, _, _ := strings.Cut(token, "."); return header }
	require.Eventually(t, func() bool { return signedBy(one.issue(t, "")) == signedBy(byNext) }, time.Minute, time.Millisecond)
	for _, token := range []string{byOld, byNext, one.issue(t, "")} {
		one.must(t, 200, list.bearing(token))
		other.must(t, 200, list.bearing(token))
	}
	write(verifying, publicHalf(t, next))
	until(401, byOld)
	other.must(t, 200, list.bearing(one.issue(t, "")))
}

// TestSigningKeysRotate: a token stays valid while its key is among the verifying keys, whichever key signs.
func TestSigningKeysRotate(t *testing.T) {
	old, next := writeKey(t, "old"), writeKey(t, "next")
	list := request{method: "GET", path: configMaps}
	one, other := newAccounts(t, tokens.Config{Issuers: []string{issuer}, SigningKeyFile: old})
	token := one.issue(t, "")
	serve := func(c tokens.Config) *Server {
		config := Config{Cell: other.config.Cell}
		withAccounts(t, c)(&config)
		s, err := New(config)
		require.NoError(t, err)
		return s
	}
	both := serve(tokens.Config{Issuers: []string{"https://new.example", issuer}, SigningKeyFile: next, KeyFiles: []string{old}})
	both.must(t, 200, list.bearing(token))
	both.must(t, 200, list.bearing(both.issue(t, "")))
	one.must(t, 401, list.bearing(both.issue(t, "")))
	after := serve(tokens.Config{Issuers: []string{issuer}, SigningKeyFile: next})
	after.must(t, 401, list.bearing(token))

	var set struct{ Keys []struct{ Kid, Alg string } }
	keys := both.must(t, 200, request{method: "GET", path: "/openid/v1/jwks"}.as("root"))
	require.Equal(t, "application/jwk-set+json", keys.header.Get("Content-Type"))
	require.NoError(t, json.Unmarshal([]byte(keys.body), &set))
	require.Len(t, set.Keys, 2)
	require.Equal(t, "ES256", set.Keys[0].Alg)
	document := both.must(t, 200, request{method: "GET", path: "/.well-known/openid-configuration"}.as("root")).object(t)
	require.Equal(t, "https://new.example", document["issuer"])
	require.Equal(t, "https://localhost:443/openid/v1/jwks", document["jwks_uri"])
	require.Equal(t, keys.body, both.must(t, 200, request{method: "GET", path: "/openid/v1/jwks/"}.as("root")).body)
	for _, method := range []string{"HEAD", "POST"} {
		both.must(t, 405, request{method: method, path: "/openid/v1/jwks"}.as("root"))
	}
	require.Subset(t, both.must(t, 200, request{method: "GET", path: "/"}.as("root")).object(t)["paths"], []any{"/.well-known/openid-configuration", "/openid/v1/jwks"})
}

// TestTokenReviews: a review says which user and which audiences a token has. It accepts no bad token, even if the
// server itself does not require tokens from clients.
func TestTokenReviews(t *testing.T) {
	c := tokens.Config{Issuers: []string{issuer}, SigningKeyFile: writeKey(t, "key")}
	s, _ := newAccounts(t, c)
	const reviews = "/apis/authentication.k8s.io/v1/tokenreviews"
	review := func(s *Server, token, audiences string) map[string]any {
		return s.must(t, 201, request{method: "POST", path: reviews, body: fmt.Sprintf(`{"spec":{"token":%q,"audiences":[%s]}}`, token, audiences)}.as("root")).object(t)
	}
	theirs := s.issue(t, `"audiences":["elsewhere"]`)
	good := review(s, theirs, `"elsewhere","nowhere"`)
	require.Equal(t, true, fieldOf(good, "status.authenticated"))
	require.Equal(t, []any{"elsewhere"}, fieldOf(good, "status.audiences"))
	require.Equal(t, "system:serviceaccount:default:builder", fieldOf(good, "status.user.username"))
	require.Nil(t, fieldOf(review(s, theirs, ""), "status.authenticated"))
	require.Nil(t, fieldOf(review(s, s.issue(t, ""), `"elsewhere"`), "status.authenticated"))
	require.Equal(t, true, fieldOf(review(s, s.issue(t, ""), ""), "status.authenticated"))
	require.Equal(t, true, fieldOf(review(s, "ann-token", ""), "status.authenticated"))

	open := newServer(t, func(config *Config) { config.Authentication.ServiceAccounts = c })
	open.must(t, 201, request{method: "POST", path: accounts, body: `{"metadata":{"name":"builder"}}`})
	anything := open.must(t, 201, request{method: "POST", path: reviews, body: `{"spec":{"token":"anything"}}`}).object(t)
	require.Nil(t, fieldOf(anything, "status.authenticated"))
	issued := open.must(t, 201, request{method: "POST", path: accounts + "/builder/token", body: "{}"}).object(t)
	me := open.must(t, 201, whoami.bearing(fieldOf(issued, "status.token").(string))).object(t)
	require.Equal(t, "system:serviceaccount:default:builder", fieldOf(me, "status.userInfo.username"))
	open.must(t, 401, whoami.bearing(theirs))
	open.must(t, 401, whoami.bearing("anything"))
	require.Equal(t, "system:admin", fieldOf(open.must(t, 201, whoami).object(t), "status.userInfo.username"))
}

// TestATokenAsksTheLogOnce: verifying the token's account and serving the request use the same view.
func TestATokenAsksTheLogOnce(t *testing.T) {
	one, _ := newAccounts(t, tokens.Config{Issuers: []string{issuer}, SigningKeyFile: writeKey(t, "key")})
	token := one.issue(t, "")
	asked := func(r request) float64 {
		before := roundTrips(t)
		one.must(t, 200, r)
		return roundTrips(t) - before
	}
	list := request{method: "GET", path: configMaps}
	require.Equal(t, asked(list.as("root")), asked(list.bearing(token)))
}

// roundTrips counts how often this process has asked the log.
func roundTrips(t testing.TB) float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(eventlog.Collectors()...)
	return counted(t, registry, "logplane_log_round_trips_total")
}

// counted is the sum over a counter's labels.
func counted(t testing.TB, of prometheus.Gatherer, name string) (n float64) {
	t.Helper()
	families, err := of.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}

// TestTokenConfiguration: a configuration that cannot work is refused at the start, and the error names the flags.
func TestTokenConfiguration(t *testing.T) {
	key := writeKey(t, "key")
	for says, c := range map[string]tokens.Config{
		"give --service-account-issuer":   {SigningKeyFile: key},
		"--service-account-issuer is ':'": {Issuers: []string{":"}, SigningKeyFile: key},
		"needs a key":                     {Issuers: []string{issuer}},
		"missing":                         {Issuers: []string{issuer}, SigningKeyFile: "missing"},
		"--service-account-max-token-expiration is 1m0s":           {Issuers: []string{issuer}, SigningKeyFile: key, MaxExpiration: time.Minute},
		"--service-account-jwks-uri is 'http://a'":                 {Issuers: []string{issuer}, SigningKeyFile: key, JWKSURI: "http://a"},
		"does not contain a valid RSA or ECDSA private key":        {Issuers: []string{issuer}, SigningKeyFile: publicHalf(t, key)},
		"data does not contain any valid RSA or ECDSA public keys": {Issuers: []string{issuer}, KeyFiles: []string{os.DevNull}},
	} {
		_, err := tokens.New(c)
		require.ErrorContains(t, err, says)
	}
	verifies, err := tokens.New(tokens.Config{Issuers: []string{issuer}, KeyFiles: []string{publicHalf(t, key)}})
	require.NoError(t, err)
	require.False(t, verifies.Issues())
	one, _ := newAccounts(t, tokens.Config{Issuers: []string{issuer}, KeyFiles: []string{publicHalf(t, key)}})
	refused := one.must(t, 405, request{method: "POST", path: accounts + "/builder/token", body: "{}"}.as("root"))
	require.Contains(t, refused.body, "--service-account-signing-key-file")
}

func publicHalf(t testing.TB, path string) string {
	t.Helper()
	private, err := keyutil.PrivateKeyFromFile(path)
	require.NoError(t, err)
	der, err := x509.MarshalPKIXPublicKey(private.(*ecdsa.PrivateKey).Public())
	require.NoError(t, err)
	public := path + ".pub"
	require.NoError(t, os.WriteFile(public, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o600))
	return public
}
