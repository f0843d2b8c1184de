package lifecycle

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/utils/ptr"

	"github.com/logplane/logplane/internal/apiserver/dependents"
)

// The objects of one tenant must not hold up the lifecycle's work for other tenants.

type tripper func(*http.Request) (*http.Response, error)

func (t tripper) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// through makes a Lifecycle's requests pass through a function.
func through(f func(r *http.Request, next http.RoundTripper) (*http.Response, error)) func(*Config) {
	return func(c *Config) {
		c.through(func(s Server) Server {
			client := s.Loopback()
			client.Wrap(func(next http.RoundTripper) http.RoundTripper {
				return tripper(func(r *http.Request) (*http.Response, error) { return f(r, next) })
			})
			return reached{s, client}
		})
	}
}

// reached is a server whose Loopback is another client configuration.
type reached struct {
	Server
	client *rest.Config
}

func (r reached) Loopback() *rest.Config { return rest.CopyConfig(r.client) }

// remoteExample is a server for which another server serves the group example.com.
type remoteExample struct{ Server }

func (remoteExample) IsRemote(v schema.GroupVersion) (bool, error) {
	return v.Group == "example.com", nil
}

// counted counts the requests whose path ends in one of the suffixes.
func counted(n *atomic.Int64, suffixes ...string) func(*Config) {
	return through(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		for _, suffix := range suffixes {
			if strings.HasSuffix(r.URL.Path, suffix) {
				n.Add(1)
			}
		}
		return next.RoundTrip(r)
	})
}

func (c *cluster) isGone(namespace, name string) bool { return !c.has(namespace, name) }

// TestPauseIsBounded: a task waits for some time but not longer than a day, whatever time a user has chosen.
func TestPauseIsBounded(t *testing.T) {
	for _, after := range []time.Duration{0, -1, math.MinInt64, 1, time.Second, longestWait, math.MaxInt64 - 1, math.MaxInt64} {
		got := pause(after)
		require.GreaterOrEqual(t, got, min(max(after, 0), longestWait), after)
		require.LessOrEqual(t, got, longestWait+time.Second, after)
	}
}

// TestTheFarFutureIsNotNow: a token and a Job that end in the year 9999 are looked at only a few times.
func TestTheFarFutureIsNotNow(t *testing.T) {
	var looks atomic.Int64
	c := newCluster(t, counted(&looks, "/secrets/late", "/jobs/late"))
	c.createNamespace("n")
	c.run()
	token := func(name, expiration string) {
		_, err := c.client.CoreV1().Secrets(metav1.NamespaceSystem).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name},
			Type: bootstrapapi.SecretTypeBootstrapToken, StringData: map[string]string{bootstrapapi.BootstrapTokenExpirationKey: expiration}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	token("late", "9999-12-31T23:59:59Z")
	j := c.job("late", ptr.To[int32](0), true)
	for i := range j.Status.Conditions {
		j.Status.Conditions[i].LastTransitionTime = metav1.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
	}
	_, err := c.client.BatchV1().Jobs("n").UpdateStatus(t.Context(), j, metav1.UpdateOptions{})
	require.NoError(t, err)
	const others = 20 // each takes some time, during which a task that never waits would run again
	for i := range others {
		name := fmt.Sprintf("expired-%d", i)
		token(name, "2000-01-01T00:00:00Z")
		c.eventually(func() bool {
			_, err := c.client.CoreV1().Secrets(metav1.NamespaceSystem).Get(context.Background(), name, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		}, name)
	}
	require.LessOrEqual(t, looks.Load(), int64(10), "one for each event, and the test's own requests")
}

// TestJobsOfUnknownEnd: as in upstream, a failed Job stays if the time of its failure is not known.
func TestJobsOfUnknownEnd(t *testing.T) {
	j := &batchv1.Job{Spec: batchv1.JobSpec{TTLSecondsAfterFinished: ptr.To[int32](math.MaxInt32)}, Status: batchv1.JobStatus{
		Conditions: []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue}}}}
	_, mortal := endOfJob(j)
	require.False(t, mortal)
	j.Status.Conditions[0].LastTransitionTime = metav1.Now()
	_, mortal = endOfJob(j)
	require.True(t, mortal)
}

// TestUnknownKindsCostNoDiscovery: however many objects name owners of kinds that are not served, one discovery is
// enough for all objects. When one of the kinds is served, its object is looked at again.
func TestUnknownKindsCostNoDiscovery(t *testing.T) {
	var discoveries atomic.Int64
	c := newCluster(t, counted(&discoveries, "/apis"))
	c.createNamespace("n")
	const objects, owners = 20, 5
	for i := range objects {
		var unknown []metav1.OwnerReference
		for j := range owners {
			unknown = append(unknown, metav1.OwnerReference{APIVersion: "example.com/v1", Kind: fmt.Sprintf("Kind%d", j), Name: "o", UID: types.UID(fmt.Sprintf("%d-%d", i, j))})
		}
		c.own("n", fmt.Sprintf("c-%d", i), unknown...)
	}
	c.own("n", "waiting", metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Widget", Name: "o", UID: "w"})
	before := discoveries.Load()
	c.run()
	c.own("n", "gone", metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "o", UID: "x"})
	c.eventually(func() bool { return c.isGone("n", "gone") }, "garbage of a known kind")
	c.createDefinition()
	c.eventually(func() bool { return c.isGone("n", "waiting") }, "garbage of a new kind")
	asked := discoveries.Load() - before
	t.Logf("%d discoveries for %d references", asked, objects*owners)
	require.LessOrEqual(t, asked, int64(12), "a few, and a few for each change of the definition")
	require.True(t, c.has("n", "c-0"))
}

// held blocks requests for objects whose names begin with 'held', until their context ends or release is called.
// started gets one value for each such request.
func held(t *testing.T) (change func(*Config), started chan struct{}, release func()) {
	started = make(chan struct{}, 1000)
	ctx, release := context.WithCancel(context.Background())
	t.Cleanup(release)
	return through(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if strings.Contains(r.URL.Path, "/held") {
			started <- struct{}{}
			select {
			case <-r.Context().Done():
				return nil, r.Context().Err()
			case <-ctx.Done():
			}
		}
		return next.RoundTrip(r)
	}), started, release
}

// TestGarbageHoldsNobodyUp: namespaces are finished even while all workers that look at garbage are busy.
func TestGarbageHoldsNobodyUp(t *testing.T) {
	change, started, release := held(t)
	c := newCluster(t, change)
	c.createNamespace("n")
	c.createNamespace("other")
	c.run()
	for i := range 2 * workers {
		c.own("n", fmt.Sprintf("c-%d", i), metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: fmt.Sprintf("held-%d", i), UID: types.UID(fmt.Sprint(i))})
	}
	for range workers {
		<-started
	}
	c.deleteNamespace("other")
	c.namespaceGone("other")
	require.True(t, c.has("n", "c-0"))
	release()
	for i := range 2 * workers {
		c.eventually(func() bool { return c.isGone("n", fmt.Sprintf("c-%d", i)) }, "the garbage is gone")
	}
}

// TestAHungServerHoldsNobodyUp: a remote server that never answers is asked in a queue of its own, with a short
// timeout. Meanwhile garbage that does not depend on that server is deleted.
func TestAHungServerHoldsNobodyUp(t *testing.T) {
	started, longest := make(chan struct{}, 1000), atomic.Int64{}
	c := newCluster(t, through(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if !strings.HasPrefix(r.URL.Path, "/apis/example.com/v1/namespaces/n/widgets/") {
			return next.RoundTrip(r)
		}
		end, _ := r.Context().Deadline()
		longest.Store(max(longest.Load(), int64(time.Until(end))))
		started <- struct{}{}
		<-r.Context().Done()
		return nil, r.Context().Err()
	}), func(config *Config) {
		config.through(func(s Server) Server { return remoteExample{s} })
	})
	c.createNamespace("n")
	c.createNamespace("other")
	c.createDefinition() // stands for the resource that the remote server serves
	c.run()
	shared := c.own("n", "shared")
	for i := range 2 * workers {
		c.own("n", fmt.Sprintf("c-%d", i), metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Widget", Name: fmt.Sprintf("w-%d", i), UID: types.UID(fmt.Sprint(i))})
	}
	// This dependent names the remote kind, but with the uid of another dependent's owner.
	c.own("n", "false", metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Widget", Name: "shared", UID: shared.UID})
	for range workers {
		<-started
	}
	c.own("n", "dependent", ownerOf(shared, false))
	c.deleteConfigMap("n", "shared", metav1.DeletePropagationBackground)
	c.eventually(func() bool { return c.isGone("n", "dependent") }, "the garbage of others is gone")
	c.createDefinitionOf("gadgets", "Gadget")
	c.eventually(func() bool {
		_, err := c.registrations.APIServices().Get(context.Background(), "v1.example.com", metav1.GetOptions{})
		return err == nil
	}, "a version is registered")
	require.True(t, c.has("n", "c-0"))
	require.Positive(t, longest.Load())
	require.LessOrEqual(t, longest.Load(), int64(remoteTimeout))
}

// TestNamespaceBesideARemoteServer: the objects that a remote server has in a namespace are deleted with the namespace,
// whether the task runs in the remote queue or in Once.
func TestNamespaceBesideARemoteServer(t *testing.T) {
	c := newCluster(t)
	c.createDefinition() // stands for the resource that the remote server serves
	asRemote := func(config *Config) {
		config.through(func(s Server) Server { return remoteExample{s} })
	}
	for _, name := range []string{"run", "once"} {
		c.createNamespace(name)
		c.createWidget(name, "w")
		c.restart(asRemote)
		c.deleteNamespace(name)
		_, err := c.do(t.Context(), task{kind: namespaceTask, namespace: name})
		require.ErrorIs(t, err, errRemote)
		_, err = c.do(t.Context(), collectTaskOf(dependents.Object{Group: "example.com", Resource: "widgets", Namespace: name, Name: "w"}))
		require.ErrorIs(t, err, errRemote)
		if name == "once" {
			require.Empty(t, c.once())
			require.Zero(t, c.rows(name))
			continue
		}
		stop := c.run()
		c.namespaceGone(name)
		stop()
		require.Zero(t, c.rows(name))
	}
}

// TestNamespacesTakeTurns: the tasks of one namespace do not all run before the tasks of another namespace.
func TestNamespacesTakeTurns(t *testing.T) {
	q := newQueues()
	defer q.shutDown()
	for i := range 100 {
		q.add("main", collectTaskOf(dependents.Object{Resource: "configmaps", Namespace: "many", Name: fmt.Sprint(i)}))
	}
	for i := range 3 {
		q.add("main", collectTaskOf(dependents.Object{Resource: "configmaps", Namespace: "few", Name: fmt.Sprint(i)}))
	}
	require.Equal(t, 103, q.garbage.Len())
	var order []string
	for range 103 {
		got, _ := q.garbage.Get()
		order = append(order, got.namespace+"/"+got.name)
		q.garbage.Done(got)
	}
	require.Equal(t, []string{"many/0", "few/0", "many/1", "few/1", "many/2", "few/2", "many/3", "many/4"}, order[:8])
	require.Equal(t, "many/99", order[102])
}
