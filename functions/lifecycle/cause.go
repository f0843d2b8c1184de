package lifecycle

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/dependents"
	"github.com/logplane/logplane/internal/kubestore"
)

// The deletion of a namespace, an owner or a definition also deletes other objects. So each event that a task
// writes because of a deletion names that deletion as its cause.

// knownDeletion is the result of a look-up of an object's deletion.
type knownDeletion struct {
	cause eventlog.Cause
	// elsewhere says that the object never existed in the given namespace, but that an object with its uid is in
	// another namespace.
	elsewhere bool
}

// because returns a context whose writes name the cause of an object's deletion, if the cause is known. The object is
// being deleted or is gone. Without a uid, the object is the last object of its name.
func (l *life) because(ctx context.Context, o dependents.Object) (context.Context, error) {
	known, ok := l.deletions.Get(o)
	if !ok {
		var err error
		if known.cause, _, err = l.server.Deletion(ctx, o); err != nil {
			return ctx, err
		}
		if o.UID != "" {
			l.deletions.Add(o, known)
		}
	}
	if known.cause.Revision > 0 {
		ctx = kubestore.WithCause(ctx, known.cause)
	}
	return ctx, nil
}

// deletionOfOwner looks up the deletion of an owner that a dependent in the namespace names.
func (l *life) deletionOfOwner(ctx context.Context, r metav1.OwnerReference, namespace string) (knownDeletion, error) {
	mapping, namespaced, err := l.mappingOf(r)
	if err != nil {
		return knownDeletion{}, err
	}
	o := dependents.Object{Group: mapping.Resource.Group, Resource: mapping.Resource.Resource, Name: r.Name, UID: r.UID}
	if namespaced {
		o.Namespace = namespace
	}
	if known, ok := l.deletions.Get(o); ok {
		return known, nil
	}
	var d knownDeletion
	var was bool
	if d.cause, was, err = l.server.Deletion(ctx, o); err != nil {
		return d, err
	}
	if !was && namespaced {
		named, err := l.metadata.Resource(mapping.Resource).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + r.Name})
		if err != nil {
			return d, fmt.Errorf("look for owner '%s' in other namespaces: %w", r.Name, err)
		}
		d.elsewhere = slices.ContainsFunc(named.Items, func(o metav1.PartialObjectMetadata) bool { return o.UID == r.UID })
	}
	l.deletions.Add(o, d)
	return d, nil
}

// reportOwner writes the Event with which upstream's collector reports an owner that is not in the namespace of its
// dependent. The Event's name is always the same, so repeated looks do not write a second Event.
func (l *life) reportOwner(ctx context.Context, resource schema.GroupVersionResource, item *metav1.PartialObjectMetadata, owner metav1.OwnerReference) error {
	kind, err := l.kinds.mapper.KindFor(resource)
	if err != nil {
		return fmt.Errorf("find the kind of %s: %w", resource, err)
	}
	id := fnv.New64a()
	id.Write([]byte(item.UID + owner.UID))
	now := metav1.Now()
	event := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: fmt.Sprintf("%s.%016x", item.Name, id.Sum64()), Namespace: cmp.Or(item.Namespace, metav1.NamespaceDefault)},
		InvolvedObject: corev1.ObjectReference{APIVersion: kind.GroupVersion().String(), Kind: kind.Kind, Namespace: item.Namespace, Name: item.Name, UID: item.UID},
		Type:           corev1.EventTypeWarning, Reason: "OwnerRefInvalidNamespace",
		Message: fmt.Sprintf("ownerRef [%s/%s, namespace: %s, name: %s, uid: %s] does not exist in namespace %q",
			owner.APIVersion, owner.Kind, item.Namespace, owner.Name, owner.UID, item.Namespace),
		Source: corev1.EventSource{Component: collector}, ReportingController: collector,
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
	_, err = l.client.CoreV1().Events(event.Namespace).Create(ctx, event, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) { // only logged, as upstream does
		slog.WarnContext(ctx, "an Event about an owner in another namespace was refused", "object", item.Namespace+"/"+item.Name, "error", err)
	}
	return nil
}

// collector is the component that upstream's collector names in Events.
const collector = "garbage-collector-controller"
