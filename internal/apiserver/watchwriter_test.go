package apiserver

import (
	"bufio"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/fxamacker/cbor/v2"
	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
)

// writesOf counts the writes of answers.
type writesOf struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (c writesOf) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func (c writesOf) Write(p []byte) (int, error) {
	c.n.Add(1)
	return c.ResponseWriter.Write(p)
}

// TestWatchWriters: the first events of watches come in chunks, past upstream's handler, if the client asks for plain
// objects. The chunks are, byte for byte, the events that the handler would send, and so are later changes.
func TestWatchWriters(t *testing.T) {
	s := newServer(t, withFeed(t))
	var writes atomic.Int64
	encrypted := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.ServeHTTP(responsewriter.WrapForHTTP1Or2(writesOf{w, &writes}), r)
	}))
	encrypted.EnableHTTP2 = true
	encrypted.StartTLS()
	t.Cleanup(encrypted.Close)
	reference := httptest.NewServer(s)
	t.Cleanup(reference.Close)
	const (
		watches  = 4
		rounds   = 20
		state    = 150 // enough for several chunks
		services = "/api/v1/namespaces/default/services"

		widget = `,"apiVersion":"example.com/v1","kind":"Widget","spec":{"size":1}`

		clusterRoles = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
	)
	for i, rules := range []string{"", `,"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]`} {
		s.must(t, 201, request{method: "POST", path: clusterRoles, body: fmt.Sprintf(`{"metadata":{"name":"part%d","labels":{"part":"yes"}}%s}`, i, rules)})
	}
	const v2 = "  versions:\n  - {name: v2, served: true, storage: false, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}\n"
	s.must(t, 201, request{method: "POST", path: crdsPath, body: strings.Replace(widgetCRD, "  versions:\n", v2, 1), contentType: "application/yaml"})
	for n, c := range []struct {
		path, accept, spec string
		chunks             bool
	}{
		{configMaps, "application/json", "", true},
		{configMaps, "application/vnd.kubernetes.protobuf", "", true},
		{configMaps, "application/cbor", "", true},
		{configMaps, "application/yaml;q=0.1,application/json;q=0.9,*/*;q=0.1", "", true},
		{configMaps, "application/json;stream=x,application/vnd.kubernetes.protobuf;stream=watch", "", true},
		{configMaps, "application/json;sv=v2,application/vnd.kubernetes.protobuf", "", true},
		{customs, "application/json", widget, true},
		{customs, "application/cbor", widget, true},
		{strings.Replace(customs, "v1", "v2", 1), "application/json", strings.Replace(widget, "v1", "v2", 1), true}, // these objects are converted
		{customs, "application/json;as=Table;v=v1;g=meta.k8s.io,application/json", widget, false},
		{customs, "application/vnd.kubernetes.protobuf;stream=watch;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json", widget, false},
		{configMaps, "application/json;as=Table;v=v1;g=meta.k8s.io,application/json", "", false},
		{configMaps, "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "", false},
		{services, "application/json", `,"spec":{"ports":[{"port":80}],"clusterIP":"None"}`, false}, // these objects are decorated
		{clusterRoles, "application/json", `,"aggregationRule":{"clusterRoleSelectors":[{"matchLabels":{"part":"yes"}}]}`, false},
	} {
		t.Run(fmt.Sprintf("%d %s", n, c.accept), func(t *testing.T) {
			about := func(i int) string { return fmt.Sprintf(`{"metadata":{"name":"o%d-%03d"}%s}`, n, i, c.spec) }
			for i := range state {
				s.must(t, 201, request{method: "POST", path: c.path, body: about(rounds + i)})
			}
			watch := func(server *httptest.Server, selector string) func() (string, error) {
				const initial = "?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=60"
				r, err := http.NewRequestWithContext(t.Context(), "GET", server.URL+c.path+initial+selector, nil)
				require.NoError(t, err)
				r.Header.Set("Accept", c.accept)
				response, err := server.Client().Do(r)
				require.NoError(t, err)
				t.Cleanup(func() { response.Body.Close() })
				require.Equal(t, 200, response.StatusCode)
				return eventsIn(response)
			}
			before := writes.Load()
			want := watch(reference, "&labelSelector=!none") // the handler serves this watch
			all := []func() (string, error){watch(reference, "")}
			for range watches {
				all = append(all, watch(encrypted, ""))
			}
			expect := func() string {
				t.Helper()
				event, err := want()
				require.NoError(t, err)
				if strings.Contains(event, "aggregationRule") {
					require.Contains(t, event, "pods", "the rule that it gets of another")
				}
				for _, next := range all {
					got, err := next()
					require.NoError(t, err)
					require.Equal(t, event, got)
				}
				return event
			}
			for range state {
				require.Contains(t, expect(), "ADDED")
			}
			if c.chunks {
				require.Less(t, writes.Load()-before, int64(state*watches/4))
			} else {
				require.GreaterOrEqual(t, writes.Load()-before, int64(state*watches))
			}
			for !strings.Contains(expect(), "BOOKMARK") { // skips other objects
			}
			for i := range rounds {
				at := fmt.Sprintf("%s/o%d-%03d", c.path, n, i)
				s.must(t, 201, request{method: "POST", path: c.path, body: about(i)})
				expect()
				s.must(t, 200, request{method: "PATCH", path: at, body: `{"metadata":{"annotations":{"a":"é<&"}}}`, contentType: "application/merge-patch+json"})
				expect()
				s.must(t, 200, request{method: "DELETE", path: at})
				expect()
			}
			for i := range state {
				s.must(t, 200, request{method: "DELETE", path: fmt.Sprintf("%s/o%d-%03d", c.path, n, rounds+i)})
			}
		})
	}
}

// TestUnknownVersionsLeaveNothing: requests for versions that are not served leave no metrics behind.
func TestUnknownVersionsLeaveNothing(t *testing.T) {
	s := newServer(t, withFeed(t))
	s.must(t, 201, request{method: "POST", path: crdsPath, body: widgetCRD, contentType: "application/yaml"})
	listener := httptest.NewServer(s)
	t.Cleanup(listener.Close)
	const unserved = "v9unserved"
	for path, code := range map[string]int{customs: 200, strings.Replace(customs, "v1", unserved, 1): 404} {
		response, err := http.Get(listener.URL + path + "?watch=1&timeoutSeconds=1")
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, code, response.StatusCode)
	}
	metrics := s.must(t, 200, request{method: "GET", path: "/metrics"}).body
	require.Contains(t, metrics, `apiserver_watch_events_total{group="example.com"`)
	require.NotContains(t, metrics, unserved)
}

// eventsIn returns a function that reads the next event of a watch, also in CBOR.
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
		return fmt.Sprintf("%s", event), err // upstream encodes maps in no order
	}
}

// columns matches the columns of a Table. The columns come with the first event of a watch, and then with each event
// until upstream happens to encode an event for this watch. The expression also matches the cells, which show the
// object's age.
var columns = regexp.MustCompile(`"columnDefinitions":.*"cells":\[[^]]*\]`)
