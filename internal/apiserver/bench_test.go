package apiserver

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/logplane/logplane/internal/apiserver/access"
	"github.com/logplane/logplane/internal/apiserver/customresources/crdtest"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/internal/kubestore/kubestoretest"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/cache"
)

// BenchmarkCluster measures the cost of each further cluster in a process: the time of New and of the first requests,
// and the memory that stays in use.
func BenchmarkCluster(b *testing.B) {
	for _, c := range []struct {
		name  string
		first func(s *Server)
	}{
		{"New", func(*Server) {}},
		{"FirstGet", func(s *Server) {
			request{method: "GET", path: configMaps + "/x"}.do(b, s)
		}},
		{"FirstWrite", func(s *Server) {
			s.must(b, 201, request{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"default"}}`})
		}},
		{"EveryGroup", func(s *Server) {
			for _, g := range s.groups {
				_, err := g.get()
				require.NoError(b, err)
			}
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			cell := kubestoretest.Cell(b, projection.Config{})
			var kept []*Server
			before := liveBytes()
			i := 0
			for b.Loop() {
				cell.Cluster = fmt.Sprintf("cluster-%d", i)
				s, err := New(Config{Cell: cell})
				require.NoError(b, err)
				c.first(s)
				kept = append(kept, s)
				i++
			}
			b.ReportMetric(float64(liveBytes()-before)/float64(len(kept)), "live-B/cluster")
			runtime.KeepAlive(kept)
		})
	}
}

// BenchmarkFirstCustomResource measures the first GET of a custom resource by a new server. Work that Go and upstream's
// packages do only once in a process is not measured.
func BenchmarkFirstCustomResource(b *testing.B) {
	cell := kubestoretest.Cell(b, projection.Config{})
	first, err := New(Config{Cell: cell})
	require.NoError(b, err)
	first.must(b, 201, request{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"default"}}`})
	first.must(b, 201, request{method: "POST", path: crdsPath, body: widgetCRD, contentType: "application/yaml"})
	const path = "/apis/example.com/v1/namespaces/default/widgets"
	first.must(b, 201, request{method: "POST", path: path, body: `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"}}`})
	for b.Loop() {
		b.StopTimer()
		s, err := New(Config{Cell: cell})
		require.NoError(b, err)
		b.StartTimer()
		s.must(b, 200, request{method: "GET", path: path + "/a"})
	}
}

// BenchmarkRequest measures one request to a warm server.
func BenchmarkRequest(b *testing.B) {
	s := newServer(b)
	s.must(b, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"x"},"data":{"a":"b"}}`})
	b.Run("Get", func(b *testing.B) {
		for b.Loop() {
			request{method: "GET", path: configMaps + "/x"}.do(b, s)
		}
	})
	made := 0 // names are not used again if a benchmark runs more than once
	b.Run("Create", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			made++
			s.must(b, 201, request{method: "POST", path: configMaps, body: fmt.Sprintf(`{"metadata":{"name":"c%d"},"data":{"a":"%01000d"}}`, made, made)})
		}
	})
	b.Run("Update", func(b *testing.B) { // sends back the whole object, as clients do, for many objects in turn
		texts := [2]string{strings.Repeat("some text ", 90), strings.Repeat("SOME TEXT ", 90)}
		objects := make([]string, 200)
		for i := range objects {
			made++
			objects[i] = s.must(b, 201, request{method: "POST", path: configMaps, body: fmt.Sprintf(`{"metadata":{"name":"u%d","labels":{"app":"bench"}},"data":{"text":%q}}`, made, texts[0])}).body
		}
		first := made - len(objects) + 1
		b.ReportAllocs()
		n := 0
		for b.Loop() {
			i, turn := n%len(objects), n/len(objects)
			body := strings.Replace(objects[i], texts[turn%2], texts[(turn+1)%2], 1)
			objects[i] = s.must(b, 200, request{method: "PUT", path: fmt.Sprintf("%s/u%d", configMaps, first+i), body: body}).body
			n++
		}
	})
	b.Run("Patch", func(b *testing.B) {
		i := 0
		for b.Loop() {
			i++
			request{method: "PATCH", path: configMaps + "/x", body: fmt.Sprintf(`{"data":{"a":"%d"}}`, i), contentType: "application/merge-patch+json"}.do(b, s)
		}
	})
}

// BenchmarkRBAC measures one request of a user who has rights by a binding. The cluster also has the bindings that
// every new cluster has.
func BenchmarkRBAC(b *testing.B) {
	s := newGuarded(b)
	require.NoError(b, s.Bootstrap(b.Context()))
	s.must(b, 201, request{method: "POST", path: rbacPath + "/clusterrolebindings", body: `{"metadata":{"name":"ann"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"admin"},"subjects":[{"kind":"User","name":"ann","apiGroup":"rbac.authorization.k8s.io"}]}`}.as("root"))
	for b.Loop() {
		s.must(b, 200, request{method: "GET", path: configMaps}.as("ann"))
	}
}

// rbacLoad makes a server with three users and many rules. Ann's namespace has a RoleBinding for ann and n more, each
// for another user. There are also 1,000 ClusterRoleBindings, each for another user. Bob has a namespace with one
// binding, and cid may read everywhere.
func rbacLoad(b *testing.B, n int) *Server {
	path := filepath.Join(b.TempDir(), "tokens.csv")
	require.NoError(b, os.WriteFile(path, []byte("root-token,root,1,system:masters\nann-token,ann,2\nbob-token,bob,3\ncid-token,cid,4\n"), 0o600))
	s := newServer(b, func(c *Config) {
		c.Authentication, c.Authorization = access.Authentication{TokenFile: path}, access.Authorization{Mode: "RBAC"}
	})
	require.NoError(b, s.Bootstrap(b.Context()))
	bind := func(where, name, user, role string) {
		s.must(b, 201, request{method: "POST", path: rbacPath + where, body: `{"metadata":{"name":"` + name + `"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"` + role +
			`"},"subjects":[{"kind":"User","name":"` + user + `","apiGroup":"rbac.authorization.k8s.io"}]}`}.as("root"))
	}
	for _, user := range []string{"ann", "bob"} {
		s.must(b, 201, request{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"` + user + `"}}`}.as("root"))
		s.must(b, 201, request{method: "POST", path: "/api/v1/namespaces/" + user + "/configmaps", body: `{"metadata":{"name":"x"}}`}.as("root"))
		bind("/namespaces/"+user+"/rolebindings", "zz", user, "edit")
	}
	for i := range 1000 {
		bind("/clusterrolebindings", fmt.Sprintf("many-%d", i), fmt.Sprintf("nobody-%d", i), "view")
	}
	for i := range n {
		bind("/namespaces/ann/rolebindings", fmt.Sprintf("many-%d", i), fmt.Sprintf("nobody-%d", i), "view")
	}
	bind("/clusterrolebindings", "cid", "cid", "view")
	s.must(b, 200, request{method: "GET", path: configMaps}.as("root")) // this request makes the authorizer read everything before the benchmark
	return s
}

// BenchmarkRBACBesideMany measures GETs of three users in turn: ann has a namespace with many RoleBindings, bob has a
// namespace with one, and cid has rights in the whole cluster. It also measures the authorizer's decision alone.
func BenchmarkRBACBesideMany(b *testing.B) {
	for _, n := range []int{0, 100, 4300} {
		b.Run(fmt.Sprintf("%d", n), func(b *testing.B) {
			s := rbacLoad(b, n)
			who := []struct{ user, namespace string }{{"ann", "ann"}, {"bob", "bob"}, {"cid", "bob"}}
			b.Run("Get", func(b *testing.B) {
				took := make([]time.Duration, len(who))
				for b.Loop() {
					for i, w := range who {
						start := time.Now()
						s.must(b, 200, request{method: "GET", path: "/api/v1/namespaces/" + w.namespace + "/configmaps/x"}.as(w.user))
						took[i] += time.Since(start)
					}
				}
				for i, w := range who {
					b.ReportMetric(float64(took[i].Microseconds())/float64(b.N), w.user+"-µs/op")
				}
			})
			for _, w := range who {
				b.Run("Authorize/"+w.user, func(b *testing.B) {
					of := authorizer.AttributesRecord{User: &user.DefaultInfo{Name: w.user, Groups: []string{user.AllAuthenticated}}, Verb: "get", APIVersion: "v1", Resource: "configmaps", Namespace: w.namespace, Name: "x", ResourceRequest: true}
					b.ReportAllocs()
					for b.Loop() {
						if decision, _, err := s.generic.Authorization.Authorizer.Authorize(b.Context(), of); err != nil || decision != authorizer.DecisionAllow {
							b.Fatal(decision, err)
						}
					}
				})
			}
		})
	}
}

func liveBytes() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkList measures a list of 10,000 objects of 1 KiB: from cached chunks, from chunks that are made anew, and
// encoded as a whole.
func BenchmarkList(b *testing.B) {
	chunks, whole := bothWays(b)
	cell := chunks.config.Cell
	cell.Objects = kubestore.NewObjects(cache.NewBudget(0))
	made, err := New(Config{Cell: cell})
	require.NoError(b, err)
	chunks.must(b, 201, request{method: "POST", path: crdsPath, body: widgetCRD, contentType: "application/yaml"})
	for n := range 10_000 {
		value := make([]byte, 384)
		for i := range value {
			value[i] = byte(n * (i + 7) >> 3)
		}
		metadata := fmt.Sprintf(`"metadata":{"name":"o-%05d"}`, n)
		chunks.must(b, 201, request{method: "POST", path: configMaps, body: fmt.Sprintf(`{%s,"data":{"k":"%x"}}`, metadata, value)})
		widget := fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Widget",%s,"spec":{"free":{"k":"%x"}}}`, metadata, value)
		chunks.must(b, 201, request{method: "POST", path: customs, body: widget})
		if n%1000 == 999 {
			_, err := chunks.config.Cell.Projection.Commit(b.Context())
			require.NoError(b, err)
		}
	}
	const of, metadata, table = ";g=meta.k8s.io;v=v1;as=", "PartialObjectMetadataList", "Table"
	for _, of := range []struct{ name, path, accept string }{
		{"json", configMaps, "application/json"}, {"vnd.kubernetes.protobuf", configMaps, "application/vnd.kubernetes.protobuf"},
		{"table", configMaps, "application/json" + of + table}, {"metadata", configMaps, "application/vnd.kubernetes.protobuf" + of + metadata},
		{"metadata-json", configMaps, "application/json" + of + metadata},
		{"pretty", configMaps, "application/json;pretty=1"}, {"yaml", configMaps, "application/yaml"},
		{"custom-json", customs, "application/json"}, {"custom-cbor", customs, "application/cbor"}, {"custom-table", customs, "application/json" + of + table},
	} {
		for _, encoding := range []string{"identity", "gzip"} {
			for _, way := range []struct {
				name string
				*Server
			}{{"kept", chunks}, {"made", made}, {"whole", whole}} {
				b.Run(of.name+"/"+encoding+"/"+way.name, func(b *testing.B) {
					b.ReportAllocs()
					list := request{method: "GET", path: of.path, accept: of.accept, header: http.Header{"Accept-Encoding": {encoding}}}
					list.do(b, way)
					for b.Loop() {
						require.Equal(b, 200, list.do(b, way).code)
					}
				})
			}
		}
	}
}

// BenchmarkLargeDefinitions measures the creation of one more CustomResourceDefinition of 100 KB beside 300 others, and
// discovery afterwards.
func BenchmarkLargeDefinitions(b *testing.B) {
	s := newServer(b)
	made := 0
	create := func() {
		s.must(b, 201, request{method: "POST", path: crdsPath, body: crdtest.Large(made, fmt.Sprintf("g%d.example.com", made%30), 100_000)})
		made++
	}
	discover := func() { s.must(b, 200, request{method: "GET", path: "/apis"}) }
	for range 300 {
		create()
	}
	discover()
	before := liveBytes()
	b.Run("Create", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			create()
		}
	})
	b.Run("Discovery", func(b *testing.B) {
		for b.Loop() {
			discover()
		}
	})
	b.Run("DiscoveryAfterAChange", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			create()
			b.StartTimer()
			discover()
		}
	})
	b.ReportMetric(float64(before)/(1<<20), "live-MiB")
}
