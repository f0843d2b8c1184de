package subscribe

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// A run relies on announcements only once it has learned a revision at a time when it could hear announcements.
func TestAim(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"7"}}`)
	}))
	defer server.Close()
	c := Config{REST: &rest.Config{Host: server.URL}, Resource: configMaps, Namespace: "ours", From: "5"}.withDefaults()
	api, err := newAPI(t.Context(), c)
	require.NoError(t, err)
	r := &run{config: c, api: api, bell: &bell{unsure: true}}
	for i, sure := range []bool{false, false, true, true} {
		hears := sure
		require.NoError(t, r.aim(t.Context(), hears))
		require.Equal(t, sure, !r.bell.unsure, "aim %d", i)
		require.EqualValues(t, 7, r.goal)
	}
}
