package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/test/product"
)

// TestQuotaAcrossProcesses: 64 clients on four processes create as many objects as a quota allows, and delete them
// again. Exactly the allowed number of creates succeeds, even while processes are killed, and the quota's usage is
// right after each round.
func TestQuotaAcrossProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("many processes")
	}
	const clients, places = 64, 100
	c := newCell(t, eventlogtest.Connect(t, eventlogtest.Run(t, t.TempDir())).ConnectedUrl(), 1)
	servers := []*product.Process{c.first, c.second, c.api(t), c.api(t)}
	apis := make([]atomic.Pointer[kubernetes.Clientset], len(servers))
	connect := func(i int) {
		_, client, _ := clientsFor(t, servers[i].URL())
		apis[i].Store(client)
	}
	for i := range servers {
		connect(i)
	}
	any := func() *kubernetes.Clientset { return apis[rand.N(len(apis))].Load() }
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{
		Hard: corev1.ResourceList{"count/configmaps": *resource.NewQuantity(places, resource.DecimalSI)}}}
	_, err := c.client.CoreV1().ResourceQuotas("default").Create(t.Context(), quota, metav1.CreateOptions{})
	require.NoError(t, err)
	// check compares the usage with the objects, and returns their number.
	check := func() int {
		list, err := c.client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		q, err := any().CoreV1().ResourceQuotas("default").Get(t.Context(), "q", metav1.GetOptions{})
		require.NoError(t, err)
		used := q.Status.Used["count/configmaps"]
		require.EqualValues(t, len(list.Items), used.Value())
		return len(list.Items)
	}
	for round := range product.Rounds(t, 3) {
		kill := round%5 == 4
		var made atomic.Int64
		group, ctx := errgroup.WithContext(t.Context())
		for client := range clients {
			group.Go(func() error {
				for i := 0; ; i++ {
					object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("c-%d-%d-%d", round, client, i)}}
					_, err := any().CoreV1().ConfigMaps("default").Create(ctx, object, metav1.CreateOptions{})
					switch {
					case err == nil:
						made.Add(1)
					case apierrors.IsForbidden(err):
						return nil
					case !kill && !apierrors.IsTooManyRequests(err) && !apierrors.IsServiceUnavailable(err):
						return err
					}
				}
			})
		}
		if kill {
			i := 1 + round/5%(len(servers)-1) // the first server is for checks
			servers[i].Kill()
			servers[i] = c.api(t)
			connect(i)
		}
		require.NoError(t, group.Wait())
		require.Equal(t, places, check(), "round %d", round)
		if !kill { // after a kill, some of the objects may not have been acknowledged
			require.EqualValues(t, places, made.Load())
		}
		list, err := c.client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		group, ctx = errgroup.WithContext(t.Context())
		group.SetLimit(clients)
		for _, o := range list.Items {
			group.Go(func() error { return any().CoreV1().ConfigMaps("default").Delete(ctx, o.Name, metav1.DeleteOptions{}) })
		}
		require.NoError(t, group.Wait())
		require.Zero(t, check())
		if round%100 == 99 {
			t.Logf("%d rounds", round+1)
		}
	}
}

// TestNamespaceOfManyKinds: a namespace has objects of 20 kinds, five of which have finalizers. Its status says what
// its deletion waits for, and the namespace is gone soon after the objects with finalizers are gone. The API, the
// lifecycle and the watcher are separate processes.
func TestNamespaceOfManyKinds(t *testing.T) {
	if testing.Short() {
		t.Skip("many processes")
	}
	c := newCell(t, eventlogtest.Connect(t, eventlogtest.Run(t, t.TempDir())).ConnectedUrl(), 1)
	_, _, custom := clientsFor(t, c.first.URL())
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	_, err := c.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "full"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	kinds := manyKinds(t, custom)
	require.Len(t, kinds, 20)
	group, limited := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for _, kind := range kinds {
		for i := range 50 {
			group.Go(func() error {
				o := kind.example.DeepCopy()
				o.SetName(fmt.Sprintf("o-%d", i))
				_, err := custom.Resource(kind.resource).Namespace("full").Create(limited, o, metav1.CreateOptions{})
				return err
			})
		}
	}
	require.NoError(t, group.Wait())
	held := custom.Resource(kinds[0].resource).Namespace("full")
	for i := range 5 {
		_, err := held.Patch(ctx, fmt.Sprintf("o-%d", i), types.MergePatchType, []byte(`{"metadata":{"finalizers":["example.com/hold"]}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	watch, err := c.client.CoreV1().Namespaces().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=full"})
	require.NoError(t, err)
	defer watch.Stop()
	began := time.Now()
	require.NoError(t, c.client2.CoreV1().Namespaces().Delete(ctx, "full", metav1.DeleteOptions{}))
	released := false
	for event := range watch.ResultChan() {
		if event.Type == "DELETED" {
			t.Logf("the namespace was gone after %s", time.Since(began).Round(time.Millisecond))
			require.True(t, released)
			return
		}
		for _, condition := range event.Object.(*corev1.Namespace).Status.Conditions {
			if condition.Type != corev1.NamespaceFinalizersRemaining || condition.Status != corev1.ConditionTrue || released {
				continue
			}
			require.Contains(t, condition.Message, "example.com/hold in 5 resource instances")
			t.Logf("it waited for finalizers after %s", time.Since(began).Round(time.Millisecond))
			released = true
			for i := range 5 {
				_, err := held.Patch(ctx, fmt.Sprintf("o-%d", i), types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
				require.NoError(t, err)
			}
		}
	}
	t.Fatal("the watch ended before the namespace was gone")
}

// someKind is a kind, and an example object without a name.
type someKind struct {
	resource schema.GroupVersionResource
	example  *unstructured.Unstructured
}

// manyKinds are 20 kinds, three of them custom.
func manyKinds(t *testing.T, custom dynamic.Interface) []someKind {
	t.Helper()
	defineWidgets(t, custom)
	template := `{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}`
	selector := `"selector":{"matchLabels":{"a":"b"}},"template":` + template
	var kinds []someKind
	for _, k := range []struct{ version, kind, resource, rest string }{
		{"v1", "ConfigMap", "configmaps", `"data":{"a":"b"}`},
		{"v1", "Secret", "secrets", `"stringData":{"a":"b"}`},
		{"v1", "Service", "services", `"spec":{"clusterIP":"None","ports":[{"port":80}]}`},
		{"discovery.k8s.io/v1", "EndpointSlice", "endpointslices", `"addressType":"IPv4","endpoints":[]`},
		{"v1", "ServiceAccount", "serviceaccounts", `"secrets":[]`},
		{"v1", "PodTemplate", "podtemplates", `"template":` + template},
		{"v1", "LimitRange", "limitranges", `"spec":{"limits":[]}`},
		{"v1", "ReplicationController", "replicationcontrollers", `"spec":{"replicas":0,"selector":{"a":"b"},"template":` + template + `}`},
		{"apps/v1", "Deployment", "deployments", `"spec":{"replicas":0,` + selector + `}`},
		{"apps/v1", "ReplicaSet", "replicasets", `"spec":{"replicas":0,` + selector + `}`},
		{"apps/v1", "StatefulSet", "statefulsets", `"spec":{"replicas":0,"serviceName":"s",` + selector + `}`},
		{"apps/v1", "DaemonSet", "daemonsets", `"spec":{` + selector + `}`},
		{"batch/v1", "CronJob", "cronjobs", `"spec":{"schedule":"0 0 1 1 *","jobTemplate":{"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}}`},
		{"networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", `"spec":{"podSelector":{}}`},
		{"networking.k8s.io/v1", "Ingress", "ingresses", `"spec":{"defaultBackend":{"service":{"name":"s","port":{"number":80}}}}`},
		{"policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", `"spec":{"minAvailable":1,"selector":{"matchLabels":{"a":"b"}}}`},
		{"rbac.authorization.k8s.io/v1", "Role", "roles", `"rules":[]`},
		{"rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings", `"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"o-0"}`},
		{"coordination.k8s.io/v1", "Lease", "leases", `"spec":{}`},
		{"example.com/v1", "Widget", "widgets", `"spec":{}`},
	} {
		o := &unstructured.Unstructured{}
		require.NoError(t, o.UnmarshalJSON([]byte(`{"apiVersion":"`+k.version+`","kind":"`+k.kind+`",`+k.rest+`}`)), k.kind)
		version, err := schema.ParseGroupVersion(k.version)
		require.NoError(t, err)
		kinds = append(kinds, someKind{version.WithResource(k.resource), o})
	}
	return kinds
}

// TestNothingStaysOfNamespaces: clients create objects through several processes, while their namespace is deleted.
// Once the namespace is gone, none of its objects is left.
func TestNothingStaysOfNamespaces(t *testing.T) {
	if testing.Short() {
		t.Skip("many processes")
	}
	c := newCell(t, eventlogtest.Connect(t, eventlogtest.Run(t, t.TempDir())).ConnectedUrl(), 1)
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(8) // each waits for its namespace to settle
	for round := range product.Rounds(t, 20) {
		group.Go(func() error { return raceNamespace(ctx, fmt.Sprintf("race-%d", round), c.client, c.client2) })
	}
	require.NoError(t, group.Wait())
}

func raceNamespace(ctx context.Context, name string, deleter, creator kubernetes.Interface) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	_, err := deleter.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	watch, err := deleter.CoreV1().Namespaces().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		return err
	}
	defer watch.Stop()
	var creating errgroup.Group
	for i := range 4 {
		creating.Go(func() error {
			for n := 0; ; n++ {
				object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("c-%d-%d", i, n)}}
				_, err := creator.CoreV1().ConfigMaps(name).Create(ctx, object, metav1.CreateOptions{})
				switch {
				case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause), apierrors.IsNotFound(err):
					return nil
				case err != nil && !apierrors.IsTooManyRequests(err):
					return err
				}
			}
		})
	}
	if err := deleter.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	for event := range watch.ResultChan() {
		if event.Type == "DELETED" {
			break
		}
	}
	if err := creating.Wait(); err != nil {
		return err
	}
	for _, client := range []kubernetes.Interface{deleter, creator} {
		list, err := client.CoreV1().ConfigMaps(name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(list.Items) > 0 {
			return fmt.Errorf("namespace '%s' is gone, and %d ConfigMaps are left", name, len(list.Items))
		}
	}
	return nil
}

// owned creates a ConfigMap with an owner; nil for no owner.
func (c *processCell) owned(ctx context.Context, name string, owner *corev1.ConfigMap) (*corev1.ConfigMap, error) {
	o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if owner != nil {
		o.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID}}
	}
	return c.client.CoreV1().ConfigMaps("default").Create(ctx, o, metav1.CreateOptions{})
}

// once runs the lifecycle until it has nothing left to do, and returns its output.
func (c *processCell) once(t *testing.T) string {
	t.Helper()
	p := product.Run(t, c.with("lifecycle", "--once")...)
	<-p.Exited
	require.Zero(t, p.Cmd.ProcessState.ExitCode(), p.Output())
	return p.Output()
}

// TestGarbageThroughKills: the many dependents of one owner, and a chain of dependents, are deleted. Objects with a
// living owner stay. Meanwhile the lifecycle is killed again and again.
func TestGarbageThroughKills(t *testing.T) {
	if testing.Short() {
		t.Skip("many processes")
	}
	c := newCell(t, eventlogtest.Connect(t, eventlogtest.Run(t, t.TempDir())).ConnectedUrl(), 1)
	client := c.client.CoreV1().ConfigMaps("default")
	gone, err := c.owned(t.Context(), "gone", nil)
	require.NoError(t, err)
	alive, err := c.owned(t.Context(), "alive", nil)
	require.NoError(t, err)
	fan := product.Rounds(t, 400)
	chain := fan / 20
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(16)
	group.Go(func() error {
		last := gone
		for i := range chain {
			link, err := c.owned(ctx, fmt.Sprintf("link-%d", i), last)
			if err != nil {
				return err
			}
			last = link
		}
		return nil
	})
	for i := range fan {
		group.Go(func() error { _, err := c.owned(ctx, fmt.Sprintf("fan-%d", i), gone); return err })
		group.Go(func() error { _, err := c.owned(ctx, fmt.Sprintf("kept-%d", i), alive); return err })
	}
	require.NoError(t, group.Wait())
	// count returns how many dependents and how many other objects are left, and at which revision.
	count := func() (garbage, kept int, revision string) {
		list, err := client.List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		for _, o := range list.Items {
			switch o.Name[:4] {
			case "fan-", "link":
				garbage++
			case "kept":
				kept++
			}
		}
		return garbage, kept, list.ResourceVersion
	}
	garbage, _, revision := count()
	require.Equal(t, fan+chain, garbage)
	patient, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	changes, err := client.Watch(patient, metav1.ListOptions{ResourceVersion: revision})
	require.NoError(t, err)
	defer changes.Stop()
	require.NoError(t, client.Delete(t.Context(), "gone", metav1.DeleteOptions{}))
	const most = 50 / eventlogtest.Slowdown
	began, kills := time.Now(), 0
	for event := range changes.ResultChan() {
		name := event.Object.(*corev1.ConfigMap).Name
		require.NotContains(t, name, "kept")
		if name == "gone" {
			continue
		}
		require.EqualValues(t, "DELETED", event.Type, name)
		if garbage--; garbage == 0 {
			break
		}
		if kills < most && garbage <= (fan+chain)*(most-kills)/(most+1) {
			kills++
			c.lifecycle.Kill()
			c.lifecycle = product.Run(t, c.with("lifecycle")...)
		}
	}
	t.Logf("%d dependents were gone after %s and %d kills", fan+chain, time.Since(began).Round(time.Millisecond), kills)
	require.Equal(t, most, kills)
	require.NotContains(t, c.once(t), "left:")
	garbage, kept, _ := count()
	require.Zero(t, garbage)
	require.Equal(t, fan, kept)
}

// TestLifecycleOnce: one run does all of the lifecycle's work, and also the work that follows from the run's own
// changes. It says which objects wait for other objects.
func TestLifecycleOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("many processes")
	}
	c := newCell(t, eventlogtest.Connect(t, eventlogtest.Run(t, t.TempDir())).ConnectedUrl(), 1)
	c.lifecycle.Kill()
	client := c.client.CoreV1()
	last, err := c.owned(t.Context(), "gone", nil)
	require.NoError(t, err)
	for i := range 5 {
		last, err = c.owned(t.Context(), fmt.Sprintf("link-%d", i), last)
		require.NoError(t, err)
	}
	require.NoError(t, client.ConfigMaps("default").Delete(t.Context(), "gone", metav1.DeleteOptions{}))
	for _, name := range []string{"empty", "held"} {
		_, err := client.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	held := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c", Finalizers: []string{"example.com/hold"}}}
	_, err = client.ConfigMaps("held").Create(t.Context(), held, metav1.CreateOptions{})
	require.NoError(t, err)
	for _, name := range []string{"empty", "held"} {
		require.NoError(t, client.Namespaces().Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	has := func(name string) bool {
		_, err := client.Namespaces().Get(t.Context(), name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			require.NoError(t, err)
		}
		return err == nil
	}
	said := c.once(t)
	require.Contains(t, said, "left: namespace held: ")
	require.NotContains(t, said, "empty")
	list, err := client.ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Empty(t, list.Items)
	require.False(t, has("empty"))
	require.True(t, has("held"))

	_, err = client.ConfigMaps("held").Patch(t.Context(), "c", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.NotContains(t, c.once(t), "left:")
	require.False(t, has("held"))
}
