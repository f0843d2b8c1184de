package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	apiregistrationclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"github.com/logplane/logplane/internal/apiserver/bootstrap"
	"github.com/logplane/logplane/internal/apiserver/clusters"
	"github.com/logplane/logplane/internal/apiserver/dependents"
	"github.com/logplane/logplane/projection"
)

// Only is Config.Servers for a process that has the server of one cluster.
func Only(cluster string, server Server) func(context.Context, string) (Server, error) {
	return func(_ context.Context, asked string) (Server, error) {
		if asked != cluster {
			return nil, projection.ErrNoBranch
		}
		return server, nil
	}
}

// main is the cluster that every cell has. Its rows say which branches exist, and its clock is the clock of the cell.
const main = clusters.Main

// life is what a Lifecycle keeps of one cluster. A cell may have a hundred thousand clusters, and nearly all of them
// are quiet. So the first task or event of a cluster makes the cluster's life, and the life of a quiet cluster is
// dropped. What is lost with a life is found again.
type life struct {
	*Lifecycle
	cluster    string
	server     Server
	client     kubernetes.Interface
	extensions apiextensionsclient.Interface
	dynamic    dynamic.Interface
	// metadata is a client for all objects, including the objects of remote servers (remote.go).
	metadata metadata.Interface
	kinds    servedKinds
	// gone has uids of owners whose deletion was seen. No other object ever gets such a uid.
	gone *lru.Cache[types.UID, struct{}]
	// deletions has the deletions that were looked up. They never change.
	deletions *lru.Cache[dependents.Object, knownDeletion]
	// registrations is a client for APIServices.
	registrations apiregistrationclient.ApiregistrationV1Interface

	users int       // by keeping
	used  time.Time // by keeping; when the last user was done

	mu sync.Mutex
	// terminating has the namespaces, definitions, claims and classes that wait until something is gone. Without this
	// map Run would have to find out for each deletion in the log whether anything waits for that deletion. A life that
	// has such objects is not dropped.
	terminating map[task]bool // by mu
	// unknown has the tasks that wait until a kind is served. It lacks tasks until the state has been read.
	unknown map[task]bool // by mu
	// hasRead says that the cluster's state has been read since the life was made.
	hasRead bool // by mu
	// heard is when the cluster's last event came.
	heard time.Time // by mu
}

const (
	// quietTime is how long a cluster has no task and no event before its life is dropped.
	quietTime = 5 * time.Minute
	// keptLives is how many lives are kept. Beyond that, the life that was not used for the longest time is dropped
	// earlier. So reading the state of all clusters takes no more memory than the state of this many.
	keptLives = 8
	// keptOwners is how many deleted owners, and how many deletions, a life remembers. Other deletions are looked up
	// again.
	keptOwners = 1000
)

func (l *Lifecycle) newLife(cluster string, server Server) (*life, error) {
	// Warnings about deprecated resources are meant for people who use them, and the lifecycle deletes objects of every
	// resource.
	client := server.Loopback()
	client.WarningHandler = rest.NoWarnings{}
	made := &life{Lifecycle: l, cluster: cluster, server: server, terminating: map[task]bool{}, unknown: map[task]bool{}}
	var err error
	made.client, err = kubernetes.NewForConfig(client)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	made.extensions, err = apiextensionsclient.NewForConfig(client)
	if err != nil {
		return nil, fmt.Errorf("make a client of definitions: %w", err)
	}
	made.dynamic, err = dynamic.NewForConfig(client)
	if err != nil {
		return nil, fmt.Errorf("make a client of objects: %w", err)
	}
	all := rest.CopyConfig(client)
	all.Wrap(func(next http.RoundTripper) http.RoundTripper { return guarded{next, made} })
	made.metadata, err = metadata.NewForConfig(all)
	if err != nil {
		return nil, fmt.Errorf("make a client of metadata: %w", err)
	}
	made.gone, _ = lru.New[types.UID, struct{}](keptOwners) // fails only for a size below one
	made.deletions, _ = lru.New[dependents.Object, knownDeletion](keptOwners)
	made.kinds.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(made.client.Discovery()))
	made.registrations, err = apiregistrationclient.NewForConfig(client)
	if err != nil {
		return nil, fmt.Errorf("make a client of APIServices: %w", err)
	}
	return made, nil
}

// of returns the life of a cluster, which stays until the caller calls done.
func (l *Lifecycle) of(ctx context.Context, cluster string) (*life, error) {
	if one := l.use(cluster, nil); one != nil {
		return one, nil
	}
	// Finding the server may take a while, and other clusters do not wait for it.
	server, err := l.config.Servers(ctx, cluster)
	if err != nil {
		return nil, fmt.Errorf("find the server of cluster '%s': %w", cluster, err)
	}
	made, err := l.newLife(cluster, server)
	if err != nil {
		return nil, err
	}
	return l.use(cluster, made), nil
}

// use returns the life of a cluster. If the cluster has none, that is the life that was just made, or nil.
func (l *Lifecycle) use(cluster string, made *life) *life {
	l.keeping.Lock()
	defer l.keeping.Unlock()
	one := l.lives[cluster]
	if one == nil {
		if made == nil {
			return nil
		}
		if len(l.lives) >= keptLives {
			l.dropOldest()
		}
		one = made
		l.lives[cluster] = one
	}
	one.users++
	return one
}

// done says that the caller of 'of' does not use the life any more.
func (l *Lifecycle) done(one *life) {
	l.keeping.Lock()
	defer l.keeping.Unlock()
	one.users--
	one.used = time.Now()
}

// isIdle says whether nobody uses a life and nothing waits in it. Main's life is never idle: it is one of a hundred
// thousand, and most cells have no other. The caller holds keeping.
func (l *life) isIdle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.users == 0 && len(l.terminating) == 0 && l.cluster != main
}

// dropOldest drops the idle life that was not used for the longest time. The caller holds keeping.
func (l *Lifecycle) dropOldest() {
	var oldest *life
	for _, one := range l.lives {
		if (oldest == nil || one.used.Before(oldest.used)) && one.isIdle() {
			oldest = one
		}
	}
	if oldest != nil {
		delete(l.lives, oldest.cluster)
	}
}

// dropQuiet drops the lives of quiet clusters.
func (l *Lifecycle) dropQuiet() {
	l.keeping.Lock()
	defer l.keeping.Unlock()
	for cluster, one := range l.lives {
		if one.isIdle() && time.Since(one.used) >= quietTime {
			delete(l.lives, cluster)
		}
	}
}

// drop drops the life of a cluster that has ended. Tasks that still use it fail, and then end.
func (l *Lifecycle) drop(cluster string) {
	l.keeping.Lock()
	defer l.keeping.Unlock()
	delete(l.lives, cluster)
}

// hasEnded says whether a cluster has ended, after one of its tasks failed. Then it drops the cluster's life, which a
// task may have made while the cluster ended.
func (l *Lifecycle) hasEnded(ctx context.Context, cluster string) bool {
	_, err := l.config.Servers(ctx, cluster)
	if !errors.Is(err, projection.ErrNoBranch) {
		return false
	}
	l.drop(cluster)
	return true
}

// isQuiet says whether the cluster is a branch that has had no event for a while.
func (l *life) isQuiet() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return projection.IsBranch(l.cluster) && time.Since(l.heard) >= quietTime
}

// hear notes an event of the cluster.
func (l *life) hear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heard = time.Now()
}

// allClusters yields the clusters of the cell: main, others that are not branches, and the branches.
func allClusters(ctx context.Context, view *projection.View) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		if !yield(main, nil) {
			return
		}
		for cluster, err := range clustersWithRows(ctx, view) {
			if (err != nil || cluster != main && !projection.IsBranch(cluster)) && !yield(cluster, err) {
				return
			}
		}
		start := projection.BranchKey("").RowKey()
		for row, err := range view.ScanKeys(ctx, start, projection.PrefixEnd(start), view.Revision()) {
			fresh := false
			if err == nil {
				fresh, err = isFresh(ctx, view, row.ID.Name)
			}
			if !fresh && !yield(strings.Clone(row.ID.Name), err) || err != nil {
				return
			}
		}
	}
}

// isFresh says that a branch began empty, and that nothing has been written in it since its birth. So it has no work.
func isFresh(ctx context.Context, view *projection.View, branch string) (bool, error) {
	b, err := view.Branch(ctx, branch)
	if err != nil || b == nil || b.Source != clusters.Template {
		return false, err
	}
	return view.OnlyBy(ctx, branch, bootstrap.Birth.User)
}

// clustersWithRows yields the clusters that have rows of their own, which may be branches that have ended. It seeks the
// first row of each.
func clustersWithRows(ctx context.Context, view *projection.View) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for start := ""; ; {
			cluster, err := firstCluster(ctx, view, start)
			if err == nil && cluster == "" || !yield(cluster, err) || err != nil {
				return
			}
			start = projection.PrefixEnd(cluster + "/")
		}
	}
}

// firstCluster returns the cluster of the first row from a key on, empty if there is no row. A scan without an end is
// over the rows of all clusters, so it yields none that a branch inherits.
func firstCluster(ctx context.Context, view *projection.View, start string) (string, error) {
	for row, err := range view.ScanKeys(ctx, start, "", view.Revision()) {
		return strings.Clone(row.ID.Cluster), err
	}
	return "", nil
}
