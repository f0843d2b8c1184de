package watcher_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/functions"
	"github.com/logplane/logplane/internal/apiserver"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

// branch makes a cluster that begins as another one is.
func (s *server) branch(name, source string) object {
	s.t.Helper()
	return s.post("/apis/clusters.logplane.dev/v1/clusters", fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"from":{"cluster":%q}}}`, name, source))
}

// TestWatchesOfBranches: a watch shows the changes of its own cluster only, and ends with the cluster. A watch from the
// revision at which a branch begins shows all of its changes, also in a watcher that starts later.
func TestWatchesOfBranches(t *testing.T) {
	overEach(t, func(t *testing.T, c cell) {
		s := c.start(t)
		x := s.create("x", "")
		a := s.branch("a", "main")
		begins := fmt.Sprintf("resourceVersion=%v", a.field("status.revision"))
		const inA = "/clusters/a" + configMaps
		ofMain := s.watch("resourceVersion=" + x.revision())
		ofA := s.watch(inA + "?watch=1&" + begins)
		whole := s.watch(inA + "?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true")
		painted := s.patch(inA+"/x", `{"metadata":{"labels":{"color":"red"}}}`)
		y := s.create("y", "")
		z := s.post(inA, configMap("z", ""))
		gone := s.delete(inA + "/x")
		ofMain.expect(added(y))
		ofA.expect(modified(painted), added(z))
		require.Equal(t, "DELETED", ofA.next()["type"], gone)
		whole.expect(added(x))
		require.Equal(t, "BOOKMARK", whole.next()["type"])
		whole.expect(modified(painted), added(z))

		// Only what the branch changes is in it, whatever a selector has to say about what it inherits.
		b := s.branch("b", "a")
		red := s.watch(fmt.Sprintf("/clusters/b%s?watch=1&labelSelector=color%%3Dred&resourceVersion=%v", configMaps, b.field("status.revision")))
		s.patch("/clusters/b"+configMaps+"/z", `{"metadata":{"labels":{"color":"red"}}}`)
		require.Equal(t, "ADDED", red.next()["type"], "it was not red in its source")

		again := c.serve(t)
		later := again.watch(inA + "?watch=1&" + begins)
		later.expect(modified(painted), added(z))
		require.Equal(t, "DELETED", later.next()["type"])
		before := again.open(200, fmt.Sprintf("%s?watch=1&resourceVersion=%d", inA, int(a.field("status.revision").(float64))-1), "application/json")
		require.Equal(t, "ERROR 410 Expired", line(before.next()))

		s.delete("/apis/clusters.logplane.dev/v1/clusters/a")
		for _, watch := range []*stream{ofA, later} {
			require.Equal(t, "ERROR 404 NotFound", line(watch.next()))
			watch.expectEnd()
		}
		s.call(404, "GET", inA, "", "")
		s.get("/clusters/b" + configMaps) // a branch outlives its source
		w := s.create("w", "")
		ofMain.expect(added(w))
	})
}

// TestWatchesOfBranchesAreRedirected: a function sends a watch of a cluster to the same cluster at the watcher.
func TestWatchesOfBranchesAreRedirected(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.branch("a", "main")
	p, err := projection.Open(projection.Config{Log: s.cell.log, Bucket: s.cell.bucket})
	require.NoError(t, err)
	c := apiserver.Config{Cell: kubestore.Cell{Log: s.cell.log, Projection: p, Cluster: "main"}}
	function, err := functions.New(functions.Config{Config: c, WatcherURL: s.url + "/"})
	require.NoError(t, err)
	listener := httptest.NewServer(function)
	t.Cleanup(listener.Close)
	stay := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	const path = "/clusters/a" + configMaps + "?watch=1&labelSelector=a%3Db%2Cc"
	answer, err := stay.Get(listener.URL + path)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, 307, answer.StatusCode)
	require.Equal(t, s.url+path, answer.Header.Get("Location"))
}
