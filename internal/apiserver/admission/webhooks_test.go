package admission

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/internal/calls"
)

// TestAnswersAreMeasured: a webhook's answer has the bounds of a request's body, and only JSON may be large. The bounds
// are checked before the answer is decoded. A malformed answer is accepted, because the decoder's error explains the
// mistake.
func TestAnswersAreMeasured(t *testing.T) {
	aliases := "a: &a [" + strings.Repeat("0,", 1000) + "0]\nb: [" + strings.Repeat("*a,", 1000) + "0]\n"
	for name, c := range map[string]struct{ answer, says string }{
		"JSON":            {`{"kind":"AdmissionReview","response":{"allowed":true}}`, ""},
		"YAML":            {"kind: AdmissionReview\n", ""},
		"garbage":         {"{}}", ""},
		"large":           {`{"a":"` + strings.Repeat("x", 6<<20) + `"}`, ""},
		"crowded":         {`{"a":[` + strings.Repeat("0,", 3<<20) + `0]}`, "is not read"},
		"deep":            {strings.Repeat("[", 200) + strings.Repeat("]", 200), "is not read"},
		"aliases":         {aliases, "is not read"},
		"no JSON":         {`{"a":"` + strings.Repeat("0,", 1<<20), "is no JSON"},
		"protobuf":        {"k8s\x00abc", "is no JSON"},
		"without an end":  {strings.Repeat("0", maxAnswer+1), "too large"},
		"as much as goes": {`"` + strings.Repeat("0", maxAnswer-2) + `"`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, c.answer) }))
			defer hook.Close()
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, hook.URL, strings.NewReader("{}"))
			require.NoError(t, err)
			response, err := calls.Measured(http.DefaultTransport, maxAnswer, affordable).RoundTrip(r)
			if c.says != "" {
				require.ErrorContains(t, err, c.says)
				return
			}
			require.NoError(t, err)
			defer response.Body.Close()
			got, err := io.ReadAll(response.Body)
			require.NoError(t, err)
			require.Equal(t, len(c.answer), len(got))
		})
	}
}
