package apiserver

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/internal/kubestore/fanout"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket/memory"
	"github.com/logplane/logplane/projection/cache"
)

// outage is a cell whose bucket fails from some request on. Nothing is in its root, so that everything is read.
type outage struct {
	*Server // by which the cell is filled

	process func() *Server
	bucket  *memory.Bucket
	made    map[string]string // objects by path
}

func newOutage(t *testing.T) outage {
	path := filepath.Join(t.TempDir(), "tokens.csv")
	require.NoError(t, os.WriteFile(path, []byte("root-token,root,1,system:masters\nann-token,ann,2\n"), 0o600))
	log, bucket := eventlogtest.Log(t), memory.Strict(t)
	process := func() *Server {
		p, err := projection.Open(projection.Config{Log: log, Bucket: bucket, InlineBytes: 1})
		require.NoError(t, err)
		s, err := New(Config{
			Cell:           kubestore.Cell{Log: log, Projection: p, Cluster: "main", Feed: fanout.NewFeed(p), Objects: kubestore.NewObjects(cache.NewBudget(1 << 20))},
			Authentication: Authentication{TokenFile: path}, Authorization: Authorization{Mode: "RBAC"},
		})
		require.NoError(t, err)
		return s
	}
	return outage{process(), process, bucket, map[string]string{}}
}

// failFrom lets the bucket fail from its n-th request on, and returns whether it has failed.
func (o outage) failFrom(n int) (failed func() bool) {
	asked := 0 // by the bucket's lock
	o.bucket.Inject(func(memory.Op, string) memory.Fault {
		asked++
		if asked < n {
			return memory.Works
		}
		return memory.Fails
	})
	return func() bool { o.bucket.Inject(nil); return asked >= n }
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

// outageKinds are the kinds that are asked for, each with a collection, an object and a merge patch of one.
var outageKinds = []struct{ name, collection, object, patch string }{
	{"configmap", configMaps, outageConfigMap, `{"data":{"b":"2"}}`},
	{"deployment", "/apis/apps/v1/namespaces/default/deployments", outageDeployment, `{"spec":{"replicas":3}}`},
	{"service", "/api/v1/namespaces/default/services", outageService, `{"metadata":{"labels":{"b":"2"}}}`},
	{"pod", "/api/v1/namespaces/default/pods", outagePod, `{"metadata":{"labels":{"b":"2"}}}`},
	{"clusterrole", rbacPath + "/clusterroles", outageRole, `{"metadata":{"labels":{"b":"2"}}}`},
	{"custom", "/apis/ex.com/v1/namespaces/default/things", outageCustom, `{"spec":{"b":"2"}}`},
}

// requests are asked in this order. Each write has an object of its own.
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

// annotated is an object as a client sends it back.
func annotated(object string) string {
	return strings.Replace(object, `"metadata":{`, `"metadata":{"annotations":{"b":"2"},`, 1)
}

func inDefault(object string) string {
	if strings.Contains(object, "ClusterRole") {
		return object
	}
	return strings.Replace(object, `"metadata":{`, `"metadata":{"namespace":"default",`, 1)
}

// fill makes what the requests are about, in several segments.
func (o outage) fill(t *testing.T) {
	require.NoError(t, o.Bootstrap(t.Context()))
	commit := func() {
		_, err := o.config.Cell.Projection.Commit(t.Context())
		require.NoError(t, err)
	}
	create := func(path, body string) string {
		t.Helper()
		return o.must(t, 201, request{method: "POST", path: path, body: body}.as("root")).body
	}
	commit()
	create(rbacPath+"/clusterrolebindings", `{"metadata":{"name":"ann"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"User","name":"ann","apiGroup":"rbac.authorization.k8s.io"}]}`)
	create(crdPath, fmt.Sprintf(outageCRD, "thing", "Thing"))
	create(crdPath, fmt.Sprintf(outageCRD, "other", "Other"))
	commit()
	create(rbacPath+"/clusterroles", `{"metadata":{"name":"part","labels":{"part":"yes"}},"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]}`)
	create("/api/v1/namespaces/default/resourcequotas", `{"metadata":{"name":"q"},"spec":{"hard":{"services":"50","pods":"50","configmaps":"50","count/things.ex.com":"50"}}}`)
	create("/api/v1/namespaces/default/limitranges", `{"metadata":{"name":"l"},"spec":{"limits":[{"type":"Container","default":{"cpu":"1"}}]}}`)
	create("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies", `{"metadata":{"name":"p"},"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":["*"],"apiVersions":["*"],"operations":["*"],"resources":["*"]}]},"validations":[{"expression":"true"}]}}`)
	create("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings", `{"metadata":{"name":"p"},"spec":{"policyName":"p","validationActions":["Deny"]}}`)
	create("/api/v1/namespaces", `{"metadata":{"name":"deleted"}}`)
	commit()
	for _, k := range outageKinds {
		for _, name := range []string{"get", "update", "merge", "strategic", "json", "apply", "delete", "old"} {
			o.made[k.collection+"/"+name] = create(k.collection, fmt.Sprintf(k.object, name))
		}
	}
	commit()
}

// internals are texts of the bucket and the log that no client may see.
var internals = regexp.MustCompile(`injected fault|segment|logplane/|main/|memory\.|nats:`)

// TestOutage asks a process for everything while its bucket fails from its n-th request on, for each n until the answer
// needs no more of them. Each answer is what it would be without the outage, or 503 with Retry-After if nothing was
// written, or 500 without it if something was. None says where things are stored.
func TestOutage(t *testing.T) {
	o := newOutage(t)
	o.fill(t)
	head := func() eventlog.Revision {
		b, err := o.config.Cell.Log.Head(t.Context())
		require.NoError(t, err)
		return b.Head
	}
	counts := map[string]int{}
	all := o.requests()
	for i, r := range all {
		if testing.Short() && i%7 != 0 {
			continue
		}
		for _, warm := range []bool{true, false} {
			if warm && r.method != "GET" { // a write succeeds once
				continue
			}
			var failures []answer
			for n := 1; ; n++ {
				s := o.process()
				if warm {
					s.must(t, 404, request{method: "GET", path: "/api/v1/nodes/x"}.as("ann"))
				}
				before, failed := head(), o.failFrom(n)
				got := r.do(t, s)
				again := failed()
				counts["requests"]++
				if again && got.code >= 400 {
					require.NotRegexp(t, internals, got.body, "%s %s", r.method, r.path)
				}
				if again && got.code == 503 {
					status := got.object(t)
					require.Equal(t, "ServiceUnavailable", status["reason"], "%s %s: %s", r.method, r.path, got.body)
					require.Equal(t, "1", got.header.Get("Retry-After"), "%s %s: %s", r.method, r.path, got.body)
					require.Equal(t, before, head(), "a 503 of what was written: %s %s: %s", r.method, r.path, got.body)
					counts["503, nothing written"]++
					continue
				}
				if again && got.code == 500 && before != head() {
					require.Empty(t, got.header.Get("Retry-After"), "%s %s: %s", r.method, r.path, got.body)
					counts["500, written"]++
					break // so that it is not as it was
				}
				failures = append(failures, got)
				if again {
					continue
				}
				require.Less(t, got.code, 500, got.body)
				for _, f := range failures[:len(failures)-1] {
					require.Equal(t, got.code, f.code, "%s %s: %s", r.method, r.path, f.body)
					counts["as without the outage"]++
				}
				break
			}
		}
	}
	require.Greater(t, counts["503, nothing written"], len(all)/7)
	t.Logf("%d kinds of requests: %v", len(all), counts)
}
