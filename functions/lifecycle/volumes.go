package lifecycle

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/component-helpers/storage/ephemeral"
	volumeutil "k8s.io/kubernetes/pkg/volume/util"
	"k8s.io/utils/ptr"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/dependents"
	"github.com/logplane/logplane/projection"
)

// The admission plugin StorageObjectInUseProtection gives each claim, each volume and each VolumeAttributesClass a
// finalizer. The tasks here remove this finalizer once nothing uses the deleted object, as upstream's protection
// controllers do.

// protected has the resources whose objects have such a finalizer. 'used' says whether an object is in use.
var protected = map[kind]struct {
	resource  schema.GroupVersionResource
	finalizer string
	used      func(*life, context.Context, *unstructured.Unstructured) (bool, error)
}{
	claimTask: {corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"),
		volumeutil.PVCProtectionFinalizer, (*life).usesClaim},
	volumeTask: {corev1.SchemeGroupVersion.WithResource("persistentvolumes"),
		volumeutil.PVProtectionFinalizer, isBound},
	attributesTask: {storagev1.SchemeGroupVersion.WithResource("volumeattributesclasses"),
		volumeutil.VACProtectionFinalizer, (*life).usesAttributes},
}

// volumesOf returns the tasks of an event. Such a task is for a claim, volume or class that has changed, for a claim
// that waits for the Pods of a namespace, or for a class that waits for claims and volumes.
func (l *life) volumesOf(e eventlog.Event) []task {
	k := e.Key
	var tasks []task
	waits := func(t task) bool { return t.kind == attributesTask }
	switch k.Group + "/" + k.Resource {
	case "/persistentvolumeclaims":
		tasks = append(tasks, task{kind: claimTask, namespace: k.Namespace, name: k.Name})
	case "/persistentvolumes":
		tasks = append(tasks, task{kind: volumeTask, name: k.Name})
	case "/pods":
		waits = func(t task) bool { return t.kind == claimTask && k.Namespace == t.namespace }
	case "storage.k8s.io/volumeattributesclasses":
		return []task{{kind: attributesTask, name: k.Name}}
	default:
		return nil
	}
	if e.Op == eventlog.Added { // a new object releases nothing
		return tasks
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for t := range l.terminating {
		if waits(t) {
			tasks = append(tasks, t)
		}
	}
	return tasks
}

// volumesOfState returns the tasks of claims, volumes and classes that are being deleted.
func (l *life) volumesOfState(ctx context.Context, _ *projection.View) ([]task, error) {
	var tasks []task
	for kind, p := range protected {
		all, err := l.metadata.Resource(p.resource).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", p.resource.Resource, err)
		}
		for _, item := range all.Items {
			if item.DeletionTimestamp != nil {
				tasks = append(tasks, task{kind: kind, namespace: item.Namespace, name: item.Name})
			}
		}
	}
	return tasks, nil
}

// release removes the finalizer of an object that is being deleted, once nothing uses the object any more.
func (l *life) release(ctx context.Context, t task) error {
	p := protected[t.kind]
	client := l.dynamic.Resource(p.resource).Namespace(t.namespace)
	item, err := client.Get(ctx, t.name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("get %s: %w", t, err)
	}
	waits := err == nil && item.GetDeletionTimestamp() != nil && slices.Contains(item.GetFinalizers(), p.finalizer)
	l.remember(t, waits) // before the users of the object are read
	if !waits {
		return nil
	}
	used, err := p.used(l, ctx, item)
	if err != nil || used {
		return err
	}
	o := dependents.Object{Group: p.resource.Group, Resource: p.resource.Resource, Namespace: t.namespace, Name: t.name, UID: item.GetUID()}
	if ctx, err = l.because(ctx, o); err != nil {
		return err
	}
	item.SetFinalizers(slices.DeleteFunc(item.GetFinalizers(), func(f string) bool { return f == p.finalizer }))
	_, err = client.Update(ctx, item, metav1.UpdateOptions{}) // these controllers have no right to patch
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("release %s: %w", t, err)
	}
	return nil
}

// usesClaim says whether a Pod uses a claim.
func (l *life) usesClaim(ctx context.Context, item *unstructured.Unstructured) (bool, error) {
	claim := &corev1.PersistentVolumeClaim{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, claim); err != nil {
		return false, err
	}
	pods, err := l.client.CoreV1().Pods(claim.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, fmt.Errorf("list pods: %w", err)
	}
	return slices.ContainsFunc(pods.Items, func(pod corev1.Pod) bool { return uses(&pod, claim) }), nil
}

// uses says whether a Pod uses a claim that is being deleted. A Pod without a node does not use the claim: the Pod will
// not be started with the claim any more.
func uses(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	if pod.Spec.NodeName == "" {
		return false
	}
	shutDown := pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds == 0
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		named := v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim.Name
		return named || !shutDown && v.Ephemeral != nil && ephemeral.VolumeClaimName(pod, &v) == claim.Name && ephemeral.VolumeIsForPod(pod, claim) == nil
	})
}

// isBound says whether a volume is bound to a claim.
func isBound(_ *life, _ context.Context, volume *unstructured.Unstructured) (bool, error) {
	phase, _, err := unstructured.NestedString(volume.Object, "status", "phase")
	return phase == string(corev1.VolumeBound), err
}

// usesAttributes says whether a volume has the attributes of a class, or whether a claim has, wants or is getting these
// attributes.
func (l *life) usesAttributes(ctx context.Context, item *unstructured.Unstructured) (bool, error) {
	class := item.GetName()
	volumes, err := l.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, fmt.Errorf("list volumes: %w", err)
	}
	for _, v := range volumes.Items {
		if ptr.Equal(v.Spec.VolumeAttributesClassName, &class) {
			return true, nil
		}
	}
	claims, err := l.client.CoreV1().PersistentVolumeClaims("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, fmt.Errorf("list claims of volumes: %w", err)
	}
	return slices.ContainsFunc(claims.Items, func(c corev1.PersistentVolumeClaim) bool {
		changes := c.Status.ModifyVolumeStatus
		return ptr.Equal(c.Spec.VolumeAttributesClassName, &class) || ptr.Equal(c.Status.CurrentVolumeAttributesClassName, &class) ||
			changes != nil && changes.TargetVolumeAttributesClassName == class
	}), nil
}
