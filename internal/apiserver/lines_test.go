package apiserver

import (
	"bufio"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"sync/atomic"
	"testing"

	"github.com/fxamacker/cbor/v2"
	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/internal/serving"
)

// throughHandler counts the bytes that handlers write.
type throughHandler struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (c throughHandler) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func (c throughHandler) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return c.ResponseWriter.Write(p)
}

func (c throughHandler) Flush()                   { _ = http.NewResponseController(c.ResponseWriter).Flush() }
func (c throughHandler) CloseNotify() <-chan bool { return serving.CloseNotify(c.ResponseWriter) }

// TestLines: events that many watches get pass upstream's handler by where its client asked for plain objects over
// plain HTTP/1.1, and are then, byte for byte, those that the handler sends over HTTP/2. Nothing else passes it by.
func TestLines(t *testing.T) {
	s := newServer(t, withFeed(t))
	var handled atomic.Int64
	plain := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.ServeHTTP(throughHandler{w, &handled}, r) }))
	plain.Config.ConnContext = serving.WithConnection
	plain.Start()
	t.Cleanup(plain.Close)
	reference := httptest.NewUnstartedServer(s)
	reference.EnableHTTP2 = true
	reference.StartTLS()
	t.Cleanup(reference.Close)
	const (
		watches  = 4
		rounds   = 20
		services = "/api/v1/namespaces/default/services"
	)
	for n, c := range []struct {
		path, accept, spec string
		past               bool
	}{
		{configMaps, "application/json", "", true},
		{configMaps, "application/vnd.kubernetes.protobuf", "", true},
		{configMaps, "application/cbor", "", true},
		{configMaps, "application/yaml;q=0.1,application/json;q=0.9,*/*;q=0.1", "", true},
		{configMaps, "application/json;as=Table;v=v1;g=meta.k8s.io,application/json", "", false},
		{configMaps, "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "", false},
		{services, "application/json", `,"spec":{"ports":[{"port":80}],"clusterIP":"None"}`, false}, // they are decorated
	} {
		t.Run(fmt.Sprintf("%d %s", n, c.accept), func(t *testing.T) {
			revision := fieldOf(s.must(t, 200, request{method: "GET", path: c.path}).object(t), "metadata.resourceVersion")
			watch := func(server *httptest.Server) func() (string, error) {
				r, err := http.NewRequestWithContext(t.Context(), "GET", fmt.Sprintf("%s%s?watch=1&resourceVersion=%v&timeoutSeconds=60", server.URL, c.path, revision), nil)
				require.NoError(t, err)
				r.Header.Set("Accept", c.accept)
				response, err := server.Client().Do(r)
				require.NoError(t, err)
				t.Cleanup(func() { response.Body.Close() })
				require.Equal(t, 200, response.StatusCode)
				return eventsIn(response)
			}
			want := watch(reference)
			var all []func() (string, error)
			for range watches {
				all = append(all, watch(plain))
			}
			before, sent := handled.Load(), int64(0)
			expect := func() {
				t.Helper()
				event, err := want()
				require.NoError(t, err)
				for _, next := range all {
					got, err := next()
					require.NoError(t, err)
					require.Equal(t, event, got)
					sent += int64(len(got))
				}
			}
			for i := range rounds {
				at, about := fmt.Sprintf("%s/o%d-%d", c.path, n, i), fmt.Sprintf(`{"metadata":{"name":"o%d-%d"`, n, i)
				s.must(t, 201, request{method: "POST", path: c.path, body: about + "}" + c.spec + "}"})
				expect()
				s.must(t, 200, request{method: "PATCH", path: at, body: `{"metadata":{"annotations":{"a":"é<&"}}}`, contentType: "application/merge-patch+json"})
				expect()
				s.must(t, 200, request{method: "DELETE", path: at})
				expect()
			}
			past := sent - (handled.Load() - before)
			if c.past {
				require.Greater(t, past, sent/2, "%d bytes were sent", sent)
			} else {
				require.LessOrEqual(t, past, int64(0))
			}
		})
	}
}

// eventsIn reads one event of a watch after the other, also as CBOR.
func eventsIn(response *http.Response) func() (string, error) {
	contentType := response.Header.Get("Content-Type")
	if contentType != "application/cbor-seq" {
		events := bufio.NewReader(response.Body)
		return func() (string, error) {
			event, err := next(events, contentType)
			return columns.ReplaceAllString(event, ""), err
		}
	}
	events := cbor.NewDecoder(response.Body)
	return func() (string, error) {
		var event map[any]any
		err := events.Decode(&event)
		return fmt.Sprint(event), err // upstream encodes maps in no order
	}
}

// columns of a Table come with the first event, and with those after it until the watch happens to be the one for which
// upstream encodes an event.
var columns = regexp.MustCompile(`"columnDefinitions":.*"rows"`)
