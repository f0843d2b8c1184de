package hostile

import (
	"net/http"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReadinessIsCheap: /readyz is open to everybody. On e14eff4 each asks the log.
func TestReadinessIsCheap(t *testing.T) {
	s := serve(t, "api")
	const asked = 500
	before := s.sum("logplane_log_round_trips_total")
	for range asked {
		require.Equal(t, http.StatusOK, s.do(nobody, http.MethodGet, "/readyz", "", "").Code)
	}
	require.Less(t, s.sum("logplane_log_round_trips_total")-before, float64(asked/2))
}

// sum is that of a metric's values.
func (s *target) sum(metric string) (sum float64) {
	s.t.Helper()
	metrics := s.must(admin, http.MethodGet, "/metrics", "")
	for _, line := range regexp.MustCompile(`(?m)^`+metric+`(?:\{.*\})? (\S+)$`).FindAllSubmatch(metrics.Body, -1) {
		value, err := strconv.ParseFloat(string(line[1]), 64)
		require.NoError(s.t, err)
		sum += value
	}
	return sum
}
