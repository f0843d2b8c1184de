package lifecycle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/kubernetes/pkg/controller/namespace/deletion"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/dependents"
	"github.com/logplane/logplane/internal/apiserver/namespaces"
	"github.com/logplane/logplane/projection"
)

// remainingInterval is how long a task waits before it looks again at the remaining content, in case no event reports
// that the content is gone.
const remainingInterval = time.Minute

// emptyNamespace deletes the content of a terminating namespace and then removes the namespace's finalizer. It calls
// the code of upstream's controller.
func (l *life) emptyNamespace(ctx context.Context, t task) error {
	namespace, err := l.client.CoreV1().Namespaces().Get(ctx, t.namespace, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("get namespace %q: %w", t.namespace, err)
	}
	waits := err == nil && namespace.DeletionTimestamp != nil && len(namespace.Spec.Finalizers) > 0
	l.remember(t, waits)
	if !waits {
		return nil
	}
	if ctx, err = l.because(ctx, dependents.Object{Resource: "namespaces", Name: t.namespace, UID: namespace.UID}); err != nil {
		return err
	}
	// This check comes before the content is listed: only a list that is still empty after the check allows finalizing.
	pending, err := l.pendingCreates(ctx, l.namespaceKey(t.namespace))
	if err != nil {
		return err
	}
	if err := l.deleteLostPods(ctx, t.namespace); err != nil {
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
	ctx = namespaces.Emptying(ctx, namespace.UID) // the namespace may be gone by now, or made again
	resources := func() ([]*metav1.APIResourceList, error) { return served, incomplete }
	deleter := deletion.NewNamespacedResourcesDeleter(ctx, heldNamespaces{l.client.CoreV1().Namespaces(), pending},
		l.metadata, l.client.CoreV1(), resources, corev1.FinalizerKubernetes)
	err = deleter.Delete(ctx, t.namespace)
	if _, ok := errors.AsType[*deletion.ResourcesRemainingError](err); ok {
		return &notYetError{After: remainingInterval, Reason: "content remains, and its conditions say what"}
	}
	if err == nil {
		namespacesFinalized.Inc()
	}
	return err
}

// heldNamespaces is a client of namespaces. It finalizes no namespace in which creates may still be appended.
type heldNamespaces struct {
	corev1client.NamespaceInterface
	pending *notYetError
}

// Finalize is called by upstream once upstream has found the namespace empty.
func (n heldNamespaces) Finalize(ctx context.Context, namespace *corev1.Namespace, options metav1.UpdateOptions) (*corev1.Namespace, error) {
	if n.pending != nil {
		return nil, n.pending
	}
	return n.NamespaceInterface.Finalize(ctx, namespace, options)
}

// namespacedResources asks the API for its namespaced resources, including custom resources. The error 'incomplete'
// names the groups whose discovery failed. An empty answer is an error here, because upstream's deleter would end the
// process on an empty answer.
func (l *life) namespacedResources() (served []*metav1.APIResourceList, incomplete, err error) {
	served, err = l.client.Discovery().ServerPreferredNamespacedResources()
	if len(served) == 0 {
		return nil, nil, errors.Join(errors.New("discover namespaced resources: there are none"), err)
	}
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		return nil, nil, fmt.Errorf("discover namespaced resources: %w", err)
	}
	return served, err, nil
}

// deleteLostPods deletes pods that are bound to a node which does not exist. These pods get no grace period, because no
// kubelet will ever report their end. Upstream's pod garbage collector does the same. Pods of nodes that exist, real or
// simulated, keep their grace period.
func (l *life) deleteLostPods(ctx context.Context, namespace string) error {
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

// namespaceKey is the key of a namespace.
func (l *life) namespaceKey(name string) eventlog.Key {
	return eventlog.Key{Cluster: l.cluster, Resource: "namespaces", Prefix: "/namespaces", Name: name}
}

// isLeftover says whether the event added an object to a namespace that is gone. It costs one read of a view.
func (l *life) isLeftover(ctx context.Context, e eventlog.Event) bool {
	view, err := l.config.Cell.Projection.AtLeast(ctx, e.Revision)
	if err != nil {
		return true // the task looks again
	}
	_, found, err := view.Get(ctx, l.namespaceKey(e.Key.Namespace).RowKey(), view.Revision())
	return err != nil || !found
}

// seekAfter is how many objects of one kind in one namespace are read before the scan jumps to the next kind or
// namespace. If there are more objects, a jump costs less than reading all of them.
const seekAfter = 100

// leftoversOfState returns a task for every namespace that has objects but does not exist. It reads only a few objects
// of each kind in each namespace.
func (l *life) leftoversOfState(ctx context.Context, view *projection.View) ([]task, error) {
	exists := map[string]bool{"": true}
	var tasks []task
	start := l.cluster + "/"
	end := projection.PrefixEnd(start)
	for start != "" {
		from := start
		start = ""
		last, passed := "", 0
		for row, err := range view.Scan(ctx, from, end, view.Revision()) {
			if err != nil {
				return nil, fmt.Errorf("look for objects without a namespace: %w", err)
			}
			of := row.Key[:len(row.Key)-len(row.ID.Name)]
			if of != last {
				last, passed = of, 0
			}
			if passed++; passed > seekAfter {
				start = projection.PrefixEnd(of)
				break
			}
			name := row.ID.Namespace
			_, asked := exists[name]
			if asked {
				continue
			}
			_, found, err := view.Get(ctx, l.namespaceKey(name).RowKey(), view.Revision())
			if err != nil {
				return nil, fmt.Errorf("look for namespace %q: %w", name, err)
			}
			exists[name] = found
			if !found {
				tasks = append(tasks, task{kind: leftoverTask, namespace: name})
			}
		}
	}
	return tasks, nil
}

// deleteLeftovers deletes everything in a namespace that does not exist. The objects come from requests that saw the
// namespace, and whose messages were held up in a stalled log until the namespace had been finalized.
func (l *life) deleteLeftovers(ctx context.Context, t task) error {
	_, err := l.client.CoreV1().Namespaces().Get(ctx, t.namespace, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	lists, incomplete, err := l.namespacedResources()
	if err != nil {
		return err
	}
	if ctx, err = l.because(ctx, dependents.Object{Resource: "namespaces", Name: t.namespace}); err != nil {
		return err
	}
	ctx = namespaces.Emptying(ctx, "")
	failed := []error{incomplete}
	resources, err := discovery.GroupVersionResources(discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"deletecollection"}}, lists))
	failed = append(failed, err)
	for resource := range resources {
		err := l.metadata.Resource(resource).Namespace(t.namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			failed = append(failed, fmt.Errorf("delete the leftover %s: %w", resource.Resource, err))
		}
	}
	slog.WarnContext(ctx, "deleted objects that came after their namespace was gone", "namespace", t.namespace)
	return errors.Join(failed...)
}

// The write that makes a namespace also makes its account and its certificate (package namespaces). The task here
// restores both in a namespace that has lost one of them, or that is older than the certificate or than this version of
// Logplane.

// isDefault says whether the key is of an object that every namespace has.
func isDefault(k eventlog.Key) bool {
	return k.Group == "" && (k.Resource == "serviceaccounts" && k.Name == namespaces.DefaultAccount || k.Resource == "configmaps" && k.Name == namespaces.RootCA)
}

// lacksDefaults says whether a namespace lacks an object that every namespace has. It reads at most two rows.
func (l *life) lacksDefaults(ctx context.Context, view *projection.View, namespace string) (bool, error) {
	for _, d := range namespaces.Defaults(namespace, l.server.RootCA()) {
		key := eventlog.Key{Cluster: l.cluster, Prefix: "/" + d.Resource.Resource, Namespace: namespace, Name: d.Object.GetName()}
		row, found, err := view.Get(ctx, key.RowKey(), view.Revision())
		if err != nil {
			return false, fmt.Errorf("look at what namespace '%s' has: %w", namespace, err)
		}
		_, certificate := d.Object.(*corev1.ConfigMap)
		if !found || certificate && !bytes.Contains(row.Value, l.server.RootCA()) { // the task decrypts the value if needed
			return true, nil
		}
	}
	return false, nil
}

// giveDefaults creates the objects that every namespace has.
func (l *life) giveDefaults(ctx context.Context, t task) error {
	namespace, err := l.client.CoreV1().Namespaces().Get(ctx, t.namespace, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && namespace.DeletionTimestamp != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get namespace '%s': %w", t.namespace, err)
	}
	for _, d := range namespaces.Defaults(t.namespace, l.server.RootCA()) {
		switch wanted := d.Object.(type) {
		case *corev1.ServiceAccount:
			_, err = l.client.CoreV1().ServiceAccounts(t.namespace).Create(ctx, wanted, metav1.CreateOptions{})
		case *corev1.ConfigMap:
			err = l.publish(ctx, wanted)
		}
		if err != nil && !apierrors.IsAlreadyExists(err) && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return fmt.Errorf("give namespace '%s' its %s: %w", t.namespace, d.Resource.Resource, err)
		}
	}
	return nil
}

// publish creates the ConfigMap, or corrects its content.
func (l *life) publish(ctx context.Context, wanted *corev1.ConfigMap) error {
	client := l.client.CoreV1().ConfigMaps(wanted.Namespace)
	has, err := client.Get(ctx, wanted.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = client.Create(ctx, wanted, metav1.CreateOptions{})
	case err == nil && !maps.Equal(has.Data, wanted.Data):
		has.Data, has.BinaryData = wanted.Data, nil
		_, err = client.Update(ctx, has, metav1.UpdateOptions{})
	}
	return err
}
