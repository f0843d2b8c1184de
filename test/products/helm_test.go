package products

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/kube"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// TestHelm: Helm's SDK installs a chart with a CRD, hooks and 40 objects of 19 kinds. Then it upgrades the release,
// rolls it back and uninstalls it, with server-side apply and without. Each time Helm waits by watches until all
// objects are ready, and then the objects are exactly the objects of the installed version. An upgrade that the CRD
// refuses changes no object.
func TestHelm(t *testing.T) {
	h := newHost(t)
	hooks := h.finish()
	for _, serverSide := range []bool{true, false} {
		name := map[bool]string{true: "server", false: "client"}[serverSide]
		ok := t.Run(name+"-side apply", func(t *testing.T) {
			h := &host{T: t, cell: h.cell, client: h.client, dynamic: h.dynamic}
			chart, config := h.chart("testdata/shop"), h.helm(name)
			install := action.NewInstall(config)
			install.ReleaseName, install.Namespace, install.CreateNamespace, install.ServerSideApply = "shop", name, true, serverSide
			install.WaitStrategy, install.Timeout, install.WaitForJobs = kube.StatusWatcherStrategy, patience, true
			_, err := install.RunWithContext(t.Context(), chart, nil)
			require.NoError(t, err)
			require.Equal(t, []string{"pre-install", "post-install"}, hooks())
			first := h.objects("shop")
			require.Len(t, first, 40)
			h.ownedBy(name, serverSide)

			upgrade := action.NewUpgrade(config)
			upgrade.Namespace, upgrade.WaitStrategy, upgrade.Timeout = name, kube.StatusWatcherStrategy, patience
			_, err = upgrade.RunWithContext(t.Context(), "shop", chart, map[string]any{"parts": 0})
			require.ErrorContains(t, err, "spec.parts[0].count in body should be greater than or equal to 1")
			require.Equal(t, []string{"pre-upgrade"}, hooks())
			require.Equal(t, first, h.objects("shop"))

			_, err = upgrade.RunWithContext(t.Context(), "shop", chart, map[string]any{
				"image": "two", "configs": []any{"a", "b", "c", "d", "e", "f"}, "secrets": []any{"a", "b", "c", "d", "e", "f"},
			})
			require.NoError(t, err)
			require.Equal(t, []string{"pre-upgrade"}, hooks())
			second := h.objects("shop")
			require.Len(t, second, 40)
			require.NotContains(t, second, "configmaps/config-h")
			require.Contains(t, second, "secrets/secret-f")
			for what, object := range second {
				if strings.HasPrefix(what, "widgets") || strings.HasPrefix(what, "configmaps") {
					require.Contains(t, object, `image:two`, what)
				}
			}

			rollback := action.NewRollback(config)
			rollback.Version, rollback.WaitStrategy, rollback.Timeout = 1, kube.StatusWatcherStrategy, patience
			require.NoError(t, rollback.Run("shop"))
			require.Equal(t, []string{"post-rollback"}, hooks())
			require.Equal(t, first, h.objects("shop"))

			uninstall := action.NewUninstall(config)
			uninstall.WaitStrategy, uninstall.Timeout = kube.StatusWatcherStrategy, patience
			_, err = uninstall.Run("shop")
			require.NoError(t, err)
			require.Equal(t, []string{"pre-delete"}, hooks())
			require.Empty(t, h.objects("shop"))
			releases, err := h.client.CoreV1().Secrets(name).List(t.Context(), metav1.ListOptions{LabelSelector: "owner=helm"})
			require.NoError(t, err)
			require.Empty(t, releases.Items)
			jobs, err := h.client.BatchV1().Jobs(name).List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			require.Empty(t, jobs.Items)
		})
		if !ok {
			return
		}
	}
	h.cell.NoErrors()
}

// objects returns the objects of all resources that have the release's label, without the metadata that the server
// keeps.
func (h *host) objects(release string) map[string]string {
	h.Helper()
	lists, err := h.client.Discovery().ServerPreferredResources()
	require.NoError(h, err)
	resources, err := discovery.GroupVersionResources(discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "create"}}, lists))
	require.NoError(h, err)
	found := map[string]string{}
	for resource := range resources {
		list, err := h.dynamic.Resource(resource).List(h.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=" + release})
		require.NoError(h, err, resource)
		for _, object := range list.Items {
			name, labels := object.GetName(), object.GetLabels()
			delete(object.Object, "metadata")
			delete(object.Object, "status")
			found[resource.Resource+"/"+name] = fmt.Sprint(labels, object.Object)
		}
	}
	return found
}

// ownedBy requires that Helm owns the fields that it applied.
func (h *host) ownedBy(namespace string, applied bool) {
	h.Helper()
	config, err := h.client.CoreV1().ConfigMaps(namespace).Get(h.Context(), "config-a", metav1.GetOptions{})
	require.NoError(h, err)
	operation := metav1.ManagedFieldsOperationUpdate
	if applied {
		operation = metav1.ManagedFieldsOperationApply
	}
	require.Equal(h, operation, config.ManagedFields[0].Operation)
}

// finish marks each Job and workload as done, as a cluster with nodes would. TestControllers has the real controllers.
// The returned function returns the Jobs that have run since its last call.
func (h *host) finish() func() []string {
	h.Helper()
	var mu sync.Mutex
	var ran []string // guarded by mu
	factory := informers.NewSharedInformerFactory(h.client, 0)
	apps, now := h.client.AppsV1(), metav1.Now()
	finish := func(object any) {
		var err error
		switch o := object.(type) {
		case *batchv1.Job:
			if o.Status.CompletionTime != nil {
				return
			}
			mu.Lock()
			ran = append(ran, o.Name)
			mu.Unlock()
			o = o.DeepCopy()
			o.Status = batchv1.JobStatus{Succeeded: 1, StartTime: &now, CompletionTime: &now, Conditions: []batchv1.JobCondition{
				{Type: batchv1.JobSuccessCriteriaMet, Status: corev1.ConditionTrue}, {Type: batchv1.JobComplete, Status: corev1.ConditionTrue},
			}}
			_, err = h.client.BatchV1().Jobs(o.Namespace).UpdateStatus(h.Context(), o, metav1.UpdateOptions{})
		case *appsv1.Deployment:
			if o.Status.ObservedGeneration == o.Generation {
				return
			}
			o = o.DeepCopy()
			n := *o.Spec.Replicas
			o.Status = appsv1.DeploymentStatus{ObservedGeneration: o.Generation, Replicas: n, UpdatedReplicas: n, ReadyReplicas: n, AvailableReplicas: n, Conditions: []appsv1.DeploymentCondition{
				{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue}, {Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "NewReplicaSetAvailable"},
			}}
			_, err = apps.Deployments(o.Namespace).UpdateStatus(h.Context(), o, metav1.UpdateOptions{})
		case *appsv1.StatefulSet:
			if o.Status.ObservedGeneration == o.Generation {
				return
			}
			o = o.DeepCopy()
			n := *o.Spec.Replicas
			o.Status = appsv1.StatefulSetStatus{ObservedGeneration: o.Generation, Replicas: n, CurrentReplicas: n, UpdatedReplicas: n, ReadyReplicas: n, AvailableReplicas: n, CurrentRevision: "r", UpdateRevision: "r"}
			_, err = apps.StatefulSets(o.Namespace).UpdateStatus(h.Context(), o, metav1.UpdateOptions{})
		}
		if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) && h.Context().Err() == nil {
			h.Errorf("finish: %v", err) // after a conflict an event for the object follows
		}
	}
	for _, informer := range []cache.SharedIndexInformer{
		factory.Batch().V1().Jobs().Informer(), factory.Apps().V1().Deployments().Informer(), factory.Apps().V1().StatefulSets().Informer(),
	} {
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: finish, UpdateFunc: func(_, object any) { finish(object) }})
		require.NoError(h, err)
	}
	ctx, stop := context.WithCancel(h.Context())
	factory.Start(ctx.Done())
	h.Cleanup(func() { stop(); factory.Shutdown() })
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		defer func() { ran = nil }()
		return ran
	}
}
