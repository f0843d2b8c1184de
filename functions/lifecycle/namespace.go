package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/kubernetes/pkg/controller/namespace/deletion"
)

// remainingInterval is how often a task looks again at content that stays, in case what it waits for
// makes no event that it listens to.
const remainingInterval = time.Minute

// emptyNamespace deletes what is in a terminating namespace, as upstream's controller does and by its
// code, and then takes the namespace's finalizer away.
func (l *Lifecycle) emptyNamespace(ctx context.Context, t task) error {
	namespace, err := l.client.CoreV1().Namespaces().Get(ctx, t.name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("get namespace %q: %w", t.name, err)
	}
	waits := err == nil && namespace.DeletionTimestamp != nil && len(namespace.Spec.Finalizers) > 0
	l.remember(t, waits)
	if !waits {
		return nil
	}
	// Before the content is looked at: only an empty list from after this may finalize.
	unsettled, err := l.settle(ctx, l.namespaceKey(t.name))
	if err != nil {
		return err
	}
	if err := l.deleteStrayPods(ctx, t.name); err != nil {
		return err
	}
	resources, err := l.namespacedResources()
	if err != nil {
		return err
	}
	deleter := deletion.NewNamespacedResourcesDeleter(ctx, settledNamespaces{l.client.CoreV1().Namespaces(), unsettled},
		l.metadata, l.client.CoreV1(), resources, corev1.FinalizerKubernetes)
	err = deleter.Delete(ctx, t.name)
	var remaining *deletion.ResourcesRemainingError
	if errors.As(err, &remaining) {
		return &NotYetError{After: remainingInterval, Reason: remaining.Error()}
	}
	if err == nil {
		namespacesFinalized.Inc()
	}
	return err
}

// settledNamespaces is upstream's client of namespaces, which does not finalize too early.
type settledNamespaces struct {
	corev1client.NamespaceInterface
	unsettled *NotYetError
}

// Finalize is what upstream does to a namespace that it found empty.
func (n settledNamespaces) Finalize(ctx context.Context, namespace *corev1.Namespace, options metav1.UpdateOptions) (*corev1.Namespace, error) {
	if n.unsettled != nil {
		return nil, n.unsettled
	}
	return n.NamespaceInterface.Finalize(ctx, namespace, options)
}

// namespacedResources asks once which resources there are, custom ones included; the returned function
// gives that answer. None at all must not reach upstream's deleter, which would end the process.
func (l *Lifecycle) namespacedResources() (func() ([]*metav1.APIResourceList, error), error) {
	resources, err := l.client.Discovery().ServerPreferredNamespacedResources()
	if len(resources) == 0 {
		return nil, errors.Join(errors.New("discover namespaced resources: there are none"), err)
	}
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		return nil, fmt.Errorf("discover namespaced resources: %w", err)
	}
	return func() ([]*metav1.APIResourceList, error) { return resources, err }, nil
}

// deleteStrayPods deletes, without a grace period, pods that are bound to a node which does not exist: no
// kubelet will ever report that they ended. Upstream's pod garbage collector does the same. Pods of nodes
// that exist, real or simulated, keep their grace period.
func (l *Lifecycle) deleteStrayPods(ctx context.Context, namespace string) error {
	pods, err := l.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	nodes := map[string]bool{}
	for _, pod := range pods.Items {
		name := pod.Spec.NodeName
		if name == "" {
			continue
		}
		if _, asked := nodes[name]; !asked {
			_, err := l.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("get node %q: %w", name, err)
			}
			nodes[name] = err == nil
		}
		if nodes[name] {
			continue
		}
		now := int64(0)
		options := metav1.DeleteOptions{GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &pod.UID}}
		err := l.client.CoreV1().Pods(namespace).Delete(ctx, pod.Name, options)
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("delete pod %q: %w", pod.Name, err)
		}
	}
	return nil
}
