package answers

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/warning"
)

// TestWarnings: an answer has the warnings that were given before it, each once. A warning that comes later, from work
// that goes on after the answer, is lost and does no harm.
func TestWarnings(t *testing.T) {
	for _, body := range []string{"", "ok"} {
		var late sync.WaitGroup
		answer := httptest.NewRecorder()
		WithWarnings(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			warning.AddWarning(r.Context(), "", "beware")
			warning.AddWarning(r.Context(), "", "beware")
			warning.AddWarning(r.Context(), "", "of the dog")
			late.Go(func() {
				for i := range 100 {
					warning.AddWarning(r.Context(), "", strconv.Itoa(i))
				}
			})
			for i := range 100 {
				w.Header().Set("X-"+strconv.Itoa(i), "")
			}
			if body != "" {
				_, err := w.Write([]byte(body))
				require.NoError(t, err)
			}
		})).ServeHTTP(answer, httptest.NewRequest(http.MethodPost, "/", nil))
		late.Wait()
		require.Equal(t, body, answer.Body.String())
		sent := answer.Result().Header.Values("Warning")
		require.GreaterOrEqual(t, len(sent), 2)
		require.Equal(t, []string{`299 - "beware"`, `299 - "of the dog"`}, sent[:2])
	}
}
