package apiserver

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"sigs.k8s.io/yaml"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/apiserver/gate"
	"github.com/logplane/logplane/internal/apiserver/history"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket/memory"
)

const transactionsPath = historyPath + "/transactions"

// transaction is a request of a transaction with the given operations.
func transaction(operations ...string) request {
	return request{method: "POST", path: transactionsPath,
		body: `{"apiVersion":"history.logplane.dev/v1","kind":"Transaction","spec":{"operations":[` + strings.Join(operations, ",") + `]}}`}
}

// creating, updating and deleting are operations of a transaction.
func creating(object string) string { return `{"verb":"create","object":` + object + `}` }

func updating(object string) string { return `{"verb":"update","object":` + object + `}` }

func deleting(version, kind, name string) string {
	return `{"verb":"delete","reference":{"apiVersion":"` + version + `","kind":"` + kind + `","namespace":"default","name":"` + name + `"}}`
}

// configMap is a ConfigMap with one value.
func configMap(name, value string) string {
	return `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"` + name + `","namespace":"default"},"data":{"v":"` + value + `"}}`
}

// transact sends a transaction and returns its answer.
func (s *Server) transact(t testing.TB, r request) (done history.Transaction) {
	t.Helper()
	a := s.must(t, 201, r)
	require.NoError(t, json.Unmarshal([]byte(a.body), &done), a.body)
	return done
}

func TestTransaction(t *testing.T) {
	s := newServer(t)
	before := s.must(t, 201, request{method: "POST", path: configMaps, body: configMap("old", "1")})
	done := s.transact(t, transaction(creating(configMap("new", "1")), updating(configMap("old", "2"))))
	require.Len(t, done.Status.Results, 2)
	for i, name := range []string{"new", "old"} {
		got := s.must(t, 200, request{method: "GET", path: configMaps + "/" + name}).object(t)
		require.Equal(t, fieldOf(got, "metadata.resourceVersion"), done.Status.Results[i].ResourceVersion)
		require.Equal(t, fieldOf(got, "metadata.uid"), done.Status.Results[i].UID)
		require.Equal(t, name, done.Status.Results[i].Name)
	}
	require.Equal(t, done.Status.Revision, done.Status.Results[1].ResourceVersion)
	require.NotEqual(t, fieldOf(before.object(t), "metadata.resourceVersion"), done.Status.Results[1].ResourceVersion)

	s.must(t, 200, request{method: "GET", path: configMaps + "?resourceVersion=0"}) // no read waits for a provisional revision

	a := s.must(t, 409, transaction(updating(configMap("old", "3")), creating(configMap("new", "3"))))
	require.Contains(t, a.body, "operation 2 of 2, create configmaps/new")
	require.Equal(t, "2", fieldOf(s.must(t, 200, request{method: "GET", path: configMaps + "/old"}).object(t), "data.v"))
}

// head is the revision of the newest event.
func (s *Server) head(t testing.TB) projection.Revision {
	t.Helper()
	v, err := s.config.Cell.Projection.Latest(t.Context())
	require.NoError(t, err)
	return v.Revision()
}

// events returns the events after a revision.
func (s *Server) events(t testing.TB, after projection.Revision) (events []eventlog.Event) {
	t.Helper()
	v, err := s.config.Cell.Projection.Latest(t.Context())
	require.NoError(t, err)
	for _, e := range v.Tail(after) {
		events = append(events, e)
	}
	return events
}

// Everything that a transaction writes is one append: objects, the objects that belong to a namespace, addresses and
// quota charges. Each operation sees the writes of the operations before it.
func TestTransactionIsOneAppend(t *testing.T) {
	s := newServer(t)
	require.NoError(t, s.Bootstrap(t.Context()))
	before := s.head(t)
	space := func(object string) string { return strings.ReplaceAll(object, `"default"`, `"space"`) }
	done := s.transact(t, transaction(
		creating(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"space"}}`),
		creating(`{"apiVersion":"v1","kind":"ResourceQuota","metadata":{"name":"q","namespace":"space"},"spec":{"hard":{"count/configmaps":"3"}}}`),
		creating(space(configMap("a", "1"))), creating(space(configMap("b", "1"))), updating(space(configMap("a", "2"))),
		creating(space(strings.Replace(configMap("", "1"), `"name"`, `"generateName":"c-","x"`, 1))),
		space(deleting("v1", "ConfigMap", "b")),
		creating(`{"apiVersion":"v1","kind":"Service","metadata":{"name":"s","namespace":"space"},"spec":{"ports":[{"port":80}]}}`),
		`{"verb":"patch","reference":{"apiVersion":"v1","kind":"ServiceAccount","namespace":"space","name":"default"},"patchType":"merge","patch":{"metadata":{"labels":{"l":"1"}}}}`,
		`{"verb":"patch","reference":{"apiVersion":"v1","resource":"configmaps","namespace":"space","name":"a"},"patchType":"json","patch":[{"op":"add","path":"/data/w","value":"1"}]}`,
	))
	events := s.events(t, before)
	var keys []string
	for i, e := range events {
		require.Equal(t, before+projection.Revision(i)+1, e.Revision)
		require.Equal(t, uint32(len(events)-i-1), e.Left, "one append")
		require.Equal(t, eventlog.Added, e.Op, "all of it is new")
		require.Equal(t, "system:admin", e.Author.User)
		keys = append(keys, e.Key.Resource)
	}
	require.ElementsMatch(t, []string{"serviceaccounts", "namespaces", "resourcequotas", "recounts", "configmaps", "configmaps", "services", "ipaddresses"}, keys,
		"each object once, and nothing of what was made and deleted")
	require.Equal(t, fmt.Sprint(uint64(events[len(events)-1].Revision)), done.Status.Revision)
	const in = "/api/v1/namespaces/space/"
	a := s.must(t, 200, request{method: "GET", path: in + "configmaps/a"}).object(t)
	require.Equal(t, "2", fieldOf(a, "data.v"))
	require.Equal(t, "1", fieldOf(a, "data.w"))
	for _, i := range []int{2, 4, 9} {
		require.Equal(t, fieldOf(a, "metadata.resourceVersion"), done.Status.Results[i].ResourceVersion)
	}
	require.Empty(t, done.Status.Results[6].ResourceVersion, "it has left no trace")
	require.Equal(t, "b", done.Status.Results[6].Name)
	s.must(t, 404, request{method: "GET", path: in + "configmaps/b"})
	s.must(t, 200, request{method: "GET", path: in + "configmaps/" + done.Status.Results[5].Name})
	require.Contains(t, done.Status.Results[5].Name, "c-")
	quota := s.must(t, 200, request{method: "GET", path: in + "resourcequotas/q"}).object(t)
	require.Equal(t, "2", fieldOf(quota, "status.used").(map[string]any)["count/configmaps"])
	list := s.must(t, 200, request{method: "GET", path: in + "configmaps"}).object(t)
	require.Len(t, fieldOf(list, "items"), 2)
	require.Equal(t, fmt.Sprint(uint64(s.head(t))), fieldOf(list, "metadata.resourceVersion"), "nothing provisional is left")
}

// One transaction can create all objects of an application, with their namespace. Pods are the exception: the plug-in
// for service accounts does not see the account of the new namespace.
func TestTransactionOfAnApplication(t *testing.T) {
	s := newServer(t)
	require.NoError(t, s.Bootstrap(t.Context()))
	in := func(version, kind, name, more string) string {
		return creating(fmt.Sprintf(`{"apiVersion":"%s","kind":"%s","metadata":{"name":"%s","namespace":"app"},%s}`, version, kind, name, more))
	}
	const pod = `"spec":{"containers":[{"name":"c","image":"i"}]}`
	const template = `"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},` + pod + `}`
	const rbac = "rbac.authorization.k8s.io/v1"
	all := []string{
		creating(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"app","labels":{"pod-security.kubernetes.io/enforce":"restricted","pod-security.kubernetes.io/warn":"restricted"}}}`),
		in("v1", "LimitRange", "l", `"spec":{"limits":[{"type":"Container","default":{"cpu":"1"}}]}`),
		in("v1", "ServiceAccount", "app", `"automountServiceAccountToken":false`),
		in(rbac, "Role", "r", `"rules":[{"apiGroups":[""],"resources":["configmaps"],"verbs":["get"]}]`),
		in(rbac, "RoleBinding", "r", `"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"r"},"subjects":[{"kind":"ServiceAccount","name":"app","namespace":"app"}]`),
		in("v1", "Secret", "s", `"stringData":{"a":"b"}`),
		in("v1", "PersistentVolumeClaim", "p", `"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}`),
		in("apps/v1", "Deployment", "d", `"spec":{`+template+`}`),
		in("apps/v1", "StatefulSet", "d", `"spec":{"serviceName":"d",`+template+`}`),
		in("batch/v1", "CronJob", "c", `"spec":{"schedule":"* * * * *","jobTemplate":{"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}}`),
		in("v1", "Service", "d", `"spec":{"selector":{"a":"b"},"ports":[{"port":80}]}`),
		in("networking.k8s.io/v1", "Ingress", "i", `"spec":{"defaultBackend":{"service":{"name":"d","port":{"number":80}}}}`),
		in("networking.k8s.io/v1", "NetworkPolicy", "n", `"spec":{"podSelector":{}}`),
		in("policy/v1", "PodDisruptionBudget", "b", `"spec":{"minAvailable":1,"selector":{"matchLabels":{"a":"b"}}}`),
		in("autoscaling/v2", "HorizontalPodAutoscaler", "h", `"spec":{"maxReplicas":3,"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"d"}}`),
	}
	before := s.head(t)
	a := s.must(t, 403, transaction(append(all, in("v1", "Pod", "p", pod))...))
	require.Contains(t, a.body, "error looking up service account app/default")
	require.Equal(t, before, s.head(t))
	answered := s.must(t, 201, transaction(all...))
	require.NotEmpty(t, answered.header["Warning"], "of what the namespace's labels say about Pods")
	s.must(t, 200, request{method: "GET", path: "/apis/apps/v1/namespaces/app/deployments/d"})
	s.must(t, 403, transaction(in("v1", "Pod", "p", pod))) // as outside of a transaction
}

// A transaction that changes nothing has no revision. A result after a change has the revision of the change.
func TestTransactionThatChangesNothing(t *testing.T) {
	s := newServer(t)
	s.must(t, 201, request{method: "POST", path: configMaps, body: configMap("a", "1")})
	before := s.head(t)
	done := s.transact(t, transaction(updating(configMap("a", "1"))))
	require.Empty(t, done.Status.Revision)
	require.Equal(t, fmt.Sprint(uint64(before)), done.Status.Results[0].ResourceVersion)
	done = s.transact(t, transaction(creating(configMap("b", "1")), deleting("v1", "ConfigMap", "b")))
	require.Empty(t, done.Status.Revision)
	require.Equal(t, before, s.head(t))
	done = s.transact(t, transaction(creating(configMap("b", "1")), deleting("v1", "ConfigMap", "b"), creating(configMap("b", "2"))))
	require.Equal(t, before+1, s.head(t))
	made := s.must(t, 200, request{method: "GET", path: configMaps + "/b"}).object(t)
	require.Equal(t, fieldOf(made, "metadata.uid"), done.Status.Results[2].UID)
	require.Equal(t, done.Status.Revision, done.Status.Results[2].ResourceVersion)
	require.NotEqual(t, done.Status.Results[0].UID, done.Status.Results[2].UID)
	for _, r := range done.Status.Results[:2] {
		require.Empty(t, r.ResourceVersion, "what was made first is not there: no revision is its")
		require.Equal(t, done.Status.Results[0].UID, r.UID)
	}
	before++
	done = s.transact(t, transaction(updating(configMap("a", "2")), updating(configMap("a", "2")), updating(configMap("a", "2")), deleting("v1", "ConfigMap", "a")))
	require.Equal(t, before+1, s.head(t))
	for _, r := range done.Status.Results {
		require.Equal(t, done.Status.Revision, r.ResourceVersion)
		require.Equal(t, "default/a", r.Namespace+"/"+r.Name)
	}
}

// If the last operation is refused for any reason, nothing of the other operations is written.
func TestRefusedTransaction(t *testing.T) {
	s := newServer(t)
	require.NoError(t, s.Bootstrap(t.Context()))
	s.must(t, 201, request{method: "POST", path: configMaps, body: configMap("old", "1")})
	s.must(t, 201, request{method: "POST", path: resourceQuotas, body: quotaOf("q", `"count/configmaps":"3"`)})
	before := s.head(t)
	const reference = `"reference":{"apiVersion":"v1","kind":"ConfigMap","namespace":"default","name":"old"}`
	for _, c := range []struct {
		code      int
		says      string
		operation []string
	}{
		{409, "already exists", []string{creating(configMap("new", "2"))}},
		{409, "already exists", []string{creating(configMap("old", "2"))}},
		{404, "not found", []string{updating(configMap("missing", "2"))}},
		{404, "not found", []string{deleting("v1", "ConfigMap", "missing")}},
		{404, "namespaces \\\"missing\\\" not found", []string{creating(strings.ReplaceAll(configMap("c", "1"), `"default"`, `"missing"`))}},
		{422, "Invalid value", []string{creating(configMap("No Name", "2"))}},
		{403, "exceeded quota", []string{creating(configMap("c", "1")), creating(configMap("d", "1"))}},
		{422, "is deleted by the same transaction", []string{deleting("v1", "ConfigMap", "old"), creating(configMap("old", "2"))}},
		{422, "already allocated", []string{creating(`{"apiVersion":"v1","kind":"Service","metadata":{"name":"s","namespace":"default"},"spec":{"clusterIP":"10.96.0.77","ports":[{"port":80}]}}`),
			creating(`{"apiVersion":"v1","kind":"Service","metadata":{"name":"t","namespace":"default"},"spec":{"clusterIP":"10.96.0.77","ports":[{"port":80}]}}`)}},
		{409, "the object has been modified", []string{`{"verb":"update","object":` + configMap("old", "2") + `,"precondition":{"resourceVersion":"1"}}`}},
		{409, "Precondition failed", []string{`{"verb":"update","object":` + configMap("old", "2") + `,"precondition":{"uid":"no"}}`}},
		{409, "the ResourceVersion in the precondition (1)", []string{`{"verb":"delete",` + reference + `,"precondition":{"resourceVersion":"1"}}`}},
		{409, "the UID in the precondition (no)", []string{`{"verb":"delete",` + reference + `,"precondition":{"uid":"no"}}`}},
		{409, "the object has been modified", []string{`{"verb":"patch",` + reference + `,"patchType":"merge","patch":{},"precondition":{"resourceVersion":"1"}}`}},
		{409, "the object has been modified", []string{`{"verb":"patch",` + reference + `,"patchType":"json","patch":[],"precondition":{"resourceVersion":"1"}}`}},
		{422, "nothing of group history.logplane.dev is stored", []string{creating(`{"apiVersion":"history.logplane.dev/v1","kind":"Transaction"}`)}},
		{422, "there is no such kind", []string{creating(`{"apiVersion":"v1","kind":"Nothing","metadata":{"name":"x"}}`)}},
		{404, "could not find the requested resource", []string{`{"verb":"delete","reference":{"apiVersion":"v1","resource":"nothings","name":"x"}}`}},
		{422, "in a namespace", []string{creating(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}}`)}},
		{422, "in no namespace", []string{creating(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"x","namespace":"default"}}`)}},
		{422, "spec.operations[1].verb", []string{`{"verb":"list"}`}},
		{422, "may not contain '/'", []string{`{"verb":"delete","reference":{"apiVersion":"v1","resource":"pods/status","namespace":"default","name":"old"}}`}},
		{422, "absent before", []string{`{"verb":"create","object":` + configMap("x", "1") + `,"precondition":{"uid":"u"}}`}},
		{422, "name the resourceVersion", []string{`{"verb":"patch",` + reference + `,"patchType":"merge","patch":{},"precondition":{"uid":"u"}}`}},
		{422, "patchType", []string{`{"verb":"patch",` + reference + `,"patchType":"x","patch":{}}`}},
		{422, "only an apply is forced", []string{`{"verb":"patch","force":true,` + reference + `,"patchType":"merge","patch":{}}`}},
		{422, "only a deletion has one", []string{`{"verb":"patch","propagationPolicy":"Orphan",` + reference + `,"patchType":"merge","patch":{}}`}},
		{422, "the precondition names", []string{`{"verb":"update","object":{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"old","namespace":"default","uid":"u"}},"precondition":{"uid":"v"}}`}},
	} {
		a := s.must(t, c.code, transaction(append([]string{creating(configMap("new", "1"))}, c.operation...)...))
		require.Contains(t, a.body, c.says)
		require.Equal(t, "Status", fieldOf(a.object(t), "kind"))
		require.Contains(t, a.body, "spec.operations[")
		require.Equal(t, before, s.head(t), "nothing was written: %s", a.body)
	}
	s.must(t, 422, transaction())
	s.must(t, 400, request{method: "POST", path: transactionsPath, body: `{"apiVersion":"history.logplane.dev/v1","kind":"Transaction","spec":{"operations":1}}`})
	s.must(t, 405, request{method: "GET", path: transactionsPath})
	s.must(t, 405, request{method: "POST", path: "/at/1" + transactionsPath, body: "{}"})
	s.must(t, 404, request{method: "GET", path: configMaps + "/new"})
	require.Equal(t, map[string]string{"count/configmaps": "1"}, usedOf(t, s, "q"))
}

// The writes of one append are seen together, even if a client names a revision inside the append. This is true for
// lists, for requests under '/at' and for the changes up to that revision, whether the answer comes from the tail, a
// segment, a checkpoint or archived events. But a watch can begin at such a revision.
func TestNoMomentIsInsideAnAppend(t *testing.T) {
	for name, every := range map[string]time.Duration{"checkpoints": time.Nanosecond, "archive": time.Hour} {
		t.Run(name, func(t *testing.T) { noMomentIsInsideAnAppend(t, every) })
	}
}

func noMomentIsInsideAnAppend(t *testing.T, every time.Duration) {
	log := eventlogtest.Log(t)
	p, err := projection.Open(projection.Config{Log: log, Bucket: memory.Strict(t), InlineBytes: 1, History: time.Hour,
		Checkpoints: []projection.CheckpointRule{{Every: every, Keep: time.Hour}}})
	require.NoError(t, err)
	s := newServer(t, func(c *Config) { c.Cell.Log, c.Cell.Projection = log, p }, withFeed(t))
	require.NoError(t, s.Bootstrap(t.Context()))
	s.must(t, 201, request{method: "POST", path: resourceQuotas, body: quotaOf("q", `"count/configmaps":"9"`)})
	usedOf(t, s, "q")
	var ends []projection.Revision
	write := func(q request) {
		s.must(t, 201, q)
		ends = append(ends, s.head(t))
	}
	list := func(query string) map[string]any {
		return s.must(t, 200, request{method: "GET", path: query}).object(t)
	}
	// sees checks that a read at a revision shows the state at the end of that revision's append.
	sees := func(from string) {
		configMapsAt := map[projection.Revision]int{ends[0]: 1, ends[1]: 4, ends[2]: 5}
		for rev := ends[0]; rev <= ends[2]; rev++ {
			end := ends[slices.IndexFunc(ends, func(end projection.Revision) bool { return rev <= end })]
			at, want := fmt.Sprintf("/at/%d", rev), fmt.Sprint(uint64(end))
			if from == "tail" || from == "segment" {
				exactly := fmt.Sprintf("?resourceVersionMatch=Exact&resourceVersion=%d", rev)
				whole, quotas := list(configMaps+exactly), list(resourceQuotas+exactly)
				require.Equal(t, want, fieldOf(whole, "metadata.resourceVersion"), "%s: %d", from, rev)
				require.Len(t, fieldOf(whole, "items"), configMapsAt[end])
				require.Contains(t, fmt.Sprint(quotas), fmt.Sprintf("used:map[count/configmaps:%d]", configMapsAt[end]))
				page := list(configMaps + exactly + "&limit=1")
				require.Equal(t, want, fieldOf(page, "metadata.resourceVersion"))
				if token, more := fieldOf(page, "metadata.continue").(string); more {
					page = list(configMaps + "?limit=1&continue=" + token)
					require.Equal(t, want, fieldOf(page, "metadata.resourceVersion"))
				}
			}
			answered := s.must(t, 200, request{method: "GET", path: at + configMaps})
			require.Equal(t, want, answered.header.Get(revisionHeader), "%s: %d", from, rev)
			require.Equal(t, want, fieldOf(answered.object(t), "metadata.resourceVersion"))
			require.Len(t, fieldOf(answered.object(t), "items"), configMapsAt[end])
			quota := list(at + resourceQuotas + "/q")
			require.Equal(t, fmt.Sprint(configMapsAt[end]), fieldOf(quota, "status.used").(map[string]any)["count/configmaps"])
			changes := list(historyPath + "/namespaces/default/changes?fieldSelector=from%3D0,resource%3Dconfigmaps,to%3D" + fmt.Sprint(uint64(rev)))
			require.Len(t, fieldOf(changes, "items"), configMapsAt[end])
			changes = list(historyPath + "/namespaces/default/changes?fieldSelector=resource%3Dconfigmaps,from%3D" + fmt.Sprintf("%d,to%%3D%d", rev, ends[2]))
			require.Len(t, fieldOf(changes, "items"), configMapsAt[ends[2]]-configMapsAt[end])
		}
	}
	write(request{method: "POST", path: configMaps, body: configMap("a", "1")})
	write(transaction(creating(configMap("b", "1")), creating(configMap("c", "1")), creating(configMap("d", "1"))))
	write(request{method: "POST", path: configMaps, body: configMap("e", "1")})
	require.Equal(t, ends[0]+4, ends[1])
	sees("tail")
	for rev := ends[0]; rev < ends[1]; rev++ { // one event after the other, like a client that resumes after it was cut off
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, fmt.Sprintf("/at/%d%s?watch=true&labelSelector=!x&resourceVersion=%d", rev, configMaps, ends[0]), nil))
		require.Equal(t, map[bool]int{false: 3}[rev == ends[0]], strings.Count(w.Body.String(), `"ADDED"`), "up to %d: %s", rev, w.Body)
		w = httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, fmt.Sprintf("/at/%d%s?watch=true&labelSelector=!x&resourceVersion=%d", ends[1], configMaps, rev), nil))
		want := 0
		for _, e := range s.events(t, rev) {
			if e.Revision <= ends[1] && e.Key.Resource == "configmaps" {
				want++
			}
		}
		require.Equal(t, want, strings.Count(w.Body.String(), `"ADDED"`), "from %d: %s", rev, w.Body)
	}
	for _, from := range []string{"segment", "below the floor"} {
		_, err = p.Commit(t.Context())
		require.NoError(t, err)
		sees(from)
		s.must(t, 201, request{method: "POST", path: configMaps, body: configMap("later-"+strings.ReplaceAll(from, " ", "-"), "1")})
		_, err = p.Commit(t.Context())
		require.NoError(t, err)
		require.NoError(t, p.Retain(t.Context(), s.head(t), s.head(t)))
	}
	inside := fmt.Sprintf("?resourceVersionMatch=Exact&resourceVersion=%d", ends[1]-1)
	s.must(t, 410, request{method: "GET", path: configMaps + inside})
}

// A transaction has the rights that its user has with single requests.
func TestTransactionsRights(t *testing.T) {
	s := newGuarded(t)
	rule := func(group, resource, verbs string) string {
		return `{"apiGroups":["` + group + `"],"resources":["` + resource + `"],"verbs":[` + verbs + `]}`
	}
	grant := func(user, rules string) {
		s.must(t, 201, request{method: "POST", path: rbacPath + "/clusterroles", body: `{"metadata":{"name":"` + user + `"},"rules":[` + rules + `]}`}.as("root"))
		s.must(t, 201, request{method: "POST", path: rbacPath + "/clusterrolebindings", body: `{"metadata":{"name":"` + user + `"},
			"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"` + user + `"},"subjects":[{"kind":"User","name":"` + user + `","apiGroup":"rbac.authorization.k8s.io"}]}`}.as("root"))
	}
	grant("ann", rule("", "configmaps", `"create"`)+","+rule("history.logplane.dev", "transactions", `"create"`))
	grant("bob", rule("", "configmaps", `"*"`))
	const secret = `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s","namespace":"default"}}`
	before := s.head(t)
	s.must(t, 401, transaction(creating(configMap("a", "1"))))
	a := s.must(t, 403, transaction(creating(configMap("a", "1"))).as("bob"))
	require.Contains(t, a.body, "cannot create resource \\\"transactions\\\"")
	a = s.must(t, 403, transaction(creating(configMap("a", "1")), creating(secret)).as("ann"))
	require.Contains(t, a.body, "cannot create resource \\\"secrets\\\"")
	require.Contains(t, a.body, "User \\\"ann\\\"")
	s.must(t, 403, transaction(creating(configMap("a", "1")), updating(configMap("a", "2"))).as("ann"))
	// A right that a transaction grants does not apply inside the transaction.
	s.must(t, 403, transaction(creating(strings.ReplaceAll(`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"x"}}`, "x", "mine"))).as("ann"))
	require.Equal(t, before, s.head(t))
	s.transact(t, transaction(creating(configMap("a", "1")), creating(configMap("b", "1"))).as("ann"))
	s.transact(t, transaction(creating(secret), updating(configMap("a", "2"))).as("root"))
	s.transact(t, transaction(creating(configMap("c", "1"))).as("root").with("Impersonate-User", "ann"))
	s.must(t, 403, transaction(updating(configMap("c", "2"))).as("root").with("Impersonate-User", "ann"))
	events := s.events(t, before)
	require.Equal(t, "ann", events[0].Author.User)
	last := events[len(events)-1]
	require.Equal(t, "root as ann", last.Author.User+" as "+last.Author.As)
}

// A dry run gets the transaction's answer, and appends nothing.
func TestTransactionDryRun(t *testing.T) {
	s := newServer(t)
	require.NoError(t, s.Bootstrap(t.Context()))
	s.must(t, 201, request{method: "POST", path: configMaps, body: configMap("old", "1")})
	before := s.head(t)
	dry := transaction(creating(configMap("new", "1")), updating(configMap("old", "2")), creating(`{"apiVersion":"v1","kind":"Service","metadata":{"name":"s","namespace":"default"},"spec":{"ports":[{"port":80}]}}`))
	dry.path += "?dryRun=All"
	done := s.transact(t, dry)
	require.Len(t, done.Status.Results, 3)
	require.Empty(t, done.Status.Revision)
	refused := transaction(creating(configMap("new", "1")), creating(configMap("old", "2")))
	refused.path += "?dryRun=All"
	s.must(t, 409, refused)
	require.Equal(t, before, s.head(t))

	// Operations see each other, so a dry run is refused for the same reasons as the transaction.
	hook := newWebhookServer(t)
	hook.decides(func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		return &admissionv1.AdmissionResponse{Allowed: r.DryRun != nil && *r.DryRun, Result: &metav1.Status{Message: "no dry run"}}
	})
	s.must(t, 201, request{method: "POST", path: validatingWebhooks, body: hook.configuration("hook", "")})
	before = s.head(t)
	space := func(object string) string { return strings.ReplaceAll(object, `"default"`, `"space"`) }
	all := []string{creating(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"space"}}`),
		creating(`{"apiVersion":"v1","kind":"ResourceQuota","metadata":{"name":"q","namespace":"space"},"spec":{"hard":{"count/configmaps":"2"}}}`),
		creating(space(configMap("a", "1"))), updating(space(configMap("a", "2"))),
		`{"verb":"patch","reference":{"apiVersion":"v1","kind":"ConfigMap","namespace":"space","name":"a"},"patchType":"json","patch":[{"op":"test","path":"/data/v","value":"2"}]}`}
	dryly := func(operations ...string) request {
		q := transaction(operations...)
		q.path += "?dryRun=All"
		return q
	}
	done = s.transact(t, dryly(append(all, space(deleting("v1", "ConfigMap", "a")), creating(space(configMap("a", "1"))))...))
	require.Len(t, done.Status.Results, 7)
	for _, r := range done.Status.Results {
		require.Empty(t, r.ResourceVersion)
	}
	require.Contains(t, s.must(t, 403, dryly(append(all, creating(space(configMap("b", "1"))), creating(space(configMap("c", "1"))))...)).body, "exceeded quota")
	require.Contains(t, s.must(t, 409, dryly(append(all, creating(space(configMap("a", "1"))))...)).body, "already exists")
	require.Equal(t, before, s.head(t))
	s.must(t, 404, request{method: "GET", path: "/api/v1/namespaces/space"})
	dry.path = transactionsPath + "?dryRun=Some"
	s.must(t, 422, dry)
}

// A transaction may write as many objects as one append may have events. One more event of any kind is refused.
func TestLargeTransaction(t *testing.T) {
	s := newServer(t)
	many := func(n int) (all []string) {
		for i := range n {
			all = append(all, creating(configMap(fmt.Sprintf("c-%d", i), "1")))
		}
		return all
	}
	before := s.head(t)
	require.Contains(t, s.must(t, 422, transaction(many(1001)...)).body, "must have at most 1000 items")
	a := s.must(t, 413, transaction(append(many(999), creating(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"x"}}`))...))
	require.Contains(t, a.body, "has 1001 events, of which it may have 1000")
	require.Equal(t, before, s.head(t))
	done := s.transact(t, transaction(many(1000)...))
	events := s.events(t, before)
	require.Len(t, events, 1000)
	for i, r := range done.Status.Results {
		require.Equal(t, fmt.Sprint(uint64(before)+uint64(i)+1), r.ResourceVersion)
		require.Equal(t, uint32(999-i), events[i].Left)
	}
	s.transact(t, transaction(deleting("v1", "ConfigMap", "c-0"), deleting("v1", "ConfigMap", "c-1")))
	require.Len(t, s.events(t, before), 1002)
}

// Fields are managed as if each operation were a request. Each operation's audit record names the transaction's record.
func TestTransactionManagersAndRecords(t *testing.T) {
	change, records := recording(t)
	s := newServer(t, change)
	apply := func(name, value, more string) string {
		return `{"verb":"patch","patchType":"apply","patch":` + configMap(name, value) + `,"reference":{"apiVersion":"v1","kind":"ConfigMap","namespace":"default","name":"` + name + `"}` + more + `}`
	}
	as := func(manager string, operations ...string) request {
		r := transaction(operations...)
		r.path += "?fieldManager=" + manager
		return r
	}
	s.transact(t, as("one", apply("a", "1", ""), apply("b", "1", "")))
	require.Contains(t, s.must(t, 409, as("two", apply("b", "1", ""), apply("a", "2", ""))).body, "conflict with \\\"one\\\"")
	records()
	r := as("two", apply("b", "1", ""), apply("a", "2", `,"force":true`))
	r = r.with("Audit-Id", "the-transaction")
	s.transact(t, r)
	all := records()
	require.Len(t, all, 6, "when each came, and when it was answered")
	for _, e := range all {
		if e.ObjectRef.Resource == "configmaps" {
			require.Equal(t, "the-transaction", e.Annotations["logplane.dev/transaction"])
			require.NotEqual(t, "the-transaction", string(e.AuditID))
		} else {
			require.Equal(t, "the-transaction", string(e.AuditID))
		}
	}
	var managers []any
	for _, entry := range fieldOf(s.must(t, 200, request{method: "GET", path: configMaps + "/a"}).object(t), "metadata.managedFields").([]any) {
		managers = append(managers, entry.(map[string]any)["manager"])
	}
	require.Equal(t, []any{"two"}, managers)
}

// The size of the patched objects counts, and not the size of the patches.
func TestTransactionOfLargePatches(t *testing.T) {
	s := newServer(t)
	s.must(t, 201, request{method: "POST", path: configMaps, body: configMap("big", strings.Repeat("x", 900<<10))})
	before := s.head(t)
	var all []string
	for i := range 20 {
		all = append(all, fmt.Sprintf(`{"verb":"patch","reference":{"apiVersion":"v1","kind":"ConfigMap","namespace":"default","name":"big"},"patchType":"merge","patch":{"data":{"i":"%d"}}}`, i))
	}
	require.Contains(t, s.must(t, 413, transaction(all...)).body, "of which it may do 33554432")
	require.Equal(t, before, s.head(t))
	s.transact(t, transaction(all[:10]...))
	require.Equal(t, before+1, s.head(t))
}

// A deletion that finalizers hold up is an update. The rows written alongside an object follow every step.
func TestTransactionOfDependents(t *testing.T) {
	s := newServer(t)
	owner := s.must(t, 201, request{method: "POST", path: configMaps, body: configMap("owner", "1")}).object(t)
	named := func(name, metadata string) string {
		return strings.Replace(configMap(name, "1"), `"name"`, metadata+`,"name"`, 1)
	}
	owned := `"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"owner","uid":"` + fieldOf(owner, "metadata.uid").(string) + `"}]`
	const references = "/logplane.dev/references"
	s.transact(t, transaction(creating(named("held", `"finalizers":["a.b/c"]`)), creating(named("x", owned)), creating(named("y", owned))))
	require.Len(t, claimed(t, s, references), 2)
	done := s.transact(t, transaction(deleting("v1", "ConfigMap", "held"), updating(configMap("x", "2")), updating(named("x", owned)), deleting("v1", "ConfigMap", "y")))
	held := s.must(t, 200, request{method: "GET", path: configMaps + "/held"}).object(t)
	require.NotNil(t, fieldOf(held, "metadata.deletionTimestamp"))
	require.Equal(t, fieldOf(held, "metadata.resourceVersion"), done.Status.Results[0].ResourceVersion)
	require.Len(t, claimed(t, s, references), 1)
	require.Len(t, fieldOf(s.must(t, 200, request{method: "GET", path: configMaps + "/x"}).object(t), "metadata.ownerReferences"), 1)
}

// Custom resources are written like other objects, but not in the transaction that creates their definition. Services
// in one transaction get different addresses.
func TestTransactionKinds(t *testing.T) {
	s := newServer(t)
	require.NoError(t, s.Bootstrap(t.Context()))
	c := connect(t, s)
	const widget = `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"NAME","namespace":"default"},"spec":{"size":5}}`
	named := func(name string) string { return strings.Replace(widget, "NAME", name, 1) }
	definition, err := yaml.YAMLToJSON([]byte(widgetCRD))
	require.NoError(t, err)
	a := s.must(t, 422, transaction(creating(string(definition)), creating(named("a"))))
	require.Contains(t, a.body, "there is no such kind in example.com/v1 here, before the transaction")
	s.transact(t, transaction(creating(string(definition)), creating(configMap("config-of-widgets", "1"))))
	s.must(t, 409, transaction(creating(configMap("d", "1")), creating(string(definition))))
	before := s.head(t)
	a = s.must(t, 422, transaction(creating(named("a")), creating(strings.Replace(named("b"), "5", "50", 1))))
	require.Contains(t, a.body, "size must not exceed limit")
	s.transact(t, transaction(creating(named("a")), creating(named("b")), creating(configMap("c", "1"))))
	s.transact(t, transaction(deleting("example.com/v1", "Widget", "a"), creating(named("c")),
		`{"verb":"patch","reference":{"apiVersion":"example.com/v1","kind":"Widget","namespace":"default","name":"b"},"patchType":"merge","patch":{"spec":{"color":"red"}}}`))
	got, err := c.Resource(widgets).Namespace("default").Get(t.Context(), "b", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "red", fieldOf(got.Object, "spec.color"))
	require.Len(t, s.events(t, before), 6)

	var all []string
	for i := range 30 {
		all = append(all, creating(fmt.Sprintf(`{"apiVersion":"v1","kind":"Service","metadata":{"name":"s-%d","namespace":"default"},"spec":{"type":"NodePort","ports":[{"port":80}]}}`, i)))
	}
	s.transact(t, transaction(all...))
	services, err := servicesOf(s).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	seen := map[any]bool{}
	for _, service := range services.Items {
		if service.Name == "kubernetes" {
			continue
		}
		seen[service.Spec.ClusterIP], seen[service.Spec.Ports[0].NodePort] = true, true
	}
	require.Len(t, seen, 60)
	require.Len(t, claimed(t, s, "/ipaddresses"), 31, "and that of 'kubernetes'")
	require.Len(t, claimed(t, s, "/logplane.dev/nodeports"), 30)
	s.transact(t, transaction(deleting("v1", "Service", "s-0"), deleting("v1", "Service", "s-1")))
	require.Len(t, claimed(t, s, "/ipaddresses"), 29)
}

// An operation can rely on the writes of the operations before it.
func TestTransactionOfWhatBelongsTogether(t *testing.T) {
	s := newServer(t)
	require.NoError(t, s.Bootstrap(t.Context()))

	const service = `{"apiVersion":"v1","kind":"Service","metadata":{"name":"NAME","namespace":"default"},"spec":{"clusterIP":"10.96.0.77","ports":[{"port":80}]}}`
	address := `{"verb":"delete","reference":{"apiVersion":"networking.k8s.io/v1","kind":"IPAddress","name":"10.96.0.77"}}`
	one := creating(strings.Replace(service, "NAME", "one", 1))
	require.Contains(t, s.must(t, 403, transaction(one, address)).body, "has this address")
	s.transact(t, transaction(one))
	s.must(t, 422, transaction(creating(strings.Replace(service, "NAME", "two", 1))))

	limit := func(n int, label string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"ResourceQuota","metadata":{"name":"q","namespace":"default","labels":{"l":%q}},"spec":{"hard":{"count/configmaps":"%d"}}}`, label, n)
	}
	s.transact(t, transaction(creating(limit(3, "a"))))
	s.transact(t, transaction(creating(configMap("a", "1")), creating(configMap("b", "1")), updating(limit(5, "b"))))
	require.Equal(t, map[string]string{"count/configmaps": "2"}, usedOf(t, s, "q"))
	s.transact(t, transaction(deleting("v1", "ConfigMap", "a"), updating(limit(2, "c"))))
	require.Equal(t, map[string]string{"count/configmaps": "1"}, usedOf(t, s, "q"))
	s.must(t, 201, request{method: "POST", path: configMaps, body: configMap("c", "1")})
	s.must(t, 403, request{method: "POST", path: configMaps, body: configMap("d", "1")})

	definition, err := yaml.YAMLToJSON([]byte(widgetCRD))
	require.NoError(t, err)
	other := strings.NewReplacer("widgets", "gadgets").Replace(string(definition)) // gadgets have the same kind
	clash := s.must(t, 409, transaction(creating(string(definition)), creating(other)))
	require.Contains(t, clash.body, "write one of the two after the transaction")
}

// A transaction and its answer may be YAML or CBOR. A warning about an operation is a warning of the transaction.
func TestTransactionRepresentations(t *testing.T) {
	s := newServer(t)
	encode := map[string]func(v any) []byte{
		"application/yaml": func(v any) []byte {
			text, err := yaml.Marshal(v)
			require.NoError(t, err)
			return text
		},
		"application/cbor": func(v any) []byte {
			encoded, err := direct.Marshal(v)
			require.NoError(t, err)
			return append([]byte("\xd9\xd9\xf7"), encoded...)
		},
	}
	for media, encoded := range encode {
		name := strings.ReplaceAll(media, "/", "-")
		var body any
		r := transaction(creating(strings.Replace(configMap(name, "1"), `"data"`, `"binaryData":{"b":"AAEC"},"data"`, 1)), updating(configMap(name, "2")),
			`{"verb":"patch","reference":{"apiVersion":"v1","kind":"ConfigMap","namespace":"default","name":"`+name+`"},"patchType":"json","patch":[{"op":"add","path":"/data/w","value":"1"}]}`)
		require.NoError(t, json.Unmarshal([]byte(r.body), &body))
		r.body, r.contentType, r.accept = string(encoded(body)), media, media
		a := s.must(t, 201, r)
		require.Equal(t, media, a.header.Get("Content-Type"))
		require.Contains(t, a.body, "revision")
		got := s.must(t, 200, request{method: "GET", path: configMaps + "/" + name}).object(t)
		require.Equal(t, map[string]any{"v": "2", "w": "1"}, fieldOf(got, "data"))
	}
	r := transaction(creating(configMap("x", "1")))
	r.accept = table // the answer cannot be shown as rows
	s.must(t, 406, r)
	a := s.must(t, 201, transaction(creating(`{"apiVersion":"flowcontrol.apiserver.k8s.io/v1","kind":"FlowSchema","metadata":{"name":"f"},"spec":{"priorityLevelConfiguration":{"name":"exempt"}}}`)))
	require.Len(t, a.header["Warning"], 1)
}

// Webhooks and policies that match everything are asked about the transaction itself and about each operation.
func TestTransactionsAreJudged(t *testing.T) {
	s := newServer(t)
	var mu sync.Mutex
	var seen []string
	hook := newWebhookServer(t)
	hook.decides(func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, r.Kind.Kind+" "+r.Name)
		return &admissionv1.AdmissionResponse{Allowed: true}
	})
	everything := func(name string) string {
		return strings.Replace(hook.configuration(name, ""), `"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["configmaps"]`,
			`"apiGroups":["*"],"apiVersions":["*"],"operations":["*"],"resources":["*"]`, 1)
	}
	s.must(t, 201, request{method: "POST", path: validatingWebhooks, body: everything("judge")})
	s.must(t, 201, request{method: "POST", path: mutatingWebhooks, body: everything("change")})
	s.must(t, 201, request{method: "POST", path: registration + "validatingadmissionpolicies", body: `{"metadata":{"name":"p"},"spec":{"failurePolicy":"Fail",
		"matchConstraints":{"resourceRules":[{"apiGroups":["*"],"apiVersions":["*"],"operations":["*"],"resources":["*"]}]},
		"validations":[{"expression":"!has(object.metadata.name) || object.metadata.name != 'bad'","message":"it is bad"}]}}`})
	s.must(t, 201, request{method: "POST", path: registration + "validatingadmissionpolicybindings", body: `{"metadata":{"name":"p"},"spec":{"policyName":"p","validationActions":["Deny"]}}`})
	mu.Lock()
	seen = nil
	mu.Unlock()
	s.transact(t, transaction(creating(configMap("a", "1")), creating(configMap("b", "1"))))
	require.ElementsMatch(t, []string{"Transaction ", "Transaction ", "ConfigMap a", "ConfigMap a", "ConfigMap b", "ConfigMap b"}, seen)
	require.Contains(t, s.must(t, 422, transaction(creating(configMap("c", "1")), creating(configMap("bad", "1")))).body, "it is bad")
	r := transaction(creating(configMap("c", "1")))
	r.body = strings.Replace(r.body, `"spec"`, `"metadata":{"name":"bad"},"spec"`, 1)
	require.Contains(t, s.must(t, 422, r).body, "it is bad")
	s.must(t, 404, request{method: "GET", path: configMaps + "/c"})
}

// interrupting calls f in each attempt of a transaction that creates 'last': at the end of the attempt, before the
// append.
func interrupting(t *testing.T, s *Server, f func(attempt int)) {
	t.Helper()
	hook, attempt := newWebhookServer(t), 0
	hook.decides(func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		if r.Name == "last" {
			attempt++
			f(attempt)
		}
		return &admissionv1.AdmissionResponse{Allowed: true}
	})
	s.must(t, 201, request{method: "POST", path: validatingWebhooks, body: hook.configuration("hook", "")})
}

// If another writer comes first, the whole transaction is computed again on that writer's state, and the client's
// preconditions must hold for that state, too. If another writer comes first each time, the transaction gives up.
func TestTransactionConflicts(t *testing.T) {
	s := newServer(t)
	s.must(t, 201, request{method: "POST", path: configMaps, body: configMap("old", "0")})
	const old = configMaps + "/old"
	var losses, attempts int
	interrupting(t, s, func(attempt int) {
		attempts++
		if losses == 0 {
			return
		}
		losses--
		s.must(t, 200, request{method: "PATCH", path: old, body: fmt.Sprintf(`{"data":{"w":"%d"}}`, attempt), contentType: "application/merge-patch+json"})
	})
	patch := func(value, more string) string {
		return `{"verb":"patch","reference":{"apiVersion":"v1","kind":"ConfigMap","namespace":"default","name":"old"},"patchType":"merge","patch":{"data":{"v":"` + value + `"}}` + more + `}`
	}
	losses = 3
	done := s.transact(t, transaction(patch("1", ""), creating(configMap("last", "1"))))
	require.Equal(t, 4, attempts)
	got := s.must(t, 200, request{method: "GET", path: old}).object(t)
	require.Equal(t, map[string]any{"v": "1", "w": "3"}, fieldOf(got, "data"))
	require.Equal(t, fieldOf(got, "metadata.resourceVersion"), done.Status.Results[0].ResourceVersion)

	s.must(t, 200, request{method: "DELETE", path: configMaps + "/last"})
	// The patch changes nothing, but the other operation is written only if the patch's precondition holds.
	losses, attempts = 1, 0
	a := s.must(t, 409, transaction(patch("1", `,"precondition":{"resourceVersion":"`+fieldOf(got, "metadata.resourceVersion").(string)+`"}`), creating(configMap("last", "1"))))
	require.Contains(t, a.body, "operation 1 of 2, patch configmaps/old, was refused")
	require.Equal(t, 1, attempts, "the second time it is refused at once")

	losses, attempts = 100, 0
	a = s.must(t, 503, transaction(patch("2", ""), creating(configMap("last", "1"))))
	require.Equal(t, 5, attempts)
	require.Equal(t, "1", a.header.Get("Retry-After"))
	s.must(t, 404, request{method: "GET", path: configMaps + "/last"})
}

// The requirements of a patch or an object must hold until the transaction is written, even if the operation changes
// nothing.
func TestTransactionRequirements(t *testing.T) {
	s := newServer(t)
	steals := false
	interrupting(t, s, func(int) {
		if steals {
			steals = false
			s.must(t, 200, request{method: "PATCH", path: configMaps + "/lock", body: `{"data":{"v":"thief"}}`, contentType: "application/merge-patch+json"})
		}
	})
	const reference = `"reference":{"apiVersion":"v1","kind":"ConfigMap","namespace":"default","name":"lock"}`
	patching := func(kind, patch string) string {
		return `{"verb":"patch",` + reference + `,"patchType":"` + kind + `","patch":` + patch + `}`
	}
	for _, c := range []struct {
		code      int
		operation string
	}{
		{422, patching("json", `[{"op":"test","path":"/data/v","value":"me"}]`)},
		{409, patching("json", `[{"op":"replace","path":"/metadata/resourceVersion","value":"RV"}]`)},
		{409, patching("json", `[{"op":"copy","from":"/metadata/annotations/rv","path":"/metadata/resourceVersion"}]`)},
		{409, patching("merge", `{"metadata":{"resourceVersion":"RV"}}`)},
		{409, patching("strategic", `{"metadata":{"resourceVersion":"RV"}}`)},
		{409, patching("merge", `{"metadata":{"uid":"UID"}}`)},
		{409, updating(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"lock","namespace":"default","uid":"UID","annotations":{"rv":"RV"}},"data":{"v":"me"}}`)},
	} {
		made := s.must(t, 201, request{method: "POST", path: configMaps, body: configMap("lock", "me")}).object(t)
		made = s.must(t, 200, request{method: "PATCH", path: configMaps + "/lock", body: `{"metadata":{"annotations":{"rv":"` + fieldOf(made, "metadata.resourceVersion").(string) + `"}}}`,
			contentType: "application/merge-patch+json"}).object(t)
		known := strings.NewReplacer("RV", fieldOf(made, "metadata.resourceVersion").(string), "UID", fieldOf(made, "metadata.uid").(string))
		operation := known.Replace(c.operation)
		before := s.head(t)
		if !strings.Contains(c.operation, "copy") && !strings.Contains(c.operation, "UID") {
			done := s.transact(t, transaction(operation, creating(configMap("w", "1"))))
			require.Equal(t, before+2, s.head(t), "the object is written with what it is required for: %s", operation)
			s.must(t, 200, request{method: "DELETE", path: configMaps + "/w"})
			operation = strings.NewReplacer("RV", done.Status.Results[0].ResourceVersion).Replace(c.operation)
		}
		steals = true
		a := transaction(operation, creating(configMap("last", "1"))).do(t, s)
		if strings.Contains(c.operation, "UID") { // the thief's write keeps the uid
			require.Equal(t, 201, a.code, a.body)
			s.must(t, 200, request{method: "DELETE", path: configMaps + "/last"})
		} else {
			require.Equal(t, c.code, a.code, "%s: %s", operation, a.body)
			s.must(t, 404, request{method: "GET", path: configMaps + "/last"})
		}
		s.must(t, 200, request{method: "DELETE", path: configMaps + "/lock"})
	}
}

// Transactions of one process that contend for an object take turns after they have lost once. Without turns, more than
// half of these transactions would lose five times.
func TestTransactionsTakeTurns(t *testing.T) {
	s := newServer(t)
	s.must(t, 201, request{method: "POST", path: configMaps, body: configMap("hot", "0")})
	const clients, rounds = 16, 10
	var writing sync.WaitGroup
	var refused atomic.Int64
	for client := range clients {
		writing.Go(func() {
			for i := range rounds {
				name := fmt.Sprintf("c-%d-%d", client, i)
				a := transaction(`{"verb":"patch","reference":{"apiVersion":"v1","kind":"ConfigMap","namespace":"default","name":"hot"},"patchType":"merge",
					"patch":{"data":{"v":"`+name+`"}}}`, creating(configMap(name, "1"))).do(t, s)
				require.Contains(t, []int{201, 503}, a.code, a.body)
				if a.code == 503 {
					refused.Add(1)
				}
			}
		})
	}
	writing.Wait()
	require.Less(t, refused.Load(), int64(clients*rounds/10))
	list := s.must(t, 200, request{method: "GET", path: configMaps}).object(t)
	require.Len(t, fieldOf(list, "items"), clients*rounds+1-int(refused.Load()))
}

// If a namespace begins to terminate while a slow transaction runs, the transaction notices before it is written.
// Changes of unrelated objects do not make the transaction start again.
func TestSlowTransaction(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits")
	}
	s := newServer(t)
	space := func(object string) string { return strings.ReplaceAll(object, `"default"`, `"space"`) }
	s.must(t, 201, request{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"space"}}`})
	s.must(t, 201, request{method: "POST", path: resourceQuotas, body: quotaOf("theirs", `"count/events":"100"`)})
	s.must(t, 201, request{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"mine"}}`})
	attempts, ends := 0, false
	interrupting(t, s, func(attempt int) {
		attempts = attempt
		if !ends { // objects of other tenants
			s.must(t, 201, request{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"another"}}`})
			s.must(t, 201, request{method: "POST", path: definitionPath, body: pastDefinition("color")})
		}
		s.must(t, 201, request{method: "POST", path: "/api/v1/namespaces/default/events", body: fmt.Sprintf(`{"metadata":{"name":"e-%d"},"involvedObject":{"namespace":"default"}}`, attempt)})
		time.Sleep(kubestore.Staleness) // a webhook may take this long
		if ends {
			s.must(t, 200, request{method: "DELETE", path: "/api/v1/namespaces/space"})
		}
	})
	last := strings.ReplaceAll(configMap("last", "1"), `"default"`, `"mine"`)
	s.transact(t, transaction(creating(space(configMap("a", "1"))), creating(last)))
	require.Equal(t, 1, attempts, "no quota, namespace or definition of others concerns it")
	s.must(t, 200, request{method: "DELETE", path: "/api/v1/namespaces/mine/configmaps/last"})
	ends = true
	a := s.must(t, 403, transaction(creating(space(configMap("b", "1"))), creating(last)))
	require.Contains(t, a.body, "being terminated")
	require.Equal(t, 2, attempts)
	s.must(t, 404, request{method: "GET", path: "/api/v1/namespaces/mine/configmaps/last"})
}

// If the outcome of an append is unknown, the answer is a 500 that says so, and clients do not send the transaction
// again (row 61). Either all of the append is in the log, or nothing.
func TestTransactionOfUnknownOutcome(t *testing.T) {
	conn, link := eventlogtest.ConnectThrough(t, eventlogtest.Run(t, t.TempDir()))
	log := eventlogtest.Open(t, eventlog.Config{Conn: conn, Timeout: time.Second, InMemory: true})
	p, err := projection.Open(projection.Config{Log: log, Bucket: memory.Strict(t)})
	require.NoError(t, err)
	s := newServer(t, func(c *Config) { c.Cell.Log, c.Cell.Projection = log, p })
	interrupting(t, s, func(int) { link.Stall() })
	a := s.must(t, 500, transaction(creating(configMap("a", "1")), creating(configMap("last", "1"))))
	require.Contains(t, a.body, "read the object to learn whether it was written")
	require.Empty(t, a.header.Get("Retry-After"))
	link.Resume()
	var list answer
	eventlogtest.Eventually(t, "an answer", func() bool {
		list = request{method: "GET", path: configMaps}.do(t, s)
		return list.code == 200
	})
	require.Contains(t, []int{0, 2}, len(fieldOf(list.object(t), "items").([]any)), list.body)
}

// Two processes serve transactions that move an amount between two of four accounts. Other clients list and watch the
// accounts, while a projector commits. Nobody ever sees another sum, neither in a list nor in a watch after all events
// of an append.
func TestTransactionsAreAtomic(t *testing.T) {
	rounds := 60
	if testing.Short() {
		rounds = 15
	}
	one, other, projector := twoServers(t, withFeed(t))
	require.NoError(t, one.Bootstrap(t.Context()))
	servers := []*Server{one, other}
	const accounts, total = 4, 400
	amounts := func(items []any) (sum, n int) {
		for _, item := range items {
			amount, ok := fieldOf(item.(map[string]any), "data.v").(string)
			if ok {
				value, err := strconv.Atoi(amount)
				require.NoError(t, err)
				sum, n = sum+value, n+1
			}
		}
		return sum, n
	}
	var all []string
	for i := range accounts {
		all = append(all, creating(configMap(fmt.Sprintf("account-%d", i), fmt.Sprint(total/accounts))))
	}
	first := one.transact(t, transaction(all...))

	// A watch gets all events. The events of one append come directly after each other.
	listener := httptest.NewServer(other)
	t.Cleanup(listener.Close)
	watching, stop := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(watching, "GET", listener.URL+configMaps+"?watch=1&resourceVersion="+first.Status.Revision, nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer response.Body.Close()

	var moving, reading sync.WaitGroup
	var committed, last atomic.Int64
	ended := make(chan struct{})
	for client := range 4 {
		moving.Go(func() {
			for i := range rounds {
				s := servers[(client+i)%2]
				from, to := fmt.Sprintf("account-%d", client), fmt.Sprintf("account-%d", (client+1+i%3)%accounts)
				read := func(name string) (amount int, version string) {
					got := s.must(t, 200, request{method: "GET", path: configMaps + "/" + name}).object(t)
					amount, err := strconv.Atoi(fieldOf(got, "data.v").(string))
					require.NoError(t, err)
					return amount, fieldOf(got, "metadata.resourceVersion").(string)
				}
				a, va := read(from)
				b, vb := read(to)
				put := func(name string, amount int, version string) string {
					return `{"verb":"update","object":` + configMap(name, fmt.Sprint(amount)) + `,"precondition":{"resourceVersion":"` + version + `"}}`
				}
				answer := transaction(put(from, a-1, va), put(to, b+1, vb)).do(t, s)
				require.Contains(t, []int{201, 409, 503}, answer.code, answer.body)
				if answer.code == 201 {
					committed.Add(1)
					var done history.Transaction
					require.NoError(t, json.Unmarshal([]byte(answer.body), &done))
					revision, err := strconv.ParseInt(done.Status.Revision, 10, 64)
					require.NoError(t, err)
					for {
						old := last.Load()
						if revision <= old || last.CompareAndSwap(old, revision) {
							break
						}
					}
				}
			}
		})
	}
	for _, s := range servers {
		reading.Go(func() {
			for {
				list := s.must(t, 200, request{method: "GET", path: configMaps}).object(t)
				sum, n := amounts(fieldOf(list, "items").([]any))
				require.Equal(t, accounts, n)
				require.Equal(t, total, sum)
				select {
				case <-ended:
					return
				default:
				}
			}
		})
	}
	reading.Go(func() {
		for {
			_, err := projector.Commit(t.Context())
			require.NoError(t, err)
			select {
			case <-ended:
				return
			default:
			}
		}
	})
	moving.Wait()
	close(ended)
	reading.Wait()
	require.Positive(t, committed.Load())

	// The watch delivers the two events of each transaction in a row. After both events, the sum is the same as before.
	have := map[string]any{}
	for i := range accounts {
		have[fmt.Sprintf("account-%d", i)] = map[string]any{"data": map[string]any{"v": fmt.Sprint(total / accounts)}}
	}
	lines := bufio.NewReader(response.Body)
	for n := 1; ; n++ {
		line, err := lines.ReadString('\n')
		require.NoError(t, err)
		var event map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &event))
		require.Equal(t, "MODIFIED", event["type"])
		have[fieldOf(event, "object.metadata.name").(string)] = event["object"]
		if n%2 == 0 {
			var items []any
			for _, item := range have {
				items = append(items, item)
			}
			sum, _ := amounts(items)
			require.Equal(t, total, sum)
			require.Equal(t, int64(n/2) == committed.Load(), fieldOf(event, "object.metadata.resourceVersion") == fmt.Sprint(last.Load()))
			if int64(n/2) == committed.Load() {
				break
			}
		}
	}
	stop()
}

// heavySeatsAsked is a kubestore.Seat that counts how often a request asks for a heavy seat.
type heavySeatsAsked struct{ n atomic.Int64 }

func (*heavySeatsAsked) Wait(_ context.Context, wait func() error) error { return wait() }

func (p *heavySeatsAsked) TakeHeavy(context.Context) error {
	p.n.Add(1)
	return nil
}

// served makes the requests to the server hold this seat.
func (p *heavySeatsAsked) served(s *Server) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.ServeHTTP(w, r.WithContext(kubestore.Request{Seat: p}.In(r.Context())))
	})
}

// TestTransactionsOfNoChange: the bytes that a transaction decodes and encodes count, even if it changes nothing.
// Between its operations, a long transaction gives its heavy seat to other requests. A single patch of a large object
// takes a heavy seat, too.
func TestTransactionsOfNoChange(t *testing.T) {
	s := newServer(t, withTokens(t), func(c *Config) { c.Requests = gate.RequestLimits{Timeout: 4 * time.Second * eventlogtest.Slowdown} })
	const size = 300 << 10
	for name, value := range map[string]string{"small": "x", "large": strings.Repeat("x", size)} {
		s.must(t, 201, request{method: "POST", path: configMaps, body: configMap(name, value)}.as("root"))
	}
	patching := func(name string, n int) request {
		var all []string
		for range n {
			all = append(all, `{"verb":"patch","patchType":"merge","patch":{"metadata":{"labels":null}},
				"reference":{"apiVersion":"v1","kind":"ConfigMap","namespace":"default","name":"`+name+`"}}`)
		}
		return transaction(all...).as("root")
	}
	head := s.must(t, 200, request{method: "GET", path: configMaps}.as("root")).object(t)
	refused := patching("large", 1000).do(t, s)
	require.Equal(t, 413, refused.code, refused.body)
	require.Contains(t, refused.body, "send fewer operations at once")
	which := regexp.MustCompile(`operation (\d+) of 1000`).FindStringSubmatch(refused.body)
	require.NotNil(t, which, refused.body)
	n, err := strconv.Atoi(which[1])
	require.NoError(t, err)
	require.LessOrEqual(t, n, 32<<20/size)
	for name, n := range map[string]int{"small": 1000, "large": 20} {
		p := &heavySeatsAsked{}
		a := patching(name, n).do(t, p.served(s))
		require.Equal(t, 201, a.code, a.body)
		require.GreaterOrEqual(t, int(p.n.Load()), n)
	}
	few := &heavySeatsAsked{}
	require.Equal(t, 201, patching("small", 3).do(t, few.served(s)).code)
	require.Zero(t, few.n.Load())
	require.Equal(t, fieldOf(head, "metadata.resourceVersion"),
		fieldOf(s.must(t, 200, request{method: "GET", path: configMaps}.as("root")).object(t), "metadata.resourceVersion"))

	takeHeavySeats(t, s, "ann")
	alone := request{method: "PATCH", path: configMaps + "/large", contentType: "application/merge-patch+json", body: `{"metadata":{"labels":null}}`}
	for user, code := range map[string]int{"ann": 429, "bob": 200, "root": 200} {
		s.must(t, code, alone.as(user))
		s.must(t, 200, request{method: "PATCH", path: configMaps + "/small", contentType: alone.contentType, body: alone.body}.as(user))
	}
}
