package hostile

import (
	"bytes"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	protoV2 = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
	// openAPIMemory is the largest resident memory, in bytes, that the process may have while it describes 2,000
	// versions.
	openAPIMemory = 512 << 20
)

const smallCRD = `{"metadata":{"name":"gadgets.small.example.com"},"spec":{"group":"small.example.com","scope":"Namespaced",` +
	`"names":{"plural":"gadgets","singular":"gadget","kind":"Gadget","listKind":"GadgetList"},` +
	`"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`

// TestOpenAPIOfManyVersions: a CRD of 2,000 versions costs neither memory nor time when a client asks for another
// description. After a change of any CRD, e14eff4 built all descriptions anew, in 20 to 60 s and with 1 GiB, and
// answered 504.
func TestOpenAPIOfManyVersions(t *testing.T) {
	s := serve(t, "watcher")
	crds := "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	s.must(admin, http.MethodPost, crds, manyVersions(2_000))
	s.must(admin, http.MethodPost, crds, smallCRD)

	asked := []struct{ path, accept string }{
		{"/openapi/v2", ""},
		{"/openapi/v2", protoV2},
		{"/openapi/v3", ""},
		{"/apis", ""},
		{"/openapi/v3/apis/apps/v1", ""},
		{"/openapi/v3/apis/small.example.com/v1", ""},
		{"/openapi/v3/apis/attack.example.com/v1", ""},
	}
	begun := time.Now()
	var all sync.WaitGroup
	var lock sync.Mutex
	bodies := make([][]byte, len(asked))
	var order []int
	for i, a := range asked {
		all.Go(func() {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL()+a.path, nil)
			if err != nil {
				return
			}
			r.Header.Set("Authorization", "Bearer "+admin)
			r.Header.Set("Accept", a.accept)
			response, err := client.Do(r)
			if err != nil {
				return
			}
			defer response.Body.Close()
			var body bytes.Buffer
			_, _ = body.ReadFrom(response.Body)
			lock.Lock()
			defer lock.Unlock()
			t.Logf("%s %s: %d, %d bytes, after %s", a.path, a.accept, response.StatusCode, body.Len(), time.Since(begun).Round(time.Millisecond))
			if response.StatusCode == http.StatusOK {
				bodies[i] = body.Bytes()
				order = append(order, i)
			}
		})
	}
	all.Wait()
	t.Logf("at most %d MiB resident", s.peak()>>20)
	require.Len(t, order, len(asked), "all are answered")
	require.Less(t, order[len(order)-1], 2, "OpenAPI v2, which takes the longest, comes last: nobody waits for it")
	require.Contains(t, string(bodies[0]), "/apis/small.example.com/v1/namespaces/{namespace}/gadgets")
	require.Contains(t, string(bodies[0]), "/apis/attack.example.com/v2000/", "the newest")
	require.NotContains(t, string(bodies[0]), "/apis/attack.example.com/v1/", "bounded")
	require.Contains(t, string(bodies[1]), "/apis/attack.example.com/v2000/")
	require.NotContains(t, string(bodies[1]), "/apis/attack.example.com/v1/", "bounded")
	require.Contains(t, string(bodies[2]), "apis/attack.example.com/v1?", "OpenAPI v3 has every version")
	require.Contains(t, string(bodies[6]), "/apis/attack.example.com/v1/")

	s.must(admin, http.MethodPost, crds, `{"metadata":{"name":"more.small.example.com"},"spec":{"group":"small.example.com","scope":"Cluster",`+
		`"names":{"plural":"more","singular":"more","kind":"More","listKind":"MoreList"},`+
		`"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`)
	begun = time.Now()
	require.Contains(t, string(s.must(admin, http.MethodGet, "/openapi/v2", "").Body), "/apis/small.example.com/v1/more")
	t.Logf("/openapi/v2 after a change of another CRD: %s; at most %d MiB resident", time.Since(begun).Round(time.Millisecond), s.peak()>>20)
	require.Less(t, s.peak(), uint64(openAPIMemory))
}
