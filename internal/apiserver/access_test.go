package apiserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	corev1 "k8s.io/api/core/v1"

	"github.com/logplane/logplane/internal/apiserver/access"
	"github.com/logplane/logplane/internal/apiserver/access/accesstest"
	"github.com/logplane/logplane/internal/apiserver/gate"
	"github.com/logplane/logplane/internal/apiserver/tokens"
	"github.com/logplane/logplane/internal/kubestore/kubestoretest"
	"github.com/logplane/logplane/projection"
)

const reviewsPath = "/apis/authentication.k8s.io/v1/tokenreviews"

// bind lets a user or a group list ConfigMaps in the namespace default.
func (s *Server) bind(t testing.TB, kind, name string) {
	t.Helper()
	s.must(t, 201, request{method: "POST", path: rbacPath + "/namespaces/default/roles", body: `{"metadata":{"name":"reader"},"rules":[{"apiGroups":[""],"resources":["configmaps"],"verbs":["list","watch"]}]}`}.as("root"))
	s.must(t, 201, request{method: "POST", path: rbacPath + "/namespaces/default/rolebindings", body: `{"metadata":{"name":"reader"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"reader"},` +
		`"subjects":[{"kind":"` + kind + `","name":"` + name + `","apiGroup":"rbac.authorization.k8s.io"}]}`}.as("root"))
}

// TestIssuersOfTokens: if an issuer has signed a user's token, the user has the rights of the token's name and groups.
// A bad token is answered 401, whatever else is configured.
func TestIssuersOfTokens(t *testing.T) {
	theirs := accesstest.NewIssuer(t)
	s := newServer(t, withAccounts(t, tokens.Config{Issuers: []string{issuer}, SigningKeyFile: writeKey(t, "key")}), func(c *Config) {
		c.Authentication.ConfigFile = theirs.Config(t, `,"anonymous":{"enabled":true,"conditions":[{"path":"/version"},{"path":"`+configMaps+`"}]}`)
	})
	require.NoError(t, s.Bootstrap(t.Context()))
	list := request{method: "GET", path: configMaps}
	token := theirs.Token(t, nil)
	s.must(t, 403, list.bearing(token))
	s.bind(t, "Group", "its:developers")
	s.must(t, 200, list.bearing(token))
	me := s.must(t, 201, whoami.bearing(token)).object(t)
	require.Equal(t, "its:ann", fieldOf(me, "status.userInfo.username"))
	require.Equal(t, []any{"its:developers", "system:authenticated"}, fieldOf(me, "status.userInfo.groups"))
	review := s.must(t, 201, request{method: "POST", path: reviewsPath, body: `{"spec":{"token":"` + token + `"}}`}.as("root")).object(t)
	require.Equal(t, "its:ann", fieldOf(review, "status.user.username"))

	s.must(t, 401, list.bearing(accesstest.NewIssuer(t).Token(t, map[string]any{"iss": theirs.URL})))
	s.must(t, 401, list.bearing(theirs.Token(t, map[string]any{"aud": "elsewhere"})))
	s.must(t, 401, list.bearing(theirs.Token(t, map[string]any{"exp": time.Now().Add(-time.Second).Unix()})))
	s.must(t, 200, list.as("root"))

	version := request{method: "GET", path: "/version"}
	s.must(t, 200, version) // RBAC allows this to anonymous users
	s.must(t, 403, list)
	s.must(t, 401, request{method: "GET", path: "/api/v1/namespaces/default/secrets"})
	s.must(t, 401, version.bearing("another"))

	_, err := New(Config{Cell: kubestoretest.Cell(t, projection.Config{}), Authentication: access.Authentication{ConfigFile: theirs.Config(t, `,"anonymous":{"enabled":true}`)}})
	require.ErrorContains(t, err, "--authorization-mode RBAC", "everybody would be an administrator")
}

// TestReviewedTokens: the webhook judges tokens that no other authenticator knows. A request that waits for the webhook
// holds no seat.
func TestReviewedTokens(t *testing.T) {
	waiting, release := make(chan struct{}), make(chan struct{})
	kubeconfig := accesstest.NewWebhook(t, func(r *http.Request, review map[string]any) bool {
		token := review["spec"].(map[string]any)["token"].(string)
		if token == "slow" {
			close(waiting)
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}
		review["status"] = map[string]any{"authenticated": strings.HasPrefix(token, "its-"), "user": map[string]any{"username": token}}
		return token != "broken"
	})
	s := newServer(t, withTokens(t), func(c *Config) {
		c.Authentication.Reviews = access.ReviewsConfig{File: kubeconfig, Version: "v1", TTL: time.Minute}
		c.Authorization.Mode = "RBAC"
		c.Requests = gate.RequestLimits{Mutating: 1, Timeout: 20 * time.Second}
	})
	s.bind(t, "User", "its-carl")
	list := request{method: "GET", path: configMaps}
	s.must(t, 200, list.bearing("its-carl"))
	s.must(t, 403, list.bearing("its-dora"))
	s.must(t, 401, list.bearing("another"))
	s.must(t, 401, list.bearing("broken"))
	s.must(t, 403, list.as("ann"))

	s.must(t, 201, request{method: "POST", path: rbacPath + "/clusterroles", body: `{"metadata":{"name":"all"},"rules":[{"apiGroups":["*"],"resources":["*"],"verbs":["*"]}]}`}.as("root"))
	for _, user := range []string{"ann", "bob"} {
		s.must(t, 201, request{method: "POST", path: rbacPath + "/clusterrolebindings", body: `{"metadata":{"name":"` + user + `"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"all"},"subjects":[{"kind":"User","name":"` + user + `","apiGroup":"rbac.authorization.k8s.io"}]}`}.as("root"))
	}
	done := make(chan int, 1)
	go func() {
		done <- request{method: "POST", path: reviewsPath, body: `{"spec":{"token":"slow"}}`}.as("ann").do(t, s).code
	}()
	<-waiting
	s.must(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"x"}}`}.as("bob")) // there is only one seat
	close(release)
	require.Equal(t, 201, <-done)
}

// authorizationOf writes an AuthorizationConfiguration with a webhook and RBAC.
func authorizationOf(t testing.TB, kubeconfig string) string {
	return accesstest.Write(t, fmt.Sprintf(`{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthorizationConfiguration","authorizers":[`+
		`{"type":"Webhook","name":"w.example","webhook":{"timeout":"30s","subjectAccessReviewVersion":"v1","failurePolicy":"Deny","connectionInfo":{"type":"KubeConfigFile","kubeConfigFile":%q}}},`+
		`{"type":"RBAC","name":"rbac"}]}`, kubeconfig))
}

// TestAuthorizationWebhooks: a webhook denies requests that RBAC would allow, and allows requests that RBAC would not.
// A request that waits for the webhook holds no seat, and ends with its deadline.
func TestAuthorizationWebhooks(t *testing.T) {
	waiting, release := make(chan struct{}), make(chan struct{})
	kubeconfig := accesstest.NewWebhook(t, func(r *http.Request, review map[string]any) bool {
		spec := review["spec"].(map[string]any)
		attributes, _ := spec["resourceAttributes"].(map[string]any)
		switch attributes["name"] {
		case "slow":
			close(waiting)
			select {
			case <-release:
			case <-r.Context().Done():
			}
		case "never":
			<-r.Context().Done()
		}
		review["status"] = map[string]any{"allowed": spec["user"] == "ann", "denied": spec["user"] == "bob", "reason": "the webhook says so"}
		return true
	})
	s := newServer(t, withTokens(t), func(c *Config) {
		c.Authorization.ConfigFile = authorizationOf(t, kubeconfig)
		c.Requests = gate.RequestLimits{InFlight: 1, Timeout: 20 * time.Second}
	})
	s.bind(t, "User", "bob")
	list := request{method: "GET", path: configMaps}
	s.must(t, 200, list.as("root"))
	s.must(t, 200, list.as("ann"))
	require.Contains(t, s.must(t, 403, list.as("bob")).body, "the webhook says so")

	done := make(chan int, 1)
	go func() { done <- request{method: "GET", path: configMaps + "/slow"}.as("ann").do(t, s).code }()
	<-waiting
	s.must(t, 403, list.as("bob")) // there is only one seat
	close(release)
	require.Equal(t, 404, <-done)

	began := time.Now()
	late := request{method: "GET", path: configMaps + "/never?timeout=1s"}.as("ann").do(t, s)
	require.GreaterOrEqual(t, late.code, 403, late.body)
	require.Less(t, time.Since(began), 20*time.Second, "the webhook's time is the request's")

	_, err := New(Config{Cell: kubestoretest.Cell(t, projection.Config{}), Authorization: access.Authorization{Mode: "RBAC", ConfigFile: "x"}})
	require.ErrorContains(t, err, "either")
	_, err = New(Config{Cell: kubestoretest.Cell(t, projection.Config{}), Authorization: access.Authorization{ConfigFile: "missing"}})
	require.ErrorContains(t, err, "missing")
}

// TestNothingIsLeftOfAQuestion: after issuers and webhooks have answered, no goroutine and no connection is left.
func TestNothingIsLeftOfAQuestion(t *testing.T) {
	theirs := accesstest.NewIssuer(t)
	var connections atomic.Int64
	answer := func(_ *http.Request, review map[string]any) bool {
		connections.Add(1)
		review["status"] = map[string]any{"allowed": true, "authenticated": true, "user": map[string]any{"username": "carl"}}
		return true
	}
	s := newServer(t, withTokens(t), func(c *Config) {
		c.Authentication.ConfigFile = theirs.Config(t, "")
		c.Authentication.Reviews = access.ReviewsConfig{File: accesstest.NewWebhook(t, answer), Version: "v1"}
		c.Authorization.ConfigFile = authorizationOf(t, accesstest.NewWebhook(t, answer))
	})
	list := request{method: "GET", path: configMaps}
	s.must(t, 200, list.as("ann"))
	before := runtime.NumGoroutine()
	for n := range 20 {
		s.must(t, 200, request{method: "GET", path: fmt.Sprintf("%s?limit=%d", configMaps, n)}.bearing(theirs.Token(t, nil)))
		s.must(t, 200, list.bearing(fmt.Sprint("carl-", n)))
	}
	require.GreaterOrEqual(t, connections.Load(), int64(20))
	deadline := time.Now().Add(10 * time.Second)
	for runtime.NumGoroutine() > before && time.Now().Before(deadline) {
		runtime.Gosched()
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), before)
}

// TestWatchesEndWithTheirCredentials: a watch ends when the token or the certificate that opened it expires. Other
// watches go on. Expired credentials open no new watch.
func TestWatchesEndWithTheirCredentials(t *testing.T) {
	if testing.Short() {
		t.Skip("credentials expire in seconds")
	}
	ours, theirs, key := newAuthority(t), accesstest.NewIssuer(t), writeKey(t, "key")
	roots := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ours.cert.Raw}), 0o600))
	s := newServer(t, withFeed(t), withAccounts(t, tokens.Config{Issuers: []string{issuer}, SigningKeyFile: key}), func(c *Config) {
		c.Authentication.ClientCAFile, c.Authentication.ConfigFile = roots, theirs.Config(t, "")
	})
	s.bind(t, "Group", "system:authenticated")
	account := s.must(t, 201, request{method: "POST", path: accounts, body: `{"metadata":{"name":"builder"}}`}.as("root"))

	const soon = 2 * time.Second
	watch := func(ctx context.Context, token string, certificate *x509.Certificate) int {
		r := httptest.NewRequest("GET", configMaps+"?watch=true", nil).WithContext(ctx)
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		if certificate != nil {
			r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{certificate}}
		}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		return w.Code
	}
	forever := make(chan int, 2)
	for _, token := range []string{theirs.Token(t, nil), "root-token"} {
		go func() { forever <- watch(t.Context(), token, nil) }()
	}
	ended := make(chan [2]int)
	once := func(token string, certificate *x509.Certificate) {
		patience, cancel := context.WithTimeout(t.Context(), 5*soon)
		defer cancel()
		first := watch(patience, token, certificate)
		if patience.Err() != nil {
			first = 0 // the watch did not end by itself
		}
		ended <- [2]int{first, watch(patience, token, certificate)}
	}
	go once(accountToken(t, key, account, time.Now().Add(soon-jwt.DefaultLeeway)), nil)
	go once(theirs.Token(t, map[string]any{"exp": time.Now().Add(soon).Unix()}), nil)
	go once("", ours.until(t, time.Now().Add(soon), "ann"))
	for range 3 {
		require.Equal(t, [2]int{200, 401}, <-ended)
	}
	require.Empty(t, forever)
}

// accountToken signs a token of a service account that expires at the given time.
func accountToken(t testing.TB, key string, created answer, expiry time.Time) string {
	t.Helper()
	var account corev1.ServiceAccount
	require.NoError(t, json.Unmarshal([]byte(created.body), &account))
	return signToken(t, account, key, issuer, func(c *jwt.Claims) { c.Expiry = jwt.NewNumericDate(expiry) })
}
