package apiserver

import (
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/internal/apiserver/customresources"
	"github.com/logplane/logplane/internal/apiserver/customresources/crdtest"
	"github.com/logplane/logplane/internal/kubestore/kubestoretest"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/cache"
)

// TestSummariesFollowChanges: after any changes of definitions, their summaries equal the summaries that a reader
// without any memory finds.
func TestSummariesFollowChanges(t *testing.T) {
	s := newServer(t)
	random := mathrand.New(mathrand.NewPCG(1, 1))
	for range 60 {
		i := random.IntN(5)
		name, group := fmt.Sprintf("thing%ds", i), fmt.Sprintf("g%d.example.com", i%2)
		switch path := crdsPath + "/" + name + "." + group; random.IntN(4) {
		case 0:
			request{method: "DELETE", path: path}.do(t, s)
		case 1:
			request{method: "PATCH", path: path, contentType: "application/merge-patch+json", body: fmt.Sprintf(`{"spec":{"names":{"shortNames":["s%d"]}}}`, random.IntN(3))}.do(t, s)
		case 2:
			request{method: "PATCH", path: path, contentType: "application/merge-patch+json", body: fmt.Sprintf(`{"metadata":{"labels":{"a":"%d"}}}`, random.IntN(3))}.do(t, s)
		default:
			request{method: "POST", path: crdsPath, body: crdtest.Large(i, group, 300)}.do(t, s)
		}
		switch random.IntN(6) {
		case 0:
			spill(t, s)
		case 1:
			_, err := s.config.Cell.Projection.Commit(t.Context())
			require.NoError(t, err)
		case 2:
			continue // so that several changes are seen at once
		}
		kept, err := s.definitions.All()
		require.NoError(t, err)
		fresh, err := customresources.NewReader(s.listers, s.config.Cell.Projection).All()
		require.NoError(t, err)
		require.Equal(t, fresh, kept)
	}
}

// TestDefinitionsAreNotReadAgain: discovery, and the creation of one more definition, cost no more when there are many
// large definitions that no cache holds. This also holds after a pause in which the log has moved far.
func TestDefinitionsAreNotReadAgain(t *testing.T) {
	const large = 100_000
	allocated := func(do func()) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		do()
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	s := newServer(t, func(c *Config) {
		c.Cell = kubestoretest.Cell(t, projection.Config{Budget: cache.NewBudget(64 << 10)})
	})
	made := 0
	create := func() {
		s.must(t, 201, request{method: "POST", path: crdsPath, body: crdtest.Large(made, fmt.Sprintf("g%d.example.com", made%3), large)})
		made++
	}
	discover := func() { s.must(t, 200, request{method: "GET", path: "/apis/apps/v1"}) }
	create()
	discover()
	one, first := allocated(create), allocated(discover)
	for range 20 {
		create()
	}
	discover()
	const why = "to decode one definition allocates five times this much"
	require.Less(t, allocated(discover), first+large, why)
	require.Less(t, allocated(create), one*3/2)
	spill(t, s)
	require.Less(t, allocated(discover), uint64(made*large*3), "the rows are read, but not decoded")
}

// spill moves the log so far that no view holds the events before it.
func spill(t *testing.T, s *Server) {
	t.Helper()
	begun := s.config.Cell.Projection.Current().Revision()
	for s.config.Cell.Projection.Current().Since(begun, func(string) {}) {
		var text strings.Builder
		for range 2000 {
			text.WriteString(rand.Text())
		}
		s.must(t, 201, request{method: "POST", path: configMaps, body: fmt.Sprintf(`{"metadata":{"generateName":"c"},"data":{"a":%q}}`, text.String())})
		_, err := s.config.Cell.Projection.Commit(t.Context())
		require.NoError(t, err)
	}
}

// TestManyDefinitionsAtOnce: fifty large definitions that are created at once are all created.
func TestManyDefinitionsAtOnce(t *testing.T) {
	s := newServer(t)
	const n = 50
	codes := [n]int{}
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			codes[i] = request{method: "POST", path: crdsPath, body: crdtest.Large(i, fmt.Sprintf("g%d.example.com", i%3), 54_000)}.do(t, s).code
		})
	}
	all.Wait()
	for _, code := range codes {
		require.Equal(t, 201, code)
	}
}
