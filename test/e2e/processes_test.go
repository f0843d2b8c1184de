package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket/filesystem"
	"github.com/logplane/logplane/test/product"
)

// crossReads is how many writes are made through one process and read through another.
const crossReads = 10_000 / eventlogtest.Slowdown

// TestProcesses runs 'init', two 'api', a 'watcher', a 'projector' and a 'lifecycle' as processes on a shared bucket
// and an external log. The log has one server in the first run, and three servers in the second.
func TestProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("many processes")
	}
	t.Parallel()
	t.Run("one server", func(t *testing.T) {
		t.Parallel()
		c := newCell(t, eventlogtest.Connect(t, eventlogtest.Run(t, t.TempDir())).ConnectedUrl(), 1)
		c.run(t)
	})
	t.Run("three servers", func(t *testing.T) {
		t.Parallel()
		var urls []string
		for _, server := range eventlogtest.Cluster(t).Server {
			urls = append(urls, server.ClientURL())
		}
		c := newCell(t, strings.Join(urls, ","), 3)
		c.run(t)
	})
}

// processCell is a cell that several processes share.
type processCell struct {
	where           []string // connection flags
	nats, folder    string
	watcher         *product.Process
	lifecycle       *product.Process
	first, second   *product.Process
	client, client2 *kubernetes.Clientset
}

func newCell(t *testing.T, urls string, replicas int) *processCell {
	t.Helper()
	c := &processCell{nats: urls, folder: filepath.Join(t.TempDir(), "bucket")}
	c.where = product.Init(t, urls, c.folder, "--replicas", fmt.Sprint(replicas))
	c.watcher = product.Serve(t, c.with("watcher", "--listen", "127.0.0.1:0", "--authorization-mode", "AlwaysAllow")...)
	product.Run(t, c.with("projector")...)
	c.lifecycle = product.Run(t, c.with("lifecycle")...)
	c.first, c.second = c.api(t), c.api(t)
	_, c.client, _ = clientsFor(t, c.first.URL())
	_, c.client2, _ = clientsFor(t, c.second.URL())
	return c
}

func (c *processCell) with(args ...string) []string { return slices.Concat(args, c.where) }

func (c *processCell) api(t *testing.T) *product.Process {
	return product.Serve(t, c.with("api", "--listen", "127.0.0.1:0", "--authorization-mode", "AlwaysAllow", "--watcher-url", c.watcher.URL())...)
}

func (c *processCell) run(t *testing.T) {
	t.Run("a write through one is read through the other", c.crossReads)
	t.Run("increments", func(t *testing.T) { increment(t, increments, c.client, c.client2) })
	t.Run("tokens cross processes", c.pages)
	t.Run("create after delete across purge points", c.purge)
	t.Run("a watch is redirected", c.watchRedirect)
	t.Run("a wrong bucket is refused", c.wrongBucket)
	t.Run("what is forgotten no process tells", c.forget)
	t.Run("a namespace goes with its contents", c.namespace)
}

// wrongBucket: a projector that is given another bucket must not commit the log to that bucket, because after a commit
// the log is purged.
func (c *processCell) wrongBucket(t *testing.T) {
	other := t.TempDir()
	p := product.Run(t, "projector", "--once", "--nats", c.nats, "--bucket", "file://"+other)
	<-p.Exited
	require.NotZero(t, p.Cmd.ProcessState.ExitCode())
	require.Contains(t, p.Output(), "the bucket does not have the log's cell")
	require.NoFileExists(t, filepath.Join(other, "logplane", "root"))
}

func (c *processCell) crossReads(t *testing.T) {
	const writers = 4
	group, ctx := errgroup.WithContext(t.Context())
	for w := range writers {
		write, read := c.client, c.client2
		if w%2 == 1 {
			write, read = read, write
		}
		group.Go(func() error { return writeAndRead(ctx, fmt.Sprintf("cross-%d", w), crossReads/writers, write, read) })
	}
	require.NoError(t, group.Wait())
}

// writeAndRead updates one object n times. After each update, a read through the other process must return exactly the
// new value.
func writeAndRead(ctx context.Context, name string, n int, write, read kubernetes.Interface) error {
	object, err := write.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	for i := range n {
		object.Data = map[string]string{"i": fmt.Sprint(i)}
		object, err = write.CoreV1().ConfigMaps("default").Update(ctx, object, metav1.UpdateOptions{})
		if err != nil {
			return fmt.Errorf("update %d: %w", i, err)
		}
		got, err := read.CoreV1().ConfigMaps("default").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("read %d: %w", i, err)
		}
		if got.ResourceVersion != object.ResourceVersion || got.Data["i"] != fmt.Sprint(i) {
			return fmt.Errorf("stale read %d: revision %s instead of %s", i, got.ResourceVersion, object.ResourceVersion)
		}
	}
	return nil
}

// pages lists 'ns' and 'ns-a', whose names share a prefix, and gets the pages from the two processes in turn.
func (c *processCell) pages(t *testing.T) {
	for _, namespace := range []string{"ns", "ns-a"} {
		_, err := c.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
		require.NoError(t, err)
		for i := range 25 {
			_, err := c.client2.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("c-%02d", i)}}, metav1.CreateOptions{})
			require.NoError(t, err)
		}
	}
	for _, namespace := range []string{"ns", "ns-a", ""} {
		whole, err := c.client.CoreV1().ConfigMaps(namespace).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		if namespace != "" {
			require.Len(t, whole.Items, 25)
		}
		require.Equal(t, names(whole.Items), c.paged(t, namespace))
	}
}

func (c *processCell) paged(t *testing.T, namespace string) (all []string) {
	options := metav1.ListOptions{Limit: 7}
	revision := ""
	for page := 0; ; page++ {
		client := c.client
		if page%2 == 1 {
			client = c.client2
		}
		list, err := client.CoreV1().ConfigMaps(namespace).List(t.Context(), options)
		require.NoError(t, err)
		if revision == "" {
			revision = list.ResourceVersion
		}
		require.Equal(t, revision, list.ResourceVersion, "every page is of one revision")
		all = append(all, names(list.Items)...)
		options.Continue = list.Continue
		if list.Continue == "" {
			return all
		}
		// Later pages do not show a write that was made between pages.
		_, err = c.client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "between-"}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
}

func names(items []corev1.ConfigMap) (all []string) {
	for _, item := range items {
		all = append(all, item.Namespace+"/"+item.Name)
	}
	return all
}

// purge deletes and creates one name again and again, while all events that a snapshot covers are purged from the log.
// So preconditions are sometimes a tombstone's revision and sometimes 0.
func (c *processCell) purge(t *testing.T) {
	conn, err := eventlog.Connect(eventlog.Servers{URL: c.nats})
	require.NoError(t, err)
	defer conn.Close()
	purger := c.projection(t, conn)
	for i := range 30 {
		client, other := c.client, c.client2
		if i%2 == 1 {
			client, other = other, client
		}
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "again"}}
		_, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), object, metav1.CreateOptions{})
		require.NoError(t, err, "create %d", i)
		_, err = other.CoreV1().ConfigMaps("default").Create(t.Context(), object, metav1.CreateOptions{})
		require.ErrorContains(t, err, "already exists")
		if i%3 == 0 {
			purgeAll(t, purger)
		}
		require.NoError(t, other.CoreV1().ConfigMaps("default").Delete(t.Context(), "again", metav1.DeleteOptions{}), "delete %d", i)
		if i%3 != 1 {
			purgeAll(t, purger)
		}
	}
}

func (c *processCell) projection(t *testing.T, conn *nats.Conn) *projection.Projection {
	log, err := eventlog.Open(t.Context(), eventlog.Config{Conn: conn})
	require.NoError(t, err)
	b, err := filesystem.Open(c.folder)
	require.NoError(t, err)
	p, err := projection.Open(projection.Config{Log: log, Bucket: b})
	require.NoError(t, err)
	return p
}

// purgeAll commits, and purges from the log all events that the new snapshot covers.
func purgeAll(t *testing.T, p *projection.Projection) {
	t.Helper()
	applied, err := p.Commit(t.Context())
	require.NoError(t, err)
	require.NoError(t, p.Retain(t.Context(), 0, applied))
}

func (c *processCell) watchRedirect(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	watch, err := c.client.CoreV1().ConfigMaps("ns").Watch(ctx, metav1.ListOptions{ResourceVersion: "0", FieldSelector: "metadata.name=c-00"})
	require.NoError(t, err)
	defer watch.Stop()
	first := <-watch.ResultChan()
	require.Equal(t, "ADDED", string(first.Type))
	changed, err := c.client2.CoreV1().ConfigMaps("ns").Patch(ctx, "c-00", "application/merge-patch+json", annotate("1"), metav1.PatchOptions{})
	require.NoError(t, err)
	second := <-watch.ResultChan()
	require.Equal(t, "MODIFIED", string(second.Type))
	require.Equal(t, changed.ResourceVersion, second.Object.(*corev1.ConfigMap).ResourceVersion)
}

// forget: once a version is forgotten, no process returns that version, not even a process that has just read it. A
// watch continues.
func (c *processCell) forget(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	maps := c.client.CoreV1().ConfigMaps("default")
	pasted, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "pasted"}, Data: map[string]string{"token": "hunter2"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	changed, err := maps.Patch(ctx, "pasted", "application/merge-patch+json", []byte(`{"data":{"token":"none"}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	watch, err := maps.Watch(ctx, metav1.ListOptions{ResourceVersion: changed.ResourceVersion, FieldSelector: "metadata.name=pasted"})
	require.NoError(t, err)
	defer watch.Stop()
	told := func(client *kubernetes.Clientset) string {
		var all strings.Builder
		for _, path := range []string{
			"/at/" + pasted.ResourceVersion + "/api/v1/namespaces/default/configmaps",
			"/apis/history.logplane.dev/v1/namespaces/default/versions?include=object&fieldSelector=object=configmaps/pasted",
			"/api/v1/namespaces/default/configmaps?resourceVersionMatch=Exact&resourceVersion=" + pasted.ResourceVersion,
			"/api/v1/namespaces/default/configmaps?watch=true&timeoutSeconds=1&resourceVersion=" + pasted.ResourceVersion,
		} {
			answer, err := client.RESTClient().Get().RequestURI(path).DoRaw(ctx)
			fmt.Fprintln(&all, path, string(answer), err)
		}
		return all.String()
	}
	for _, client := range []*kubernetes.Clientset{c.client, c.client2} {
		require.Contains(t, told(client), "hunter2")
	}
	p := product.Run(t, c.with("forget", "configmaps/pasted", "--namespace", "default", "--yes", "--writers-stopped")...)
	<-p.Exited
	require.Zero(t, p.Cmd.ProcessState.ExitCode(), p.Output())
	require.Contains(t, p.Output(), "forgotten: 1 versions")
	for _, client := range []*kubernetes.Clientset{c.client, c.client2} {
		require.NotContains(t, told(client), "hunter2")
	}
	now, err := maps.Get(ctx, "pasted", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, changed.ResourceVersion, now.ResourceVersion)
	again, err := maps.Patch(ctx, "pasted", "application/merge-patch+json", annotate("1"), metav1.PatchOptions{})
	require.NoError(t, err)
	event := <-watch.ResultChan()
	require.Equal(t, "MODIFIED", string(event.Type))
	require.Equal(t, again.ResourceVersion, event.Object.(*corev1.ConfigMap).ResourceVersion)
}

func (c *processCell) namespace(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	watch, err := c.client.CoreV1().Namespaces().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=ns-a"})
	require.NoError(t, err)
	defer watch.Stop()
	require.NoError(t, c.client.CoreV1().Namespaces().Delete(ctx, "ns-a", metav1.DeleteOptions{}))
	for event := range watch.ResultChan() {
		if event.Type == "DELETED" {
			break
		}
	}
	list, err := c.client2.CoreV1().ConfigMaps("ns-a").List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	require.Empty(t, list.Items)
	_, err = c.client2.CoreV1().Namespaces().Get(ctx, "ns-a", metav1.GetOptions{})
	require.ErrorContains(t, err, "not found")
}
