package answers

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// Row 9: upstream's 409 for a generated name becomes a 504 with Retry-After. Every other 409 stays.
func TestGeneratedNameConflict(t *testing.T) {
	resource := schema.GroupResource{Resource: "configmaps"}
	for _, c := range []struct {
		err    error
		code   int
		reason string
		retry  string
	}{
		{apierrors.NewGenerateNameConflict(resource, "x-abcde", 1), 504, "ServerTimeout", "1"},
		{apierrors.NewAlreadyExists(resource, "x"), 409, "AlreadyExists", ""},
		{apierrors.NewConflict(resource, "x", errors.New("changed")), 409, "Conflict", ""},
	} {
		h := WithCorrections(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			responsewriters.ErrorNegotiated(c.err, Codecs(), schema.GroupVersion{Version: "v1"}, w, r)
		}))
		r := httptest.NewRequest("POST", "/api/v1/namespaces/default/configmaps", strings.NewReader("{}"))
		r = r.WithContext(apirequest.WithRequestInfo(r.Context(), &apirequest.RequestInfo{Resource: "configmaps", APIVersion: "v1", Verb: "create"}))
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		require.Equal(t, c.code, w.Code)
		require.Equal(t, c.retry, w.Header().Get("Retry-After"))
		var status map[string]any
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &status), w.Body.String())
		require.Equal(t, c.reason, status["reason"])
	}
}

// A panic is answered with a Status if nothing was sent yet, and by cutting the connection otherwise.
func TestPanics(t *testing.T) {
	logger := slog.New(slog.DiscardHandler)
	recovered := WithRecovery(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("boom") }), logger)
	w := httptest.NewRecorder()
	recovered.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	require.Equal(t, 500, w.Code)
	require.Contains(t, w.Body.String(), `"reason":"InternalError"`)
	require.NotContains(t, w.Body.String(), "boom")

	cut := WithRecovery(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(200)
		panic("boom")
	}), logger)
	require.PanicsWithValue(t, http.ErrAbortHandler, func() { cut.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)) })
}
