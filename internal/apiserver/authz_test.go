package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/apiserver/access"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// as sends the request as a user of the test's token file. A user's token is the user's name and '-token'.
func (r request) as(user string) request {
	return r.with("Authorization", "Bearer "+user+"-token")
}

// with sets a header.
func (r request) with(name, value string) request {
	r.header = r.header.Clone()
	if r.header == nil {
		r.header = http.Header{}
	}
	r.header.Set(name, value)
	return r
}

// withTokens gives root, ann and bob tokens; root is in system:masters.
func withTokens(t testing.TB) func(*Config) { return withUsers(t, "ann", "bob") }

// withUsers gives tokens to users and to root, who is in system:masters. 'ann,red,blue' is user ann in two groups.
func withUsers(t testing.TB, users ...string) func(*Config) {
	path := filepath.Join(t.TempDir(), "tokens.csv")
	var lines strings.Builder
	for _, line := range append(users, "root,system:masters") {
		name, groups, grouped := strings.Cut(line, ",")
		fmt.Fprintf(&lines, "%s-token,%s,uid-of-%s", name, name, name)
		if grouped {
			fmt.Fprintf(&lines, ",%q", groups)
		}
		lines.WriteString("\n")
	}
	require.NoError(t, os.WriteFile(path, []byte(lines.String()), 0o600))
	return func(c *Config) { c.Authentication.TokenFile = path }
}

// newGuarded makes a server with tokens and RBAC.
func newGuarded(t testing.TB) *Server {
	return newServer(t, withTokens(t), func(c *Config) { c.Authorization = access.Authorization{Mode: "RBAC"} })
}

func (s *Server) must(t testing.TB, code int, r request) answer {
	t.Helper()
	got := r.do(t, s)
	require.Equal(t, code, got.code, got.body)
	return got
}

const rbacPath = "/apis/rbac.authorization.k8s.io/v1"

func TestTokensAndRBAC(t *testing.T) {
	s := newGuarded(t)
	list := request{method: "GET", path: configMaps}
	s.must(t, 401, list)
	s.must(t, 401, list.as("nobody"))
	s.must(t, 403, list.as("ann"))
	s.must(t, 200, list.as("root"))
	s.must(t, 200, request{method: "GET", path: "/readyz"})
	s.must(t, 401, request{method: "GET", path: "/metrics"})

	s.must(t, 201, request{method: "POST", path: rbacPath + "/namespaces/default/roles", body: `{"metadata":{"name":"reader"},"rules":[{"apiGroups":[""],"resources":["configmaps"],"verbs":["get","list"]}]}`}.as("root"))
	s.must(t, 201, request{method: "POST", path: rbacPath + "/namespaces/default/rolebindings", body: `{"metadata":{"name":"ann"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"reader"},"subjects":[{"kind":"User","name":"ann","apiGroup":"rbac.authorization.k8s.io"}]}`}.as("root"))
	s.must(t, 200, list.as("ann"))
	s.must(t, 403, list.as("bob"))
	s.must(t, 403, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"x"}}`}.as("ann"))

	review := func(user, verb string) any {
		body := `{"spec":{"resourceAttributes":{"namespace":"default","verb":"` + verb + `","resource":"configmaps"}}}`
		got := s.must(t, 201, request{method: "POST", path: "/apis/authorization.k8s.io/v1/subjectaccessreviews", body: strings.Replace(body, `"spec":{`, `"spec":{"user":"`+user+`",`, 1)}.as("root"))
		return fieldOf(got.object(t), "status.allowed")
	}
	require.Equal(t, true, review("ann", "list"))
	require.Equal(t, false, review("ann", "delete"))

	impersonated := list.as("root")
	impersonated.header.Set("Impersonate-User", "bob")
	s.must(t, 403, impersonated)
	impersonated = list.as("ann")
	impersonated.header.Set("Impersonate-User", "root")
	s.must(t, 403, impersonated)

	s.must(t, 200, request{method: "DELETE", path: rbacPath + "/namespaces/default/rolebindings/ann"}.as("root"))
	s.must(t, 403, list.as("ann"))
}

// Row 4.
func TestWhoAmI(t *testing.T) {
	s := newServer(t)
	got := s.must(t, 201, request{method: "POST", path: "/apis/authentication.k8s.io/v1/selfsubjectreviews", body: `{}`})
	require.Equal(t, "system:admin", fieldOf(got.object(t), "status.userInfo.username"))
	rules := s.must(t, 201, request{method: "POST", path: "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", body: `{"spec":{"namespace":"default"}}`})
	require.NotNil(t, fieldOf(rules.object(t), "status.resourceRules"))
}

// TestWatchOfUnreadableRules: if a process cannot read the rules that a ClusterRole gets from others, a watch of
// ClusterRoles ends. The watch does not send the stored rules, and the process survives. The client resumes at another
// process.
func TestWatchOfUnreadableRules(t *testing.T) {
	log, shared := eventlogtest.Log(t), memory.Strict(t)
	process := func(bucket bucket.Bucket) *Server {
		p, err := projection.Open(projection.Config{Log: log, Bucket: bucket, InlineBytes: 1})
		require.NoError(t, err)
		c := Config{Cell: kubestore.Cell{Log: log, Projection: p, Cluster: "main"}}
		withFeed(t)(&c)
		s, err := New(c)
		require.NoError(t, err)
		return s
	}
	writer := process(shared)
	const roles = rbacPath + "/clusterroles"
	writer.must(t, 201, request{method: "POST", path: roles, body: `{"metadata":{"name":"part","labels":{"part":"yes"}},"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]}`})
	whole := writer.must(t, 201, request{method: "POST", path: roles, body: `{"metadata":{"name":"whole"},"aggregationRule":{"clusterRoleSelectors":[{"matchLabels":{"part":"yes"}}]}}`})
	_, err := writer.config.Cell.Projection.Commit(t.Context())
	require.NoError(t, err)

	open := func() int { return int(measured(t, "logplane_watches").GetGauge().GetValue()) }
	for _, watches := range []int{1, 4} { // 4 watches share their events
		unreadable := &unreadableBucket{Bucket: shared}
		cold, others := process(unreadable), open()
		ended := make(chan string, watches)
		for range watches {
			go func() {
				ended <- request{method: "GET", path: roles + "?watch=true&timeoutSeconds=60&resourceVersion=" + fieldOf(whole.object(t), "metadata.resourceVersion").(string)}.do(t, cold).body
			}()
		}
		require.Eventually(t, func() bool { return open() == others+watches }, time.Minute, time.Millisecond)
		unreadable.fails.Store(true)
		whole = writer.must(t, 200, request{method: "PATCH", path: roles + "/whole", body: `{"metadata":{"annotations":{"a":"` + fmt.Sprint(watches) + `"}}}`, contentType: "application/merge-patch+json"})
		for range watches {
			require.Empty(t, <-ended)
		}
	}
}

// unreadableBucket refuses to read ranges while fails is set.
type unreadableBucket struct {
	bucket.Bucket
	fails atomic.Bool
}

// GetRange implements bucket.Bucket.
func (u *unreadableBucket) GetRange(ctx context.Context, key string, offset, length int64) ([]byte, error) {
	if u.fails.Load() {
		return nil, errors.New("injected fault")
	}
	return u.Bucket.GetRange(ctx, key, offset, length)
}

// A ClusterRole has the rules of the roles that it selects as soon as those roles exist, even if roles select each
// other in a chain or a circle.
func TestAggregatedClusterRoles(t *testing.T) {
	s := newGuarded(t)
	role := func(name, label, selects, rules string) request {
		body := `{"metadata":{"name":"` + name + `","labels":{"` + label + `":"true"}},"rules":[` + rules + `]`
		if selects != "" {
			body += `,"aggregationRule":{"clusterRoleSelectors":[{"matchLabels":{"` + selects + `":"true"}}]}`
		}
		return request{method: "POST", path: rbacPath + "/clusterroles", body: body + "}"}.as("root")
	}
	s.must(t, 201, role("outer", "none", "to-outer", ""))
	s.must(t, 201, role("inner", "to-outer", "to-inner", ""))
	s.must(t, 201, request{method: "POST", path: rbacPath + "/clusterrolebindings", body: `{"metadata":{"name":"ann"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"outer"},"subjects":[{"kind":"User","name":"ann","apiGroup":"rbac.authorization.k8s.io"}]}`}.as("root"))
	list := request{method: "GET", path: configMaps}.as("ann")
	s.must(t, 403, list)
	s.must(t, 201, role("leaf", "to-inner", "", `{"apiGroups":[""],"resources":["configmaps"],"verbs":["list"]}`))
	s.must(t, 200, list)
	s.must(t, 201, role("circle", "to-outer", "to-outer", ""))
	s.must(t, 200, list)

	got := s.must(t, 200, request{method: "GET", path: rbacPath + "/clusterroles/outer"}.as("root"))
	require.Contains(t, got.body, `"configmaps"`, "clients see the aggregated rules")
	require.Contains(t, s.must(t, 200, request{method: "GET", path: rbacPath + "/clusterroles"}.as("root")).body, `"name":"circle"`)

	// bob may bind roles, but not a role whose aggregated rules he does not have himself.
	s.must(t, 201, role("binder", "none", "", `{"apiGroups":["rbac.authorization.k8s.io"],"resources":["rolebindings"],"verbs":["create"]}`))
	s.must(t, 201, request{method: "POST", path: rbacPath + "/clusterrolebindings", body: `{"metadata":{"name":"bob"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"binder"},"subjects":[{"kind":"User","name":"bob","apiGroup":"rbac.authorization.k8s.io"}]}`}.as("root"))
	s.must(t, 403, request{method: "POST", path: rbacPath + "/namespaces/default/rolebindings", body: `{"metadata":{"name":"mine"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"outer"},"subjects":[{"kind":"User","name":"bob","apiGroup":"rbac.authorization.k8s.io"}]}`}.as("bob"))
}

// A web page cannot use a server that trusts everyone on this machine.
func TestLoopbackOnly(t *testing.T) {
	s := newServer(t, func(c *Config) { c.LoopbackOnly = true })
	s.must(t, 200, request{method: "GET", path: configMaps})
	refused := s.must(t, 403, request{method: "GET", path: configMaps, header: http.Header{"Origin": {"https://evil.example"}}})
	require.Equal(t, "Status", refused.object(t)["kind"])
}
