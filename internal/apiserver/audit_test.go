package apiserver

import (
	"bufio"
	"bytes"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/logplane/logplane/internal/apiserver/access"
	"github.com/logplane/logplane/internal/apiserver/access/accesstest"
	"github.com/logplane/logplane/internal/apiserver/gate"
	"github.com/logplane/logplane/internal/apiserver/loopback"
)

// recording makes a server write records to a file. records returns the records since the last call of records.
func recording(t testing.TB) (change func(*Config), records func() []auditv1.Event) {
	t.Helper()
	audit := access.Audit{PolicyFile: accesstest.AuditPolicy(t), LogPath: filepath.Join(t.TempDir(), "made", "audit.log")}
	read := 0
	return func(c *Config) { c.Audit = audit }, func() []auditv1.Event {
		t.Helper()
		text, err := os.ReadFile(audit.LogPath)
		require.NoError(t, err)
		text, read = text[read:], len(text)
		return recordsIn(t, bytes.NewReader(text))
	}
}

func recordsIn(t testing.TB, r io.Reader) (records []auditv1.Event) {
	t.Helper()
	for lines := bufio.NewScanner(r); lines.Scan(); {
		var e auditv1.Event
		require.NoError(t, json.Unmarshal(lines.Bytes(), &e), lines.Text())
		records = append(records, e)
	}
	return records
}

// told is a record in one line.
func told(e auditv1.Event) string {
	code := int32(0)
	if e.ResponseStatus != nil {
		code = e.ResponseStatus.Code
	}
	return fmt.Sprintf("%s %s %s %d", e.Stage, e.User.Username, e.Verb, code)
}

func allTold(records []auditv1.Event) (all []string) {
	for _, e := range records {
		all = append(all, told(e))
	}
	return all
}

// TestAudit: every request that the policy names is recorded, even if it is refused. The record has the same id as the
// answer and the event in the log.
func TestAudit(t *testing.T) {
	change, records := recording(t)
	s := newServer(t, withTokens(t), change, func(c *Config) {
		c.Authorization = access.Authorization{Mode: "RBAC"}
		c.Requests = gate.RequestLimits{InFlight: 1, Timeout: time.Second}
	})
	records()
	create := request{method: "POST", path: configMaps, body: `{"metadata":{"name":"a"},"data":{"k":"v"}}`}

	made := s.must(t, 201, create.as("root"))
	got := records()
	require.Equal(t, []string{"RequestReceived root create 0", "ResponseComplete root create 201"}, allTold(got))
	require.Equal(t, made.header.Get("Audit-Id"), string(got[1].AuditID))
	require.Equal(t, s.lastEvent(t).RequestID, string(got[1].AuditID))
	require.Contains(t, string(got[1].RequestObject.Raw), `"k":"v"`)
	require.Contains(t, string(got[1].ResponseObject.Raw), `"uid"`)
	require.Equal(t, "allow", got[1].Annotations["authorization.k8s.io/decision"])

	s.must(t, 403, create.as("ann"))
	got = records()
	require.Equal(t, []string{"RequestReceived ann create 0", "ResponseComplete ann create 403"}, allTold(got))
	require.Equal(t, "forbid", got[1].Annotations["authorization.k8s.io/decision"])

	s.must(t, 401, create.as("nobody"))
	got = records()
	require.Equal(t, []string{"ResponseStarted  create 401"}, allTold(got))
	require.Equal(t, "Unauthorized", got[0].ResponseStatus.Message)

	s.must(t, 400, request{method: "POST", path: configMaps, body: strings.Repeat("[", 200)}.as("root"))
	require.Equal(t, []string{"RequestReceived root create 0", "ResponseComplete root create 400"}, allTold(records()))

	taken, err := s.gate.Reads.Take(t.Context(), "bob")
	require.NoError(t, err)
	s.must(t, 429, request{method: "GET", path: configMaps}.as("ann"))
	taken()
	require.Equal(t, []string{"RequestReceived ann list 0", "ResponseComplete ann list 429"}, allTold(records()))

	s.must(t, 405, request{method: "GET", path: configMaps + "?watch=1"}.as("root")) // there is no watcher
	require.Equal(t, []string{"RequestReceived root watch 0", "ResponseStarted root watch 405", "ResponseComplete root watch 405"}, allTold(records()))

	s.must(t, 200, request{method: "GET", path: configMaps + "/a"}.as("root").with("Impersonate-User", "system:admin").with("Impersonate-Group", "system:masters"))
	got = records()
	require.Equal(t, "root", got[1].User.Username)
	require.Equal(t, "system:admin", got[1].ImpersonatedUser.Username)

	s.must(t, 200, request{method: "GET", path: "/api/v1/namespaces/default/secrets"}.as("root"))
	got = records()
	require.Len(t, got, 2)
	require.Nil(t, got[1].ResponseObject)
	s.must(t, 200, request{method: "GET", path: "/version"}.as("root"))
	s.must(t, 200, request{method: "GET", path: "/readyz"})
	require.Empty(t, records())
}

// TestAuditOfLoopback: a request through the loopback has its own record and id, and does not change the record and id
// of its caller.
func TestAuditOfLoopback(t *testing.T) {
	change, records := recording(t)
	s := newServer(t, change)
	records()
	outer := s.withFilters(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inner := httptest.NewRequestWithContext(r.Context(), "GET", "http://loopback"+configMaps, nil)
		answer, err := loopback.As(s, loopback.Itself).RoundTrip(inner)
		if err != nil || answer.StatusCode != 200 {
			t.Errorf("got %v, %v", answer, err)
		}
		w.Header().Set("Inner", answer.Header.Get("Audit-Id"))
		s.dispatch(w, r)
	}))
	got := request{method: "GET", path: "/api/v1/namespaces/default/secrets"}.with("Audit-Id", "outer").do(t, outer)
	require.Equal(t, 200, got.code, got.body)
	var ids []string
	for _, e := range records() {
		ids = append(ids, string(e.AuditID))
	}
	inner := got.header.Get("Inner")
	require.NotEqual(t, "outer", inner)
	require.Equal(t, []string{"outer", inner, inner, "outer"}, ids)
}

// TestAuditOfWatches: a watch is recorded when its request arrives, when its stream begins, and when it ends.
func TestAuditOfWatches(t *testing.T) {
	change, records := recording(t)
	s := newServer(t, withFeed(t), change)
	listener := httptest.NewServer(s)
	t.Cleanup(listener.Close)
	records()
	answer, err := http.Get(listener.URL + configMaps + "?watch=1&timeoutSeconds=30")
	require.NoError(t, err)
	defer answer.Body.Close()
	require.Equal(t, 200, answer.StatusCode)
	require.Equal(t, []string{"RequestReceived system:admin watch 0", "ResponseStarted system:admin watch 200"}, allTold(records()))
	s.drain()
	_, err = io.Copy(io.Discard, answer.Body)
	require.NoError(t, err)
	require.Equal(t, []string{"ResponseComplete system:admin watch 200"}, allTold(records()))
}

// TestAuditOfPanics: a request that panics has a record of the panic with its reason. It also has a record of its
// answer, unless the answer had begun.
func TestAuditOfPanics(t *testing.T) {
	change, records := recording(t)
	s := newServer(t, change)
	records()
	failing := s.withFilters(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("boom") }))
	require.Equal(t, 500, request{method: "GET", path: configMaps}.do(t, failing).code)
	got := records()
	require.Equal(t, []string{"RequestReceived system:admin list 0", "Panic system:admin list 500", "ResponseComplete system:admin list 500"}, allTold(got))
	require.Contains(t, got[1].ResponseStatus.Message, "boom")

	cut := s.withFilters(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(200)
		panic("boom")
	}))
	require.PanicsWithValue(t, http.ErrAbortHandler, func() { request{method: "GET", path: configMaps}.do(t, cut) })
	require.Equal(t, []string{"RequestReceived system:admin list 0", "Panic system:admin list 500"}, allTold(records()))
	require.Equal(t, 500, request{method: "GET", path: "/version"}.do(t, failing).code)
	require.Empty(t, records())
}

// TestAuditOfAdmission: the record of a request contains the annotations of admission.
func TestAuditOfAdmission(t *testing.T) {
	change, records := recording(t)
	s := newServer(t, change)
	s.must(t, 201, request{method: "POST", path: registration + "validatingadmissionpolicies", body: policyOf("p", "false", `,"auditAnnotations":[{"key":"seen","valueExpression":"'name ' + object.metadata.name"}]`)})
	s.must(t, 201, request{method: "POST", path: registration + "validatingadmissionpolicybindings", body: strings.Replace(bindingOf("p", ""), `"Deny"`, `"Audit"`, 1)})
	records()
	s.must(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"a"}}`})
	got := records()
	require.Equal(t, "name a", got[1].Annotations["p/seen"])
	require.Contains(t, got[1].Annotations["validation.policy.admission.k8s.io/validation_failure"], "p says no")

	s.must(t, 201, request{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"strict","labels":{"pod-security.kubernetes.io/audit":"restricted"}}}`})
	records()
	s.must(t, 201, request{method: "POST", path: "/api/v1/namespaces/strict/pods", body: `{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}`})
	got = records()
	require.Contains(t, got[1].Annotations["pod-security.kubernetes.io/audit-violations"], "restricted")
}

// TestAuditLogMayBeMoved: after the file was moved away, records go to a new file.
func TestAuditLogMayBeMoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	s := newServer(t, func(c *Config) {
		c.Audit = access.Audit{PolicyFile: accesstest.AuditPolicy(t), LogPath: path, LogFormat: "legacy"}
	})
	require.NoError(t, os.Rename(path, path+".1"))
	s.must(t, 200, request{method: "GET", path: configMaps})
	moved, err := os.ReadFile(path + ".1")
	require.NoError(t, err)
	require.Contains(t, string(moved), `method="create"`)
	require.NotContains(t, string(moved), `method="list"`)
	fresh, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, 2, strings.Count(string(fresh), `method="list"`))
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Zero(t, info.Mode().Perm()&0o077)
}

// auditReceiver is a webhook that receives records.
type auditReceiver struct {
	*httptest.Server
	mu     sync.Mutex
	events []auditv1.Event // guarded by mu
	refuse bool            // guarded by mu
}

func newAuditReceiver(t testing.TB) *auditReceiver {
	a := &auditReceiver{}
	a.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var list auditv1.EventList
		err := json.NewDecoder(r.Body).Decode(&list)
		a.mu.Lock()
		defer a.mu.Unlock()
		if err != nil || a.refuse {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		a.events = append(a.events, list.Items...)
	}))
	t.Cleanup(a.Close)
	return a
}

// kubeconfig writes a kubeconfig for the receiver.
func (a *auditReceiver) kubeconfig(t testing.TB) string {
	t.Helper()
	folder := t.TempDir()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Certificate().Raw})
	require.NoError(t, os.WriteFile(filepath.Join(folder, "ca.pem"), ca, 0o600))
	path := filepath.Join(folder, "kubeconfig")
	require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, `
apiVersion: v1
kind: Config
clusters: [{name: audit, cluster: {server: %q, certificate-authority: ca.pem}}]
users: [{name: audit, user: {}}]
contexts: [{name: audit, context: {cluster: audit, user: audit}}]
current-context: audit
`, a.URL), 0o600))
	return path
}

// received returns the records since the last call.
func (a *auditReceiver) received() []auditv1.Event {
	a.mu.Lock()
	defer a.mu.Unlock()
	events := a.events
	a.events = nil
	return events
}

func (a *auditReceiver) refuses(refuse bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refuse = refuse
}

// TestAuditWebhook: records are posted before the request goes on, and only once. If the post fails, the request is
// served, or in strict mode refused.
func TestAuditWebhook(t *testing.T) {
	for _, mode := range []string{"", "blocking", "blocking-strict"} {
		t.Run(mode, func(t *testing.T) {
			receiver := newAuditReceiver(t)
			s := newServer(t, func(c *Config) {
				c.Audit = access.Audit{PolicyFile: accesstest.AuditPolicy(t), WebhookConfigFile: receiver.kubeconfig(t), WebhookMode: mode}
			})
			receiver.received()
			create := func(code int, name string) {
				s.must(t, code, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"` + name + `"}}`})
			}
			create(201, "a")
			require.Equal(t, []string{"RequestReceived system:admin create 0", "ResponseComplete system:admin create 201"}, allTold(receiver.received()))
			receiver.refuses(true)
			if mode == "blocking-strict" {
				refused := s.must(t, 500, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"b"}}`})
				require.Equal(t, "InternalError", refused.object(t)["reason"], "it is a Status")
				require.Contains(t, refused.body, "the request could not be recorded")
				receiver.refuses(false)
				create(201, "b")
			} else {
				create(201, "b")
				receiver.refuses(false)
				create(409, "b")
			}
		})
	}
}
