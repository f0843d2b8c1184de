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
)

// TestWatcherStops: a watcher that gets SIGTERM ends each watch with a bookmark and cleanly, and exits well;
// the watch goes on on its successor. 'logplane events' prints the same history, and what comes.
func TestWatcherStops(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for drains")
	}
	t.Parallel()
	where := []string{"--nats", eventlogtest.Run(t, t.TempDir()).ClientURL(), "--bucket", "file://" + t.TempDir()}
	with := func(args ...string) []string { return append(args, where...) }
	made := start(t, false, with("init")...)
	<-made.exited
	require.Zero(t, made.cmd.ProcessState.ExitCode(), made.output())
	watcher := func() *process {
		return start(t, true, with("watcher", "--listen", "127.0.0.1:0", "--authorization-mode", "AlwaysAllow", "--drain", "1s")...)
	}
	one := watcher()
	_, client, _ := clientsFor(t, one.url())
	create := func(name string) string {
		made, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		require.NoError(t, err)
		return made.ResourceVersion
	}
	list, err := client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	printed := start(t, false, with("events", "--from", list.ResourceVersion, "--namespace", "default", "--resource", "configmaps", "-o", "json")...)
	watch := func(p *process, revision string) *json.Decoder {
		answer, err := http.Get(p.url() + "/api/v1/namespaces/default/configmaps?watch=1&allowWatchBookmarks=true&resourceVersion=" + revision)
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
	one.stop()
	kind, revision = next(events)
	require.Equal(t, "BOOKMARK", kind)
	var more any
	require.True(t, errors.Is(events.Decode(&more), io.EOF), "a clean end")

	two := watcher()
	_, client, _ = clientsFor(t, two.url())
	events = watch(two, revision)
	b := create("b")
	kind, revision = next(events)
	require.Equal(t, []string{"ADDED", b}, []string{kind, revision})

	eventlogtest.Eventually(t, "both events are printed", func() bool { return strings.Count(printed.output(), "\n") >= 2 })
	lines := bufio.NewScanner(strings.NewReader(printed.output()))
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
	printed.stop()
}
