package serving_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/internal/serving"
)

// TestAfterRest: a request after a rest waits until the process has checked its connections. Probes do not wait, and do
// not end a rest.
func TestAfterRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		thaws := 0
		h := serving.AfterRest(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), func(context.Context) {
			thaws++
			time.Sleep(time.Second)
		})
		took := func(path string) time.Duration {
			began := time.Now()
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil))
			return time.Since(began)
		}
		require.Zero(t, took("/api"))
		require.Zero(t, thaws)
		time.Sleep(3 * time.Second)
		require.Zero(t, took("/livez"))
		go took("/api")
		synctest.Wait()
		require.Equal(t, 1, thaws)
		for _, probe := range []string{"/livez", "/readyz", "/healthz"} {
			require.Zero(t, took(probe))
		}
		time.Sleep(time.Second)
		require.Zero(t, took("/api"))
		require.Equal(t, 1, thaws)
	})
}
