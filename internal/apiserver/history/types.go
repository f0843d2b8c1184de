package history

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName of the API of the past.
const GroupName = "history.logplane.dev"

// GroupVersion is the only version of the group.
var GroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1"}

// Version is one version of an object, or its deletion. The Version's name is the revision, its creationTimestamp is
// the log's time of the event, and its namespace is the object's.
type Version struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Object is the object of which this is a version.
	Object Reference `json:"object"`
	// Verb is 'create', 'update' or 'delete'.
	Verb string `json:"verb"`
	// User who wrote the version, 'unknown' if the event does not name one.
	User string `json:"user"`
	// ActingAs is whom the user impersonated.
	ActingAs string `json:"actingAs,omitempty"`
	// UserAgent is the user's program, as the program named itself.
	UserAgent string `json:"userAgent,omitempty"`
	// Cause is the deletion because of which Logplane wrote the version. It is absent if there is no such deletion, or
	// if the deletion is unknown.
	Cause *Cause `json:"cause,omitempty"`
	// Manager is the field manager that wrote the version, if it is known.
	Manager string `json:"manager,omitempty"`
	// RequestID begins with the Audit-Id of the request.
	RequestID string `json:"requestID,omitempty"`
	// Before is the revision of the previous version, empty if there is none.
	Before string `json:"before,omitempty"`
	// Changed are the fields that an update has changed, without the fields that the server keeps for itself.
	Changed []string `json:"changed,omitempty"`
	// Patch is the JSON patch from the previous version to this one, without the fields that the server keeps for
	// itself.
	Patch []Operation `json:"patch,omitempty"`
	// PatchOmitted says that the patch would be too long. Changed then has only some of the fields.
	PatchOmitted bool `json:"patchOmitted,omitempty"`
	// Unreadable says why the object could not be decoded. In that case there is no patch and no content.
	Unreadable string `json:"unreadable,omitempty"`
	// Content is the object, if the request has '?include=object'. The content of a deletion is the object's last
	// state.
	Content *runtime.RawExtension `json:"content,omitempty"`
}

// Cause is the first of the deletions that led to a version, such as the deletion of the object's namespace.
type Cause struct {
	// User who deleted.
	User string `json:"user"`
	// ActingAs is whom the user impersonated.
	ActingAs string `json:"actingAs,omitempty"`
	// Revision of the deletion.
	Revision string `json:"revision"`
}

// Reference names an object.
type Reference struct {
	Group     string `json:"group,omitempty"`
	Resource  string `json:"resource"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	Kind      string `json:"kind,omitempty"`
	UID       string `json:"uid,omitempty"`
}

// Operation is an operation of a JSON patch (RFC 6902).
type Operation struct {
	Op    string                `json:"op"`
	Path  string                `json:"path"`
	Value *runtime.RawExtension `json:"value,omitempty"`
}

// VersionList is a list of versions.
type VersionList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Version `json:"items"`
}

// Change is a version in a list with versions of other objects.
type Change struct {
	Version `json:",inline"`
}

// ChangeList is a list of changes.
type ChangeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Change `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (c *Change) DeepCopyObject() runtime.Object { return &Change{c.deepCopy()} }

// DeepCopyObject implements runtime.Object.
func (l *ChangeList) DeepCopyObject() runtime.Object {
	out := &ChangeList{l.TypeMeta, *l.ListMeta.DeepCopy(), slices.Clone(l.Items)}
	for i := range out.Items {
		out.Items[i].Version = l.Items[i].deepCopy()
	}
	return out
}

// DeepCopyObject implements runtime.Object.
func (v *Version) DeepCopyObject() runtime.Object { return new(v.deepCopy()) }

func (v *Version) deepCopy() Version {
	out := *v
	v.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Changed = slices.Clone(v.Changed)
	out.Patch = slices.Clone(v.Patch)
	for i := range out.Patch {
		out.Patch[i].Value = out.Patch[i].Value.DeepCopy()
	}
	out.Content = v.Content.DeepCopy()
	out.Cause = copied(v.Cause)
	return out
}

// DeepCopyObject implements runtime.Object.
func (l *VersionList) DeepCopyObject() runtime.Object {
	out := &VersionList{l.TypeMeta, *l.ListMeta.DeepCopy(), slices.Clone(l.Items)}
	for i := range out.Items {
		out.Items[i] = l.Items[i].deepCopy()
	}
	return out
}

// Transaction is several writes that take effect at once, or not at all. It is created and never stored; the answer has
// the results. The user needs the right to create transactions, and for each operation the right that the same request
// would need alone.
//
// Operations are admitted one after another, as requests of the same user: authorization, admission, defaults,
// validation, quotas. Each operation sees the writes of the operations before it. Then all writes are appended to the
// log in one batch, so that their revisions follow one another, and every reader and every watch sees all of the writes
// or none. If one operation is refused, the answer is that refusal, and nothing is written. If another writer changes
// one of the objects meanwhile, all operations are computed again, five times at most.
//
// Rights, policies and the set of served custom resources are the ones from before the transaction: they do not depend
// on the writes of its operations. The same is true of admission plugins, except the plugins for namespaces and quotas.
// A Pod, for example, cannot be made together with its namespace, because the plugin for service accounts does not see
// the namespace's account. In a dry run operations see each other's writes in the same way, and nothing is appended.
//
// Webhooks are called before it is known whether the transaction commits, and again each time the transaction is
// computed. A webhook with side effects must tolerate that. The audit log has a record for each operation, with the
// operation's answer, and a record for the transaction, which says whether the transaction was written. Until the
// transaction is written, the objects that its operations have written have a provisional `resourceVersion`, above four
// quintillion. Webhooks and records may show a provisional `resourceVersion`; answers do not. An audit policy that
// leaves out the bodies of Secrets must also leave out the bodies of transactions.
//
// An object that two operations change has only one event, with its last state. If an operation deletes an object, no
// other operation can make that object again. An object that is both made and deleted leaves no trace. An operation may
// require something of its object: by a precondition, by a `resourceVersion` or `uid` in the object or the patch, or by
// a `test` of a JSON patch. Such an operation is written even if it changes nothing, so that its requirement holds for
// the whole transaction.
type Transaction struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec has the operations. It is not part of the answer.
	Spec TransactionSpec `json:"spec,omitzero"`
	// Status has the results.
	Status TransactionStatus `json:"status,omitzero"`
}

// TransactionSpec has the operations of a transaction.
type TransactionSpec struct {
	// Operations in their order, 1,000 at most. The log takes 1,000 events at once, and some objects are written
	// together with other objects: a Service with its addresses, an object with a row for each owner, the first object
	// under a quota with the quota. The objects that operations write may have 16 MiB together; whole objects count,
	// not patches.
	Operations []TransactionOperation `json:"operations"`
}

// TransactionOperation is one write.
type TransactionOperation struct {
	// Verb is 'create', 'update', 'patch' or 'delete'.
	Verb string `json:"verb"`
	// Object is the object to create, or the object that replaces the one of its name.
	Object *runtime.RawExtension `json:"object,omitempty"`
	// Reference names the object to delete or to patch.
	Reference *TransactionReference `json:"reference,omitempty"`
	// PatchType is 'json', 'merge', 'strategic' or 'apply', which applies for the request's field manager.
	PatchType string `json:"patchType,omitempty"`
	// Patch is the patch, in the form of its type.
	Patch *runtime.RawExtension `json:"patch,omitempty"`
	// Force lets an apply take fields from other managers.
	Force bool `json:"force,omitempty"`
	// PropagationPolicy of a deletion: 'Background', 'Foreground' or 'Orphan'.
	PropagationPolicy string `json:"propagationPolicy,omitempty"`
	// Precondition of an update, a patch or a deletion. The precondition of a create is always that there is no such
	// object.
	Precondition *TransactionPrecondition `json:"precondition,omitempty"`
}

// TransactionReference names an object by its kind or by its resource.
type TransactionReference struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind,omitempty"`
	Resource   string `json:"resource,omitempty"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
}

// TransactionPrecondition is a condition that must be true of the object before the operation. Otherwise the answer is
// 409. A `resourceVersion` in the object itself is the same precondition. After the first operation on an object, later
// operations cannot require a revision of it.
type TransactionPrecondition struct {
	ResourceVersion string `json:"resourceVersion,omitempty"`
	// UID cannot be the precondition of a patch.
	UID string `json:"uid,omitempty"`
}

// TransactionStatus has the results of a transaction.
type TransactionStatus struct {
	// Revision of the transaction's last event. It is empty if nothing was written.
	Revision string `json:"revision,omitempty"`
	// Results are the results of the operations, in the order of the operations.
	Results []TransactionResult `json:"results,omitempty"`
}

// TransactionResult is the outcome of one operation.
type TransactionResult struct {
	// Code is the HTTP status that the same request would have got alone.
	Code int32 `json:"code"`
	// Namespace, Name and UID of the object.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	UID       string `json:"uid,omitempty"`
	// ResourceVersion of the object after the transaction. For a deleted object it is the revision of the deletion. It
	// is empty for an object that left no trace, and for an object that a dry run would have written.
	ResourceVersion string `json:"resourceVersion,omitempty"`
}

// Plan has the changes that undo earlier changes, make a deleted object again, or make everything as it was at a
// moment. It is created and never stored. With 'dryRun=All' nothing is written, and the answer has the changes that
// would be made, and the objects that are left out. Without 'dryRun' the changes are made, in transactions, and the
// answer has the changes that were made. All reads and writes are requests of the same user.
//
// Objects are compared and written in the version in which they are stored, with the defaults that clients see.
type Plan struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec has one of undo, undelete and restore. It is not part of the answer.
	Spec PlanSpec `json:"spec,omitzero"`
	// Status of a request is the status of the dry run to which the user agreed. Objects that have changed since are
	// left alone.
	Status PlanStatus `json:"status,omitzero"`
}

// PlanSpec names the state that is wanted.
type PlanSpec struct {
	// Namespace of the plan. If it is empty, the plan is for the whole cluster.
	Namespace string `json:"namespace,omitempty"`
	// Undo takes back a change of an object, or all changes of a manager or user since a moment.
	Undo *PlanUndo `json:"undo,omitempty"`
	// Undelete makes an object again, in the state of its last version.
	Undelete *PlanObject `json:"undelete,omitempty"`
	// Restore makes everything as it was at a moment.
	Restore *PlanRestore `json:"restore,omitempty"`
}

// PlanUndo takes back a change of an object, or all changes of a manager or user since a moment.
type PlanUndo struct {
	// Object, named as for 'versions', such as 'deployments.apps/web'.
	Object string `json:"object,omitempty"`
	// Revision of the change of the object, by default the last one that a user has made.
	Revision string `json:"revision,omitempty"`
	// Manager of fields.
	Manager string `json:"manager,omitempty"`
	User    string `json:"user,omitempty"`
	// Since is a moment.
	Since string `json:"since,omitempty"`
}

// PlanObject names an object as for 'versions', such as 'deployments.apps/web'.
type PlanObject struct {
	Object string `json:"object"`
}

// PlanRestore makes everything as it was at a moment.
type PlanRestore struct {
	// To is a moment.
	To string `json:"to"`
	// Selector of objects by their labels, of now or of the moment.
	Selector string `json:"selector,omitempty"`
	// Prune says that objects which were created after the moment are deleted.
	Prune bool `json:"prune,omitempty"`
}

// PlanStatus has the changes of a plan.
type PlanStatus struct {
	// Revision to which everything is restored.
	Revision string `json:"revision,omitempty"`
	// Changes has the changes in the order in which they are written, and the objects that are left alone.
	Changes []PlanChange `json:"changes,omitempty"`
	// Failures are the kinds that could not be compared, with the reasons.
	Failures []string `json:"failures,omitempty"`
	// Same is how many objects are as they were at the moment.
	Same int32 `json:"same,omitempty"`
	// Later is how many objects were created after the moment and stay.
	Later int32 `json:"later,omitempty"`
	// More says that the time of one request was too short. Send the same request again to go on.
	More bool `json:"more,omitempty"`
}

// PlanChange is the change of one object.
type PlanChange struct {
	Object Reference `json:"object"`
	// Verb is 'create', 'update' or 'delete', or empty if there is nothing to do.
	Verb string `json:"verb,omitempty"`
	// Fields that an undo takes back.
	Fields []string `json:"fields,omitempty"`
	// Revisions of the changes that are taken back.
	Revisions []string `json:"revisions,omitempty"`
	// Left says why the object is left alone.
	Left string `json:"left,omitempty"`
	// Failed says that the object could not be written.
	Failed bool `json:"failed,omitempty"`
	// Seen identifies the object's state before a restore, which writes the object only if that state has not changed.
	Seen string `json:"seen,omitempty"`
	// Author of the deletion that an undelete takes back.
	Author string `json:"author,omitempty"`
	// Time of that deletion.
	Time *metav1.Time `json:"time,omitempty"`
	// Notes say which properties the object could not get back, and which other steps were taken for it.
	Notes []string `json:"notes,omitempty"`
	// ResourceVersion that was written.
	ResourceVersion string `json:"resourceVersion,omitempty"`
}

// DeepCopyObject implements runtime.Object.
func (p *Plan) DeepCopyObject() runtime.Object {
	out := *p
	p.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Spec.Undo, out.Spec.Undelete, out.Spec.Restore = copied(p.Spec.Undo), copied(p.Spec.Undelete), copied(p.Spec.Restore)
	out.Status.Failures = slices.Clone(p.Status.Failures)
	out.Status.Changes = slices.Clone(p.Status.Changes)
	for i := range out.Status.Changes {
		c := &out.Status.Changes[i]
		c.Fields, c.Revisions, c.Notes = slices.Clone(c.Fields), slices.Clone(c.Revisions), slices.Clone(c.Notes)
		c.Time = c.Time.DeepCopy()
	}
	return &out
}

// DeepCopyObject implements runtime.Object.
func (t *Transaction) DeepCopyObject() runtime.Object {
	out := *t
	t.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Spec.Operations = slices.Clone(t.Spec.Operations)
	for i := range out.Spec.Operations {
		op := &out.Spec.Operations[i]
		op.Object, op.Patch = op.Object.DeepCopy(), op.Patch.DeepCopy()
		op.Reference, op.Precondition = copied(op.Reference), copied(op.Precondition)
	}
	out.Status.Results = slices.Clone(t.Status.Results)
	return &out
}

func copied[T any](p *T) *T {
	if p == nil {
		return nil
	}
	return new(*p)
}
