package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/klog/v2"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/apiserver"
	"github.com/logplane/logplane/internal/apiserver/dependents"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/internal/kubestore/fanout"
	"github.com/logplane/logplane/internal/kubestore/kubestoretest"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/memory"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})))
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	os.Exit(m.Run())
}

// cluster is a new cell with its API.
type cluster struct {
	*testing.T
	*life
	server *apiserver.Server
	cell   kubestore.Cell
	custom dynamic.Interface
}

// patience bounds every wait.
const patience = 30 * time.Second

func newCluster(t *testing.T, change ...func(*Config)) *cluster {
	t.Helper()
	return newClusterWith(t, eventlogtest.Log(t), memory.Strict(t), change...)
}

func newClusterWith(t *testing.T, log *eventlog.Log, b bucket.Bucket, change ...func(*Config)) *cluster {
	t.Helper()
	cell := kubestoretest.Cell(t, projection.Config{Log: log, Bucket: b})
	cell.Feed = fanout.NewFeed(cell.Projection) // for tests that run it
	server, err := apiserver.New(apiserver.Config{Cell: cell})
	require.NoError(t, err)
	require.NoError(t, server.Bootstrap(t.Context()))
	c := &cluster{T: t, server: server, cell: cell}
	c.restart(change...)
	c.custom, err = dynamic.NewForConfig(server.Loopback())
	require.NoError(t, err)
	return c
}

// restart replaces the Lifecycle by a new Lifecycle, which remembers nothing.
func (c *cluster) restart(change ...func(*Config)) {
	config := Config{Cell: c.cell, Servers: Only("main", c.server), AwaitWriters: new(kubestore.Writers).Wait}
	for _, f := range change {
		f(&config)
	}
	var err error
	c.life, err = New(config).of(c.Context(), "main")
	require.NoError(c, err)
}

// through changes the servers of a Lifecycle.
func (c *Config) through(change func(Server) Server) {
	servers := c.Servers
	c.Servers = func(ctx context.Context, cluster string) (Server, error) {
		server, err := servers(ctx, cluster)
		if err != nil {
			return nil, err
		}
		return change(server), nil
	}
}

// run runs the Lifecycle until the returned function is called or the test ends.
func (c *cluster) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	running := c.Lifecycle // restart may replace the field
	go func() { done <- running.Run(ctx) }()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			require.NoError(c, <-done)
		}
	}
	c.Cleanup(stop)
	return stop
}

// handle runs the tasks of one event once.
func (c *cluster) handle(ctx context.Context, e eventlog.Event) error {
	var failed []error
	tasks := tasksOf(e)
	if e.Op == eventlog.Deleted {
		tasks = append(tasks, tasksOfContent(e.Key)...)
	}
	for _, t := range tasks {
		ctx, cancel := context.WithTimeout(ctx, taskTimeout)
		_, err := c.do(ctx, t)
		failed = append(failed, err)
		cancel()
	}
	return errors.Join(failed...)
}

// eventually checks the condition after every event of the log until it holds.
func (c *cluster) eventually(condition func() bool, message string) {
	c.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	view, err := c.cell.Projection.Latest(ctx)
	require.NoError(c, err)
	if condition() {
		return
	}
	held := fmt.Errorf("the condition holds")
	err = c.cell.Log.Follow(ctx, eventlog.Position{Revision: view.Revision()}, func(eventlog.Batch) error {
		if condition() {
			return held
		}
		return nil
	})
	require.ErrorIs(c, err, held, message)
}

func (c *cluster) namespaceGone(name string) {
	c.Helper()
	c.eventually(func() bool {
		_, err := c.client.CoreV1().Namespaces().Get(context.Background(), name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}, "namespace "+name+" is gone")
}

func (c *cluster) createNamespace(name string) {
	c.Helper()
	_, err := c.client.CoreV1().Namespaces().Create(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	require.NoError(c, err)
}

func (c *cluster) deleteNamespace(name string) {
	c.Helper()
	require.NoError(c, c.client.CoreV1().Namespaces().Delete(context.Background(), name, metav1.DeleteOptions{}))
}

func (c *cluster) createConfigMap(namespace, name string, finalizers ...string) {
	c.Helper()
	_, err := c.client.CoreV1().ConfigMaps(namespace).Create(context.Background(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: finalizers}}, metav1.CreateOptions{})
	require.NoError(c, err)
}

// authors counts the events with an op in a namespace, by their author.
func (c *cluster) authors(namespace string, op eventlog.Op) map[eventlog.Author]int {
	c.Helper()
	ctx := context.Background()
	bounds, err := c.cell.Log.Head(ctx)
	require.NoError(c, err)
	count := map[eventlog.Author]int{}
	require.NoError(c, c.cell.Log.Tail(ctx, bounds.First-1, bounds.Head, func(e eventlog.Event) error {
		if e.Key.Namespace == namespace && e.Op == op {
			count[e.Author]++
		}
		return nil
	}))
	return count
}

// rows counts the objects in a namespace, without the objects that every namespace has.
func (c *cluster) rows(namespace string) int {
	c.Helper()
	return c.allRows(namespace, func(k eventlog.Key) bool { return !isDefault(k) })
}

func (c *cluster) allRows(namespace string, counts func(eventlog.Key) bool) int {
	c.Helper()
	view, err := c.cell.Projection.Latest(context.Background())
	require.NoError(c, err)
	count := 0
	for row, err := range view.Scan(context.Background(), "", "", view.Revision()) {
		require.NoError(c, err)
		if row.ID.Namespace == namespace && counts(row.ID) {
			count++
		}
	}
	return count
}

var widgets = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}

func (c *cluster) createDefinition() { c.createDefinitionOf("widgets", "Widget") }

func (c *cluster) createDefinitionOf(plural, kind string) {
	c.Helper()
	preserve := true
	_, err := c.extensions.ApiextensionsV1().CustomResourceDefinitions().Create(context.Background(), &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + ".example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Singular: strings.TrimSuffix(plural, "s"), Kind: kind},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &preserve}}}},
		},
	}, metav1.CreateOptions{})
	require.NoError(c, err)
}

func (c *cluster) createWidget(namespace, name string, finalizers ...string) {
	c.Helper()
	widget := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget"}}
	widget.SetName(name)
	widget.SetFinalizers(finalizers)
	_, err := c.custom.Resource(widgets).Namespace(namespace).Create(context.Background(), widget, metav1.CreateOptions{})
	require.NoError(c, err)
}

func (c *cluster) removeWidgetFinalizers(namespace, name string) {
	c.Helper()
	_, err := c.custom.Resource(widgets).Namespace(namespace).Patch(context.Background(), name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	require.NoError(c, err)
}

func TestNamespaceWithContents(t *testing.T) {
	c := newCluster(t)
	c.createDefinition()
	c.createNamespace("full")
	c.createNamespace("other")
	for i := range 20 {
		c.createConfigMap("full", fmt.Sprintf("c%d", i))
		c.createWidget("full", fmt.Sprintf("w%d", i))
	}
	_, err := c.client.CoreV1().Services("full").Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	for name, node := range map[string]string{"waiting": "", "bound": "no-such-node"} {
		_, err := c.client.CoreV1().Pods("full").Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	c.createConfigMap("other", "stays")

	c.run()
	c.deleteNamespace("full")
	c.namespaceGone("full")
	require.Zero(t, c.allRows("full", func(eventlog.Key) bool { return true }))
	require.Equal(t, 1, c.rows("other"))
	deletion := c.authors("", eventlog.Deleted)
	require.Len(t, deletion, 1, "of the namespace")
	require.Equal(t, slices.Collect(maps.Keys(deletion)), slices.Collect(maps.Keys(c.authors("full", eventlog.Deleted))))
	c.createNamespace("full") // the name can be used again
	c.createConfigMap("full", "c0")
}

// TestNamespaceFoundByState: the namespace began to terminate while no lifecycle ran.
func TestNamespaceFoundByState(t *testing.T) {
	c := newCluster(t)
	c.createNamespace("late")
	c.createConfigMap("late", "c")
	c.deleteNamespace("late")
	_, err := c.client.CoreV1().ConfigMaps("late").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "refused"}}, metav1.CreateOptions{})
	require.True(t, apierrors.IsForbidden(err), err)
	c.run()
	c.namespaceGone("late")
}

func TestNamespaceWaitsForFinalizers(t *testing.T) {
	c := newCluster(t)
	c.createDefinition()
	c.createNamespace("held")
	c.createConfigMap("held", "goes")
	c.createConfigMap("held", "stays", "example.com/hold")
	c.createWidget("held", "stays", "example.com/hold")
	stop := c.run()
	c.deleteNamespace("held")
	c.eventually(func() bool { return c.conditionOf("held", corev1.NamespaceFinalizersRemaining) == corev1.ConditionTrue }, "the condition tells of the finalizers")
	require.Equal(t, corev1.ConditionTrue, c.conditionOf("held", corev1.NamespaceContentRemaining))
	require.Equal(t, corev1.ConditionFalse, c.conditionOf("held", corev1.NamespaceDeletionContentFailure))
	require.Equal(t, 2, c.rows("held"))

	// One finalizer is removed while no lifecycle runs, the other while another Lifecycle runs.
	stop()
	c.removeWidgetFinalizers("held", "stays")
	c.restart()
	c.run()
	_, err := c.client.CoreV1().ConfigMaps("held").Patch(t.Context(), "stays", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	c.namespaceGone("held")
}

func (c *cluster) conditionOf(namespace string, kind corev1.NamespaceConditionType) corev1.ConditionStatus {
	n, err := c.client.CoreV1().Namespaces().Get(context.Background(), namespace, metav1.GetOptions{})
	if err != nil {
		return ""
	}
	for _, condition := range n.Status.Conditions {
		if condition.Type == kind {
			return condition.Status
		}
	}
	return ""
}

// TestStoppedAnywhere: a Lifecycle that is stopped after every few events finishes its work eventually.
func TestStoppedAnywhere(t *testing.T) {
	c := newCluster(t)
	c.createDefinition()
	c.createNamespace("n")
	for i := range 10 {
		c.createConfigMap("n", fmt.Sprintf("c%d", i))
		c.createWidget("n", fmt.Sprintf("w%d", i))
	}
	c.deleteNamespace("n")
	gone := false
	for stops := 0; !gone; stops++ {
		require.Less(t, stops, 100)
		c.restart()
		stop := c.run()
		before := c.rows("n")
		c.eventually(func() bool {
			_, err := c.client.CoreV1().Namespaces().Get(context.Background(), "n", metav1.GetOptions{})
			gone = apierrors.IsNotFound(err)
			return gone || c.rows("n") < before
		}, "something was deleted")
		stop()
	}
	require.Zero(t, c.rows("n"))
}

// TestTwoAtOnce: two Lifecycles do the same work and do not disturb each other.
func TestTwoAtOnce(t *testing.T) {
	c := newCluster(t)
	c.run()
	c.restart()
	c.run()
	for i := range 5 {
		name := fmt.Sprintf("n%d", i)
		c.createNamespace(name)
		for j := range 10 {
			c.createConfigMap(name, fmt.Sprintf("c%d", j))
		}
	}
	for i := range 5 {
		c.deleteNamespace(fmt.Sprintf("n%d", i))
	}
	for i := range 5 {
		c.namespaceGone(fmt.Sprintf("n%d", i))
	}
}

// TestEachEventByItself: it is enough to run the tasks of each event once. The tasks may run again.
func TestEachEventByItself(t *testing.T) {
	c := newCluster(t)
	c.createNamespace("n")
	c.createConfigMap("n", "c", "example.com/hold")
	c.deleteNamespace("n")
	own := eventlog.Event{Write: eventlog.Write{Op: eventlog.Modified, Key: eventlog.Key{Cluster: "main", Resource: "namespaces", Prefix: "/namespaces", Name: "n"}}}
	var notYet *notYetError
	require.ErrorAs(t, c.handle(t.Context(), own), &notYet)
	_, err := c.client.CoreV1().ConfigMaps("n").Patch(t.Context(), "c", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	gone := eventlog.Event{Write: eventlog.Write{Op: eventlog.Deleted, Key: eventlog.Key{Cluster: "main", Resource: "configmaps", Prefix: "/configmaps", Namespace: "n", Name: "c"}}}
	require.NoError(t, c.handle(t.Context(), gone))
	c.namespaceGone("n")
	require.NoError(t, c.handle(t.Context(), own), "again, when there is nothing left to do")
	require.NoError(t, c.handle(t.Context(), eventlog.Event{}))
}

// TestNamespaceSettles: without AwaitWriters a namespace is not finalized until Config.Settle has passed, by the log's
// time, since it began to terminate.
func TestNamespaceSettles(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits")
	}
	const settle = 2 * time.Second
	c := newCluster(t, func(config *Config) { config.AwaitWriters, config.Settle = nil, settle })
	c.createNamespace("n")
	c.run()
	c.deleteNamespace("n")
	c.namespaceGone("n")
	var began, ended time.Time
	view, err := c.cell.Projection.Latest(t.Context())
	require.NoError(t, err)
	for e, err := range view.EventsOf(t.Context(), projection.Keys{}, view.Floor(), view.Revision()) {
		require.NoError(t, err)
		switch {
		case e.Key.Name != "n":
		case e.Op == eventlog.Modified && began.IsZero():
			began = e.Time
		case e.Op == eventlog.Deleted:
			ended = e.Time
		}
	}
	require.False(t, began.IsZero())
	require.GreaterOrEqual(t, ended.Sub(began), settle)
}

func TestDefinitionWithInstances(t *testing.T) {
	c := newCluster(t)
	c.createDefinition()
	c.createNamespace("a")
	c.createNamespace("b")
	for i := range 10 {
		c.createWidget("a", fmt.Sprintf("w%d", i))
		c.createWidget("b", fmt.Sprintf("w%d", i))
	}
	c.createWidget("b", "held", "example.com/hold")
	c.run()
	definitions := c.extensions.ApiextensionsV1().CustomResourceDefinitions()
	require.NoError(t, definitions.Delete(t.Context(), "widgets.example.com", metav1.DeleteOptions{}))
	c.eventually(func() bool { return c.rows("a") == 0 && c.rows("b") == 1 }, "only the instance with a finalizer is left")
	definition, err := definitions.Get(t.Context(), "widgets.example.com", metav1.GetOptions{})
	require.NoError(t, err)
	require.NotEmpty(t, definition.Finalizers)
	c.removeWidgetFinalizers("b", "held")
	c.eventually(func() bool {
		_, err := definitions.Get(context.Background(), "widgets.example.com", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}, "the definition is gone")
	require.Zero(t, c.rows("b"))
	c.createDefinition()
	c.createWidget("a", "w0")
}

// TestDefinitionNotServed: instances are deleted whichever versions are served. The definition's deletion waits for an
// instance that has a finalizer.
func TestDefinitionNotServed(t *testing.T) {
	c := newCluster(t)
	definitions := c.extensions.ApiextensionsV1().CustomResourceDefinitions()
	c.createNamespace("a")
	serve := func(served bool) {
		_, err := definitions.Patch(t.Context(), "widgets.example.com", types.JSONPatchType, fmt.Appendf(nil, `[{"op":"replace","path":"/spec/versions/0/served","value":%t}]`, served), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	end := func() error {
		return c.handle(t.Context(), eventlog.Event{Write: eventlog.Write{Op: eventlog.Modified, Key: eventlog.Key{Cluster: "main", Group: definitionGroup, Resource: "customresourcedefinitions", Name: "widgets.example.com"}}})
	}
	gone := func() {
		t.Helper()
		_, err := definitions.Get(t.Context(), "widgets.example.com", metav1.GetOptions{})
		require.True(t, apierrors.IsNotFound(err), err)
		require.Zero(t, c.rows("a"))
	}
	c.createDefinition()
	serve(false)
	require.NoError(t, definitions.Delete(t.Context(), "widgets.example.com", metav1.DeleteOptions{}))
	require.NoError(t, end())
	gone()

	c.createDefinition()
	c.createWidget("a", "w")
	serve(false)
	require.NoError(t, definitions.Delete(t.Context(), "widgets.example.com", metav1.DeleteOptions{}))
	require.NoError(t, end())
	gone()

	c.createDefinition()
	c.createWidget("a", "goes")
	c.createWidget("a", "stays", "example.com/hold")
	serve(false)
	require.NoError(t, definitions.Delete(t.Context(), "widgets.example.com", metav1.DeleteOptions{}))
	var notYet *notYetError
	require.ErrorAs(t, end(), &notYet)
	require.Equal(t, 1, c.rows("a"))
	serve(true)
	held, err := c.custom.Resource(widgets).Namespace("a").Get(t.Context(), "stays", metav1.GetOptions{})
	require.NoError(t, err)
	require.NotNil(t, held.GetDeletionTimestamp())
	c.removeWidgetFinalizers("a", "stays")
	require.NoError(t, end())
	gone()
}

// TestDefinitionOfBuiltIn: a definition that has the name of a built-in resource, from before such names were refused,
// is deleted together with its own objects. The built-in objects under the same prefix stay.
func TestDefinitionOfBuiltIn(t *testing.T) {
	c := newCluster(t)
	c.createDefinition()
	definitions := c.extensions.ApiextensionsV1().CustomResourceDefinitions()
	over, err := definitions.Get(t.Context(), "widgets.example.com", metav1.GetOptions{})
	require.NoError(t, err)
	over.ObjectMeta = metav1.ObjectMeta{Name: "customresourcedefinitions.apiextensions.k8s.io", UID: "over", Finalizers: []string{apiextensionsv1.CustomResourceCleanupFinalizer}}
	over.Spec.Group, over.Spec.Scope = definitionGroup, apiextensionsv1.ClusterScoped
	over.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{Plural: "customresourcedefinitions", Singular: "overlapping", Kind: "Overlapping", ListKind: "OverlappingList"}
	over.Status.AcceptedNames = over.Spec.Names
	_, err = definitions.Create(t.Context(), over, metav1.CreateOptions{})
	require.True(t, apierrors.IsInvalid(err), err)
	codec := crdserver.Codecs.EncoderForVersion(protobuf.NewSerializer(crdserver.Scheme, crdserver.Scheme), apiextensionsv1.SchemeGroupVersion)
	body, err := runtime.Encode(codec, over)
	require.NoError(t, err)
	c.store(over.Name, runtime.ContentTypeProtobuf, body)
	body, err = runtime.Encode(cbor.NewSerializer(nil, nil), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": definitionGroup + "/" + over.Spec.Versions[0].Name, "kind": "Overlapping", "metadata": map[string]any{"name": "instance"}}})
	require.NoError(t, err)
	c.store("instance", runtime.ContentTypeCBOR, body)

	c.run()
	require.NoError(t, definitions.Delete(t.Context(), over.Name, metav1.DeleteOptions{}))
	c.eventually(func() bool {
		_, err := definitions.Get(context.Background(), over.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}, "the definition is gone")
	left, err := definitions.Get(t.Context(), "widgets.example.com", metav1.GetOptions{})
	require.NoError(t, err)
	require.Nil(t, left.DeletionTimestamp)
	view, err := c.cell.Projection.Latest(t.Context())
	require.NoError(t, err)
	_, found, err := view.Get(t.Context(), "main/apiextensions.k8s.io/customresourcedefinitions/instance", view.Revision())
	require.NoError(t, err)
	require.False(t, found)
}

// store appends a row as it is, under the prefix of definitions.
func (c *cluster) store(name, contentType string, body []byte) {
	c.Helper()
	view, err := c.cell.Projection.Latest(c.Context())
	require.NoError(c, err)
	at, err := view.State(c.Context(), eventlog.Key{Cluster: "main", Group: definitionGroup, Resource: "customresourcedefinitions", Prefix: "/apiextensions.k8s.io/customresourcedefinitions", Name: name})
	require.NoError(c, err)
	_, err = view.Append(c.Context(), uuid.NewString(), at.Put(contentType, body, 0))
	require.NoError(c, err)
}

// TestDefinitionGetsFreedNames: a name that another definition has is refused until that definition is gone, or has
// given the name up in an update. If no lifecycle runs at that time, the next lifecycle accepts the name.
func TestDefinitionGetsFreedNames(t *testing.T) {
	c := newCluster(t)
	c.createDefinition()
	c.createDefinitionOf("gadgets", "WidgetList")
	definitions := c.extensions.ApiextensionsV1().CustomResourceDefinitions()
	accepted := func(name string) func() bool {
		return func() bool {
			d, err := definitions.Get(context.Background(), name+".example.com", metav1.GetOptions{})
			require.NoError(t, err)
			return apihelpers.IsCRDConditionTrue(d, apiextensionsv1.NamesAccepted) && apihelpers.IsCRDConditionTrue(d, apiextensionsv1.Established)
		}
	}
	rename := func(name, list string) {
		_, err := definitions.Patch(t.Context(), name+".example.com", types.MergePatchType, []byte(`{"spec":{"names":{"listKind":"`+list+`"}}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	require.False(t, accepted("gadgets")())
	stop := c.run()
	rename("widgets", "Widgets")
	c.eventually(accepted("gadgets"), "the name that an update gave up is accepted")
	c.createDefinitionOf("things", "Widgets")
	require.False(t, accepted("things")())
	require.NoError(t, definitions.Delete(t.Context(), "widgets.example.com", metav1.DeleteOptions{}))
	c.eventually(accepted("things"), "the names of a definition that is gone are accepted")

	c.createDefinitionOf("others", "WidgetListList")
	require.False(t, accepted("others")())
	stop()
	rename("gadgets", "Gadgets")
	require.False(t, accepted("others")())
	c.restart()
	c.run()
	c.eventually(accepted("others"), "the name that was given up meanwhile is accepted")
}

func TestRolesAreAggregated(t *testing.T) {
	c := newCluster(t)
	roles := c.client.RbacV1().ClusterRoles()
	before, err := roles.Get(t.Context(), "view", metav1.GetOptions{})
	require.NoError(t, err)
	c.run()
	_, err = roles.Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets-view", Labels: map[string]string{"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"example.com"}, Resources: []string{"widgets"}, Verbs: []string{"get", "list"}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	grown := func(name string, want int) func() bool {
		return func() bool {
			role, err := roles.Get(context.Background(), name, metav1.GetOptions{})
			require.NoError(t, err)
			has := 0
			for _, rule := range role.Rules {
				if len(rule.APIGroups) == 1 && rule.APIGroups[0] == "example.com" {
					has++
				}
			}
			return has == want
		}
	}
	for _, name := range []string{"view", "edit", "admin"} {
		c.eventually(grown(name, 1), name+" has the rule")
	}
	label := func(value string) {
		patch := `{"metadata":{"labels":{"rbac.authorization.k8s.io/aggregate-to-view":` + value + `}}}`
		_, err := roles.Patch(t.Context(), "widgets-view", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	label("null")
	for _, name := range []string{"view", "edit", "admin"} {
		c.eventually(grown(name, 0), name+" has lost the rule of a role that is no longer part of it")
	}
	label(`"true"`)
	for _, name := range []string{"view", "edit", "admin"} {
		c.eventually(grown(name, 1), name+" has the rule again")
	}
	require.NoError(t, roles.Delete(t.Context(), "widgets-view", metav1.DeleteOptions{}))
	for _, name := range []string{"view", "edit", "admin"} {
		c.eventually(grown(name, 0), name+" has lost the rule")
	}
	after, err := roles.Get(t.Context(), "view", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, before.Rules, after.Rules)
}

// TestVersionsAreRegistered: while a definition serves a version, the version has an APIService. If somebody changes
// that APIService, the lifecycle changes it back. An APIService that somebody else made is left alone.
func TestVersionsAreRegistered(t *testing.T) {
	c := newCluster(t)
	services := c.registrations.APIServices()
	remote := &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v2.example.com"}, Spec: apiregistrationv1.APIServiceSpec{
		Group: "example.com", Version: "v2", GroupPriorityMinimum: 7, VersionPriority: 7, InsecureSkipTLSVerify: true,
		Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "a"},
	}}
	_, err := services.Create(t.Context(), remote, metav1.CreateOptions{})
	require.NoError(t, err)
	priority := func(name string) int32 { // 0 if there is none
		s, err := services.Get(context.Background(), name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			require.NoError(t, err)
		}
		return s.Spec.GroupPriorityMinimum
	}
	c.createDefinition() // before the lifecycle runs
	c.run()
	c.eventually(func() bool { return priority("v1.example.com") == 1000 }, "the version is registered")
	made, err := services.Get(t.Context(), "v1.example.com", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "true", made.Labels["kube-aggregator.kubernetes.io/automanaged"])
	require.Equal(t, "Local APIServices are always available", made.Status.Conditions[0].Message)
	made.Spec.GroupPriorityMinimum = 9
	_, err = services.Update(t.Context(), made, metav1.UpdateOptions{})
	require.NoError(t, err)
	c.eventually(func() bool { return priority("v1.example.com") == 1000 }, "it is written back")
	require.NoError(t, services.Delete(t.Context(), "v1.example.com", metav1.DeleteOptions{}))
	c.eventually(func() bool { return priority("v1.example.com") == 1000 }, "it comes back")

	c.createDefinitionOf("gadgets", "Gadget")
	definitions := c.extensions.ApiextensionsV1().CustomResourceDefinitions()
	require.NoError(t, definitions.Delete(t.Context(), "widgets.example.com", metav1.DeleteOptions{}))
	c.eventually(func() bool {
		_, err := definitions.Get(context.Background(), "widgets.example.com", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}, "one of two definitions is gone")
	require.EqualValues(t, 1000, priority("v1.example.com"))
	serve := func(served bool) {
		patch := fmt.Sprintf(`[{"op":"add","path":"/spec/versions/1","value":{"name":"v3","served":%t,"storage":false,"schema":{"openAPIV3Schema":{"type":"object"}}}}]`, served)
		if !served {
			patch = `[{"op":"replace","path":"/spec/versions/1/served","value":false}]`
		}
		_, err := definitions.Patch(t.Context(), "gadgets.example.com", types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	serve(true)
	c.eventually(func() bool { return priority("v3.example.com") == 1000 }, "a version that an update added is registered")
	serve(false)
	c.eventually(func() bool { return priority("v3.example.com") == 0 }, "a version that is no longer served is not")
	require.NoError(t, definitions.Delete(t.Context(), "gadgets.example.com", metav1.DeleteOptions{}))
	c.eventually(func() bool { return priority("v1.example.com") == 0 }, "nobody serves the version")
	require.EqualValues(t, 7, priority("v2.example.com"))
}

// checking is a server that checks remote servers with a function.
type checking struct {
	Server
	check func(*apiregistrationv1.APIService) (apiregistrationv1.APIServiceCondition, error)
}

func (c checking) CheckRemote(_ context.Context, s *apiregistrationv1.APIService) (apiregistrationv1.APIServiceCondition, error) {
	return c.check(s)
}

// TestRemotesAreChecked: the status of a remote APIService says whether its server can be reached. The status is
// written only if the result of the check changes, and not if the check cannot be made.
func TestRemotesAreChecked(t *testing.T) {
	condition := apiregistrationv1.APIServiceCondition{Type: apiregistrationv1.Available, Status: apiregistrationv1.ConditionFalse, Reason: "MissingEndpoints"}
	checks, unread := 0, error(nil)
	c := newCluster(t, func(config *Config) {
		config.through(func(s Server) Server {
			return checking{s, func(s *apiregistrationv1.APIService) (apiregistrationv1.APIServiceCondition, error) {
				require.Equal(t, "v1.remote.example", s.Name)
				checks++
				condition.Message = fmt.Sprint("look ", checks)
				return condition, unread
			}}
		})
	})
	services := c.registrations.APIServices()
	remote := &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1.remote.example"}, Spec: apiregistrationv1.APIServiceSpec{
		Group: "remote.example", Version: "v1", GroupPriorityMinimum: 7, VersionPriority: 7, InsecureSkipTLSVerify: true,
		Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "a"},
	}}
	_, err := services.Create(t.Context(), remote, metav1.CreateOptions{})
	require.NoError(t, err)
	view, err := c.cell.Projection.Latest(t.Context())
	require.NoError(t, err)
	tasks, err := c.tasksOfState(t.Context(), view)
	require.NoError(t, err)
	require.Contains(t, tasks, task{kind: remoteTask, name: "v1.remote.example"})
	require.NotContains(t, tasks, task{kind: remoteTask, name: "v1.apps"})
	check := func(after time.Duration) *apiregistrationv1.APIService {
		var notYet *notYetError
		_, err := c.do(t.Context(), task{kind: remoteTask, name: "v1.remote.example"})
		require.ErrorAs(t, err, &notYet)
		require.Equal(t, after, notYet.After)
		s, err := services.Get(t.Context(), "v1.remote.example", metav1.GetOptions{})
		require.NoError(t, err)
		return s
	}
	first := check(unavailableInterval)
	require.Equal(t, "look 1", first.Status.Conditions[0].Message)
	require.Equal(t, first.ResourceVersion, check(unavailableInterval).ResourceVersion)
	condition.Status, condition.Reason = apiregistrationv1.ConditionTrue, "Passed"
	available := check(availableInterval)
	require.Equal(t, apiregistrationv1.ConditionTrue, available.Status.Conditions[0].Status)
	condition.Status, condition.Reason, unread = apiregistrationv1.ConditionFalse, "", errors.New("the bucket fails")
	_, err = c.do(t.Context(), task{kind: remoteTask, name: "v1.remote.example"})
	require.ErrorIs(t, err, unread)
	kept, err := services.Get(t.Context(), "v1.remote.example", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, available.ResourceVersion, kept.ResourceVersion)
	require.NoError(t, services.Delete(t.Context(), "v1.remote.example", metav1.DeleteOptions{}))
	_, err = c.do(t.Context(), task{kind: remoteTask, name: "v1.remote.example"})
	require.NoError(t, err)
	require.Equal(t, 4, checks)
}

// TestStrays: an object that comes after its namespace is gone is deleted, whether or not a lifecycle ran at that time.
func TestStrays(t *testing.T) {
	c := newCluster(t)
	c.createNamespace("n")
	c.createConfigMap("n", "model")
	view, err := c.cell.Projection.Latest(t.Context())
	require.NoError(t, err)
	model, found, err := view.Get(t.Context(), "main/configmaps/n/model", view.Revision())
	require.NoError(t, err)
	require.True(t, found)
	late := func(namespace, name string) {
		key := model.ID
		key.Namespace, key.Name = namespace, name
		_, err := c.cell.Log.Append(t.Context(), eventlog.Basis{}, "late-"+namespace+name, eventlog.Write{Key: key, Op: eventlog.Added, ContentType: model.ContentType, Body: model.Value})
		require.NoError(t, err)
	}
	for i := range 2 * seekAfter { // objects in a living namespace, between the strays
		late("n", fmt.Sprint("o-", i))
	}
	late("gone-before", "model")
	late("the-last", "model")
	c.run()
	c.eventually(func() bool { return c.rows("gone-before")+c.rows("the-last") == 0 }, "found by the state")
	late("gone-since", "model")
	c.eventually(func() bool { return c.rows("gone-since") == 0 }, "found by its event")
	require.Equal(t, 1+2*seekAfter, c.rows("n"))
}

// TestIdleWritesNothing: nothing that Bootstrap wrote makes work for the lifecycle.
func TestIdleWritesNothing(t *testing.T) {
	c := newCluster(t)
	before, err := c.cell.Projection.Latest(t.Context())
	require.NoError(t, err)
	tasks, err := c.tasksOfState(t.Context(), before)
	require.NoError(t, err)
	for _, task := range tasks {
		_, err := c.do(t.Context(), task)
		require.NoError(t, err)
	}
	after, err := c.cell.Projection.Latest(t.Context())
	require.NoError(t, err)
	require.Equal(t, before.Revision(), after.Revision())
}

func TestExpiry(t *testing.T) {
	c := newCluster(t)
	write := func(name string, ttl uint32) {
		_, err := c.cell.Log.Append(t.Context(), eventlog.Basis{}, "write-"+name, eventlog.Write{
			Key: eventlog.Key{Cluster: "main", Resource: "events", Prefix: "/events", Namespace: "default", Name: name},
			Op:  eventlog.Added, ContentType: "application/vnd.kubernetes.protobuf", Body: []byte("x"), TTL: ttl,
		})
		require.NoError(t, err)
	}
	write("for-ever", 0)
	write("long", 3600)
	for i := range expiryBatch + 5 {
		write(fmt.Sprintf("short-%d", i), 1)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	deleted := 0
	for deleted < expiryBatch+5 {
		n, err := c.Expire(ctx)
		require.NoError(t, err)
		deleted += n
	}
	require.Equal(t, expiryBatch+5, deleted)
	require.Equal(t, 2+1, c.rows("default"), "two events and the service stay")
	require.Equal(t, map[eventlog.Author]int{kubestore.PartOf("expiry"): expiryBatch + 5}, c.authors("default", eventlog.Deleted))
}

// TestExpiryTakesReferences: the references to an object's owners are deleted with the object. Otherwise a foreground
// deletion of an owner would wait for ever.
func TestExpiryTakesReferences(t *testing.T) {
	c := newCluster(t)
	owner, err := c.client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	blocks := true
	for i := range 12 { // each has a hundred owners, so together they need more than one batch
		event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("e%d", i)}, InvolvedObject: corev1.ObjectReference{Namespace: "default"}}
		for j := range dependents.MaxOwners {
			reference := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: owner.UID, BlockOwnerDeletion: &blocks}
			if j > 0 {
				reference.UID = types.UID(fmt.Sprintf("%s-%d", owner.UID, j))
			}
			event.OwnerReferences = append(event.OwnerReferences, reference)
		}
		_, err = c.client.CoreV1().Events("default").Create(t.Context(), event, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	require.Equal(t, 12*dependents.MaxOwners, c.references())
	view, err := c.cell.Projection.Latest(t.Context())
	require.NoError(t, err)
	for row, err := range view.Scan(t.Context(), "main/events/", projection.PrefixEnd("main/events/"), view.Revision()) { // as if the hour were over
		require.NoError(t, err)
		_, err = c.cell.Log.Append(t.Context(), eventlog.Basis{}, "age-"+row.ID.Name, eventlog.Write{
			Key: row.ID, Op: eventlog.Modified, Base: row.Revision, Precondition: row.Revision, ContentType: row.ContentType, Body: row.Value, TTL: 1,
		})
		require.NoError(t, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for deleted := 0; deleted < 12; {
		n, err := c.Expire(ctx)
		require.NoError(t, err)
		deleted += n
	}
	require.Zero(t, c.references())
}
