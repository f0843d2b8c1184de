package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/test/product"
)

// disasterPatience bounds each wait of the test. A reflector whose kind is not served tries again only after seconds.
const disasterPatience = 2 * time.Minute

// TestDisasterUnderControllers: a namespace of 300 objects, with owners, finalizers and addresses, is deleted and
// restored. The CRD of some of the objects is deleted and restored too. Meanwhile informers follow all objects, and a
// controller works on them. Afterwards the objects are as before except for their uids, the informers hold the objects
// that a list returns, and the controller has nothing left to do.
//
// Only one informer lists again: the objects that are deleted with their CRD have no API for a while. The server tells
// the reflector that the API is gone, as kube-apiserver does. The reflector gives up its watch, and lists once after
// the CRD is back.
func TestDisasterUnderControllers(t *testing.T) {
	if testing.Short() {
		t.Skip("many processes")
	}
	t.Parallel()
	c := newCell(t, eventlogtest.Connect(t, eventlogtest.Run(t, t.TempDir())).ConnectedUrl(), 1)
	d := &disaster{T: t, url: c.first.URL(), lists: map[string]int{}}
	_, _, d.client = clientsFor(t, d.url)
	define(t, d.client, "widget", "Widget")
	define(t, d.client, "gadget", "Gadget")
	informers := d.follow(c.second.URL())
	runKeeper(t, c.second.URL(), informers[widgets], informers[configMaps])
	d.fill()
	d.settle(informers)
	before, moment := d.content()
	require.Greater(t, len(before), 300)
	listed := d.listed()

	definition := d.client.Resource(crds)
	require.NoError(t, definition.Delete(t.Context(), "widgets.example.com", metav1.DeleteOptions{}))
	require.NoError(t, d.client.Resource(namespaces).Delete(t.Context(), disasterNamespace, metav1.DeleteOptions{}))
	d.until("the namespace and the definition are gone", func() error {
		_, first := d.client.Resource(namespaces).Get(t.Context(), disasterNamespace, metav1.GetOptions{})
		_, second := definition.Get(t.Context(), "widgets.example.com", metav1.GetOptions{})
		if !apierrors.IsNotFound(first) || !apierrors.IsNotFound(second) {
			return fmt.Errorf("%w, %w", first, second)
		}
		return nil
	})
	d.until("the informers have nothing", func() error {
		for kind, informer := range informers {
			if objects, err := informer.GetIndexer().ByIndex(cache.NamespaceIndex, disasterNamespace); err != nil || len(objects) > 0 {
				return fmt.Errorf("%s: %d objects, %w", kind.Resource, len(objects), err)
			}
		}
		return nil
	})

	restore := []string{"restore", "--to", moment, "--namespace", disasterNamespace, "--yes", "--server", d.url}
	said, code := logplane(t, restore...)
	require.NotZero(t, code, said)
	require.Contains(t, said, "the kind is not served any more: 'undelete crd/widgets.example.com'")
	said, code = logplane(t, "undelete", "crd/widgets.example.com", "--yes", "--server", d.url)
	require.Zero(t, code, said)
	runs := 1
	d.until("everything is restored", func() error {
		runs++
		if said, code = logplane(t, restore...); code != 0 { // the controller was faster than the restore: run it again
			return errors.New(said)
		}
		return nil
	})
	d.settle(informers)
	t.Logf("%d objects were restored by %d runs", len(before), runs)
	after, _ := d.content()
	require.ElementsMatch(t, slices.Collect(maps.Keys(before)), slices.Collect(maps.Keys(after)))
	for name := range before {
		require.Equal(t, before[name], after[name], name)
	}
	again := d.listed()
	require.Equal(t, listed["widgets"]+1, again["widgets"], "the kind whose definition was gone is listed once more")
	again["widgets"] = listed["widgets"]
	require.Equal(t, listed, again, "nothing else is")
	said, code = logplane(t, restore...)
	require.Zero(t, code, said)
	require.Contains(t, said, "0 to create, 0 to update, 0 to delete")
}

const disasterNamespace = "shop"

var (
	namespaces = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	gadgets    = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "gadgets"}
)

// ruins are the kinds of objects in the namespace, and how many there are of each.
var ruins = []struct {
	schema.GroupVersionResource
	kind   string
	n      int
	owner  string // the kind of the objects' owners; all owners have equally many of them
	fields string
}{
	{schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}, "ServiceAccount", 10, "", `"automountServiceAccountToken":false`},
	{schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, "Deployment", 20, "", `"spec":{"replicas":2,` + selectsA + `}`},
	{schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "replicasets"}, "ReplicaSet", 20, "Deployment", `"spec":{"replicas":2,` + selectsA + `}`},
	{schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "Pod", 40, "ReplicaSet", `"spec":{"containers":[{"name":"c","image":"i"}]}`},
	{configMaps, "ConfigMap", 40, "", `"data":{"a":"1"}`},
	{schema.GroupVersionResource{Version: "v1", Resource: "secrets"}, "Secret", 30, "", `"data":{"a":"MQ=="}`},
	{schema.GroupVersionResource{Version: "v1", Resource: "services"}, "Service", 20, "", `"spec":{"type":"NodePort","selector":{"a":"b"},"ports":[{"port":80}]}`},
	{schema.GroupVersionResource{Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"}, "PodDisruptionBudget", 10, "", `"spec":{"minAvailable":1,"selector":{"matchLabels":{"a":"b"}}}`},
	{schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"}, "Role", 10, "", `"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]`},
	{schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"}, "RoleBinding", 10, "",
		`"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"role-0"},"subjects":[{"kind":"User","name":"alice","apiGroup":"rbac.authorization.k8s.io"}]`},
	{gadgets, "Gadget", 30, "", `"spec":{"size":1}`},
	{widgets, "Widget", 40, "", `"spec":{"size":1}`}, // the controller makes a ConfigMap for each widget
}

const selectsA = `"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}`

// disaster is the state of the test.
type disaster struct {
	*testing.T
	url    string
	client *dynamic.DynamicClient

	mu    sync.Mutex
	lists map[string]int // guarded by mu; by resource, how many lists the informers got
}

// until waits for a condition.
func (d *disaster) until(what string, condition func() error) {
	d.Helper()
	deadline := time.Now().Add(disasterPatience)
	for tick := time.NewTicker(50 * time.Millisecond); ; <-tick.C {
		err := condition()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			d.Fatalf("after %s: not yet: %s: %v", disasterPatience, what, err)
		}
	}
}

// follow starts informers that count their lists, and returns once they are synced.
func (d *disaster) follow(url string) map[schema.GroupVersionResource]cache.SharedIndexInformer {
	d.Helper()
	config := &rest.Config{Host: url, QPS: -1}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return counting{next, d} })
	client, err := dynamic.NewForConfig(config)
	require.NoError(d, err)
	factory := dynamicinformer.NewDynamicSharedInformerFactory(client, 0)
	informers := map[schema.GroupVersionResource]cache.SharedIndexInformer{}
	for _, kind := range ruins {
		informers[kind.GroupVersionResource] = factory.ForResource(kind.GroupVersionResource).Informer()
	}
	ctx, cancel := context.WithTimeout(d.Context(), disasterPatience)
	defer cancel()
	factory.Start(d.Context().Done())
	d.Cleanup(factory.Shutdown)
	for kind, synced := range factory.WaitForCacheSync(ctx.Done()) {
		require.True(d, synced, kind)
	}
	return informers
}

// counting counts how a reflector begins: with a list, or with a watch that begins with all objects.
type counting struct {
	http.RoundTripper
	*disaster
}

func (c counting) RoundTrip(r *http.Request) (*http.Response, error) {
	query := r.URL.Query()
	response, err := c.RoundTripper.RoundTrip(r)
	if err == nil && response.StatusCode == http.StatusOK && (query.Get("watch") == "" || query.Get("sendInitialEvents") != "") {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.lists[path.Base(r.URL.Path)]++
	}
	if err == nil && response.StatusCode == http.StatusGone {
		c.Errorf("410 for %s", r.URL)
	}
	return response, err
}

func (d *disaster) listed() map[string]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.lists)
}

// fill makes the namespace and its objects.
func (d *disaster) fill() {
	d.Helper()
	create := func(kind schema.GroupVersionResource, text string) (*unstructured.Unstructured, error) {
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON([]byte(text)); err != nil {
			return nil, err
		}
		if kind == namespaces {
			return d.client.Resource(kind).Create(d.Context(), object, metav1.CreateOptions{})
		}
		return d.client.Resource(kind).Namespace(disasterNamespace).Create(d.Context(), object, metav1.CreateOptions{})
	}
	_, err := create(namespaces, `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"`+disasterNamespace+`","labels":{"team":"shop"}}}`)
	require.NoError(d, err)
	made := map[string][]*unstructured.Unstructured{}
	for _, kind := range ruins {
		made[kind.kind] = make([]*unstructured.Unstructured, kind.n)
		var group errgroup.Group
		group.SetLimit(8)
		for i := range kind.n {
			group.Go(func() error {
				owners := "[]"
				if all := made[kind.owner]; len(all) > 0 {
					owner := all[i%len(all)]
					owners = fmt.Sprintf(`[{"apiVersion":%q,"kind":%q,"name":%q,"uid":%q,"controller":true,"blockOwnerDeletion":true}]`,
						owner.GetAPIVersion(), owner.GetKind(), owner.GetName(), owner.GetUID())
				}
				var err error
				made[kind.kind][i], err = create(kind.GroupVersionResource, fmt.Sprintf(
					`{"apiVersion":%q,"kind":%q,"metadata":{"name":"%s-%d","labels":{"a":"b"},"annotations":{"n":"%d"},"ownerReferences":%s},%s}`,
					kind.GroupVersion(), kind.kind, strings.ToLower(kind.kind), i, i, owners, kind.fields))
				return err
			})
		}
		require.NoError(d, group.Wait(), kind.kind)
	}
}

// all lists the objects of a kind.
func (d *disaster) all(kind schema.GroupVersionResource) *unstructured.UnstructuredList {
	d.Helper()
	list, err := d.client.Resource(kind).Namespace(disasterNamespace).List(d.Context(), metav1.ListOptions{})
	require.NoError(d, err)
	return list
}

// settle waits until the controller has nothing left to do, and the informers hold the objects that a list returns.
func (d *disaster) settle(informers map[schema.GroupVersionResource]cache.SharedIndexInformer) {
	d.Helper()
	d.until("the controller is content", func() error {
		kept := map[string]*unstructured.Unstructured{}
		for _, object := range d.all(configMaps).Items {
			kept[object.GetName()] = &object
		}
		list := d.all(widgets).Items
		for _, widget := range list {
			if err := content(&widget, kept["of-"+widget.GetName()]); err != nil {
				return fmt.Errorf("%s: %w", widget.GetName(), err)
			}
		}
		if len(list) != ruins[len(ruins)-1].n {
			return fmt.Errorf("%d widgets", len(list))
		}
		return nil
	})
	d.until("the informers have what a list has", func() error {
		for kind, informer := range informers {
			objects, err := informer.GetIndexer().ByIndex(cache.NamespaceIndex, disasterNamespace)
			if err != nil {
				return err
			}
			have := map[string]string{}
			for _, object := range objects {
				have[object.(*unstructured.Unstructured).GetName()] = object.(*unstructured.Unstructured).GetResourceVersion()
			}
			list := d.all(kind).Items
			for _, object := range list {
				if have[object.GetName()] != object.GetResourceVersion() {
					return fmt.Errorf("%s %s has revision '%s', not %s", kind.Resource, object.GetName(), have[object.GetName()], object.GetResourceVersion())
				}
			}
			if len(have) != len(list) {
				return fmt.Errorf("%d %s, not %d", len(have), kind.Resource, len(list))
			}
		}
		return nil
	})
}

// content returns all objects of the namespace, and a revision at which the objects had this content. It leaves out the
// fields that differ after an object was made again. Owners must exist.
func (d *disaster) content() (all map[string]any, revision string) {
	d.Helper()
	all = map[string]any{}
	uids := map[string]types.UID{}
	var objects []unstructured.Unstructured
	for _, kind := range ruins {
		list := d.all(kind.GroupVersionResource)
		revision = list.GetResourceVersion()
		for _, object := range list.Items {
			uids[object.GetKind()+" "+object.GetName()] = object.GetUID()
			objects = append(objects, object)
		}
	}
	for _, object := range objects {
		name := object.GetKind() + " " + object.GetName()
		for _, owner := range object.GetOwnerReferences() {
			require.Equal(d, uids[owner.Kind+" "+owner.Name], owner.UID, "%s is owned by %s %s", name, owner.Kind, owner.Name)
		}
		text, err := object.MarshalJSON()
		require.NoError(d, err)
		var fields map[string]any
		require.NoError(d, json.Unmarshal(text, &fields))
		metadata := fields["metadata"].(map[string]any)
		for _, name := range []string{"uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"} {
			delete(metadata, name)
		}
		references, _ := metadata["ownerReferences"].([]any)
		for _, reference := range references {
			delete(reference.(map[string]any), "uid")
		}
		if object.GetKind() != "Widget" { // the controller writes a Widget's status
			delete(fields, "status")
		}
		all[name] = fields
	}
	return all, revision
}

// logplane runs a command of the product to its end.
func logplane(t *testing.T, args ...string) (said string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), disasterPatience)
	defer cancel()
	command := exec.CommandContext(ctx, product.Logplane(t), args...)
	command.Env = append(os.Environ(), "KUBECONFIG=", "HOME="+t.TempDir())
	out, err := command.CombinedOutput()
	if ended := (*exec.ExitError)(nil); err != nil && !errors.As(err, &ended) {
		t.Fatal(err)
	}
	return string(out), command.ProcessState.ExitCode()
}

// keeper is a typical controller: it works from informers, and repeats refused writes. Each widget gets a finalizer, a
// ConfigMap and a status. The widget owns the ConfigMap, which holds the widget's size. The status holds that size too.
type keeper struct {
	client              *dynamic.DynamicClient
	widgets, configMaps cache.Indexer
	queue               workqueue.TypedRateLimitingInterface[string]
}

const keepers = "example.com/keeper"

// runKeeper runs a keeper until the test ends.
func runKeeper(t *testing.T, url string, widgets, configMaps cache.SharedIndexInformer) {
	t.Helper()
	_, _, client := clientsFor(t, url)
	k := &keeper{client, widgets.GetIndexer(), configMaps.GetIndexer(),
		workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](10*time.Millisecond, time.Second))}
	handle := func(object any) {
		key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object)
		namespace, name, _ := cache.SplitMetaNamespaceKey(key)
		if err == nil {
			k.queue.Add(namespace + "/" + strings.TrimPrefix(name, "of-"))
		}
	}
	for _, informer := range []cache.SharedIndexInformer{widgets, configMaps} {
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: handle, UpdateFunc: func(_, now any) { handle(now) }, DeleteFunc: handle})
		require.NoError(t, err)
	}
	var working sync.WaitGroup
	for range 2 {
		working.Go(func() {
			for key, ended := k.queue.Get(); !ended; key, ended = k.queue.Get() {
				if k.reconcile(t.Context(), key) != nil {
					k.queue.AddRateLimited(key)
				} else {
					k.queue.Forget(key)
				}
				k.queue.Done(key)
			}
		})
	}
	t.Cleanup(working.Wait)
	t.Cleanup(k.queue.ShutDown)
}

// content returns an error if a widget or its ConfigMap does not have the state that the keeper makes.
func content(widget, kept *unstructured.Unstructured) error {
	size, _, _ := unstructured.NestedInt64(widget.Object, "spec", "size")
	seen, _, _ := unstructured.NestedInt64(widget.Object, "status", "size")
	switch {
	case !slices.Contains(widget.GetFinalizers(), keepers):
		return errors.New("it has no finalizer")
	case kept == nil:
		return errors.New("its ConfigMap is not there")
	case !metav1.IsControlledBy(kept, widget) || len(kept.GetOwnerReferences()) != 1:
		return errors.New("its ConfigMap is not its own")
	}
	if is, _, _ := unstructured.NestedString(kept.Object, "data", "size"); is != fmt.Sprint(size) {
		return errors.New("its ConfigMap has another size")
	}
	if seen != size {
		return errors.New("its status has another size")
	}
	return nil
}

func (k *keeper) reconcile(ctx context.Context, key string) error {
	found, there, err := k.widgets.GetByKey(key)
	if err != nil || !there {
		return err
	}
	widget := found.(*unstructured.Unstructured).DeepCopy()
	all := k.client.Resource(widgets).Namespace(widget.GetNamespace())
	switch held := slices.Contains(widget.GetFinalizers(), keepers); {
	case widget.GetDeletionTimestamp() != nil:
		if held {
			widget.SetFinalizers(slices.DeleteFunc(widget.GetFinalizers(), func(f string) bool { return f == keepers }))
			_, err = all.Update(ctx, widget, metav1.UpdateOptions{})
		}
		return err
	case !held:
		widget.SetFinalizers(append(widget.GetFinalizers(), keepers))
		if widget, err = all.Update(ctx, widget, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	if err := k.keep(ctx, widget); err != nil {
		return err
	}
	size, _, _ := unstructured.NestedInt64(widget.Object, "spec", "size")
	if seen, ok, _ := unstructured.NestedInt64(widget.Object, "status", "size"); ok && seen == size {
		return nil
	}
	widget.Object["status"] = map[string]any{"size": size}
	_, err = all.UpdateStatus(ctx, widget, metav1.UpdateOptions{})
	return err
}

// keep creates or updates the widget's ConfigMap.
func (k *keeper) keep(ctx context.Context, widget *unstructured.Unstructured) error {
	size, _, _ := unstructured.NestedInt64(widget.Object, "spec", "size")
	wanted := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "data": map[string]any{"size": fmt.Sprint(size)}}}
	wanted.SetNamespace(widget.GetNamespace())
	wanted.SetName("of-" + widget.GetName())
	wanted.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(widget, widgets.GroupVersion().WithKind("Widget"))})
	all := k.client.Resource(configMaps).Namespace(wanted.GetNamespace())
	found, there, err := k.configMaps.GetByKey(wanted.GetNamespace() + "/" + wanted.GetName())
	if err != nil {
		return err
	}
	if !there {
		_, err = all.Create(ctx, wanted, metav1.CreateOptions{})
		return err
	}
	kept := found.(*unstructured.Unstructured)
	if is, _, _ := unstructured.NestedString(kept.Object, "data", "size"); is == fmt.Sprint(size) && metav1.IsControlledBy(kept, widget) && len(kept.GetOwnerReferences()) == 1 {
		return nil
	}
	wanted.SetResourceVersion(kept.GetResourceVersion())
	_, err = all.Update(ctx, wanted, metav1.UpdateOptions{})
	return err
}
