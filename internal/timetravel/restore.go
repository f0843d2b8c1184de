package timetravel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/logplane/logplane/internal/apiserver/history"
)

// Restore says what shall be as it was.
type Restore struct {
	To       string // a moment
	All      bool   // all of the cluster, not a namespace
	Selector string
	// Prune also deletes what came later.
	Prune bool
	Yes   bool
}

// passing are the kinds that somebody makes anew all the time: the control plane, or the machine that they describe. An
// old one would mislead whoever reads it. docs/history.md has them in a table. ControllerRevisions are not among them:
// no controller can make an old one again.
var passing = map[schema.GroupResource]bool{
	{Resource: "nodes"}:  true, // with what each kubelet says of its machine
	{Resource: "events"}: true, {Group: "events.k8s.io", Resource: "events"}: true,
	{Group: "coordination.k8s.io", Resource: "leases"}:                     true,
	{Group: "coordination.k8s.io", Resource: "leasecandidates"}:            true,
	{Resource: "endpoints"}:                                                true,
	{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}: true,
	{Group: "certificates.k8s.io", Resource: "podcertificaterequests"}:     true,
	{Group: "networking.k8s.io", Resource: "ipaddresses"}:                  true, // made with their Services
	{Group: "storage.k8s.io", Resource: "volumeattachments"}:               true,
	{Group: "storage.k8s.io", Resource: "csinodes"}:                        true,
	{Group: "storage.k8s.io", Resource: "csistoragecapacities"}:            true,
	{Group: "resource.k8s.io", Resource: "resourceslices"}:                 true,
	{Group: "internal.apiserver.k8s.io", Resource: "storageversions"}:      true,
}

var endpointSlices = schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}

// passingNames are the kinds that are never restored, and the objects of others, for people.
func passingNames() []string {
	var names []string
	for of := range passing {
		names = append(names, of.String())
	}
	slices.Sort(names)
	return append(names, "endpoint slices and Pods that a controller or a kubelet keeps for itself")
}

// isPassing says that an object follows from others.
func isPassing(object *unstructured.Unstructured, k kind) bool {
	switch k.GroupResource() {
	case pods: // that stands for one of a kubelet's own
		return object.GetAnnotations()[corev1.MirrorPodAnnotationKey] != ""
	case endpointSlices:
		return metav1.GetControllerOf(object) != nil
	case schema.GroupResource{Group: "apiregistration.k8s.io", Resource: "apiservices"}:
		return object.GetLabels()["kube-aggregator.kubernetes.io/automanaged"] != ""
	}
	return false
}

// restored is one object, as it was and as it is.
type restored struct {
	kind      kind
	then, now *unstructured.Unstructured // nil if it is not there
	verb      string                     // 'create', 'update', 'delete', or empty for one that is as it was
}

func (r *restored) either() *unstructured.Unstructured {
	if r.then != nil {
		return r.then
	}
	return r.now
}

// restoring is a restore on its way.
type restoring struct {
	*Tool
	Restore
	past, live *side
	owners     *owners
	// made are the namespaces that this restore has made: what the control plane puts there is not somebody else's.
	made map[string]bool
	// left are what is not made again, and why.
	left []string
	// failures are what could not be restored, and why.
	failures []string
}

// Restore brings back how everything was at a moment. It can be run again after a crash, or to go on with the rest:
// what is as it was is left alone.
func (t *Tool) Restore(ctx context.Context, o Restore) error {
	if o.To == "" || o.To == "now" {
		return errors.New("give --to with the moment to go back to, such as 2h")
	}
	selector, err := labels.Parse(o.Selector)
	if err != nil {
		return fmt.Errorf("--selector: %w", err)
	}
	revision, err := t.pin(ctx, o.To)
	if err != nil {
		return err
	}
	r := &restoring{Tool: t, Restore: o, owners: newOwners(t.Client), made: map[string]bool{}}
	if r.past, err = t.at(revision); err != nil {
		return err
	}
	if r.live, err = t.at(""); err != nil {
		return err
	}
	all, err := r.compare(ctx, selector)
	if err != nil {
		return err
	}
	plan, later := r.plan(all)
	plan, err = r.surelyLater(ctx, plan, revision)
	if err != nil {
		return err
	}
	t.printPlan(revision, plan, len(all)-len(plan)-later-len(r.left), later)
	for _, left := range r.left {
		t.line("left out: %s", left)
	}
	for _, failure := range r.failures {
		t.line("cannot compare %s", failure)
	}
	if len(plan) > 0 {
		if err := t.confirm(ctx, o.Yes); err != nil {
			return err
		}
	}
	done := 0
	for _, one := range plan {
		if err := r.carryOut(ctx, one); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			r.fail("%s: %s", t.titleOf(one), reason(err))
			continue
		}
		done++
	}
	if len(plan) > 0 {
		t.line("%d of %d are done", done, len(plan))
	}
	if len(r.failures) > 0 {
		return fmt.Errorf("not all is as it was at revision %s: %s", revision, strings.Join(r.failures, "; "))
	}
	return nil
}

// reason is an error without the lines that repeat it.
func reason(err error) string {
	return strings.ReplaceAll(err.Error(), "\n", " ")
}

func (r *restoring) fail(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

// titleOf names an object of the plan.
func (t *Tool) titleOf(r *restored) string {
	return t.title(referenceOf(r.either(), r.kind))
}

func referenceOf(object *unstructured.Unstructured, k kind) history.Reference {
	return history.Reference{Group: k.Group, Resource: k.Resource, Namespace: object.GetNamespace(), Name: object.GetName()}
}

// scope is a kind, as the past and the present serve it.
type scope struct {
	kind      kind
	then, now bool
}

// scopes are the kinds that can be restored, in the version in which they are stored.
func (r *restoring) scopes() ([]scope, error) {
	then, err := r.past.kinds()
	if err != nil {
		return nil, err
	}
	now, err := r.live.kinds()
	if err != nil {
		return nil, err
	}
	var all []scope
	seen := map[schema.GroupResource]bool{}
	for _, k := range slices.Concat(then.kinds, now.kinds) {
		of := k.GroupResource()
		if seen[of] || passing[of] || !k.Namespaced && !r.All {
			continue
		}
		if !slices.Contains(k.Verbs, "list") || !slices.Contains(k.Verbs, "create") || !slices.Contains(k.Verbs, "update") {
			continue
		}
		seen[of] = true
		_, was := then.of(of)
		_, is := now.of(of)
		from := now
		if !is {
			from = then
		}
		stored, ok := from.stored(of)
		if _, both := then.find(of, stored.Version); !ok || was && !both {
			r.fail("%s: the version in which it is stored is not served, or was not: fields would be lost", of)
			continue
		}
		all = append(all, scope{stored, was, is})
	}
	return all, nil
}

// compare reads both sides, and finds what is on either.
func (r *restoring) compare(ctx context.Context, selector labels.Selector) ([]*restored, error) {
	scopes, err := r.scopes()
	if err != nil {
		return nil, err
	}
	namespace := r.Namespace
	if r.All {
		namespace = ""
	}
	found := make([]map[objectID]*restored, len(scopes))
	problems := make([]error, len(scopes))
	var group errgroup.Group
	group.SetLimit(atOnce)
	for i, s := range scopes {
		group.Go(func() error {
			found[i], problems[i] = r.read(ctx, s, namespace)
			return nil
		})
	}
	_ = group.Wait() // problems has the errors
	var all []*restored
	for i, s := range scopes {
		if problems[i] != nil {
			if ctx.Err() != nil || !isAboutKind(problems[i]) {
				return nil, problems[i]
			}
			r.fail("%s: %s", s.kind.GroupResource(), reason(problems[i]))
			continue
		}
		if of := s.kind.GroupResource(); !s.now && !r.All && len(found[i]) > 0 {
			r.fail("%s: the kind is not served any more: 'undelete crd/%s', or restore with --all-namespaces", of, of)
			continue
		}
		all = append(all, slices.Collect(maps.Values(found[i]))...)
	}
	if !r.All {
		one, err := r.namespace(ctx)
		if err != nil {
			return nil, err
		}
		if one != nil {
			all = append(all, one)
		}
	}
	for _, one := range all {
		if one.now != nil {
			r.owners.known[idOf(one.now)] = one.now.GetUID()
		} else {
			r.owners.pending[idOf(one.then)] = true
		}
	}
	return slices.DeleteFunc(all, func(one *restored) bool {
		for _, object := range []*unstructured.Unstructured{one.then, one.now} {
			if object != nil && selector.Matches(labels.Set(object.GetLabels())) {
				return false
			}
		}
		delete(r.owners.pending, idOf(one.either()))
		return true
	}), nil
}

// isAboutKind says that an error is no reason to give up the other kinds.
func isAboutKind(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) || apierrors.IsServiceUnavailable(err) ||
		apierrors.IsInternalError(err) || apierrors.IsResourceExpired(err) // by a rule: the moment is kept
}

// read returns the objects of a kind, as they were and as they are.
func (r *restoring) read(ctx context.Context, s scope, namespace string) (map[objectID]*restored, error) {
	found := map[objectID]*restored{}
	if s.then {
		objects, err := r.past.list(ctx, s.kind, namespace)
		if err != nil {
			return nil, err
		}
		for i := range objects {
			if object := &objects[i]; !isPassing(object, s.kind) {
				found[idOf(object)] = &restored{kind: s.kind, then: object}
			}
		}
	}
	if s.now {
		objects, err := r.live.list(ctx, s.kind, namespace)
		if err != nil {
			return nil, err
		}
		for i := range objects {
			object := &objects[i]
			if isPassing(object, s.kind) {
				continue
			}
			if one := found[idOf(object)]; one != nil {
				one.now = object
			} else {
				found[idOf(object)] = &restored{kind: s.kind, now: object}
			}
		}
	}
	return found, nil
}

// namespace returns the one that is restored if it has to be made first.
func (r *restoring) namespace(ctx context.Context) (*restored, error) {
	kinds, err := r.live.kinds()
	if err != nil {
		return nil, err
	}
	k, ok := kinds.of(namespaces)
	if !ok {
		return nil, errors.New("the API serves no namespaces")
	}
	now, err := r.live.get(ctx, k, "", r.Namespace)
	if err != nil || now != nil && now.GetDeletionTimestamp() == nil {
		return nil, err
	}
	if now != nil {
		return nil, fmt.Errorf("namespace '%s' is being deleted: run this again when it is gone", r.Namespace)
	}
	then, err := r.past.get(ctx, k, "", r.Namespace)
	if err != nil {
		return nil, err
	}
	if then == nil {
		return nil, fmt.Errorf("there was no namespace '%s' at that moment, and there is none now: is --namespace right?", r.Namespace)
	}
	return &restored{kind: k, then: then}, nil
}

// plan says what is to be done, in order, and how many objects came later and stay.
func (r *restoring) plan(all []*restored) (plan []*restored, later int) {
	var deletes []*restored
	for _, one := range all {
		switch {
		case one.then != nil && one.then.GetDeletionTimestamp() != nil: // it was on its way out
			continue
		case one.now == nil:
			if why := runsAgain(one.then, one.kind); why != "" {
				r.left = append(r.left, fmt.Sprintf("%s: %s", r.titleOf(one), why))
				continue
			}
			one.verb = "create"
		case one.then == nil:
			// What has a controller goes with it, or its controller decides.
			if !r.Prune || metav1.GetControllerOf(one.now) != nil || one.now.GetDeletionTimestamp() != nil {
				later++
				continue
			}
			one.verb = "delete"
			deletes = append(deletes, one)
			continue
		case !reflect.DeepEqual(r.wanted(one, one.now).Object, cleaned(one.now, one.kind).Object):
			one.verb = "update"
		default:
			continue
		}
		plan = append(plan, one)
	}
	order := func(all []*restored) []*restored {
		return inOrder(all, func(one *restored) kind { return one.kind }, (*restored).either)
	}
	deletes = order(deletes)
	slices.Reverse(deletes)
	return append(order(plan), deletes...), later
}

// surelyLater leaves out the deletion of what may have been there at the moment: an object that is not known to be made
// after it. What it was before is forgotten ('logplane forget').
func (r *restoring) surelyLater(ctx context.Context, plan []*restored, revision string) (sure []*restored, err error) {
	for _, one := range plan {
		if one.verb == "delete" {
			object := one.kind.GroupResource().String() + "/" + one.now.GetName()
			list, err := r.versions(ctx, object, one.now.GetNamespace())
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if err != nil {
				r.fail("%s: whether it came later: %s", r.titleOf(one), reason(err))
				continue
			}
			made := slices.IndexFunc(list.Items, func(v history.Version) bool { return v.Verb == "create" }) // the newest first
			if made < 0 || !isAfter(list.Items[made].Name, revision) {
				r.fail("%s: what it was is not kept, and it may have been there: it is left alone", r.titleOf(one))
				continue
			}
		}
		sure = append(sure, one)
	}
	return sure, nil
}

// wanted is what an object shall be that is there. What it had then and cannot have now stays as it is now.
func (r *restoring) wanted(one *restored, now *unstructured.Unstructured) *unstructured.Unstructured {
	out := again(one.then, one.kind)
	is := again(now, one.kind)
	keep := func(fields ...string) {
		value, found, _ := unstructured.NestedFieldCopy(now.Object, fields...)
		if found {
			_ = unstructured.SetNestedField(out.Object, value, fields...) // what is above it is an object in both
		} else {
			unstructured.RemoveNestedField(out.Object, fields...)
		}
	}
	if len(is.GetFinalizers()) != len(now.GetFinalizers()) {
		keep("metadata", "finalizers")
	}
	switch one.kind.GroupResource() {
	case services:
		if of, _, _ := unstructured.NestedString(out.Object, "spec", "type"); of != "ExternalName" {
			keep("spec", "clusterIP")
			keep("spec", "clusterIPs")
		}
	case jobs:
		keep("spec", "selector")
		for _, label := range []string{"controller-uid", "batch.kubernetes.io/controller-uid"} {
			keep("metadata", "labels", label)
			keep("spec", "template", "metadata", "labels", label)
		}
	case secrets:
		keep("metadata", "annotations", corev1.ServiceAccountUIDKey)
		if of, _, _ := unstructured.NestedString(out.Object, "type"); of == string(corev1.SecretTypeServiceAccountToken) {
			keep("data", corev1.ServiceAccountTokenKey)
		}
	case volumes:
		keep("spec", "claimRef", "uid")
		keep("spec", "claimRef", "resourceVersion")
	}
	r.adoptKnown(out, now)
	return out
}

// adoptKnown gives owner references the uids that are known, without asking for others. One to an owner that was not
// compared stays as it is now. References that were dropped before are no difference.
func (r *restoring) adoptKnown(object, now *unstructured.Unstructured) {
	var references []metav1.OwnerReference
	for _, reference := range object.GetOwnerReferences() {
		same := slices.IndexFunc(now.GetOwnerReferences(), func(n metav1.OwnerReference) bool {
			return slices.Equal(ownerIDs(n, now.GetNamespace()), ownerIDs(reference, now.GetNamespace()))
		})
		if same >= 0 && !r.compared(reference, object.GetNamespace()) {
			references = append(references, now.GetOwnerReferences()[same])
			continue
		}
		for _, id := range ownerIDs(reference, object.GetNamespace()) {
			uid, known := r.owners.known[id]
			if known && uid != "" {
				reference.UID = uid
			}
			if known && uid != "" || r.owners.pending[id] {
				references = append(references, reference)
				break
			}
		}
	}
	if len(references) == 0 {
		unstructured.RemoveNestedField(object.Object, "metadata", "ownerReferences")
		return
	}
	object.SetOwnerReferences(references)
}

// compared reports whether it is known what becomes of an owner.
func (r *restoring) compared(reference metav1.OwnerReference, namespace string) bool {
	return slices.ContainsFunc(ownerIDs(reference, namespace), func(id objectID) bool {
		_, known := r.owners.known[id]
		return known || r.owners.pending[id]
	})
}

func (t *Tool) printPlan(revision string, plan []*restored, same, later int) {
	count := map[string]int{}
	for _, one := range plan {
		count[one.verb]++
		t.line("%s %s", one.verb, t.titleOf(one))
	}
	t.line("to revision %s: %d to create, %d to update, %d to delete; %d are as they were, %d came later and stay", revision,
		count["create"], count["update"], count["delete"], same, later)
	t.line("left to those who make them: %s", strings.Join(passingNames(), ", "))
}

// carryOut does what the plan says about an object.
func (r *restoring) carryOut(ctx context.Context, one *restored) error {
	switch one.verb {
	case "create":
		return r.make(ctx, one)
	case "update":
		return r.update(ctx, one)
	}
	return r.remove(ctx, one)
}

// remove deletes an object, if it is still the one that was compared.
func (r *restoring) remove(ctx context.Context, one *restored) error {
	to := r.live.objects(one.kind, one.now.GetNamespace())
	background := metav1.DeletePropagationBackground
	for now := one.now; ; {
		uid, revision := now.GetUID(), now.GetResourceVersion()
		err := to.Delete(ctx, now.GetName(), metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &revision}, PropagationPolicy: &background})
		if err == nil {
			r.line("%s was deleted", r.titleOf(one))
		}
		if !apierrors.IsConflict(err) {
			return ignoreNotFound(err)
		}
		if now, err = to.Get(ctx, now.GetName(), metav1.GetOptions{}); err != nil {
			return ignoreNotFound(err)
		}
		if err := one.unchanged(now); err != nil {
			return err
		}
	}
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// unchanged returns an error unless the object is what was compared, but for its status.
func (r *restored) unchanged(now *unstructured.Unstructured) error {
	if now.GetUID() != r.now.GetUID() || !reflect.DeepEqual(cleaned(r.now, r.kind).Object, cleaned(now, r.kind).Object) {
		return errors.New("somebody else has changed it meanwhile: run this again")
	}
	return nil
}

// make creates an object, and knows its uid for what it owns.
func (r *restoring) make(ctx context.Context, one *restored) error {
	wanted := again(one.then, one.kind)
	notes, err := r.owners.adopt(ctx, wanted)
	if err != nil {
		return err
	}
	made, more, err := r.create(ctx, one.kind, wanted)
	if apierrors.IsAlreadyExists(err) {
		return r.madeMeanwhile(ctx, one)
	}
	id := idOf(one.then)
	delete(r.owners.pending, id)
	if err != nil {
		r.owners.known[id] = "" // what it owns must not wait for it
		return err
	}
	r.owners.known[id] = made.GetUID()
	if one.kind.GroupResource() == namespaces {
		r.made[made.GetName()] = true
	}
	r.line("%s was created", r.titleOf(one))
	r.notes(slices.Concat(notes, more, r.rebind(ctx, one.kind, one.then, made)))
	if one.kind.GroupResource() == definitions {
		return r.served(ctx, made)
	}
	return nil
}

// madeMeanwhile takes what has come since the plan as it is, if it is what was wanted. What the control plane has put
// into a namespace that this restore has made is overwritten.
func (r *restoring) madeMeanwhile(ctx context.Context, one *restored) error {
	now, err := r.live.get(ctx, one.kind, one.then.GetNamespace(), one.then.GetName())
	if err != nil {
		return err
	}
	if now == nil {
		return errors.New("somebody has made and deleted it meanwhile: run this again")
	}
	r.owners.known[idOf(now)] = now.GetUID()
	if reflect.DeepEqual(r.wanted(one, now).Object, cleaned(now, one.kind).Object) {
		return nil
	}
	if !r.made[now.GetNamespace()] {
		return errors.New("somebody has made it meanwhile: run this again")
	}
	one.now = now
	return r.update(ctx, one)
}

// update writes an object, if it is still the one that was compared. A new status is no reason to give up.
func (r *restoring) update(ctx context.Context, one *restored) error {
	if one.now.GetDeletionTimestamp() != nil {
		return errors.New("it is being deleted: run this again when it is gone")
	}
	for now := one.now; ; {
		wanted := r.wanted(one, now)
		notes, err := r.owners.adopt(ctx, wanted)
		if err != nil {
			return err
		}
		to := r.live.objects(one.kind, now.GetNamespace())
		_, err = to.Update(ctx, onto(now, wanted.Object, one.kind), metav1.UpdateOptions{FieldManager: r.Manager})
		if err == nil {
			r.line("%s was updated", r.titleOf(one))
			r.notes(notes)
			if one.kind.GroupResource() == definitions {
				return r.served(ctx, one.then)
			}
			return nil
		}
		if !apierrors.IsConflict(err) {
			return err
		}
		if now, err = to.Get(ctx, now.GetName(), metav1.GetOptions{}); err != nil {
			return err
		}
		if err := one.unchanged(now); err != nil {
			return err
		}
	}
}

// servedTimeout is how long a definition may take until its objects can be written. Other servers than ours need some
// seconds.
const servedTimeout = 30 * time.Second

// served waits until the objects that a definition describes can be written.
func (r *restoring) served(ctx context.Context, definition *unstructured.Unstructured) error {
	group, _, _ := unstructured.NestedString(definition.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(definition.Object, "spec", "names", "plural")
	versions, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions")
	for _, version := range versions {
		fields, ok := version.(map[string]any)
		if !ok || fields["served"] != true {
			continue
		}
		of := fmt.Sprintf("%s/%v", group, fields["name"])
		err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, servedTimeout, true, func(context.Context) (bool, error) {
			list, err := r.live.ask.ServerResourcesForGroupVersion(of)
			if err != nil {
				return false, nil //nolint:nilerr // not yet
			}
			return slices.ContainsFunc(list.APIResources, func(a metav1.APIResource) bool { return a.Name == plural }), nil
		})
		if err != nil {
			return fmt.Errorf("%s of %s is not served: %w", plural, of, err)
		}
	}
	return nil
}
