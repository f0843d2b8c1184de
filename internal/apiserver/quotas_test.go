package apiserver

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

const resourceQuotas = "/api/v1/namespaces/default/resourcequotas"

// usedOf returns the usage that a quota's status shows.
func usedOf(t *testing.T, s *Server, name string) map[string]string {
	t.Helper()
	var quota corev1.ResourceQuota
	require.NoError(t, json.Unmarshal([]byte(s.must(t, 200, request{method: "GET", path: resourceQuotas + "/" + name}).body), &quota))
	used := map[string]string{}
	for name, amount := range quota.Status.Used {
		used[string(name)] = amount.String()
	}
	return used
}

func quotaOf(name, hard string) string {
	return `{"metadata":{"name":"` + name + `"},"spec":{"hard":{` + hard + `}}}`
}

// TestQuotasAreExact: many writers on two processes create and delete under one quota. The quota is never exceeded, and
// its usage is the number of objects at every revision.
func TestQuotasAreExact(t *testing.T) {
	rounds, clients := 8, 16 // TestQuotaAcrossProcesses has more clients
	if testing.Short() {
		rounds = 3
	}
	one, other, projector := twoServers(t)
	require.NoError(t, one.Bootstrap(t.Context()))
	servers := []*Server{one, other}
	one.must(t, 201, request{method: "POST", path: resourceQuotas, body: quotaOf("q", `"count/configmaps":"20"`)})
	require.Equal(t, map[string]string{"count/configmaps": "0"}, usedOf(t, one, "q"))
	for round := range rounds {
		var writing sync.WaitGroup
		var mu sync.Mutex
		codes := map[int]int{}
		for client := range clients {
			writing.Go(func() {
				for i := range 2 {
					a := request{method: "POST", path: configMaps, body: fmt.Sprintf(`{"metadata":{"name":"c-%d-%d"}}`, client, i)}.do(t, servers[client%2])
					if a.code == 403 {
						require.Contains(t, a.body, "exceeded quota: q, requested: count/configmaps=1, used: count/configmaps=20, limited: count/configmaps=20")
					}
					mu.Lock()
					codes[a.code]++
					mu.Unlock()
				}
			})
		}
		writing.Wait()
		require.Equal(t, map[int]int{201: 20, 403: 12}, codes, "round %d", round)
		require.Equal(t, map[string]string{"count/configmaps": "20"}, usedOf(t, other, "q"))
		if round%3 == 0 {
			_, err := projector.Commit(t.Context())
			require.NoError(t, err)
		}
		for client := range clients {
			writing.Go(func() {
				for i := range 2 {
					request{method: "DELETE", path: fmt.Sprintf(configMaps+"/c-%d-%d", client, i)}.do(t, servers[(client+1)%2])
				}
			})
		}
		writing.Wait()
		require.Equal(t, map[string]string{"count/configmaps": "0"}, usedOf(t, one, "q"))
	}
	view, err := one.config.Cell.Projection.Latest(t.Context())
	require.NoError(t, err)
	indexer := one.listers.IndexerOf(&corev1.ResourceQuota{})
	for revision := view.Floor() + 1; revision <= view.Revision(); revision++ {
		revision, err := one.config.Cell.Projection.EndOf(t.Context(), revision) // clients see this revision
		require.NoError(t, err)
		row, found, err := view.Get(t.Context(), indexer.Prefix()+"default/q", revision)
		require.NoError(t, err)
		if !found {
			continue
		}
		quota, err := indexer.Parse(t.Context(), row)
		require.NoError(t, err)
		n, err := view.Count(t.Context(), "main/configmaps/default/", "main/configmaps/default0", revision)
		require.NoError(t, err)
		used := quota.(*corev1.ResourceQuota).Status.Used["count/configmaps"]
		require.EqualValues(t, used.Value(), n, "revision %d", revision)
	}
}

// TestWhatQuotasLimit: creates and updates charge each kind of limit, and updates and deletions give back the charge.
func TestWhatQuotasLimit(t *testing.T) {
	s := newServer(t)
	require.NoError(t, s.Bootstrap(t.Context()))
	const pods, services = "/api/v1/namespaces/default/pods", "/api/v1/namespaces/default/services"
	pod := func(name, cpu string) string {
		return `{"metadata":{"name":"` + name + `"},"spec":{"containers":[{"name":"c","image":"i","resources":{"requests":{"cpu":"` + cpu + `"}}}]}}`
	}
	s.must(t, 201, request{method: "POST", path: pods, body: pod("before", "100m")})
	s.must(t, 201, request{method: "POST", path: resourceQuotas, body: quotaOf("q", `"pods":"3","requests.cpu":"1","services.nodeports":"1","resourcequotas":"2","count/widgets.example.com":"1"`)})
	require.Equal(t, map[string]string{"pods": "1", "requests.cpu": "100m", "services.nodeports": "0", "resourcequotas": "1", "count/widgets.example.com": "0"}, usedOf(t, s, "q"))

	// Upstream demands some fields of Pods, and refuses some Pods.
	require.Contains(t, s.must(t, 403, request{method: "POST", path: pods, body: `{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}`}).body, "must specify requests.cpu for: c")
	s.must(t, 201, request{method: "POST", path: pods, body: pod("half", "500m")})
	refused := s.must(t, 403, request{method: "POST", path: pods + "?dryRun=All", body: pod("more", "500m")})
	require.Contains(t, refused.body, "exceeded quota: q, requested: requests.cpu=500m, used: requests.cpu=600m, limited: requests.cpu=1")
	s.must(t, 201, request{method: "POST", path: pods + "?dryRun=All", body: pod("dry", "100m")})
	require.Equal(t, "600m", usedOf(t, s, "q")["requests.cpu"])

	// A Pod that has ended uses nothing, however its end is written.
	s.must(t, 200, request{method: "PATCH", path: pods + "/half/status", body: `{"status":{"phase":"Succeeded"}}`, contentType: "application/merge-patch+json"})
	require.Equal(t, "100m", usedOf(t, s, "q")["requests.cpu"])
	s.must(t, 200, request{method: "DELETE", path: pods + "/half"})
	s.must(t, 200, request{method: "DELETE", path: pods + "/before?gracePeriodSeconds=0"})
	require.Equal(t, "0", usedOf(t, s, "q")["requests.cpu"])
	require.Equal(t, "0", usedOf(t, s, "q")["pods"])

	// An update may use more.
	service := func(name, kind string) string {
		return `{"metadata":{"name":"` + name + `"},"spec":{"type":"` + kind + `","ports":[{"port":80}]}}`
	}
	s.must(t, 201, request{method: "POST", path: services, body: service("a", "ClusterIP")})
	s.must(t, 201, request{method: "POST", path: services, body: service("b", "NodePort")})
	toNodePort := request{method: "PATCH", path: services + "/a", body: `{"spec":{"type":"NodePort"}}`, contentType: "application/merge-patch+json"}
	require.Contains(t, s.must(t, 403, toNodePort).body, "exceeded quota")
	s.must(t, 200, request{method: "DELETE", path: services + "/b"})
	s.must(t, 200, toNodePort)
	require.Equal(t, "1", usedOf(t, s, "q")["services.nodeports"])

	// Quotas themselves.
	s.must(t, 201, request{method: "POST", path: resourceQuotas, body: quotaOf("r", `"configmaps":"5"`)})
	require.Equal(t, "2", usedOf(t, s, "q")["resourcequotas"])
	s.must(t, 403, request{method: "POST", path: resourceQuotas, body: quotaOf("s", `"configmaps":"5"`)})
	s.must(t, 200, request{method: "DELETE", path: resourceQuotas + "/r"})
	require.Equal(t, "1", usedOf(t, s, "q")["resourcequotas"])

	// Custom resources.
	s.must(t, 201, request{method: "POST", path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body: `{"metadata":{"name":"widgets.example.com"},"spec":{"group":"example.com","scope":"Namespaced",` +
		`"names":{"plural":"widgets","kind":"Widget"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`})
	const widgets = "/apis/example.com/v1/namespaces/default/widgets"
	widget := func(name string) string {
		return `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"` + name + `"}}`
	}
	s.must(t, 201, request{method: "POST", path: widgets, body: widget("a")})
	s.must(t, 403, request{method: "POST", path: widgets, body: widget("b")})
	s.must(t, 200, request{method: "DELETE", path: widgets + "/a"})
	s.must(t, 201, request{method: "POST", path: widgets, body: widget("b")})
	s.must(t, 200, request{method: "DELETE", path: resourceQuotas + "/q"})
	s.must(t, 201, request{method: "POST", path: widgets, body: widget("c")})
	s.must(t, 201, request{method: "POST", path: resourceQuotas, body: quotaOf("q", `"count/widgets.example.com":"5","count/pods":"3"`)})
	require.Equal(t, map[string]string{"count/widgets.example.com": "2", "count/pods": "0"}, usedOf(t, s, "q"))
}

// TestToldStatusOfAQuota: a user who writes the status of a quota gets that status in the answer, and so do all
// readers. But that status decides nothing: the next charge counts the usage, and so does the lifecycle's next write of
// the quota.
func TestToldStatusOfAQuota(t *testing.T) {
	s := newServer(t)
	s.must(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"a"}}`})
	s.must(t, 201, request{method: "POST", path: resourceQuotas, body: quotaOf("q", `"configmaps":"2"`)})
	tell := func(query, hard, used string) answer {
		return s.must(t, 200, request{
			method: "PATCH", path: resourceQuotas + "/q/status" + query, contentType: "application/merge-patch+json",
			body: `{"status":{"hard":{"configmaps":"` + hard + `"},"used":{"configmaps":"` + used + `"}}}`,
		})
	}
	told := func(hard, used string) {
		t.Helper()
		tell("?dryRun=All", "9", "9")
		for _, a := range []answer{tell("", hard, used), s.must(t, 200, request{method: "GET", path: resourceQuotas + "/q"})} {
			require.Equal(t, hard, fieldOf(a.object(t), "status.hard.configmaps"))
			require.Equal(t, used, fieldOf(a.object(t), "status.used.configmaps"))
			require.Equal(t, "2", fieldOf(a.object(t), "spec.hard.configmaps"))
		}
	}
	told("2", "2") // the status says that the quota is full
	s.must(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"b"}}`})
	require.Equal(t, "2", usedOf(t, s, "q")["configmaps"])
	told("5", "0") // the status says that there is much room
	refused := s.must(t, 403, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"c"}}`})
	require.Contains(t, refused.body, "exceeded quota: q, requested: configmaps=1, used: configmaps=2, limited: configmaps=2")
	s.must(t, 200, request{method: "DELETE", path: configMaps + "/b"})
	got := s.must(t, 200, request{method: "GET", path: resourceQuotas + "/q"}).object(t)
	require.Equal(t, "1", fieldOf(got, "status.used.configmaps"))
	require.Equal(t, "2", fieldOf(got, "status.hard.configmaps"))
	told("7", "7")
	s.must(t, 200, request{method: "PATCH", path: resourceQuotas + "/q", body: `{}`, contentType: "application/merge-patch+json"})
	require.Equal(t, "1", usedOf(t, s, "q")["configmaps"])
}

// TestQuotaOfManyQuotas: the number of quotas that one object's append would update is bounded.
func TestQuotaOfManyQuotas(t *testing.T) {
	s := newServer(t)
	for i := range 50 {
		s.must(t, 201, request{method: "POST", path: resourceQuotas, body: quotaOf(fmt.Sprintf("q-%d", i), `"configmaps":"2"`)})
	}
	require.Contains(t, s.must(t, 403, request{method: "POST", path: resourceQuotas, body: quotaOf("more", `"configmaps":"1"`)}).body, "at most 50 quotas")
	s.must(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"a"}}`})
	require.Equal(t, "1", usedOf(t, s, "q-49")["configmaps"])
	var many []string
	for i := range 201 {
		many = append(many, fmt.Sprintf(`"count/a%d.example.com":"1"`, i))
	}
	s.must(t, 200, request{method: "DELETE", path: resourceQuotas + "/q-0"})
	s.must(t, 422, request{method: "POST", path: resourceQuotas, body: quotaOf("many", strings.Join(many, ","))})
	s.must(t, 201, request{method: "POST", path: resourceQuotas, body: quotaOf("many", strings.Join(many[:200], ","))})
}

// TestNewNamespacesAreComplete: a namespace has its account and its certificate at its own revision, so a Pod can be
// created at once.
func TestNewNamespacesAreComplete(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ca.crt")
	require.NoError(t, os.WriteFile(file, []byte("CERTIFICATE"), 0o600))
	s := newServer(t, func(c *Config) { c.RootCAFile = file })
	var made metav1.PartialObjectMetadata
	require.NoError(t, json.Unmarshal([]byte(s.must(t, 201, request{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"n"}}`}).body), &made))
	at := "?resourceVersionMatch=Exact&resourceVersion=" + made.ResourceVersion
	require.Contains(t, s.must(t, 200, request{method: "GET", path: "/api/v1/namespaces/n/serviceaccounts" + at}).body, `"name":"default"`)
	certificate := s.must(t, 200, request{method: "GET", path: "/api/v1/namespaces/n/configmaps" + at}).body
	require.Contains(t, certificate, `"name":"kube-root-ca.crt"`)
	require.Contains(t, certificate, `"ca.crt":"CERTIFICATE"`)
	pod := s.must(t, 201, request{method: "POST", path: "/api/v1/namespaces/n/pods", body: `{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}`}).body
	require.Contains(t, pod, `"serviceAccountName":"default"`)
	require.Contains(t, pod, "/var/run/secrets/kubernetes.io/serviceaccount")
	refused := s.must(t, 403, request{method: "POST", path: "/api/v1/namespaces/n/pods", body: `{"metadata":{"name":"q"},"spec":{"serviceAccountName":"no","containers":[{"name":"c","image":"i"}]}}`})
	require.Contains(t, refused.body, "error looking up service account n/no")
	require.NoError(t, s.Bootstrap(t.Context()))
	require.Contains(t, s.must(t, 200, request{method: "GET", path: "/api/v1/namespaces/kube-public/configmaps"}).body, `"ca.crt":"CERTIFICATE"`)
	s.must(t, 201, request{method: "POST", path: "/api/v1/namespaces?dryRun=All", body: `{"metadata":{"name":"dry"}}`})
	require.NotContains(t, s.must(t, 200, request{method: "GET", path: "/api/v1/serviceaccounts"}).body, `"namespace":"dry"`)
}

// TestNothingNewInWhatTerminates: admission of a create has seen an active namespace. If the namespace terminates
// before the create is written, the create is refused.
func TestNothingNewInWhatTerminates(t *testing.T) {
	s := newServer(t)
	s.must(t, 201, request{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"n"}}`})
	old, err := s.config.Cell.Projection.Latest(t.Context())
	require.NoError(t, err)
	s.must(t, 200, request{method: "DELETE", path: "/api/v1/namespaces/n"})
	now, err := s.config.Cell.Projection.Latest(t.Context())
	require.NoError(t, err)
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "late"}}
	change := kubestore.Change{Key: s.stores.Key(corev1.Resource("configmaps"), "n", "late"), After: object}
	for _, c := range []struct {
		view    *projection.View
		refused string
	}{{old, ""}, {now, "because it is being terminated"}} {
		_, err := s.alongside(t.Context(), c.view, change)
		if c.refused == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, c.refused)
	}
	change.Before = object
	_, err = s.alongside(t.Context(), now, change)
	require.NoError(t, err, "an update is allowed")
}
