package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/test/product"
)

// TestWatcherStops: a watcher that gets SIGTERM ends each watch cleanly after a bookmark, and exits with success. The
// watch continues on the watcher's successor. 'logplane events' prints the same past events, and new events.
func TestWatcherStops(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for drains")
	}
	t.Parallel()
	where := product.Init(t, eventlogtest.Run(t, t.TempDir()).ClientURL(), t.TempDir())
	with := func(args ...string) []string { return append(args, where...) }
	watcher := func() *product.Process {
		return product.Serve(t, with("watcher", "--listen", "127.0.0.1:0", "--authorization-mode", "AlwaysAllow", "--drain", "1s")...)
	}
	one := watcher()
	_, client, _ := clientsFor(t, one.URL())
	create := func(name string) string {
		made, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		require.NoError(t, err)
		return made.ResourceVersion
	}
	list, err := client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	printed := product.Run(t, with("events", "--from", list.ResourceVersion, "--namespace", "default", "--resource", "configmaps", "-o", "json")...)
	watch := func(p *product.Process, revision string) *json.Decoder {
		answer, err := http.Get(p.URL() + "/api/v1/namespaces/default/configmaps?watch=1&allowWatchBookmarks=true&resourceVersion=" + revision)
		require.NoError(t, err)
		t.Cleanup(func() { _ = answer.Body.Close() })
		require.Equal(t, 200, answer.StatusCode)
		return json.NewDecoder(answer.Body)
	}
	next := func(d *json.Decoder) (kind, revision string) {
		var e struct {
			Type   string
			Object corev1.ConfigMap
		}
		require.NoError(t, d.Decode(&e))
		return e.Type, e.Object.ResourceVersion
	}
	events := watch(one, list.ResourceVersion)
	a := create("a")
	kind, revision := next(events)
	require.Equal(t, []string{"ADDED", a}, []string{kind, revision})
	one.Stop()
	kind, revision = next(events)
	require.Equal(t, "BOOKMARK", kind)
	var more any
	require.True(t, errors.Is(events.Decode(&more), io.EOF), "a clean end")

	two := watcher()
	_, client, _ = clientsFor(t, two.URL())
	events = watch(two, revision)
	b := create("b")
	kind, revision = next(events)
	require.Equal(t, []string{"ADDED", b}, []string{kind, revision})

	eventlogtest.Eventually(t, "both events are printed", func() bool { return strings.Count(printed.Output(), "\n") >= 2 })
	lines := bufio.NewScanner(strings.NewReader(printed.Output()))
	for _, want := range []string{a + " ADDED configmaps default/a", b + " ADDED configmaps default/b"} {
		require.True(t, lines.Scan())
		var e struct {
			Revision, Type, Resource, Namespace, Name string
			Time                                      time.Time
		}
		require.NoError(t, json.Unmarshal(lines.Bytes(), &e), lines.Text())
		require.Equal(t, want, fmt.Sprintf("%s %s %s %s/%s", e.Revision, e.Type, e.Resource, e.Namespace, e.Name))
		require.False(t, e.Time.IsZero())
	}
	printed.Stop()
}
