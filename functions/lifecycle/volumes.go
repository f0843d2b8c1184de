package lifecycle

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/ephemeral"
	volumeutil "k8s.io/kubernetes/pkg/volume/util"
	"k8s.io/utils/ptr"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/dependents"
)

// The admission plugin StorageObjectInUseProtection gives each claim, each volume and each VolumeAttributesClass a
// finalizer. The tasks here remove it once nothing uses the deleted object, as upstream's protection controllers do.

// volumesOf returns the tasks of an event: for a claim, volume or class that has changed, for claims that wait for the
// Pods of a namespace, and for classes that wait for claims and volumes.
func (l *Lifecycle) volumesOf(e eventlog.Event) []task {
	k := e.Key
	var tasks []task
	waits := func(t task) bool { return t.kind == attributesTask }
	switch k.Group + "/" + k.Resource {
	case "/persistentvolumeclaims":
		tasks = append(tasks, taskOf(claimTask, k.Namespace, k.Name))
	case "/persistentvolumes":
		tasks = append(tasks, task{volumeTask, k.Name})
	case "/pods":
		waits = func(t task) bool { return t.kind == claimTask && k.Namespace == objectNamespace(t) }
	case "storage.k8s.io/volumeattributesclasses":
		return []task{{attributesTask, k.Name}}
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
func (l *Lifecycle) volumesOfState(ctx context.Context) ([]task, error) {
	var tasks []task
	claims, err := l.client.CoreV1().PersistentVolumeClaims("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list claims of volumes: %w", err)
	}
	for _, c := range claims.Items {
		if c.DeletionTimestamp != nil {
			tasks = append(tasks, taskOf(claimTask, c.Namespace, c.Name))
		}
	}
	volumes, err := l.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	for _, v := range volumes.Items {
		if v.DeletionTimestamp != nil {
			tasks = append(tasks, task{volumeTask, v.Name})
		}
	}
	classes, err := l.client.StorageV1().VolumeAttributesClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list VolumeAttributesClasses: %w", err)
	}
	for _, c := range classes.Items {
		if c.DeletionTimestamp != nil {
			tasks = append(tasks, task{attributesTask, c.Name})
		}
	}
	return tasks, nil
}

// releaseClaim removes the finalizer of a claim that is being deleted, once no Pod uses it any more.
func (l *Lifecycle) releaseClaim(ctx context.Context, t task) error {
	namespace, name := objectNamespace(t), objectName(t)
	client := l.client.CoreV1().PersistentVolumeClaims(namespace)
	claim, err := client.Get(ctx, name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("get claim '%s': %w", t.name, err)
	}
	waits := err == nil && claim.DeletionTimestamp != nil && slices.Contains(claim.Finalizers, volumeutil.PVCProtectionFinalizer)
	l.remember(t, waits) // before the look at the Pods
	if !waits {
		return nil
	}
	pods, err := l.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	for i := range pods.Items {
		if uses(&pods.Items[i], claim) {
			return nil
		}
	}
	if ctx, err = l.because(ctx, dependents.Object{Resource: "persistentvolumeclaims", Namespace: namespace, Name: name, UID: claim.UID}); err != nil {
		return err
	}
	claim.Finalizers = slices.DeleteFunc(claim.Finalizers, func(f string) bool { return f == volumeutil.PVCProtectionFinalizer })
	_, err = client.Update(ctx, claim, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("release claim '%s': %w", t.name, err)
	}
	return nil
}

// uses says whether a Pod uses a claim that is being deleted. A Pod without a node does not: it will not be started
// with the claim any more.
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

// releaseVolume removes the finalizer of a volume that is being deleted, once it is not bound any more.
func (l *Lifecycle) releaseVolume(ctx context.Context, t task) error {
	client := l.client.CoreV1().PersistentVolumes()
	volume, err := client.Get(ctx, t.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get volume '%s': %w", t.name, err)
	}
	if volume.DeletionTimestamp == nil || volume.Status.Phase == corev1.VolumeBound || !slices.Contains(volume.Finalizers, volumeutil.PVProtectionFinalizer) {
		return nil
	}
	if ctx, err = l.because(ctx, dependents.Object{Resource: "persistentvolumes", Name: t.name, UID: volume.UID}); err != nil {
		return err
	}
	volume.Finalizers = slices.DeleteFunc(volume.Finalizers, func(f string) bool { return f == volumeutil.PVProtectionFinalizer })
	_, err = client.Update(ctx, volume, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("release volume '%s': %w", t.name, err)
	}
	return nil
}

// releaseAttributes removes the finalizer of a VolumeAttributesClass that is being deleted, once no volume and no claim
// names it any more.
func (l *Lifecycle) releaseAttributes(ctx context.Context, t task) error {
	client := l.client.StorageV1().VolumeAttributesClasses()
	class, err := client.Get(ctx, t.name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("get VolumeAttributesClass '%s': %w", t.name, err)
	}
	waits := err == nil && class.DeletionTimestamp != nil && slices.Contains(class.Finalizers, volumeutil.VACProtectionFinalizer)
	l.remember(t, waits) // before the look at what may use it
	if !waits {
		return nil
	}
	used, err := l.usesAttributes(ctx, t.name)
	if err != nil || used {
		return err
	}
	o := dependents.Object{Group: storagev1.GroupName, Resource: "volumeattributesclasses", Name: t.name, UID: class.UID}
	if ctx, err = l.because(ctx, o); err != nil {
		return err
	}
	class.Finalizers = slices.DeleteFunc(class.Finalizers, func(f string) bool { return f == volumeutil.VACProtectionFinalizer })
	_, err = client.Update(ctx, class, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("release VolumeAttributesClass '%s': %w", t.name, err)
	}
	return nil
}

// usesAttributes says whether a volume has the attributes of a class, or a claim has them, wants them or is getting
// them.
func (l *Lifecycle) usesAttributes(ctx context.Context, class string) (bool, error) {
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
