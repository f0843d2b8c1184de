package lifecycle

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/dependents"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

// The collection of garbage treats an object as upstream's collector does (attemptToDeleteItem and
// processDeletingDependentsItem, which are not exported). But it finds owners and dependents differently: it reads an
// owner only when a task needs the owner, and finds the dependents of an owner in the index (package dependents). So it
// keeps no graph in memory.

// collectTaskOf is the task that looks at an object.
func collectTaskOf(o dependents.Object) task {
	return task{collectTask, o.Group, o.Resource, o.Namespace, o.Name}
}

// garbageOfState returns the tasks of objects that wait for their dependents, and of all owners that dependents name.
func (l *life) garbageOfState(ctx context.Context, view *projection.View) ([]task, error) {
	var tasks []task
	objects, err := dependents.AllCollecting(ctx, view, l.cluster)
	if err != nil {
		return nil, fmt.Errorf("look for objects that wait for their dependents: %w", err)
	}
	for _, o := range objects {
		tasks = append(tasks, collectTaskOf(o))
	}
	last := types.UID("")
	for r, err := range dependents.All(ctx, view, l.cluster) {
		if err != nil {
			return nil, fmt.Errorf("look for dependents: %w", err)
		}
		if r.Owner.UID != last {
			last = r.Owner.UID
			tasks = append(tasks, task{kind: ownerTask, name: string(last)})
		}
	}
	return tasks, nil
}

// garbageOf returns the tasks of an event. A deleted owner leaves its dependents behind. A new reference may name an
// owner that is already gone. A removed reference may be the last reference that its owner waited for. A new kind may
// be the kind that a reference names.
func (l *life) garbageOf(ctx context.Context, e eventlog.Event) ([]task, error) {
	switch {
	case isOwn(e.Key, dependents.References):
		return l.tasksOfReference(ctx, e)
	case isOwn(e.Key, dependents.Collections):
		if e.Op == eventlog.Deleted {
			return nil, nil
		}
		o, err := dependents.ObjectOf(e.Body)
		return []task{collectTaskOf(o)}, err
	case e.Op != eventlog.Deleted && changesKinds(e.Key):
		return l.awaitingKinds(), nil
	case e.Op != eventlog.Deleted || e.Key.Group == ownGroup || len(e.Body) == 0:
		return nil, nil
	}
	uid, err := l.server.UID(ctx, projection.Row{Key: e.Key.RowKey(), ID: e.Key, ContentType: e.ContentType, Value: e.Body})
	if err != nil {
		// The object's uid cannot be read. The object's dependents are found when the lifecycle starts again.
		slog.WarnContext(ctx, "a deleted object cannot be read, so its dependents may stay", "key", e.Key.Path(), "error", err)
		return nil, nil
	}
	view, err := l.config.Cell.Projection.AtLeast(ctx, e.Revision)
	if err != nil {
		return nil, err
	}
	_, void, err := view.Get(ctx, e.Key.RowKey(), e.Revision)
	if err != nil || void {
		return nil, err
	}
	for _, err := range dependents.Of(ctx, view, e.Key.Cluster, uid) {
		l.gone.Add(uid, struct{}{})
		return []task{{kind: ownerTask, name: string(uid)}}, err
	}
	return nil, nil
}

// tasksOfReference returns the tasks of a reference that is new, has changed or was removed.
func (l *life) tasksOfReference(ctx context.Context, e eventlog.Event) ([]task, error) {
	r, err := dependents.ReferenceOf(e.Body)
	if err != nil {
		return nil, err
	}
	var tasks []task
	if e.Op != eventlog.Deleted {
		tasks = append(tasks, collectTaskOf(r.Dependent))
	}
	if e.Op != eventlog.Added {
		view, err := l.config.Cell.Projection.AtLeast(ctx, e.Revision)
		if err != nil {
			return nil, err
		}
		owner, waits, err := dependents.Collecting(ctx, view, e.Key.Cluster, r.Owner.UID)
		if err != nil {
			return nil, err
		}
		if waits {
			tasks = append(tasks, task{finishTask, owner.Group, owner.Resource, owner.Namespace, owner.Name})
		}
	}
	return tasks, nil
}

// changesKinds says whether the key is of an object that defines kinds.
func changesKinds(k eventlog.Key) bool { return isDefinition(k) || isAPIService(k) }

// lookAtOwner returns the tasks of the dependents that their owner does not keep alive.
func (l *life) lookAtOwner(ctx context.Context, t task) ([]task, error) {
	view, err := l.config.Cell.Projection.Latest(ctx)
	if err != nil {
		return nil, err
	}
	var tasks []task
	keeps := map[string]bool{} // by the reference to the owner, since dependents may name the owner in different ways
	for r, err := range dependents.Of(ctx, view, l.cluster, types.UID(t.name)) {
		if err != nil {
			return nil, fmt.Errorf("look for dependents: %w", err)
		}
		named := r.Dependent.Namespace + "/" + r.Owner.APIVersion + "/" + r.Owner.Kind + "/" + r.Owner.Name
		kept, asked := keeps[named]
		if !asked {
			owner, err := l.owner(ctx, r.Owner, r.Dependent.Namespace)
			// A dependent whose owner cannot be looked up gets a task of its own, which waits without holding up other
			// dependents.
			if err != nil && !errors.Is(err, errUnknown) && !errors.Is(err, errRemote) {
				return nil, err
			}
			kept = owner != nil && !deletesDependents(owner)
			keeps[named] = kept
		}
		if !kept {
			tasks = append(tasks, collectTaskOf(r.Dependent))
		}
	}
	return tasks, nil
}

// collect takes the step that an object's owners, or the object's own deletion, require. It returns the tasks that
// follow.
func (l *life) collect(ctx context.Context, t task) ([]task, error) {
	more, err := l.look(ctx, t)
	if errors.Is(err, errUnknown) && l.awaitKinds(t) {
		more, err = l.look(ctx, t) // the kind may have been served before this task began to wait for it
	}
	if errors.Is(err, errUnknown) {
		slog.DebugContext(ctx, "an object waits for a kind", "task", t.String(), "error", err)
		return more, nil
	}
	return more, err
}

func (l *life) look(ctx context.Context, t task) ([]task, error) {
	o := dependents.Object{Group: t.group, Resource: t.resource, Namespace: t.namespace, Name: t.name}
	resource, err := l.resourceOf(o)
	if err != nil {
		return nil, err
	}
	client := l.metadata.Resource(resource).Namespace(o.Namespace)
	item, err := l.get(ctx, client, o.Name)
	switch {
	case err != nil || item == nil:
		return nil, err
	case item.DeletionTimestamp == nil:
		return nil, l.judge(ctx, resource, item)
	}
	o.UID = item.UID
	if ctx, err = l.because(ctx, o); err != nil {
		return nil, err
	}
	switch {
	case slices.Contains(item.Finalizers, metav1.FinalizerOrphanDependents):
		return nil, l.orphan(ctx, client, item)
	case !deletesDependents(item):
		return nil, nil
	case t.kind == finishTask:
		return nil, l.finish(ctx, client, item)
	}
	return l.deleteDependents(ctx, client, item)
}

// awaitKinds makes a task run again when kinds change. It returns false if the task is waiting already.
func (l *life) awaitKinds(t task) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.unknown[t]
	l.unknown[t] = true
	return !was
}

// awaitingKinds returns the tasks that wait for kinds to change. A life that was made after the last look at the state
// does not know them, so then the state is read.
func (l *life) awaitingKinds() []task {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.hasRead {
		return []task{{kind: stateTask}}
	}
	tasks := slices.Collect(maps.Keys(l.unknown))
	clear(l.unknown)
	return tasks
}

// deletesDependents says whether the object is in foreground deletion.
func deletesDependents(o metav1.Object) bool {
	return o.GetDeletionTimestamp() != nil && slices.Contains(o.GetFinalizers(), metav1.FinalizerDeleteDependents)
}

// judge deletes an object that no owner keeps. As upstream does, it leaves alone an object with an owner that cannot be
// looked up, regardless of the other owners.
//
// The cause of the object's deletion is the latest deletion of one of its owners.
func (l *life) judge(ctx context.Context, resource schema.GroupVersionResource, item *metav1.PartialObjectMetadata) error {
	client := l.metadata.Resource(resource).Namespace(item.Namespace)
	var kept []metav1.OwnerReference
	var cause eventlog.Cause
	waits := false // an owner is in foreground deletion
	for _, r := range item.OwnerReferences {
		owner, err := l.owner(ctx, r, item.Namespace)
		if err != nil && !errors.Is(err, errElsewhere) {
			return err
		}
		if owner != nil && !deletesDependents(owner) {
			kept = append(kept, r)
			continue
		}
		waits = waits || owner != nil
		last, unknown := l.deletionOfOwner(ctx, r, item.Namespace)
		if unknown == nil && last.elsewhere {
			unknown = l.reportOwner(ctx, resource, item, r)
		}
		if err := cmp.Or(unknown, err); err != nil {
			return err
		}
		if last.cause.Revision > cause.Revision {
			cause = last.cause
		}
	}
	if cause.Revision > 0 {
		ctx = kubestore.WithCause(ctx, cause)
	}
	switch {
	case len(kept) == len(item.OwnerReferences):
		return nil
	case len(kept) > 0:
		return setField(ctx, client, item, "ownerReferences", kept)
	}
	if waits {
		var err error
		if waits, err = l.hasDependent(ctx, item.UID, func(metav1.OwnerReference) bool { return true }); err != nil {
			return err
		}
	}
	policy := metav1.DeletePropagationBackground
	switch {
	case waits:
		policy = metav1.DeletePropagationForeground
		unblocked, err := l.breakCircle(ctx, client, item)
		if err != nil {
			return err
		}
		item = unblocked
	case slices.Contains(item.Finalizers, metav1.FinalizerOrphanDependents):
		policy = metav1.DeletePropagationOrphan
	case slices.Contains(item.Finalizers, metav1.FinalizerDeleteDependents):
		policy = metav1.DeletePropagationForeground
	}
	err := client.Delete(ctx, item.Name, metav1.DeleteOptions{
		PropagationPolicy: &policy, Preconditions: asSeen(item),
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete the garbage %s: %w", item.Name, err)
	}
	if err == nil {
		collected.Inc()
	}
	return nil
}

// breakCircle stops an object from blocking the deletions of its owners, if one of the object's own dependents is
// collecting, too. Otherwise objects that own each other would wait for ever. breakCircle returns the object in its new
// state.
func (l *life) breakCircle(ctx context.Context, client metadata.ResourceInterface, item *metav1.PartialObjectMetadata) (*metav1.PartialObjectMetadata, error) {
	view, err := l.config.Cell.Projection.Latest(ctx)
	if err != nil {
		return nil, err
	}
	for r, err := range dependents.Of(ctx, view, l.cluster, item.UID) {
		if err != nil {
			return nil, err
		}
		if r.Dependent.UID == "" {
			continue
		}
		_, waits, err := dependents.Collecting(ctx, view, l.cluster, r.Dependent.UID)
		if err != nil {
			return nil, err
		}
		if !waits {
			continue
		}
		owners := slices.Clone(item.OwnerReferences)
		for i := range owners {
			if blocks(owners[i]) {
				owners[i].BlockOwnerDeletion = new(bool)
			}
		}
		return patch(ctx, client, item, "ownerReferences", owners)
	}
	return item, nil
}

// hasDependent says whether 'such' is true of any dependent's reference to the owner.
func (l *life) hasDependent(ctx context.Context, owner types.UID, such func(metav1.OwnerReference) bool) (bool, error) {
	view, err := l.config.Cell.Projection.Latest(ctx)
	if err != nil {
		return false, err
	}
	for r, err := range dependents.Of(ctx, view, l.cluster, owner) {
		if err != nil {
			return false, fmt.Errorf("look for dependents: %w", err)
		}
		if such(r.Owner) {
			return true, nil
		}
	}
	return false, nil
}

// blocks says whether the foreground deletion of the owner waits for the dependent.
func blocks(r metav1.OwnerReference) bool {
	return r.BlockOwnerDeletion != nil && *r.BlockOwnerDeletion
}

// deleteDependents begins or continues a foreground deletion. It returns the tasks of the dependents, except dependents
// that wait for dependents of their own: these already have tasks.
func (l *life) deleteDependents(ctx context.Context, client metadata.ResourceInterface, item *metav1.PartialObjectMetadata) ([]task, error) {
	view, err := l.config.Cell.Projection.Latest(ctx)
	if err != nil {
		return nil, err
	}
	var tasks []task
	for r, err := range dependents.Of(ctx, view, l.cluster, item.UID) {
		if err != nil {
			return nil, fmt.Errorf("look for dependents: %w", err)
		}
		_, waits, err := dependents.Collecting(ctx, view, l.cluster, r.Dependent.UID)
		if err != nil {
			return nil, err
		}
		if !waits {
			tasks = append(tasks, collectTaskOf(r.Dependent))
		}
	}
	return tasks, l.finish(ctx, client, item)
}

// finish ends a foreground deletion once no dependent blocks it.
func (l *life) finish(ctx context.Context, client metadata.ResourceInterface, item *metav1.PartialObjectMetadata) error {
	blocked, err := l.hasDependent(ctx, item.UID, blocks)
	if err != nil || blocked {
		return err
	}
	return removeFinalizer(ctx, client, item, metav1.FinalizerDeleteDependents)
}

// orphan removes the references to an object from the object's dependents, and then lets the object be deleted.
func (l *life) orphan(ctx context.Context, client metadata.ResourceInterface, item *metav1.PartialObjectMetadata) error {
	view, err := l.config.Cell.Projection.Latest(ctx)
	if err != nil {
		return err
	}
	running, limited := errgroup.WithContext(ctx)
	running.SetLimit(workers)
	for r, err := range dependents.Of(ctx, view, l.cluster, item.UID) {
		if err != nil {
			return errors.Join(err, running.Wait())
		}
		running.Go(func() error { return l.leaveOwner(limited, r) })
	}
	if err := running.Wait(); err != nil {
		return fmt.Errorf("orphan the dependents of %s: %w", item.Name, err)
	}
	return removeFinalizer(ctx, client, item, metav1.FinalizerOrphanDependents)
}

// leaveOwner removes an owner from a dependent's owners.
func (l *life) leaveOwner(ctx context.Context, r dependents.Reference) error {
	resource, err := l.resourceOf(r.Dependent)
	if err != nil {
		return err
	}
	client := l.metadata.Resource(resource).Namespace(r.Dependent.Namespace)
	item, err := l.get(ctx, client, r.Dependent.Name)
	if err != nil || item == nil {
		return err
	}
	if item.DeletionTimestamp != nil { // the object's own deletion has another cause
		ctx = kubestore.WithCause(ctx, eventlog.Cause{})
	}
	kept := slices.DeleteFunc(slices.Clone(item.OwnerReferences), func(o metav1.OwnerReference) bool { return o.UID == r.Owner.UID })
	if len(kept) == len(item.OwnerReferences) {
		return nil
	}
	return setField(ctx, client, item, "ownerReferences", kept)
}

func removeFinalizer(ctx context.Context, client metadata.ResourceInterface, item *metav1.PartialObjectMetadata, finalizer string) error {
	kept := slices.DeleteFunc(slices.Clone(item.Finalizers), func(f string) bool { return f == finalizer })
	return setField(ctx, client, item, "finalizers", kept)
}

// setField is patch for an object that may be gone by now.
func setField(ctx context.Context, client metadata.ResourceInterface, item *metav1.PartialObjectMetadata, field string, value any) error {
	_, err := patch(ctx, client, item, field, value)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// patch replaces a field of the metadata, if the object is still at the revision that was read.
func patch(ctx context.Context, client metadata.ResourceInterface, item *metav1.PartialObjectMetadata, field string, value any) (*metav1.PartialObjectMetadata, error) {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{field: value, "uid": item.UID, "resourceVersion": item.ResourceVersion}})
	if err != nil {
		return nil, err
	}
	patched, err := client.Patch(ctx, item.Name, types.MergePatchType, body, metav1.PatchOptions{})
	if err != nil {
		return nil, fmt.Errorf("patch the %s of %s: %w", field, item.Name, err)
	}
	return patched, nil
}

// errUnknown is for a resource or an owner that cannot be looked up. Its kind may not be served, or an object without a
// namespace names an owner with a namespace.
var errUnknown = errors.New("the kind is not served, or its objects have a namespace")

// errElsewhere is for an object without a namespace that names an owner with a namespace.
var errElsewhere = fmt.Errorf("%w: nobody can tell in which", errUnknown)

// mappingOf finds the resource of an owner, and whether the owner has a namespace.
func (l *life) mappingOf(r metav1.OwnerReference) (mapping *meta.RESTMapping, namespaced bool, err error) {
	kind := schema.FromAPIVersionAndKind(r.APIVersion, r.Kind)
	mapping, err = retryMapping(l, func() (*meta.RESTMapping, error) { return l.kinds.mapper.RESTMapping(kind.GroupKind(), kind.Version) })
	if err != nil {
		return nil, false, fmt.Errorf("find the resource of owner '%s' of kind '%s': %w", r.Name, kind, err)
	}
	return mapping, mapping.Scope.Name() == meta.RESTScopeNameNamespace, nil
}

// owner reads the owner that a dependent in the namespace names. It returns nil if there is no such object, or only an
// object of that name with another uid.
func (l *life) owner(ctx context.Context, r metav1.OwnerReference, namespace string) (*metav1.PartialObjectMetadata, error) {
	mapping, namespaced, err := l.mappingOf(r)
	if err != nil {
		return nil, err
	}
	switch {
	case namespaced && namespace == "":
		return nil, fmt.Errorf("look for owner '%s' of kind '%s': %w", r.Name, mapping.GroupVersionKind, errElsewhere)
	case l.gone.Contains(r.UID):
		return nil, nil
	}
	client := metadata.ResourceInterface(l.metadata.Resource(mapping.Resource))
	if namespaced {
		client = l.metadata.Resource(mapping.Resource).Namespace(namespace)
	}
	owner, err := l.get(ctx, client, r.Name)
	if owner != nil && owner.UID != r.UID {
		owner = nil
	}
	return owner, err
}

// get reads an object, and returns nil if the object does not exist. A resource that is no longer served is an error:
// its objects may be served in another version.
func (l *life) get(ctx context.Context, client metadata.ResourceInterface, name string) (*metav1.PartialObjectMetadata, error) {
	object, err := client.Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil:
		return object, nil
	case apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		return nil, nil
	}
	l.kinds.forget()
	return nil, fmt.Errorf("get '%s': %w", name, err)
}

// resourceOf chooses a version in which the object's resource is served.
func (l *life) resourceOf(o dependents.Object) (schema.GroupVersionResource, error) {
	if o.Group == "" { // to the mapper an empty group means any group
		return corev1.SchemeGroupVersion.WithResource(o.Resource), nil
	}
	resource, err := retryMapping(l, func() (schema.GroupVersionResource, error) {
		return l.kinds.mapper.ResourceFor(schema.GroupVersionResource{Group: o.Group, Resource: o.Resource})
	})
	if err != nil {
		return resource, fmt.Errorf("find the version of %s: %w", o, err)
	}
	return resource, nil
}

// retryMapping asks the mapper, and asks once more after clearing the mapper's cache, since a kind may be new. It
// returns errUnknown if the kind is not served.
func retryMapping[T any](l *life, ask func() (T, error)) (T, error) {
	found, err := ask()
	if meta.IsNoMatchError(err) {
		l.kinds.forget()
		found, err = ask()
	}
	if meta.IsNoMatchError(err) {
		err = fmt.Errorf("%w: %w", errUnknown, err)
	}
	return found, err
}

// judgeDependents looks at all objects that name owners of a kind whose definition is about to be deleted. After the
// definition's deletion, these owners could not be looked up any more.
func (l *life) judgeDependents(ctx context.Context, kind schema.GroupKind) error {
	view, err := l.config.Cell.Projection.Latest(ctx)
	if err != nil {
		return err
	}
	running, limited := errgroup.WithContext(kubestore.WithController(ctx, garbageCollector))
	running.SetLimit(workers)
	for r, err := range dependents.All(ctx, view, l.cluster) {
		if err != nil {
			return errors.Join(err, running.Wait())
		}
		if schema.FromAPIVersionAndKind(r.Owner.APIVersion, r.Owner.Kind).GroupKind() == kind {
			running.Go(func() error { _, err := l.collect(limited, collectTaskOf(r.Dependent)); return err })
		}
	}
	return running.Wait()
}

// kindsInterval is the shortest time between two discoveries without an event. A remote server may serve new kinds at
// any moment, and no event announces such kinds.
const kindsInterval = 30 * time.Second

// servedKinds finds the resources of kinds. A discovery is expensive, and anyone who names a kind that is not served
// could cause one with each object. So the log's events tell when there may be new kinds.
type servedKinds struct {
	mapper meta.ResettableRESTMapper
	// changes counts the events that may have changed which kinds are served.
	changes atomic.Int64

	mu    sync.Mutex
	known int64     // by mu; value of changes when the mapper's cache was last cleared
	since time.Time // by mu; when the mapper's cache was last cleared
}

// changed says that kinds may have changed.
func (k *servedKinds) changed() { k.changes.Add(1) }

// forget makes the mapper ask again, if there may be new kinds.
func (k *servedKinds) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	changes := k.changes.Load() // read before the mapper asks
	if changes == k.known && time.Since(k.since) < kindsInterval {
		return
	}
	k.known, k.since = changes, time.Now()
	k.mapper.Reset()
}
