package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket/filesystem"
	"github.com/logplane/logplane/test/product"
)

// TestEventsForSubscribers: if a server admits only subscribers, 'logplane events' says so before its deadline. Such a
// server does not answer the command's requests at all.
func TestEventsForSubscribers(t *testing.T) {
	t.Parallel()
	server := product.Dev(t, t.TempDir(), "--events-listen", "127.0.0.1:0")
	eventlogtest.Eventually(t, "dev says where events are", func() bool { return strings.Contains(server.Output(), "subjects 'logplane.events.>'") })
	url := regexp.MustCompile(`Events are on (\S+), `).FindStringSubmatch(server.Output())[1]
	p := product.Run(t, "events", "--nats", url, "--bucket", "file://"+t.TempDir())
	<-p.Exited
	require.Equal(t, 1, p.Cmd.ProcessState.ExitCode())
	require.Regexp(t, `^logplane: open log: this user of the server may not read the log.*permissions violation.*\n$`, p.Output())
}

// TestEventsOfARunningDev: 'logplane events' finds a running dev by its folder and by its kubeconfig, and prints past
// and new events. It continues when dev is started again after a kill. If the command cannot read the events, it says
// why.
func TestEventsOfARunningDev(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	dev := product.Dev(t, folder)
	create := func(name string) {
		t.Helper()
		body := fmt.Sprintf(`{"metadata":{"name":%q}}`, name)
		answer, err := http.Post(dev.URL()+"/api/v1/namespaces/default/configmaps", "application/json", strings.NewReader(body))
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		require.Equal(t, http.StatusCreated, answer.StatusCode)
	}
	create("before")
	var printers []*product.Process
	for _, where := range [][]string{{"--data", folder}, {"--kubeconfig", kubeconfig(folder)}} {
		printers = append(printers, product.Run(t, append([]string{"events", "--from", "1", "--resource", "configmaps", "-n", "default"}, where...)...))
	}
	printed := func(name string) {
		t.Helper()
		for _, p := range printers {
			eventlogtest.Eventually(t, name+" is printed", func() bool {
				return strings.Count(p.Output(), " ADDED    configmaps default/"+name+" by system:admin\n") == 1
			})
		}
	}
	printed("before")
	create("live")
	printed("live")
	dev.Kill()
	says := func(message string, args ...string) {
		t.Helper()
		p := product.Run(t, append([]string{"events"}, args...)...)
		<-p.Exited
		require.Equal(t, 1, p.Cmd.ProcessState.ExitCode())
		require.Contains(t, p.Output(), message)
	}
	says("no 'logplane dev' runs on", "--data", folder)
	dev = product.Dev(t, folder)
	create("again")
	printed("again")
	for _, p := range printers {
		p.Stop()
	}

	says("is not a data folder of 'logplane dev'", "--data", filepath.Join(folder, "bucket"))
	inMemory := t.TempDir()
	product.Dev(t, inMemory, "--in-memory")
	says("because it is in memory", "--data", inMemory)
	other := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(other, []byte("{apiVersion: v1, kind: Config}"), 0o600))
	says("the API does not show its events", "--kubeconfig", other)
}

// TestEvents: 'logplane events' prints which objects of a namespace changed, and how, from a revision on. It prints no
// void events. If the cell no longer has the revision, the command says that.
func TestEvents(t *testing.T) {
	t.Parallel()
	conn, folder := eventlogtest.Start(t), t.TempDir()
	where := product.Init(t, conn.ConnectedUrl(), folder)
	log := eventlogtest.Open(t, eventlog.Config{Conn: conn})
	authors := map[eventlog.Op]eventlog.Author{ // no author for the deletion
		eventlog.Added: {User: "ann"}, eventlog.Modified: {User: "ann", As: "bob", Agent: "kubectl"},
	}
	write := func(op eventlog.Op, namespace string, base, precondition eventlog.Revision) eventlog.Revision {
		rev, err := log.Append(t.Context(), eventlog.Basis{}, uuid.NewString(), eventlog.Write{
			Key: eventlog.Key{Cluster: "main", Group: "apps", Resource: "deployments", Prefix: "/deployments", Namespace: namespace, Name: "web"},
			Op:  op, Base: base, Precondition: precondition, ContentType: "application/cbor", Author: authors[op],
		})
		require.NoError(t, err)
		return rev
	}
	before := write(eventlog.Added, "ours", 0, 0)
	p := product.Run(t, append([]string{"events", "--namespace", "ours", "--from", fmt.Sprint(before)}, where...)...)
	past := write(eventlog.Modified, "ours", before, before)
	write(eventlog.Added, "theirs", 0, 0)
	lines := func(n int) []string {
		eventlogtest.Eventually(t, fmt.Sprint(n, " events are printed"), func() bool { return strings.Count(p.Output(), "\n") >= n })
		var shorter []string
		for line := range strings.Lines(p.Output()) {
			words := strings.Fields(line)
			shorter = append(shorter, strings.Join(append(words[:1], words[2:]...), " "))
		}
		return shorter
	}
	expected := []string{fmt.Sprintf("%d MODIFIED deployments.apps ours/web by ann as bob", past)}
	require.Equal(t, expected, lines(1))
	lost := write(eventlog.Added, "ours", 0, past) // void, since the object exists
	last := write(eventlog.Deleted, "ours", past, lost)
	expected = append(expected, fmt.Sprintf("%d DELETED deployments.apps ours/web by unknown", last))
	require.Equal(t, expected, lines(2))
	p.Stop()

	b, err := filesystem.Open(folder)
	require.NoError(t, err)
	cell, err := projection.Open(projection.Config{Log: log, Bucket: b, Prefix: "logplane"})
	require.NoError(t, err)
	applied, err := cell.Commit(t.Context())
	require.NoError(t, err)
	require.NoError(t, cell.Retain(t.Context(), applied, applied))
	expired := product.Run(t, append([]string{"events", "--from", fmt.Sprint(before)}, where...)...)
	<-expired.Exited
	require.Contains(t, expired.Output(), fmt.Sprintf("--from %d is older than what the cell keeps", before))
}
