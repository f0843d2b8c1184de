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

	"github.com/logplane/logplane/internal/apiserver/dependents"
	"github.com/logplane/logplane/internal/apiserver/namespaces"
)

// remainingInterval is how long a task waits before it looks again at content that remains, in case no event reports
// that it is gone.
const remainingInterval = time.Minute

// emptyNamespace deletes the content of a terminating namespace and then removes the namespace's finalizer. It calls
// the code of upstream's controller.
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
	if ctx, err = l.because(ctx, dependents.Object{Resource: "namespaces", Name: t.name, UID: namespace.UID}); err != nil {
		return err
	}
	// settle comes before the look at the content: only a list that is still empty afterwards allows finalizing.
	unsettled, err := l.settle(ctx, l.namespaceKey(t.name))
	if err != nil {
		return err
	}
	if err := l.deleteLostPods(ctx, t.name); err != nil {
		return err
	}
	served, incomplete, err := l.namespacedResources()
	if err != nil {
		return err
	}
	if !mayAskRemotes(ctx) {
		remote, err := l.anyRemote(served)
		if err != nil {
			return err
		}
		if remote {
			return errRemote
		}
	}
	ctx = namespaces.Emptying(ctx, namespace.UID) // the namespace may be gone by now, and made again
	resources := func() ([]*metav1.APIResourceList, error) { return served, incomplete }
	deleter := deletion.NewNamespacedResourcesDeleter(ctx, settledNamespaces{l.client.CoreV1().Namespaces(), unsettled},
		l.metadata, l.client.CoreV1(), resources, corev1.FinalizerKubernetes)
	err = deleter.Delete(ctx, t.name)
	var remaining *deletion.ResourcesRemainingError
	if errors.As(err, &remaining) {
		return &NotYetError{After: remainingInterval, Reason: "content remains, and its conditions say what"}
	}
	if err == nil {
		namespacesFinalized.Inc()
	}
	return err
}

// settledNamespaces is a client of namespaces that does not finalize a namespace before it has settled.
type settledNamespaces struct {
	corev1client.NamespaceInterface
	unsettled *NotYetError
}

// Finalize is called by upstream for a namespace that it found empty.
func (n settledNamespaces) Finalize(ctx context.Context, namespace *corev1.Namespace, options metav1.UpdateOptions) (*corev1.Namespace, error) {
	if n.unsettled != nil {
		return nil, n.unsettled
	}
	return n.NamespaceInterface.Finalize(ctx, namespace, options)
}

// namespacedResources asks which namespaced resources there are, including custom ones. The error incomplete says what
// could not be learned. An empty answer is an error here, because upstream's deleter would end the process.
func (l *Lifecycle) namespacedResources() (served []*metav1.APIResourceList, incomplete, err error) {
	served, err = l.client.Discovery().ServerPreferredNamespacedResources()
	if len(served) == 0 {
		return nil, nil, errors.Join(errors.New("discover namespaced resources: there are none"), err)
	}
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		return nil, nil, fmt.Errorf("discover namespaced resources: %w", err)
	}
	return served, err, nil
}

// deleteLostPods deletes pods that are bound to a node which does not exist. They get no grace period, because no
// kubelet will ever report that they ended. Upstream's pod garbage collector does the same. Pods of nodes that exist,
// real or simulated, keep their grace period.
func (l *Lifecycle) deleteLostPods(ctx context.Context, namespace string) error {
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
		_, asked := nodes[name]
		if !asked {
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
