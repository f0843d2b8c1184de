package apiserver

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkCluster measures what each further cluster costs a process: New and its first requests, in time
// and in memory that stays.
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
			cell := newCell(b)
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

// BenchmarkRequest is the cost of one request of a warm server.
func BenchmarkRequest(b *testing.B) {
	s := newServer(b)
	s.must(b, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"x"},"data":{"a":"b"}}`})
	b.Run("Get", func(b *testing.B) {
		for b.Loop() {
			request{method: "GET", path: configMaps + "/x"}.do(b, s)
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

// BenchmarkRBAC is the cost of one request of a user whose rights come from bindings beside those that
// every cluster begins with.
func BenchmarkRBAC(b *testing.B) {
	s := newGuarded(b)
	require.NoError(b, s.Bootstrap(b.Context()))
	s.must(b, 201, request{method: "POST", path: rbacPath + "/clusterrolebindings", body: `{"metadata":{"name":"ann"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"admin"},"subjects":[{"kind":"User","name":"ann","apiGroup":"rbac.authorization.k8s.io"}]}`}.as("root"))
	for b.Loop() {
		s.must(b, 200, request{method: "GET", path: configMaps}.as("ann"))
	}
}

func liveBytes() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
