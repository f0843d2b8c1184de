package apiserver

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/apiserver/access"
	"github.com/logplane/logplane/internal/kubestore/fanout"
	"github.com/logplane/logplane/internal/kubestore/kubestoretest"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/memory"
	"github.com/logplane/logplane/test/product"
)

// outage is a cell whose bucket or log fails from a certain request on. Its root holds no rows, so every read needs the
// bucket.
type outage struct {
	*Server // the server that fills the cell

	// process makes a process over a log. If the log has a connection of its own, only this process meets an outage of
	// the log.
	process func(*eventlog.Log) *Server
	// processOn makes a process that reads a bucket other than the cell's.
	processOn func(*eventlog.Log, bucket.Bucket) *Server
	log       *eventlog.Log
	server    *server.Server
	bucket    *memory.Bucket
	made      map[string]string // objects by path
}

// commit makes the projector write a segment of the cell's newest events.
func (o outage) commit(t testing.TB) {
	t.Helper()
	_, err := o.config.Cell.Projection.Commit(t.Context())
	require.NoError(t, err)
}

func newOutage(t *testing.T) outage {
	path := filepath.Join(t.TempDir(), "tokens.csv")
	require.NoError(t, os.WriteFile(path, []byte("root-token,root,1,system:masters\nann-token,ann,2\n"), 0o600))
	natsServer, objects := eventlogtest.Run(t, t.TempDir(), func(o *server.Options) { o.SyncAlways = false }), memory.Strict(t)
	log := eventlogtest.Open(t, eventlog.Config{Conn: eventlogtest.Connect(t, natsServer)})
	processOn := func(log *eventlog.Log, b bucket.Bucket) *Server {
		cell := kubestoretest.Cell(t, projection.Config{Log: log, Bucket: b, InlineBytes: 1})
		cell.Feed = fanout.NewFeed(cell.Projection)
		s, err := New(Config{Cell: cell, Authentication: access.Authentication{TokenFile: path}, Authorization: access.Authorization{Mode: "RBAC"}})
		require.NoError(t, err)
		return s
	}
	process := func(log *eventlog.Log) *Server { return processOn(log, objects) }
	return outage{process(log), process, processOn, log, natsServer, objects, map[string]string{}}
}

// failFrom makes the bucket fail from its n-th request on. failed says whether it has failed.
func (o outage) failFrom(n int) (failed func() bool) {
	asked := 0 // guarded by the bucket's lock
	o.bucket.Inject(func(memory.Op, string) memory.Fault {
		asked++
		if asked < n {
			return memory.Works
		}
		return memory.Fails
	})
	return func() bool { o.bucket.Inject(nil); return asked >= n }
}

// head is the head of the log.
func (o outage) head(t *testing.T) eventlog.Revision {
	b, err := o.log.Head(t.Context())
	require.NoError(t, err)
	return b.Head
}

const (
	outageCRD = `{"metadata":{"name":"%[1]ss.ex.com"},"spec":{"group":"ex.com","scope":"Namespaced","names":{"plural":"%[1]ss","singular":"%[1]s","kind":"%[2]s"},
		"versions":[{"name":"v1","served":true,"storage":true,"subresources":{"status":{}},"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`
	outageDeployment = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"%s","labels":{"a":"b"}},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`
	outageService    = `{"apiVersion":"v1","kind":"Service","metadata":{"name":"%s"},"spec":{"ports":[{"port":80}]}}`
	outagePod        = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"%s"},"spec":{"containers":[{"name":"c","image":"i"}]}}`
	outageConfigMap  = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"%s"},"data":{"a":"1"}}`
	outageRole       = `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"%s"},"aggregationRule":{"clusterRoleSelectors":[{"matchLabels":{"part":"yes"}}]}}`
	outageCustom     = `{"apiVersion":"ex.com/v1","kind":"Thing","metadata":{"name":"%s"},"spec":{"a":"1"}}`
)

// outageKinds are the kinds that are requested, each with its collection, an object, and a merge patch for the object.
var outageKinds = []struct{ name, collection, object, patch string }{
	{"configmap", configMaps, outageConfigMap, `{"data":{"b":"2"}}`},
	{"deployment", "/apis/apps/v1/namespaces/default/deployments", outageDeployment, `{"spec":{"replicas":3}}`},
	{"service", "/api/v1/namespaces/default/services", outageService, `{"metadata":{"labels":{"b":"2"}}}`},
	{"pod", "/api/v1/namespaces/default/pods", outagePod, `{"metadata":{"labels":{"b":"2"}}}`},
	{"clusterrole", rbacPath + "/clusterroles", outageRole, `{"metadata":{"labels":{"b":"2"}}}`},
	{"custom", "/apis/ex.com/v1/namespaces/default/things", outageCustom, `{"spec":{"b":"2"}}`},
}

// requests are sent in this order. Each write has an object of its own.
func (o outage) requests() (all []request) {
	ask := func(method, path, body, contentType string) {
		all = append(all, request{method: method, path: path, body: body, contentType: contentType}.as("ann"))
	}
	get := func(path string) { ask("GET", path, "", "") }
	for _, k := range outageKinds {
		at := k.collection + "/"
		get(at + "get")
		get(at + "missing")
		get(k.collection)
		get(k.collection + "?limit=2")
		get(k.collection + "?resourceVersion=0")
		get(k.collection + "?watch=1&timeoutSeconds=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true")
		ask("POST", k.collection, fmt.Sprintf(k.object, "create"), "")
		ask("POST", k.collection+"?dryRun=All", fmt.Sprintf(k.object, "dry"), "")
		ask("POST", k.collection, fmt.Sprintf(k.object, "get"), "") // 409
		ask("PUT", at+"update", annotated(o.made[at+"update"]), "")
		ask("PATCH", at+"merge", k.patch, "application/merge-patch+json")
		if k.name != "custom" {
			ask("PATCH", at+"strategic", k.patch, "application/strategic-merge-patch+json")
		}
		ask("PATCH", at+"json", `[{"op":"add","path":"/metadata/annotations","value":{"b":"2"}}]`, "application/json-patch+json")
		ask("PATCH", at+"apply?fieldManager=m&force=true", fmt.Sprintf(k.object, "apply"), "application/apply-patch+yaml")
		ask("PATCH", at+"applied?fieldManager=m", fmt.Sprintf(k.object, "applied"), "application/apply-patch+yaml")
		ask("DELETE", at+"delete", "", "")
		ask("DELETE", at+"missing", "", "")
		ask("DELETE", k.collection+"?labelSelector=b%3D2", "", "")
		ask("POST", transactionsPath, transaction(creating(inDefault(fmt.Sprintf(k.object, "new"))), updating(annotated(o.made[at+"old"]))).body, "")
	}
	ask("POST", crdPath, fmt.Sprintf(outageCRD, "new", "New"), "")
	ask("PATCH", crdPath+"/others.ex.com", `{"spec":{"names":{"shortNames":["ot"]}}}`, "application/merge-patch+json")
	ask("DELETE", crdPath+"/others.ex.com", "", "")
	ask("POST", "/apis/apiregistration.k8s.io/v1/apiservices", `{"metadata":{"name":"v1.remote.ex"},"spec":{"group":"remote.ex","version":"v1","service":{"name":"s","namespace":"default"},"groupPriorityMinimum":10,"versionPriority":10}}`, "")
	ask("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", `{"spec":{"resourceAttributes":{"verb":"get","resource":"pods"}}}`, "")
	ask("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", `{"spec":{"namespace":"default"}}`, "")
	ask("POST", "/api/v1/namespaces", `{"metadata":{"name":"created"}}`, "")
	ask("DELETE", "/api/v1/namespaces/deleted", "", "")
	for _, path := range []string{
		"/api", "/apis", "/api/v1", "/apis/ex.com", "/apis/ex.com/v1", "/apis/apps/v1", "/openapi/v2", "/openapi/v3", "/openapi/v3/apis/ex.com/v1", "/openapi/v3/apis/apps/v1",
		historyPath + "/namespaces/default/versions?fieldSelector=object%3Dconfigmaps/merge", historyPath + "/namespaces/default/changes", historyPath + "/changes?fieldSelector=verb%3Dcreate&include=object",
		"/at/1s" + configMaps, "/at/1s/apis/ex.com/v1/namespaces/default/things/get", "/at/1s/apis", "/apis/none.com/v1/things",
	} {
		get(path)
	}
	return all
}

const crdPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// annotated is an object with one more annotation, as a client sends the object back.
func annotated(object string) string {
	return strings.Replace(object, `"metadata":{`, `"metadata":{"annotations":{"b":"2"},`, 1)
}

func inDefault(object string) string {
	if strings.Contains(object, "ClusterRole") {
		return object
	}
	return strings.Replace(object, `"metadata":{`, `"metadata":{"namespace":"default",`, 1)
}

// fill makes the objects that the requests need, in several segments.
func (o outage) fill(t *testing.T) {
	require.NoError(t, o.Bootstrap(t.Context()))
	create := func(path, body string) string {
		t.Helper()
		return o.must(t, 201, request{method: "POST", path: path, body: body}.as("root")).body
	}
	o.commit(t)
	create(rbacPath+"/clusterrolebindings", `{"metadata":{"name":"ann"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"User","name":"ann","apiGroup":"rbac.authorization.k8s.io"}]}`)
	create(crdPath, fmt.Sprintf(outageCRD, "thing", "Thing"))
	create(crdPath, fmt.Sprintf(outageCRD, "other", "Other"))
	o.commit(t)
	create(rbacPath+"/clusterroles", `{"metadata":{"name":"part","labels":{"part":"yes"}},"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]}`)
	create("/api/v1/namespaces/default/resourcequotas", `{"metadata":{"name":"q"},"spec":{"hard":{"services":"50","pods":"50","configmaps":"50","count/things.ex.com":"50"}}}`)
	create("/api/v1/namespaces/default/limitranges", `{"metadata":{"name":"l"},"spec":{"limits":[{"type":"Container","default":{"cpu":"1"}}]}}`)
	create("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies", `{"metadata":{"name":"p"},"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":["*"],"apiVersions":["*"],"operations":["*"],"resources":["*"]}]},"validations":[{"expression":"true"}]}}`)
	create("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings", `{"metadata":{"name":"p"},"spec":{"policyName":"p","validationActions":["Deny"]}}`)
	create("/api/v1/namespaces", `{"metadata":{"name":"deleted"}}`)
	o.commit(t)
	for _, k := range outageKinds {
		for _, name := range []string{"get", "update", "merge", "strategic", "json", "apply", "delete", "old"} {
			o.made[k.collection+"/"+name] = create(k.collection, fmt.Sprintf(k.object, name))
		}
	}
	o.commit(t)
}

// internals matches internal texts of the bucket and the log, which no client may see.
var internals = regexp.MustCompile(`injected fault|segment|logplane/|main/|memory\.|nats:`)

// TestOutage sends each request to a process whose bucket fails from its n-th request on, for each n up to the number
// of bucket requests that the answer needs. The answer is the same as without the outage, or 503 with Retry-After if
// nothing was written, or 500 without Retry-After if something was written. No answer says where objects are stored.
func TestOutage(t *testing.T) {
	o := newOutage(t)
	o.fill(t)
	counts, before, all := newTally("answers"), o.head(t), o.requests()
	limit := make(chan struct{}, 8) // failing requests retry, so requests wait more than they work
	var running sync.WaitGroup
	for i, r := range all {
		if testing.Short() && i%7 != 0 {
			continue
		}
		for _, warm := range []bool{true, false} {
			if warm && r.method != "GET" { // a write can succeed only once
				continue
			}
			running.Go(func() {
				limit <- struct{}{}
				defer func() { <-limit }()
				o.outageOfTheBucket(t, r, warm, fmt.Sprintf("bucket-%d-%v", i, warm), counts)
			})
		}
	}
	running.Wait()
	if head := o.head(t); head > before {
		o.requireWhole(t, before, head)
	}
	require.False(t, t.Failed())
	require.Greater(t, counts.counts["503, nothing written"], len(all)/7)
	t.Logf("%d kinds of requests: %v", len(all), counts)
}

func (o outage) outageOfTheBucket(t *testing.T, r request, warm bool, id string, counts *tally) {
	var failures []answer
	for n := 1; ; n++ {
		b := &troubled{Bucket: o.bucket, met: func(context.Context) error { return memory.ErrInjected }}
		s := o.processOn(o.log, b)
		if warm {
			if got := (request{method: "GET", path: "/api/v1/nodes/x"}.as("ann")).do(t, s); !assert.Equal(t, 404, got.code, got.body) {
				return
			}
		}
		b.from(n)
		before, asked := o.head(t), r.with("Audit-Id", fmt.Sprint(id, "-", n))
		got := asked.do(t, s)
		again, written := b.isMet(), o.hasWritten(t, asked, before)
		what := fmt.Sprintf("%s %s, from request %d on: %d %s", r.method, r.path, n, got.code, got.body)
		counts.add("requests")
		if again && got.code >= 400 && !assert.NotRegexp(t, internals, got.body, what) {
			return
		}
		if again && got.code == 503 {
			if !assert.Equal(t, "ServiceUnavailable", got.object(t)["reason"], what) ||
				!assert.Equal(t, "1", got.header.Get("Retry-After"), what) || !assert.False(t, written, "a 503 of what was written: %s", what) {
				return
			}
			counts.add("503, nothing written")
			continue
		}
		if again && got.code == 500 && written {
			assert.Empty(t, got.header.Get("Retry-After"), what)
			counts.add("500, written")
			return // the object has changed, so no further n can be tried
		}
		if again {
			failures = append(failures, got)
			continue
		}
		assert.Less(t, got.code, 500, what)
		for _, f := range failures {
			assert.Equal(t, got.code, f.code, "%s %s: %s", r.method, r.path, f.body)
			counts.add("as without the outage")
		}
		return
	}
}

// hasWritten reports whether the log has an event with the request's Audit-Id. Events of concurrent requests do not
// count.
func (o outage) hasWritten(t *testing.T, r request, after eventlog.Revision) (written bool) {
	err := o.log.Tail(t.Context(), after, o.head(t), func(e eventlog.Event) error {
		id, _, _ := strings.Cut(e.RequestID, "/")
		written = written || id == r.header.Get("Audit-Id")
		return nil
	})
	assert.NoError(t, err)
	return written
}

// requireWhole reads the events after a revision, and requires that every append is complete and no event is void.
func (o outage) requireWhole(t *testing.T, after, head eventlog.Revision) {
	v, err := o.config.Cell.Projection.Latest(t.Context())
	require.NoError(t, err)
	require.Equal(t, head, v.Revision())
	last, left := map[eventlog.Key]eventlog.Event{}, uint32(0)
	require.NoError(t, o.log.Tail(t.Context(), after, head, func(e eventlog.Event) error {
		require.True(t, left == 0 && e.Before == 0 || left == e.Left+1 && e.Before > 0, "%s", e.Key.RowKey())
		last[e.Key], left = e, e.Left
		return nil
	}))
	require.Zero(t, left)
	require.NotEmpty(t, last)
	for key, e := range last {
		state, err := v.State(t.Context(), key)
		require.NoError(t, err)
		row, live := state.Row()
		require.Equal(t, e.Op != eventlog.Deleted, live, key.RowKey())
		if live {
			require.Equal(t, e.Revision, row.Revision, key.RowKey())
		}
	}
}

// TestOutageOfTheLog sends each request to a process whose link to the log fails at the n-th message, for each n up to
// the number of messages that the answer needs. Either the message does not reach the server, or only its answer is
// lost. If connections only break, the answer is the same as without the failure. If the link is cut or stalls, the
// answer may also be 503 with Retry-After if nothing was written, or 500 without Retry-After if the outcome is unknown.
// The log then has all of an append, or nothing.
func TestOutageOfTheLog(t *testing.T) {
	t.Parallel() // this test waits more than it works
	const parts = 4
	limit := make(chan struct{}, 24) // requests wait more than they work, but not for each other
	var all sync.WaitGroup
	var tallies []*tally
	var warmed *outage // nothing is written to this cell
	for how, name := range map[eventlogtest.Failure]string{eventlogtest.Breaks: "breaks", eventlogtest.Cuts: "is cut", eventlogtest.Stalls: "stalls"} {
		for _, answered := range []bool{true, false} {
			for _, warm := range []bool{true, false} {
				counts := newTally(fmt.Sprintf("it %s, answered %v, warm %v", name, answered, warm))
				tallies = append(tallies, counts)
				o := warmed
				if o == nil || !warm {
					filled := newOutage(t)
					filled.fill(t)
					o = &filled
				}
				if warm {
					warmed = o
				}
				before := o.head(t)
				all.Go(func() {
					var running sync.WaitGroup
					for part := range parts {
						running.Go(func() {
							limit <- struct{}{}
							defer func() { <-limit }()
							t.Run(fmt.Sprintf("%s %d", counts.of, part), func(t *testing.T) { o.outageOfTheLog(t, warm, answered, how, part, parts, counts) })
						})
					}
					running.Wait()
					if head := o.head(t); head > before {
						t.Run(counts.of+" is whole", func(t *testing.T) { o.requireWhole(t, before, head) })
					}
				})
			}
		}
	}
	all.Wait()
	for _, counts := range tallies {
		t.Log(counts)
	}
}

// filling lets only one cell be filled at a time: filling all cells at once takes seconds for each cell.
var filling sync.Mutex

// tally counts answers, by a description.
type tally struct {
	of string

	mu     sync.Mutex
	counts map[string]int // guarded by mu
}

func newTally(of string) *tally { return &tally{of: of, counts: map[string]int{}} }

func (c *tally) add(kind string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[kind]++
}

// String implements fmt.Stringer.
func (c *tally) String() string { return fmt.Sprint(c.of, ": ", c.counts) }

func (o outage) outageOfTheLog(t *testing.T, warm, answered bool, how eventlogtest.Failure, part, parts int, counts *tally) {
	timeout := time.Second
	if how == eventlogtest.Breaks {
		timeout = 0 // the default: no request waits for it
	}
	for i, r := range o.requests() {
		if i%parts != part || i/parts%7 != 0 || warm && r.method != "GET" { // a write can succeed only once
			continue
		}
		var during []answer
		for n := 1; ; n++ {
			conn, link := eventlogtest.ConnectThrough(t, o.server)
			log := eventlogtest.Open(t, eventlog.Config{Conn: conn, Timeout: timeout})
			s := o.process(log)
			if warm {
				s.must(t, 404, request{method: "GET", path: "/api/v1/nodes/x"}.as("ann"))
			}
			before, asked := o.head(t), r.with("Audit-Id", fmt.Sprintf("log-%v-%v-%d-%d-%d", warm, answered, how, i, n))
			link.FailAt(n, answered, how)
			got := asked.do(t, s)
			failed := link.HasFailed()
			link.Resume()
			_ = conn.FlushTimeout(time.Second) // delayed messages arrive, unless the process has left the connection
			conn.Close()
			written := o.hasWritten(t, asked, before)
			counts.add("requests")
			what := fmt.Sprintf("%s %s, from message %d on: %d %s", r.method, r.path, n, got.code, got.body)
			if failed && got.code >= 500 {
				require.NotEqual(t, eventlogtest.Breaks, how, what)
				require.NotRegexp(t, internals, got.body, what)
			}
			switch {
			case failed && got.code == 503:
				require.Equal(t, "ServiceUnavailable", got.object(t)["reason"], what)
				require.Equal(t, "1", got.header.Get("Retry-After"), what)
				require.False(t, written, "a 503 of what was written: %s", what)
				counts.add("503, nothing written")
				continue
			case failed && got.code == 500:
				require.Empty(t, got.header.Get("Retry-After"), what)
				require.Regexp(t, "the outcome of the write is unknown|a part was written", what)
				if !written {
					counts.add("500, nothing written")
					continue
				}
				counts.add("500, written")
			case failed && !written:
				during = append(during, got)
				continue
			case failed:
				require.Less(t, got.code, 300, what)
				counts.add("as without the outage")
			default:
				require.Less(t, got.code, 500, what)
				for _, d := range during {
					require.Equal(t, got.code, d.code, "%s %s: %s", r.method, r.path, d.body)
					counts.add("as without the outage")
				}
			}
			break
		}
	}
}

// newServiceWebhook answers admission reviews at the Service 'hook'.
func (o outage) newServiceWebhook(t *testing.T) (hook *webhookServer, configuration func(name, more string) string) {
	hook = newWebhookServer(t)
	at := `"clientConfig":` + o.newHookService(t, hook.Config.Handler)
	byURL := regexp.MustCompile(`"clientConfig":\{[^}]*\}`)
	return hook, func(name, more string) string { return byURL.ReplaceAllString(hook.configuration(name, more), at) }
}

// newHookService serves the Service 'hook', and returns the clientConfig that names it.
func (o outage) newHookService(t *testing.T, handler http.Handler) (clientConfig string) {
	authority := newAuthority(t)
	listener, err := net.Listen("tcp", net.JoinHostPort(product.OwnAddress(t), "0"))
	require.NoError(t, err)
	certificate, key := authority.sign(t, &x509.Certificate{DNSNames: []string{"hook.hooks.svc"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	pair, err := tls.X509KeyPair(certificate, key)
	require.NoError(t, err)
	served := httptest.NewUnstartedServer(handler)
	_ = served.Listener.Close()
	served.Listener, served.TLS = listener, &tls.Config{Certificates: []tls.Certificate{pair}}
	served.StartTLS()
	t.Cleanup(served.Close)
	host, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)
	o.must(t, 201, request{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"hooks"}}`}.as("root")) // no quota in this namespace reads the Service
	o.commit(t)
	o.must(t, 201, request{method: "POST", path: "/api/v1/namespaces/hooks/services", body: `{"metadata":{"name":"hook"},"spec":{"ports":[{"name":"https","port":443}]}}`}.as("root"))
	o.commit(t) // puts the EndpointSlice into a segment that no other read needs
	o.must(t, 201, request{method: "POST", path: "/apis/discovery.k8s.io/v1/namespaces/hooks/endpointslices", body: `{"metadata":{"name":"hook-1","labels":{"kubernetes.io/service-name":"hook"}},` +
		`"addressType":"IPv4","endpoints":[{"addresses":["` + host + `"]}],"ports":[{"name":"https","port":` + port + `}]}`}.as("root"))
	return `{"service":{"namespace":"hooks","name":"hook"},"caBundle":"` + base64.StdEncoding.EncodeToString(authority.pem()) + `"}`
}

type decider struct{ path, body string }

// TestOutageOfWhatDecides: if any object of the bucket cannot be read, either the webhook or policy still decides about
// the request, or the answer is 503. A webhook's Service, the rules that a condition asks for, or a policy's params may
// be unreadable. This is not a failure of the webhook or policy, so the failure policy does not apply.
func TestOutageOfWhatDecides(t *testing.T) {
	o := newOutage(t)
	o.fill(t)
	create := func(path, body string) { // each object is in a segment of its own
		o.must(t, 201, request{method: "POST", path: path, body: body}.as("root"))
		o.commit(t)
	}
	hook, configuration := o.newServiceWebhook(t)
	o.commit(t)
	hook.decides(func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		return &admissionv1.AdmissionResponse{}
	})
	create(rbacPath+"/clusterroles", `{"metadata":{"name":"robot"},"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]}`)
	create(rbacPath+"/clusterrolebindings", `{"metadata":{"name":"robot"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"robot"},"subjects":[{"kind":"ServiceAccount","name":"robot","namespace":"default"}]}`)
	create("/apis/ex.com/v1/namespaces/default/things", fmt.Sprintf(outageCustom, "param"))
	create("/api/v1/namespaces/default/configmaps", fmt.Sprintf(outageConfigMap, "param"))
	const ignore = `"failurePolicy":"Ignore"`
	const condition = `,"matchConditions":[{"name":"a","expression":"authorizer.serviceAccount('default', 'robot').group('').resource('pods').check('get').allowed()"}]`
	policy := func(expression, more string) decider {
		return decider{registration + "validatingadmissionpolicies", policyOf("decides", expression, ","+ignore+more)}
	}
	const bound = registration + "validatingadmissionpolicybindings"
	param := `,"paramRef":{"name":"param","namespace":"default","parameterNotFoundAction":"Deny"}`
	for what, objects := range map[string][]decider{
		"a validating webhook of a Service":  {{validatingWebhooks, configuration("v", ","+ignore)}},
		"a mutating webhook of a Service":    {{mutatingWebhooks, configuration("m", ","+ignore)}},
		"one that must be asked":             {{mutatingWebhooks, configuration("m", "")}},
		"a webhook's condition":              {{validatingWebhooks, hook.configuration("c", ","+ignore+condition)}},
		"a policy's condition":               {policy("false", condition), {bound, bindingOf("decides", "")}},
		"a policy's params":                  {policy("params.data.a == '2'", `,"paramKind":{"apiVersion":"v1","kind":"ConfigMap"}`), {bound, bindingOf("decides", param)}},
		"a policy's params of a custom kind": {policy("params.spec.a == '2'", `,"paramKind":{"apiVersion":"ex.com/v1","kind":"Thing"}`), {bound, bindingOf("decides", param)}},
	} {
		for _, made := range objects {
			create(made.path, made.body)
		}
		refused := request{method: "POST", path: configMaps, body: `{"metadata":{"name":"denied"},"data":{"a":"1"}}`}.as("ann")
		counts := newTally(what)
		require.Contains(t, []int{400, 422}, refused.do(t, o.process(o.log)).code)
		o.eachWithout(t, refused, func(without string, got answer) {
			counts.add(fmt.Sprint(got.code))
			require.Contains(t, []int{400, 422, 503}, got.code, "%s, without %s: %s", what, without, got.body)
			require.NotRegexp(t, internals, got.body)
			require.Equal(t, got.code == 503, got.header.Get("Retry-After") == "1", got.body)
		})
		require.NotZero(t, counts.counts["503"])
		t.Log(counts)
		for _, made := range objects {
			name := fieldOf(answer{body: made.body}.object(t), "metadata.name").(string)
			o.must(t, 200, request{method: "DELETE", path: made.path + "/" + name}.as("root"))
		}
	}
}

// eachWithout sends a request while one object of the bucket cannot be read, from the object's n-th read on. It repeats
// this for each object that the request needs and for each n.
func (o outage) eachWithout(t *testing.T, r request, check func(without string, got answer)) {
	asked := map[string]int{} // guarded by the bucket's lock
	o.bucket.Inject(func(_ memory.Op, key string) memory.Fault { asked[key]++; return memory.Works })
	r.do(t, o.process(o.log))
	o.bucket.Inject(nil)
	for key, times := range asked {
		for from := range times {
			n := 0 // guarded by the bucket's lock
			o.bucket.Inject(func(_ memory.Op, k string) memory.Fault {
				if k == key {
					n++
				}
				if k == key && n > from {
					return memory.Fails
				}
				return memory.Works
			})
			got := r.do(t, o.process(o.log))
			o.bucket.Inject(nil)
			check(key, got)
		}
	}
}

// TestOutageOfAConversion: if a CRD names its conversion webhook by a Service, an endpoint of the Service is called. A
// Service that cannot be read is not a failure of the webhook, and the answer is 503.
func TestOutageOfAConversion(t *testing.T) {
	o := newOutage(t)
	require.NoError(t, o.Bootstrap(t.Context()))
	o.commit(t)
	clientConfig := o.newHookService(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { convert(w, r, nil) }))
	o.commit(t)
	o.must(t, 201, request{method: "POST", path: crdPath, body: convertedCRD("thing", clientConfig)}.as("root"))
	o.commit(t)
	const one, two = "/apis/ex.com/v1/namespaces/default/things", "/apis/ex.com/v2/namespaces/default/things"
	second := func(name string) string { return strings.Replace(fmt.Sprintf(outageCustom, name), "/v1", "/v2", 1) }
	made := o.must(t, 201, request{method: "POST", path: one, body: fmt.Sprintf(outageCustom, "old")}.as("root")).body
	o.commit(t)
	require.Contains(t, o.must(t, 200, request{method: "GET", path: two + "/old"}.as("root")).body, `"converted":"ex.com/v2"`)
	dry := "?dryRun=All"
	for what, r := range map[string]request{
		"get":    {method: "GET", path: two + "/old"},
		"list":   {method: "GET", path: two},
		"create": {method: "POST", path: two + dry, body: second("new")},
		"update": {method: "PUT", path: two + "/old" + dry, body: strings.Replace(annotated(made), "/v1", "/v2", 1)},
		"merge":  {method: "PATCH", path: two + "/old" + dry, body: `{"metadata":{"labels":{"b":"2"}}}`, contentType: "application/merge-patch+json"},
		"apply":  {method: "PATCH", path: two + "/old" + dry + "&fieldManager=m&force=true", body: second("old"), contentType: "application/apply-patch+yaml"},
		"delete": {method: "DELETE", path: two + "/old" + dry},
		"empty":  {method: "DELETE", path: two + dry},
	} {
		counts, before := newTally(what), o.head(t)
		o.eachWithout(t, r.as("root"), func(without string, got answer) {
			counts.add(fmt.Sprint(got.code))
			require.Contains(t, []int{200, 201, 503}, got.code, "%s without %s: %s", what, without, got.body)
			require.Equal(t, got.code == 503, got.header.Get("Retry-After") == "1", got.body)
			if got.code == 503 {
				require.NotRegexp(t, internals, got.body)
			}
		})
		require.NotZero(t, counts.counts["503"])
		require.Equal(t, before, o.head(t))
		t.Log(counts)
	}
}

// TestOutageOfARemoteServer: while the Service of a remote APIService cannot be read, the state of the remote server is
// unknown. The answer to a request for that server allows a retry, and the APIService's condition stays as it is.
func TestOutageOfARemoteServer(t *testing.T) {
	o := newOutage(t)
	require.NoError(t, o.Bootstrap(t.Context()))
	o.commit(t)
	var at struct{ CABundle string }
	served := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") })
	require.NoError(t, json.Unmarshal([]byte(o.newHookService(t, served)), &at))
	o.commit(t)
	made := o.must(t, 201, request{method: "POST", path: apiServices, body: `{"metadata":{"name":"v1.remote.ex"},"spec":{"group":"remote.ex","version":"v1",` +
		`"service":{"name":"hook","namespace":"hooks"},"caBundle":"` + at.CABundle + `","groupPriorityMinimum":10,"versionPriority":10}}`}.as("root"))
	o.commit(t)
	service := &apiregistrationv1.APIService{}
	require.NoError(t, json.Unmarshal([]byte(made.body), service))
	counts := newTally("requests")
	o.eachWithout(t, request{method: "GET", path: "/apis/remote.ex/v1/things"}.as("root"), func(without string, got answer) {
		counts.add(fmt.Sprint(got.code))
		require.Contains(t, []int{200, 503}, got.code, "without %s: %s", without, got.body)
		require.Equal(t, got.code == 503, got.header.Get("Retry-After") == "1", got.body)
		require.NotRegexp(t, internals, got.body)
	})
	require.NotZero(t, counts.counts["503"])

	unknown := func(s *Server) bool {
		condition, err := s.CheckRemote(t.Context(), service)
		if err == nil {
			require.Equal(t, "Passed", condition.Reason, condition.Message)
		}
		return err != nil
	}
	caughtUp := func() *Server {
		s := o.process(o.log)
		s.must(t, 404, request{method: "GET", path: "/api/v1/nodes/x"}.as("root"))
		return s
	}
	require.False(t, unknown(caughtUp()))
	for n := 1; ; n++ {
		s := caughtUp()
		failed := o.failFrom(n)
		isUnknown := unknown(s)
		if !failed() {
			require.False(t, isUnknown)
			break
		}
		require.True(t, isUnknown, "from read %d on", n)
		counts.add("conditions unknown")
	}
	require.NotZero(t, counts.counts["conditions unknown"])
	t.Log(counts)
}

// troubled is a process's bucket whose reads meet a fault from a certain read on.
type troubled struct {
	bucket.Bucket
	met   func(context.Context) error
	begin atomic.Int64 // 0 means never
	asked atomic.Int64
}

// from makes the n-th read from now on, and all later reads, meet the fault.
func (b *troubled) from(n int) {
	b.asked.Store(0)
	b.begin.Store(int64(n))
}

func (b *troubled) isMet() bool { return b.begin.Load() > 0 && b.asked.Load() >= b.begin.Load() }

func (b *troubled) meet(ctx context.Context) error {
	b.asked.Add(1)
	if b.isMet() {
		return b.met(ctx)
	}
	return nil
}

// Get implements bucket.Bucket.
func (b *troubled) Get(ctx context.Context, key string) ([]byte, string, error) {
	if err := b.meet(ctx); err != nil {
		return nil, "", fmt.Errorf("get %s: %w", key, err)
	}
	return b.Bucket.Get(ctx, key)
}

// GetRange implements bucket.Bucket.
func (b *troubled) GetRange(ctx context.Context, key string, offset, length int64) ([]byte, error) {
	if err := b.meet(ctx); err != nil {
		return nil, fmt.Errorf("get a range of %s: %w", key, err)
	}
	return b.Bucket.GetRange(ctx, key, offset, length)
}

// List implements bucket.Bucket.
func (b *troubled) List(ctx context.Context, prefix string, yield func(bucket.Attributes) error) error {
	if err := b.meet(ctx); err != nil {
		return fmt.Errorf("list %s: %w", prefix, err)
	}
	return b.Bucket.List(ctx, prefix, yield)
}

// over sends the request to a server behind a listener, so that the client does not wait for a stubborn handler.
func (r request) over(t *testing.T, h http.Handler) answer {
	listener := httptest.NewServer(h)
	defer listener.Close()
	sent, err := http.NewRequestWithContext(t.Context(), r.method, listener.URL+r.path, strings.NewReader(r.body))
	if err != nil {
		t.Error(err)
		return answer{}
	}
	for name, values := range r.header {
		sent.Header[name] = values
	}
	sent.Header.Set("Content-Type", cmp.Or(r.contentType, "application/json"))
	got, err := (&http.Client{Timeout: 20 * time.Second}).Do(sent)
	if err != nil {
		t.Errorf("%s %s hangs, or is cut off: %v", r.method, r.path, err)
		return answer{}
	}
	defer func() { _ = got.Body.Close() }()
	body, err := io.ReadAll(got.Body)
	if err != nil {
		t.Error(err)
	}
	return answer{got.StatusCode, got.Header, string(body)}
}

// TestOutageThatStalls: if a bucket or a log stops answering at some point of a request, the client waits no longer
// than its request may take. The answer is the same as without the stall, or 504, or 503 with Retry-After if nothing
// was written, or 500 without Retry-After if the outcome is unknown. Every event is read back complete.
func TestOutageThatStalls(t *testing.T) {
	limit := make(chan struct{}, 48) // requests wait more than they work
	for what, stall := range map[string]func(t *testing.T, o outage, n int) (s *Server, stalled func() bool){
		"the bucket": func(t *testing.T, o outage, n int) (*Server, func() bool) {
			released := make(chan struct{})
			b := &troubled{Bucket: o.bucket, met: func(ctx context.Context) error {
				select {
				case <-released:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}}
			b.from(n)
			return o.processOn(o.log, b), func() bool { close(released); return b.isMet() }
		},
		"the log, which has answered": func(t *testing.T, o outage, n int) (*Server, func() bool) { return o.overStallingLink(t, n, true) },
		"the log":                     func(t *testing.T, o outage, n int) (*Server, func() bool) { return o.overStallingLink(t, n, false) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			filling.Lock()
			o := newOutage(t)
			o.fill(t)
			filling.Unlock()
			before, asked := o.head(t), make(chan stalled, 10_000)
			var running sync.WaitGroup
			for i, r := range o.requests() {
				if strings.Contains(r.path, "watch=1") || i%3 != 0 || testing.Short() && i%7 != 0 {
					continue
				}
				running.Go(func() {
					limit <- struct{}{}
					defer func() { <-limit }()
					for n := 1; ; n += 1 + n/5 {
						a := stalled{request: r.with("Audit-Id", fmt.Sprintf("stall-%d-%d", i, n)), n: n}
						a.path += map[bool]string{true: "&", false: "?"}[strings.Contains(r.path, "?")] + "timeout=1s"
						s, end := stall(t, o, n)
						a.got = a.over(t, s)
						a.during = end()
						asked <- a
						if !a.during || r.method != "GET" && a.got.code < 300 { // a write can succeed only once
							return
						}
					}
				})
			}
			running.Wait()
			close(asked)
			o.process(o.log).must(t, 201, request{method: "POST", path: configMapsIn("default"), body: `{"metadata":{"name":"afterwards"}}`}.as("ann"))
			head, events, written, counts := o.head(t), 0, map[string]bool{}, newTally("answers")
			o.requireWhole(t, before, head)
			require.NoError(t, o.log.Tail(t.Context(), before, head, func(e eventlog.Event) error {
				events++
				id, _, _ := strings.Cut(e.RequestID, "/")
				written[id] = true
				return nil
			}))
			for a := range asked {
				what := fmt.Sprintf("%s %s, from %d on: %d %s", a.method, a.path, a.n, a.got.code, a.got.body)
				isWritten := written[a.header.Get("Audit-Id")]
				counts.add("requests")
				if !a.during {
					counts.add("not stalled")
					continue
				}
				counts.add(fmt.Sprint(a.got.code, map[bool]string{true: ", written", false: ", nothing written"}[isWritten]))
				require.NotRegexp(t, internals, a.got.body, what)
				switch a.got.code {
				case 503:
					require.Equal(t, "1", a.got.header.Get("Retry-After"), what)
					require.False(t, isWritten, what)
				case 500:
					require.Empty(t, a.got.header.Get("Retry-After"), what)
					require.Regexp(t, "the outcome of the write is unknown|a part was written", what)
				case 504:
					require.Equal(t, "Timeout", a.got.object(t)["reason"], what)
					require.Empty(t, a.got.header.Get("Retry-After"), what)
				default:
					require.Less(t, a.got.code, 500, what)
				}
				if isWritten && a.got.code >= 300 {
					require.Contains(t, a.got.body, "the outcome of the write is unknown", what)
				}
			}
			t.Logf("%d events read back whole, %v", events, counts)
		})
	}
}

// stalled is a request with its answer. The bucket or log stalled from the n-th read or message on. during says that
// the request was still being served when the stall began.
type stalled struct {
	request
	n      int
	during bool
	got    answer
}

// overStallingLink makes a process whose link to the log stalls at the n-th message.
func (o outage) overStallingLink(t *testing.T, n int, answered bool) (s *Server, stalled func() bool) {
	conn, link := eventlogtest.ConnectThrough(t, o.server)
	s = o.process(eventlogtest.Open(t, eventlog.Config{Conn: conn}))
	link.FailAt(n, answered, eventlogtest.Stalls)
	return s, func() bool {
		failed := link.HasFailed()
		link.Resume()
		_ = conn.FlushTimeout(time.Second) // delayed messages arrive, unless the process has left the connection
		conn.Close()
		return failed
	}
}
