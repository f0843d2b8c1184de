package hostile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// crowd is more events than a watcher's window holds, so a watch from a revision before these events has to read the
// snapshot.
const crowd = 18000

// TestTheCrowdNextDoorCostsNothing: many objects in one namespace cause no cost for a client that asks for little, in
// that namespace or in another. On e14eff4 each list with 'limit=1' counts all objects again, and a watch of an empty
// namespace decodes every event of the cell.
func TestTheCrowdNextDoorCostsNothing(t *testing.T) {
	s := serve(t, "watcher")
	s.asOwner(tenant)
	s.asOwner(owner)
	list := func(namespace, query string) (page struct {
		Metadata struct {
			ResourceVersion    string
			RemainingItemCount int
		}
	}) {
		require.NoError(t, json.Unmarshal(s.must(admin, http.MethodGet, "/api/v1/namespaces/"+namespace+"/configmaps"+query, "").Body, &page))
		return page
	}
	before := list(tenant, "").Metadata.ResourceVersion
	filler := strings.Repeat("x", 400)
	var writing sync.WaitGroup
	for worker := range 16 {
		writing.Go(func() {
			for n := worker; n < crowd; n += 16 {
				a := s.do(admin, http.MethodPost, "/api/v1/namespaces/owner/configmaps", "application/json", fmt.Sprintf(`{"metadata":{"name":"c%d"},"data":{"a":%q}}`, n, filler))
				if a.Code != http.StatusCreated {
					t.Errorf("%d %s", a.Code, a.Body)
					return
				}
			}
		})
	}
	writing.Wait()

	// pages reads 500 pages of one object. The server does not count the remaining objects again for each page, nor
	// after a few writes elsewhere.
	pages := func(namespace string, remaining int) float64 {
		began := s.cpuSeconds()
		for n := range 500 {
			if n%100 > 0 {
				require.Equal(t, remaining, list(namespace, "?limit=1").Metadata.RemainingItemCount)
				continue
			}
			a := s.do(admin, http.MethodPatch, "/api/v1/namespaces/"+namespace, "application/merge-patch+json", fmt.Sprintf(`{"metadata":{"labels":{"n":"%d"}}}`, n))
			require.Equal(t, http.StatusOK, a.Code, string(a.Body))
		}
		return s.cpuSeconds() - began
	}
	for _, name := range []string{"a", "b"} {
		s.must(tenant, http.MethodPost, "/api/v1/namespaces/tenant/configmaps", `{"metadata":{"name":"`+name+`"}}`)
	}
	pages(tenant, 1)
	few, all := pages(tenant, 1), pages(owner, crowd-1)
	t.Logf("CPU seconds of 500 pages: %.2f in the crowd, %.2f next door", all, few)
	require.Less(t, all, 2*few+0.3)

	// watch watches an empty list from a revision older than all objects.
	watch := func() {
		a := s.do(tenant, http.MethodGet, "/api/v1/namespaces/tenant/secrets?watch=true&timeoutSeconds=1&resourceVersion="+before, "", "")
		require.Equal(t, http.StatusOK, a.Code, string(a.Body))
		require.Empty(t, a.Body)
	}
	watch()
	began := s.allocated()
	for range 10 {
		watch()
	}
	allocated := (s.allocated() - began) / (1 << 20)
	t.Logf("%.0f MiB allocated for ten watches", allocated)
	require.Less(t, allocated, 15.0)
}

// cpuSeconds is the processor time that the process has used.
func (s *target) cpuSeconds() float64 {
	s.t.Helper()
	stat, err := os.ReadFile("/proc/" + pid(s) + "/stat")
	require.NoError(s.t, err)
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	var ticks int
	for _, f := range fields[11:13] { // user mode and kernel mode
		n, err := strconv.Atoi(f)
		require.NoError(s.t, err)
		ticks += n
	}
	return float64(ticks) / 100
}
