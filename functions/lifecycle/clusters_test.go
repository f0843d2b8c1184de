package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver"
	"github.com/logplane/logplane/internal/apiserver/customresources"
	"github.com/logplane/logplane/projection"
)

// beside returns another cluster of the same cell. Its life is one of the same Lifecycle.
func (c *cluster) beside(name string) *cluster {
	c.Helper()
	other := &cluster{T: c.T, cell: c.cell}
	other.cell.Cluster = name
	var err error
	other.server, err = apiserver.New(apiserver.Config{Cell: other.cell})
	require.NoError(c, err)
	require.NoError(c, other.server.Bootstrap(c.Context()))
	c.restart(other.serve)
	other.life, err = c.of(c.Context(), name)
	require.NoError(c, err)
	return other
}

// serve makes a Lifecycle serve the cluster, too.
func (c *cluster) serve(config *Config) {
	servers := config.Servers
	config.Servers = func(ctx context.Context, cluster string) (Server, error) {
		if cluster == c.cell.Cluster {
			return c.server, nil
		}
		return servers(ctx, cluster)
	}
}

// livesNow are the clusters that have a life.
func (l *Lifecycle) livesNow() (clusters []string) {
	l.keeping.Lock()
	defer l.keeping.Unlock()
	for cluster := range l.lives {
		clusters = append(clusters, cluster)
	}
	return clusters
}

// quiets ages every life, as if nothing had happened for a while, and drops the lives of quiet clusters.
func (l *Lifecycle) quiets() {
	l.keeping.Lock()
	for _, one := range l.lives {
		one.used = one.used.Add(-quietTime)
	}
	l.keeping.Unlock()
	l.dropQuiet()
}

// TestClustersOfACell: one Lifecycle finishes the deletions of all clusters of a cell, whether it sees them or finds
// them later, and Once does the same. What has the same name in another cluster stays.
func TestClustersOfACell(t *testing.T) {
	c := newCluster(t)
	other := c.beside("other")
	both := []*cluster{c, other}
	begin := func(round string) {
		for _, in := range both {
			in.createNamespace(round)
			in.createConfigMap(round, "c")
			in.deleteNamespace(round)
			owner := in.own("default", round)
			in.own("default", "of-"+round, ownerOf(owner, false))
			in.deleteConfigMap("default", round, metav1.DeletePropagationBackground)
		}
	}
	done := func(round string) {
		for _, in := range both {
			in.namespaceGone(round)
			in.eventually(func() bool { return in.isGone("default", "of-"+round) }, "the garbage is gone")
		}
	}
	other.createNamespace("kept")
	begin("before")
	stop := c.run()
	done("before")
	begin("seen")
	done("seen")
	c.createNamespace("kept")
	c.deleteNamespace("kept")
	c.namespaceGone("kept")
	_, err := other.client.CoreV1().Namespaces().Get(t.Context(), "kept", metav1.GetOptions{})
	require.NoError(t, err)
	stop()
	begin("once")
	other.createNamespace("held")
	other.createConfigMap("held", "c", "example.com/hold")
	other.deleteNamespace("held")
	require.Equal(t, []string{"in cluster 'other': namespace held: content remains, and its conditions say what"}, c.once())
	done("once")
}

// TestQuietClusters: a cluster without tasks and events has no life, and its next event makes one. A life stays while
// something waits in it. Main's life always stays.
func TestQuietClusters(t *testing.T) {
	c := newCluster(t)
	other := c.beside("other")
	c.restart(other.serve)
	c.done(c.life)
	c.run()
	require.Eventually(t, func() bool { return len(c.livesNow()) == 2 }, patience, 10*time.Millisecond, "both states are read")
	quiet := func(what string) {
		require.Eventually(t, func() bool { c.quiets(); return slices.Equal([]string{"main"}, c.livesNow()) }, patience, 10*time.Millisecond, what)
	}
	quiet("nobody writes")

	c.createNamespace("n")
	c.deleteNamespace("n")
	c.namespaceGone("n")
	other.createNamespace("n")
	other.createConfigMap("n", "c", "example.com/hold")
	other.deleteNamespace("n")
	other.eventually(func() bool {
		return other.conditionOf("n", corev1.NamespaceFinalizersRemaining) == corev1.ConditionTrue
	}, "the namespace waits")
	c.quiets()
	require.Contains(t, c.livesNow(), "other", "it waits for the finalizer")
	_, err := other.client.CoreV1().ConfigMaps("n").Patch(t.Context(), "c", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	other.namespaceGone("n")
	quiet("nothing waits any more")
	other.createNamespace("again")
	other.deleteNamespace("again")
	other.namespaceGone("again")
}

// TestKindsAfterQuiet: an object whose owner is of an unknown kind is looked at again when the kind is served, although
// the life that knew of the object was dropped.
func TestKindsAfterQuiet(t *testing.T) {
	c := newCluster(t)
	other := c.beside("other")
	c.restart(other.serve)
	c.run()
	other.createNamespace("n")
	other.own("n", "waiting", metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Widget", Name: "o", UID: "w"})
	waits := func() bool {
		one, err := c.of(context.Background(), "other")
		require.NoError(t, err)
		defer c.done(one)
		one.mu.Lock()
		defer one.mu.Unlock()
		return len(one.unknown) == 1
	}
	require.Eventually(t, waits, patience, 10*time.Millisecond)
	require.Eventually(t, func() bool {
		c.quiets()
		return !waits()
	}, patience, 10*time.Millisecond, "the life was dropped")
	other.createDefinition()
	other.eventually(func() bool { return other.isGone("n", "waiting") }, "garbage of a new kind")
}

// TestFewLives: not more than keptLives lives are kept, besides those that are in use.
func TestFewLives(t *testing.T) {
	c := newCluster(t)
	l := New(Config{Cell: c.cell, Servers: func(context.Context, string) (Server, error) { return c.server, nil }})
	busy, err := l.of(t.Context(), "busy")
	require.NoError(t, err)
	for i := range 2 * keptLives {
		one, err := l.of(t.Context(), fmt.Sprint(i))
		require.NoError(t, err)
		l.done(one)
	}
	kept := l.livesNow()
	require.Len(t, kept, keptLives)
	require.Contains(t, kept, "busy")
	require.Contains(t, kept, fmt.Sprint(2*keptLives-1))
	require.NotContains(t, kept, "0")
	again, err := l.of(t.Context(), "busy")
	require.NoError(t, err)
	require.Same(t, busy, again)
}

// branch begins or ends a branch.
func (c *cluster) branch(name string, begins bool) {
	c.Helper()
	view, err := c.cell.Projection.Latest(c.Context())
	require.NoError(c, err)
	row, err := view.State(c.Context(), projection.BranchKey(name))
	require.NoError(c, err)
	write := row.Delete()
	if begins {
		write = row.Begin(projection.Branch{Source: "main", At: view.Revision()})
	}
	_, err = c.cell.Append(c.Context(), view, write)
	require.NoError(c, err)
}

// TestBranchesAreRead: the state of a branch is read when the lifecycle starts, and when the branch begins. When a
// branch ends, its life is dropped and its tasks end.
func TestBranchesAreRead(t *testing.T) {
	c := newCluster(t)
	asked := make(chan string, 1000)
	var ended atomic.Bool
	refuses := func(config *Config) {
		servers := config.Servers
		config.Servers = func(ctx context.Context, cluster string) (Server, error) {
			switch {
			case !projection.IsBranch(cluster):
				return servers(ctx, cluster)
			case ended.Load():
				return nil, fmt.Errorf("look for the branch: %w", projection.ErrNoBranch)
			}
			asked <- cluster
			return stateless{c.server}, nil
		}
	}
	c.branch("old.1", true)
	c.restart(refuses)
	c.run()
	require.Equal(t, "old.1", <-asked)
	c.branch("new.1", true)
	for next := range asked { // a failed read asks again
		if next == "new.1" {
			break
		}
	}
	require.Eventually(t, func() bool { return len(c.livesNow()) == 3 }, patience, 10*time.Millisecond, "the branches have lives")
	ended.Store(true)
	c.branch("old.1", false)
	c.branch("new.1", false)
	require.Eventually(t, func() bool { return len(c.livesNow()) == 1 }, patience, 10*time.Millisecond)
	c.createNamespace("n")
	c.deleteNamespace("n")
	c.namespaceGone("n")
}

// stateless is a server of a branch that cannot be read.
type stateless struct{ Server }

func (stateless) Definitions(context.Context) ([]customresources.Summary, error) {
	return nil, errors.New("the branch cannot be read")
}

// TestQuietBranchesCheckNoRemotes: a branch checks its remote APIServices once, and then only while it has events.
func TestQuietBranchesCheckNoRemotes(t *testing.T) {
	c := newCluster(t)
	_, err := c.registrations.APIServices().Create(t.Context(), &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1.remote.example"}, Spec: apiregistrationv1.APIServiceSpec{
		Group: "remote.example", Version: "v1", GroupPriorityMinimum: 7, VersionPriority: 7, InsecureSkipTLSVerify: true,
		Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "a"},
	}}, metav1.CreateOptions{})
	require.NoError(t, err)
	branch, err := New(Config{Cell: c.cell, Servers: Only("b.1", checking{c.server, func(*apiregistrationv1.APIService) (apiregistrationv1.APIServiceCondition, error) {
		return apiregistrationv1.APIServiceCondition{Type: apiregistrationv1.Available, Status: apiregistrationv1.ConditionTrue}, nil
	}})}).of(t.Context(), "b.1")
	require.NoError(t, err)
	check := task{kind: remoteTask, name: "v1.remote.example"}
	_, err = branch.do(t.Context(), check)
	require.NoError(t, err, "it does not wait for another check")
	var tasks []task
	event := eventlog.Event{Write: eventlog.Write{Op: eventlog.Modified, Key: eventlog.Key{Cluster: "b.1", Resource: "configmaps", Prefix: "/configmaps", Namespace: "n", Name: "c"}}}
	for range 2 {
		require.NoError(t, branch.queueEvent(t.Context(), event, func(t task, _ time.Duration) { tasks = append(tasks, t) }))
	}
	require.Equal(t, []task{{kind: remotesTask}}, tasks)
	tasks, err = branch.do(t.Context(), tasks[0])
	require.NoError(t, err)
	require.Equal(t, []task{check}, tasks)
	var notYet *notYetError
	_, err = branch.do(t.Context(), check)
	require.ErrorAs(t, err, &notYet)
}

// TestExpiryInAllClusters: objects expire in each cluster. A cluster whose objects have all expired is not looked at
// again until it gets an object with a TTL.
func TestExpiryInAllClusters(t *testing.T) {
	c := newCluster(t)
	c.beside("other")
	write := func(cluster string, ttl uint32) {
		_, err := c.cell.Log.Append(t.Context(), eventlog.Basis{}, "write-"+cluster+fmt.Sprint(ttl), eventlog.Write{
			Key: eventlog.Key{Cluster: cluster, Resource: "events", Prefix: "/events", Namespace: "default", Name: fmt.Sprint("e", ttl)},
			Op:  eventlog.Added, ContentType: "application/vnd.kubernetes.protobuf", Body: []byte("x"), TTL: ttl,
		})
		require.NoError(t, err)
	}
	for _, cluster := range []string{"main", "other", "unserved"} {
		write(cluster, 1)
	}
	write("main", 3600)
	c.mortal.addAll()
	left := func() int { return c.allRows("default", isEvent) } // of all clusters
	require.Eventually(t, func() bool {
		require.NoError(t, c.expireMortals(t.Context()))
		all, some := c.mortal.take()
		c.mortal.add(some...)
		require.False(t, all)
		return left() == 2 && len(some) == 1
	}, patience, 50*time.Millisecond)
	_, some := c.mortal.take()
	require.Equal(t, []string{"main"}, some)
	write("other", 2)
	require.Eventually(t, func() bool {
		n, err := c.Expire(t.Context())
		require.NoError(t, err)
		return n == 1
	}, patience, 50*time.Millisecond)
	require.Equal(t, 2, left(), "one for an hour, and one of a cluster without a server")
}

func isEvent(k eventlog.Key) bool { return k.Resource == "events" }

// TestClustersEnd: a Cluster is deleted when its TTL has passed by the log's time, and not before.
func TestClustersEnd(t *testing.T) {
	c := newCluster(t)
	now := time.Now().UTC()
	object := func(name, ttl string, age time.Duration) string {
		return fmt.Sprintf(`{"apiVersion":"clusters.logplane.dev/v1","kind":"Cluster","metadata":{"name":"%s","uid":"uid-%s","resourceVersion":"7","creationTimestamp":"%s"},"spec":{%s}}`,
			name, name, now.Add(-age).Format(time.RFC3339), ttl)
	}
	objects := map[string]string{
		"past": object("past", `"ttl":"1h0m0s"`, 2*time.Hour), "soon": object("soon", `"ttl":"2s"`, 0),
		"later": object("later", `"ttl":"3h0m0s"`, 2*time.Hour), "never": object("never", "", 2*time.Hour),
	}
	gone := make(chan string, 10)
	c.restart(through(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		name, ok := strings.CutPrefix(r.URL.Path, "/apis/clusters.logplane.dev/v1/clusters/")
		if !ok {
			return next.RoundTrip(r)
		}
		body := objects[name]
		if r.Method == http.MethodDelete {
			options, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			require.Contains(t, string(options), `"uid":"uid-`+name+`"`)
			gone <- name
			body = `{"kind":"Status","apiVersion":"v1","status":"Success"}`
		}
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
	}))
	store := func(name string) {
		view, err := c.cell.Projection.Latest(t.Context())
		require.NoError(t, err)
		row, err := view.State(t.Context(), eventlog.Key{Cluster: "main", Group: "clusters.logplane.dev", Resource: "clusters", Prefix: "/clusters.logplane.dev/clusters", Name: name})
		require.NoError(t, err)
		_, err = c.cell.Append(t.Context(), view, row.Put("application/json", []byte(objects[name]), 0))
		require.NoError(t, err)
	}
	store("past")
	store("later")
	store("never")
	view, err := c.cell.Projection.Latest(t.Context())
	require.NoError(t, err)
	tasks, err := c.clustersOfState(t.Context(), view)
	require.NoError(t, err)
	require.Equal(t, []task{{kind: clusterTask, name: "later"}, {kind: clusterTask, name: "past"}}, tasks)
	c.run()
	require.Equal(t, "past", <-gone)
	store("soon")
	require.Equal(t, "soon", <-gone)
	require.False(t, time.Now().Before(now.Truncate(time.Second).Add(2*time.Second)))
	require.Empty(t, gone)
}

// TestClustersTakeTurns: the tasks of one cluster do not all run before the tasks of another cluster, however many
// namespaces the first one has.
func TestClustersTakeTurns(t *testing.T) {
	q := newQueues()
	defer q.shutDown()
	for i := range 100 {
		q.add("many", task{kind: namespaceTask, namespace: fmt.Sprint(i)})
	}
	for i := range 3 {
		q.add("few", task{kind: namespaceTask, namespace: fmt.Sprint(i)})
	}
	require.Equal(t, 103, q.own.Len())
	var order []string
	for range 103 {
		got, _ := q.own.Get()
		order = append(order, got.cluster+"/"+got.namespace)
		q.own.Done(got)
	}
	require.Equal(t, []string{"many/0", "few/0", "many/1", "few/1", "many/2", "few/2", "many/3", "many/4"}, order[:8])
	require.Equal(t, "many/99", order[102])
}
