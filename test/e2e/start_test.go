package e2e

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/test/product"
)

// These constants bound the work that a function does before its first answer. Most of a cold start is the
// initialization of packages, and an import anywhere in the product may add to that work. A change that is worth the
// cost raises the bound that it breaks.
const (
	mostPackages      = 1000
	mostAllocations   = 80_000  // during the initialization of packages
	mostToFirstAnswer = 110_000 // until the first GET is answered, including the initialization
)

var (
	initialized = regexp.MustCompile(`(?m)^init \S+ .* (\d+) allocs$`)
	mallocs     = regexp.MustCompile(`(?m)^go_memstats_mallocs_total (\S+)$`)
)

func TestStartStaysSmall(t *testing.T) {
	where := product.Init(t, eventlogtest.Run(t, t.TempDir()).ClientURL(), t.TempDir())
	t.Setenv("GODEBUG", "inittrace=1") // one line for each package that has something to initialize
	api := product.Serve(t, append([]string{"api", "--listen", "127.0.0.1:0", "--authorization-mode", "AlwaysAllow"}, where...)...)

	packages := initialized.FindAllStringSubmatch(api.Output(), -1)
	allocations := 0
	for _, found := range packages {
		n, err := strconv.Atoi(found[1])
		require.NoError(t, err)
		allocations += n
	}
	get := func(path string) string {
		answer, err := http.Get(api.URL() + path)
		require.NoError(t, err)
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, answer.StatusCode, string(body))
		return string(body)
	}
	require.Contains(t, get("/api/v1/namespaces/default"), `"name":"default"`)
	found := mallocs.FindStringSubmatch(get("/metrics"))
	require.NotNil(t, found)
	toFirst, err := strconv.ParseFloat(found[1], 64)
	require.NoError(t, err)

	said := fmt.Sprintf("%d packages initialized with %d allocations, %.0f until the first answer", len(packages), allocations, toFirst)
	t.Log(said)
	require.Less(t, len(packages), mostPackages, said)
	require.Less(t, allocations, mostAllocations, said)
	require.Less(t, toFirst, float64(mostToFirstAnswer), said)
	require.Contains(t, get("/metrics"), "\ngo_gc_gogc_percent 150\n", "after the first answer")
	require.Greater(t, len(packages), mostPackages/2, "the trace of initialization is read wrongly: "+strings.SplitN(api.Output(), "\n", 2)[0])
}
