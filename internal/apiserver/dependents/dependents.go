// Package dependents keeps an index of owner references, from which garbage is collected.
//
// Nouns. A dependent is an object that names owners in `metadata.ownerReferences`. For each owner that a dependent
// names there is a reference: a row that is found by the owner's uid, and whose value names owner and dependent. An
// object is collecting while its deletion waits for its dependents. A collecting object has the finalizer of a
// foreground deletion or of orphaning. It also has a row of its own, the collection, which is found by the object's
// uid.
//
// Both kinds of rows are written in the atomic batch of their object. So the index is true at every revision. A
// collector of garbage reads only the rows of the objects that it looks at, and needs neither all objects nor a graph
// in memory.
package dependents

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"iter"
	"slices"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

const (
	// References and Collections are the resources of the two kinds of rows.
	References  = "references"
	Collections = "collections"

	// MaxOwners bounds the owners of an object, because each owner is a row in the object's batch.
	MaxOwners = 100
)

// Object names an object.
type Object struct {
	Group     string    `json:"group,omitempty"`
	Resource  string    `json:"resource"`
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid,omitempty"`
}

func (o Object) String() string {
	return schema.GroupResource{Group: o.Group, Resource: o.Resource}.String() + " " + o.Namespace + "/" + o.Name
}

// objectOf names the object of a key.
func objectOf(k eventlog.Key) Object {
	return Object{Group: k.Group, Resource: k.Resource, Namespace: k.Namespace, Name: k.Name}
}

// Reference says that a dependent names an owner.
type Reference struct {
	// Owner is the owner reference of the dependent, without the field 'controller'. The owner may not exist.
	Owner     metav1.OwnerReference `json:"owner"`
	Dependent Object                `json:"dependent"`
}

// prefixOf is the storage prefix of one kind of rows.
func prefixOf(resource string) string { return "/" + resources.OwnGroup + "/" + resource }

func keyOf(cluster, resource, name string) eventlog.Key {
	return eventlog.Key{Cluster: cluster, Group: resources.OwnGroup, Resource: resource, Prefix: prefixOf(resource), Name: name}
}

// hash turns a text that a user may have chosen freely into a part of a row's name.
func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:16])
}

func referenceKey(cluster string, owner types.UID, dependent eventlog.Key) eventlog.Key {
	return keyOf(cluster, References, hash(string(owner))+"."+hash(dependent.RowKey()))
}

func collectionKey(cluster string, uid types.UID) eventlog.Key {
	return keyOf(cluster, Collections, hash(string(uid)))
}

// Alongside returns the writes that keep the index true when an object changes.
func Alongside(ctx context.Context, v *projection.View, c kubestore.Change) ([]projection.Write, error) {
	before, after := accessorOf(c.Before), accessorOf(c.After)
	had, has := owners(before), owners(after)
	if len(has) > MaxOwners && len(has) > len(had) {
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: c.Key.Group, Kind: c.Key.Resource}, c.Key.Name,
			field.ErrorList{field.TooMany(field.NewPath("metadata", "ownerReferences"), len(has), MaxOwners)})
	}
	index := index{ctx: ctx, view: v}
	for uid := range had {
		if _, still := has[uid]; !still {
			index.remove(referenceKey(c.Key.Cluster, uid, c.Key))
		}
	}
	for uid, owner := range has {
		if was, already := had[uid]; !already || !apiequality.Semantic.DeepEqual(was, owner) {
			dependent := objectOf(c.Key)
			dependent.UID = after.GetUID()
			index.put(referenceKey(c.Key.Cluster, uid, c.Key), Reference{owner, dependent})
		}
	}
	did, does := collecting(before), collecting(after)
	switch {
	case does && !did:
		object := objectOf(c.Key)
		object.UID = after.GetUID()
		index.put(collectionKey(c.Key.Cluster, object.UID), object)
	case did && !does:
		index.remove(collectionKey(c.Key.Cluster, before.GetUID()))
	}
	return index.writes, index.err
}

// accessorOf returns nil if there is no object.
func accessorOf(object runtime.Object) metav1.Object {
	if object == nil {
		return nil
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil // not an API object
	}
	return accessor
}

// owners returns the owners of an object, by uid.
func owners(object metav1.Object) map[types.UID]metav1.OwnerReference {
	if object == nil {
		return nil
	}
	references := object.GetOwnerReferences()
	if len(references) == 0 {
		return nil
	}
	all := make(map[types.UID]metav1.OwnerReference, len(references))
	for _, r := range references {
		r.Controller = nil
		all[r.UID] = r
	}
	return all
}

// collecting reports whether the object's deletion waits for its dependents.
func collecting(object metav1.Object) bool {
	return object != nil && object.GetDeletionTimestamp() != nil &&
		(slices.Contains(object.GetFinalizers(), metav1.FinalizerDeleteDependents) || slices.Contains(object.GetFinalizers(), metav1.FinalizerOrphanDependents))
}

// index collects the writes of one change, until the first error.
type index struct {
	ctx    context.Context
	view   *projection.View
	writes []projection.Write
	err    error
}

func (i *index) put(key eventlog.Key, value any) {
	body, err := json.Marshal(value)
	at := i.state(key)
	if i.err == nil {
		i.err = err
		i.writes = append(i.writes, at.Put(runtime.ContentTypeJSON, body, 0))
	}
}

// remove removes the row if there is one. An object may be older than the index.
func (i *index) remove(key eventlog.Key) {
	at := i.state(key)
	_, live := at.Row()
	if i.err == nil && live {
		i.writes = append(i.writes, at.Delete())
	}
}

func (i *index) state(key eventlog.Key) projection.State {
	if i.err != nil {
		return projection.State{}
	}
	at, err := i.view.State(i.ctx, key)
	i.err = err
	return at
}

// Of yields the references to an owner.
func Of(ctx context.Context, v *projection.View, cluster string, owner types.UID) iter.Seq2[Reference, error] {
	return func(yield func(Reference, error) bool) {
		for r, err := range references(ctx, v, cluster+prefixOf(References)+"/"+hash(string(owner))+".") {
			if err == nil && r.Owner.UID != owner {
				continue
			}
			if !yield(r, err) || err != nil {
				return
			}
		}
	}
}

// All yields every reference. References to one owner follow one another.
func All(ctx context.Context, v *projection.View, cluster string) iter.Seq2[Reference, error] {
	return references(ctx, v, cluster+prefixOf(References)+"/")
}

func references(ctx context.Context, v *projection.View, start string) iter.Seq2[Reference, error] {
	return func(yield func(Reference, error) bool) {
		for row, err := range v.Scan(ctx, start, projection.PrefixEnd(start), v.Revision()) {
			var r Reference
			if err == nil {
				r, err = ReferenceOf(row.Value)
			}
			if !yield(r, err) || err != nil {
				return
			}
		}
	}
}

// AllCollecting returns the objects that are collecting.
func AllCollecting(ctx context.Context, v *projection.View, cluster string) ([]Object, error) {
	var objects []Object
	start := cluster + prefixOf(Collections) + "/"
	for row, err := range v.Scan(ctx, start, projection.PrefixEnd(start), v.Revision()) {
		if err != nil {
			return nil, err
		}
		o, err := ObjectOf(row.Value)
		if err != nil {
			return nil, err
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// Collecting returns the object with that uid if it is collecting.
func Collecting(ctx context.Context, v *projection.View, cluster string, uid types.UID) (Object, bool, error) {
	row, found, err := v.Get(ctx, collectionKey(cluster, uid).RowKey(), v.Revision())
	if err != nil || !found {
		return Object{}, false, err
	}
	o, err := ObjectOf(row.Value)
	return o, err == nil, err
}

// ReferenceOf decodes the value of a reference.
func ReferenceOf(value []byte) (r Reference, err error) {
	if err := json.Unmarshal(value, &r); err != nil {
		return Reference{}, fmt.Errorf("decode a reference to an owner: %w", err)
	}
	return r, nil
}

// ObjectOf decodes the value of a collection.
func ObjectOf(value []byte) (o Object, err error) {
	if err := json.Unmarshal(value, &o); err != nil {
		return Object{}, fmt.Errorf("decode a collection: %w", err)
	}
	return o, nil
}

// protobufMagic begins each object that Kubernetes stores as protobuf.
var protobufMagic = []byte("k8s\x00")

// MetadataOf decodes the metadata of an encoded object of any kind.
func MetadataOf(contentType string, encoded []byte) (*metav1.PartialObjectMetadata, error) {
	if contentType != runtime.ContentTypeProtobuf {
		object, err := runtime.Decode(resources.CustomCodec(), encoded)
		if err != nil {
			return nil, err
		}
		return meta.AsPartialObjectMetadata(accessorOf(object)), nil
	}
	raw, ok := bytes.CutPrefix(encoded, protobufMagic)
	if !ok {
		return nil, fmt.Errorf("an object that should be protobuf is not")
	}
	var envelope runtime.Unknown
	if err := envelope.Unmarshal(raw); err != nil {
		return nil, err
	}
	// Every built-in kind has its metadata in field 1, as PartialObjectMetadata has. Decoding skips the other fields.
	var object metav1.PartialObjectMetadata
	if err := object.Unmarshal(envelope.Raw); err != nil {
		return nil, err
	}
	return &object, nil
}
