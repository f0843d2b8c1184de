package watcher_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"

	"github.com/logplane/logplane/functions"
	"github.com/logplane/logplane/internal/apiserver"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

// The numbers of rows are those of docs/api.md.

// TestRow11: a client lists, and then watches from the list's revision. Nothing is missed and nothing is repeated.
func TestRow11(t *testing.T) { overEach(t, row11) }

func row11(t *testing.T, c cell) {
	s := c.start(t)
	s.create("before", "")
	list := s.get(configMaps)
	a, b := s.create("a", ""), s.create("b", "")
	w := s.watch("resourceVersion=" + list.revision())
	changed := s.paint("a", "red")
	w.expect(added(a), added(b), modified(changed))
}

// TestRow12: the types of events, and selectors that objects begin and cease to match.
func TestRow12(t *testing.T) { overEach(t, row12) }

func row12(t *testing.T, c cell) {
	s := c.start(t)
	start := "resourceVersion=" + s.get(configMaps).revision()
	all := s.watch(start)
	red, named := s.watch(start+"&labelSelector=color%3Dred"), s.watch(start+"&fieldSelector=metadata.name%3Db")
	a := s.create("a", "blue")
	entered := s.paint("a", "red")
	touched := s.patch(configMaps+"/a", `{"data":{"k":"w"}}`)
	left := s.paint("a", "blue")
	b := s.create("b", "red")
	s.delete(configMaps + "/b")
	gone := s.get(configMaps)

	all.expect(added(a), modified(entered), modified(touched), modified(left), added(b))
	last := all.next()
	require.Equal(t, "DELETED", last["type"])
	require.Equal(t, "v", last.field("object.data.k"), "a deletion carries the last state")
	require.Equal(t, gone.revision(), last.field("object.metadata.resourceVersion"), "and its own revision")

	red.expect(added(entered), modified(touched))
	out := red.next()
	require.Equal(t, event("DELETED", left, left), line(out))
	require.Equal(t, "red", out.field("object.metadata.labels.color"), "the last state that matched")
	require.Equal(t, "w", out.field("object.data.k"))
	red.expect(added(b), event("DELETED", b, gone))
	named.expect(added(b), event("DELETED", b, gone))
}

// TestRow13: without a revision the state comes first, as of the most recent revision; with '0', as of any revision.
func TestRow13(t *testing.T) { overEach(t, row13) }

func row13(t *testing.T, c cell) {
	s := c.start(t)
	b, a := s.create("b", ""), s.create("a", "")
	recent, any := s.watch(""), s.watch("resourceVersion=0")
	last := s.create("c", "")
	recent.expect(added(a), added(b), added(last))
	any.expect(added(a), added(b), added(last))
}

// TestRow14: a watch from an exact revision gets no synthetic events.
func TestRow14(t *testing.T) { overEach(t, row14) }

func row14(t *testing.T, c cell) {
	s := c.start(t)
	a := s.create("a", "")
	w := s.watch("resourceVersion=" + a.revision())
	w.expect(added(s.create("b", "")))
}

// TestRow15: a revision below the floor is answered with 410 Gone.
func TestRow15(t *testing.T) { overEach(t, row15) }

func row15(t *testing.T, c cell) {
	s := c.start(t)
	a := s.create("a", "")
	b := s.create("b", "")
	floor, err := strconv.ParseUint(b.revision(), 10, 64)
	require.NoError(t, err)
	_, err = s.projection.Commit(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.projection.Retain(t.Context(), projection.Revision(floor), projection.Revision(floor)))
	w := s.watch("resourceVersion=" + a.revision())
	e := w.next()
	require.Equal(t, "ERROR 410 Expired", line(e))
	w.expectEnd()
	s.watch("resourceVersion=" + b.revision()).expect(added(s.create("c", "")))
}

// TestRow16: the watch waits for a revision that does not exist yet, until the watch times out.
func TestRow16(t *testing.T) { overEach(t, row16) }

func row16(t *testing.T, c cell) {
	s := c.start(t)
	head, err := strconv.Atoi(s.get(configMaps).revision())
	require.NoError(t, err)
	s.watch(fmt.Sprintf("resourceVersion=%d&timeoutSeconds=1", head+1000)).expectEnd()
	w := s.watch(fmt.Sprintf("resourceVersion=%d", head+2))
	s.create("a", "")
	s.create("b", "")
	w.expect(added(s.create("c", "")))
}

// TestRow17: bookmarks come only to clients that asked for them, before the end, and contain only a revision.
func TestRow17(t *testing.T) { overEach(t, row17) }

func row17(t *testing.T, c cell) {
	s := c.start(t)
	start := "timeoutSeconds=8&resourceVersion=" + s.get(configMaps).revision()
	w, silent := s.watch(start+"&allowWatchBookmarks=true&labelSelector=color%3Dred"), s.watch(start+"&labelSelector=color%3Dred")
	s.create("a", "blue") // does not match, but moves the bookmark
	head := s.get(configMaps).revision()
	e := w.next()
	require.Equal(t, "BOOKMARK "+head, line(e))
	require.Equal(t, "v1", e.field("object.apiVersion"))
	require.Equal(t, "ConfigMap", e.field("object.kind"))
	require.Nil(t, e.field("object.data"))
	require.Nil(t, e.field("object.metadata.name"))
	w.expectEnd()
	silent.expectEnd()
}

// TestRow18: streaming lists, and requests that do not qualify as a streaming list.
func TestRow18(t *testing.T) { overEach(t, row18) }

func row18(t *testing.T, c cell) {
	s := c.start(t)
	a, b := s.create("a", ""), s.create("b", "")
	const streaming = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
	for _, from := range []string{"", "&resourceVersion=0", "&resourceVersion=" + b.revision()} {
		w := s.watch(streaming + "&allowWatchBookmarks=true" + from)
		w.expect(added(a), added(b))
		e := w.next()
		require.Equal(t, "BOOKMARK", e["type"])
		require.Equal(t, map[string]any{"k8s.io/initial-events-end": "true"}, e.field("object.metadata.annotations"))
		head, err := strconv.Atoi(fmt.Sprint(e.field("object.metadata.resourceVersion")))
		require.NoError(t, err)
		newest, err := strconv.Atoi(b.revision())
		require.NoError(t, err)
		require.GreaterOrEqual(t, head, newest)
	}
	plain := s.watch(streaming)
	plain.expect(added(a), added(b), added(s.create("c", "")))
	for _, refused := range []string{
		"?sendInitialEvents=true&resourceVersionMatch=NotOlderThan", // a list, not a watch
		"?watch=1&resourceVersionMatch=NotOlderThan",                // only resourceVersionMatch
		"?watch=1&sendInitialEvents=true",                           // no resourceVersionMatch
		"?watch=1&sendInitialEvents=true&resourceVersionMatch=Exact&resourceVersion=" + a.revision(),
	} {
		require.Equal(t, "Invalid", s.call(422, "GET", configMaps+refused, "", "")["reason"], refused)
	}
}

// TestRow19 watches in every representation of objects.
func TestRow19(t *testing.T) { overEach(t, row19) }

func row19(t *testing.T, c cell) {
	s := c.start(t)
	a := s.create("a", "red")
	const path = configMaps + "?watch=1&resourceVersion=0"
	t.Run("json", func(t *testing.T) {
		w := s.open(200, path, "application/json")
		require.Equal(t, "application/json", w.response.Header.Get("Content-Type"))
		require.Empty(t, w.response.Header.Get("Content-Encoding"))
		w.expect(added(a))
	})
	t.Run("pretty JSON documents", func(t *testing.T) { s.open(200, path+"&pretty=1", "application/json").expect(added(a)) })
	t.Run("cbor-seq", func(t *testing.T) {
		w := s.open(200, path+"&timeoutSeconds=1", "application/cbor")
		require.Equal(t, "application/cbor-seq", w.response.Header.Get("Content-Type"))
		data, err := io.ReadAll(w.response.Body)
		require.NoError(t, err)
		var e map[string]any
		require.NoError(t, direct.Unmarshal(data, &e))
		require.Equal(t, added(a), line(e))
	})
	t.Run("protobuf", func(t *testing.T) {
		w := s.open(200, path, "application/vnd.kubernetes.protobuf")
		require.Equal(t, "application/vnd.kubernetes.protobuf;stream=watch", w.response.Header.Get("Content-Type"))
		var length uint32
		require.NoError(t, binary.Read(w.response.Body, binary.BigEndian, &length))
		frame := make([]byte, length)
		_, err := io.ReadFull(w.response.Body, frame)
		require.NoError(t, err)
		var e metav1.WatchEvent
		require.NoError(t, e.Unmarshal(frame))
		require.Equal(t, "ADDED", e.Type)
		require.True(t, bytes.HasPrefix(e.Object.Raw, []byte("k8s\x00")), "the object is in its envelope")
	})
	t.Run("table", func(t *testing.T) {
		w := s.open(200, path, "application/json;as=Table;g=meta.k8s.io;v=v1")
		first := w.next()
		require.Equal(t, "Table", first.field("object.kind"))
		require.NotEmpty(t, first.field("object.columnDefinitions"))
		row := first.field("object.rows").([]any)[0].(map[string]any)
		require.Equal(t, "a", row["cells"].([]any)[0])
		s.paint("a", "blue")
		second := w.next()
		require.Equal(t, "MODIFIED", second["type"])
		require.Empty(t, second.field("object.columnDefinitions"), "columns come once")
	})
	t.Run("partial metadata", func(t *testing.T) {
		now := s.get(configMaps + "/a")
		w := s.open(200, path, "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
		e := w.next()
		require.Equal(t, added(now), line(e))
		require.Equal(t, "PartialObjectMetadata", e.field("object.kind"))
		require.Nil(t, e.field("object.data"))
	})
	t.Run("bookmarks of tables and partial metadata", func(t *testing.T) {
		for _, as := range []string{"Table", "PartialObjectMetadata"} {
			w := s.open(200, path+"&timeoutSeconds=3&allowWatchBookmarks=true&fieldSelector=metadata.name%3Dnone", "application/json;as="+as+";g=meta.k8s.io;v=v1")
			e := w.next()
			require.Equal(t, "BOOKMARK", e["type"])
			require.Equal(t, as, e.field("object.kind"))
		}
	})
	t.Run("websocket", func(t *testing.T) {
		for _, protocol := range []string{"", "binary.k8s.io"} {
			config, err := websocket.NewConfig("ws"+strings.TrimPrefix(s.url, "http")+path, s.url)
			require.NoError(t, err)
			if c.protocol == http2 { // WebSocket uses HTTP/1.1 then too
				config.TlsConfig = s.trust()
			}
			if protocol != "" {
				config.Protocol = []string{protocol}
			}
			conn, err := websocket.DialConfig(config)
			require.NoError(t, err)
			var e object
			require.NoError(t, websocket.JSON.Receive(conn, &e))
			require.Equal(t, added(s.get(configMaps+"/a")), line(e))
			require.NoError(t, conn.Close())
		}
	})
	t.Run("no gzip", func(t *testing.T) {
		request, err := http.NewRequestWithContext(t.Context(), "GET", s.url+path+"&timeoutSeconds=1", nil)
		require.NoError(t, err)
		request.Header.Set("Accept-Encoding", "gzip")
		response, err := s.client.Transport.RoundTrip(request)
		require.NoError(t, err)
		defer response.Body.Close()
		require.Empty(t, response.Header.Get("Content-Encoding"))
	})
	t.Run("none", func(t *testing.T) { s.open(406, path, "text/html-no-such-thing") })
}

// TestRow20: a watch that was cut off can continue from its last revision or bookmark, also on another watcher.
func TestRow20(t *testing.T) { overEach(t, row20) }

func row20(t *testing.T, c cell) {
	one := c.start(t)
	w := one.watch("resourceVersion=" + one.get(configMaps).revision())
	a := one.create("a", "")
	w.expect(added(a))
	w.cancel()
	b, changed := one.create("b", ""), one.paint("a", "red")
	two := c.serve(t)
	again := two.watch("timeoutSeconds=3&allowWatchBookmarks=true&resourceVersion=" + a.revision())
	again.expect(added(b), modified(changed))
	bookmark := again.next()
	require.Equal(t, "BOOKMARK", bookmark["type"])
	again.expectEnd()
	third := two.create("c", "")
	two.watch("resourceVersion=" + fmt.Sprint(bookmark.field("object.metadata.resourceVersion"))).expect(added(third))
	one.watch("resourceVersion=" + fmt.Sprint(bookmark.field("object.metadata.resourceVersion"))).expect(added(third))
}

// TestRow57: OPTIONS is not answered, and a function redirects a watch to the watcher.
func TestRow57(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	p, err := projection.Open(projection.Config{Log: s.cell.log, Bucket: s.cell.bucket})
	require.NoError(t, err)
	c := apiserver.Config{Cell: kubestore.Cell{Log: s.cell.log, Projection: p, Cluster: "main"}}
	function, err := functions.New(functions.Config{Config: c, WatcherURL: s.url + "/"})
	require.NoError(t, err)
	listener := httptest.NewServer(function)
	t.Cleanup(listener.Close)
	request, err := http.NewRequestWithContext(t.Context(), "OPTIONS", listener.URL+configMaps, nil)
	require.NoError(t, err)
	answer, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, 204, answer.StatusCode)
	require.Empty(t, body)

	a := s.create("a", "")
	stay := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for _, path := range []string{
		configMaps + "?watch=true&resourceVersion=0", configMaps + "?watch=1&resourceVersion=0&labelSelector=a%3Db%2Cc",
		"/api/v1/watch/namespaces/default/configmaps", "/api/v1/watch/namespaces/default/configmaps/a", "/apis/apps/v1/watch/deployments",
	} {
		answer, err := stay.Get(listener.URL + path)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		require.Equal(t, 307, answer.StatusCode, path)
		require.Equal(t, s.url+path, answer.Header.Get("Location"))
	}
	alone, err := functions.New(functions.Config{Config: c}) // without a watcher
	require.NoError(t, err)
	refused := httptest.NewRecorder()
	alone.ServeHTTP(refused, httptest.NewRequest("GET", configMaps+"?watch=true", nil))
	require.Equal(t, 405, refused.Code, refused.Body.String())
	require.Contains(t, refused.Body.String(), "this process has no watcher")
	// A client that follows the redirect gets its events.
	through := &server{t: t, cell: s.cell, url: listener.URL, client: http.DefaultClient}
	through.watch("resourceVersion=0").expect(added(a))
	through.watch("/api/v1/watch/namespaces/default/configmaps/a").expect(added(a))
}
