package hostile

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReadinessIsCheap: /readyz is open to everybody. On e14eff4 each request for /readyz asks the log's server.
func TestReadinessIsCheap(t *testing.T) {
	s := serve(t, "api")
	const asked = 500
	before := s.sum("logplane_log_round_trips_total")
	for range asked {
		require.Equal(t, http.StatusOK, s.do(nobody, http.MethodGet, "/readyz", "", "").Code)
	}
	require.Less(t, s.sum("logplane_log_round_trips_total")-before, float64(asked/2))
}
