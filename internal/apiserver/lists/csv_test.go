package lists

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBrokenCSV: if a Table breaks off, the answer breaks off, too. Nobody writes to a client after the handler has
// returned.
func TestBrokenCSV(t *testing.T) {
	const begun = `{"kind":"Table","columnDefinitions":[{"name":"A"}],"rows":[{"cells":["`
	for _, c := range []struct {
		name, rest string
		whole      bool
		panics     any
	}{
		{"whole", `"]}]}` + "\n", true, nil},
		{"abort", "", false, http.ErrAbortHandler},
		{"cut off", "", false, nil},
		{"no table", `"],"cells":7}]}`, false, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				ServeCSV(w, r, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.WriteString(w, begun+strings.Repeat(`x"]},{"cells":["`, 1<<16)+c.rest)
					if c.panics != nil {
						panic(c.panics)
					}
				}))
			}))
			defer server.Close()
			for range 3 {
				response, err := http.Get(server.URL)
				require.NoError(t, err)
				body, err := io.ReadAll(response.Body)
				require.Equal(t, c.whole, err == nil, "%v", err)
				require.True(t, strings.HasPrefix(string(body), "A\r\nx\r\nx\r\n"))
				require.NoError(t, response.Body.Close())
			}
		})
	}
}
