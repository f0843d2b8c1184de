// Package products runs other vendors' products on a cell whose parts are separate processes.
package products

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart"
	"helm.sh/helm/v4/pkg/chart/loader"
	"helm.sh/helm/v4/pkg/cli"
	"helm.sh/helm/v4/pkg/kube"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/klog/v2"

	"github.com/logplane/logplane/test/product"
)

// patience bounds each wait.
const patience = 2 * time.Minute

func TestMain(m *testing.M) {
	klog.SetSlogLogger(slog.New(slog.DiscardHandler)) // otherwise klog reports watches that end with their process
	os.Exit(m.Run())
}

// host is a cell in which a product is installed.
type host struct {
	*testing.T
	cell    *product.Cell
	client  *kubernetes.Clientset
	dynamic *dynamic.DynamicClient
}

func newHost(t *testing.T) *host {
	t.Helper()
	cell := product.RunCell(t, "")
	client, err := kubernetes.NewForConfig(cell.Admin())
	require.NoError(t, err)
	objects, err := dynamic.NewForConfig(cell.Admin())
	require.NoError(t, err)
	return &host{T: t, cell: cell, client: client, dynamic: objects}
}

// helm returns the configuration of Helm's actions.
func (h *host) helm(namespace string) *action.Configuration {
	h.Helper()
	settings := cli.New()
	settings.KubeConfig, settings.QPS = h.cell.Kubeconfig("admin"), -1
	settings.SetNamespace(namespace)
	config := action.NewConfiguration()
	require.NoError(h, config.Init(settings.RESTClientGetter(), namespace, ""))
	return config
}

// install installs a chart, in a namespace with the name of the release. Without nodes, its Deployments never get
// ready.
func (h *host) install(folder, name string, values map[string]any) {
	h.Helper()
	install := action.NewInstall(h.helm(name))
	install.ReleaseName, install.Namespace, install.CreateNamespace = name, name, true
	install.WaitStrategy, install.Timeout = kube.HookOnlyStrategy, patience
	_, err := install.RunWithContext(h.Context(), h.chart(folder), values)
	require.NoError(h, err)
}

func (h *host) chart(folder string) chart.Charter {
	h.Helper()
	loaded, err := loader.Load(folder)
	require.NoError(h, err)
	return loaded
}

// until waits until an object exists and meets the condition, and returns it.
func (h *host) until(resource schema.GroupVersionResource, namespace, name string, holds func(*unstructured.Unstructured) bool) *unstructured.Unstructured {
	h.Helper()
	var last *unstructured.Unstructured
	err := h.follow(resource, namespace, name, nil, func(e watch.Event) (bool, error) {
		last = e.Object.(*unstructured.Unstructured)
		return e.Type != watch.Deleted && holds(last), nil
	})
	require.NoError(h, err, "%s %s: %v", resource.Resource, name, last)
	return last
}

// untilGone waits until an object does not exist.
func (h *host) untilGone(resource schema.GroupVersionResource, namespace, name string) {
	h.Helper()
	absent := func(store cache.Store) (bool, error) { return len(store.List()) == 0, nil }
	err := h.follow(resource, namespace, name, absent, func(e watch.Event) (bool, error) { return e.Type == watch.Deleted, nil })
	require.NoError(h, err, "%s %s", resource.Resource, name)
}

func (h *host) follow(resource schema.GroupVersionResource, namespace, name string, before watchtools.PreconditionFunc, condition watchtools.ConditionFunc) error {
	ctx, cancel := context.WithTimeout(h.Context(), patience)
	defer cancel()
	client, selector := h.dynamic.Resource(resource).Namespace(namespace), "metadata.name="+name
	_, err := watchtools.UntilWithSync(ctx, &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			return client.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			return client.Watch(ctx, o)
		},
	}, &unstructured.Unstructured{}, before, condition)
	return err
}

// hasCondition returns a check that a condition of an object is true. If the condition names a generation, that
// generation must be the object's.
func hasCondition(kind string) func(*unstructured.Unstructured) bool {
	return func(u *unstructured.Unstructured) bool {
		conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
		return slices.ContainsFunc(conditions, func(c any) bool {
			condition := c.(map[string]any)
			observed, ok := condition["observedGeneration"].(int64)
			return condition["type"] == kind && condition["status"] == "True" && (!ok || observed == u.GetGeneration())
		})
	}
}
