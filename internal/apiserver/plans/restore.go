package plans

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/logplane/logplane/internal/apiserver/history"
	"github.com/logplane/logplane/internal/sides"
)

// restore makes everything as it was at a moment. A restore can be run again after a crash, or to continue with the
// rest: objects that are already as they were are left alone.
type restore struct {
	*planner
	history.PlanRestore
	selector labels.Selector
	past     *sides.Side
	// made has the namespaces that this restore has made: objects that the control plane puts into such a namespace do
	// not count as changed by somebody else.
	made map[string]bool
	// dependents has, by the owner's uid, the objects that name the owner now and also existed at the moment.
	dependents map[types.UID][]*dependent
	// pruned has the uids of objects that were created after the moment and are deleted.
	pruned map[types.UID]bool
	// moved are the kinds that were stored in another version at the moment. Their objects are read in that version.
	moved map[schema.GroupResource]bool
	// differing counts the objects that are held to be compared.
	differing int
}

// dependent is an object that names an owner. same says that the dependent has not changed since the moment.
type dependent struct {
	kind            sides.Kind
	namespace, name string
	same            bool
}

// mostDiffering bounds how many objects a request holds. Unchanged objects are not held.
const mostDiffering = 20_000

// pair is one object, as it was and as it is.
type pair struct {
	kind      sides.Kind
	then, now *unstructured.Unstructured // nil if the object did not or does not exist
}

func (o *pair) either() *unstructured.Unstructured {
	if o.then != nil {
		return o.then
	}
	return o.now
}

func (o *pair) reference() history.Reference {
	object := o.either()
	return history.Reference{Group: o.kind.Group, Resource: o.kind.Resource, Namespace: object.GetNamespace(), Name: object.GetName()}
}

func (r *restore) fail(format string, args ...any) {
	r.status.Failures = append(r.status.Failures, fmt.Sprintf(format, args...))
}

func (r *restore) compute(ctx context.Context) ([]*step, error) {
	var err error
	if r.selector, err = labels.Parse(r.Selector); err != nil {
		return nil, apierrors.NewBadRequest("selector: " + err.Error())
	}
	at, err := r.Moment(ctx, r.To)
	if err != nil {
		return nil, err
	}
	r.status.Revision = fmt.Sprint(uint64(at))
	if r.past, err = sides.At(r.config, r.status.Revision); err != nil {
		return nil, err
	}
	all, err := r.compare(ctx)
	if err != nil {
		return nil, err
	}
	return r.steps(ctx, all)
}

// scope is a kind, as the past and the present serve it.
type scope struct {
	kind      sides.Kind
	then, now bool
}

// scopes are the kinds that can be restored, in the version in which they are stored.
func (r *restore) scopes() ([]scope, error) {
	then, err := r.past.Catalog()
	if err != nil {
		return nil, err
	}
	now, err := r.live.Catalog()
	if err != nil {
		return nil, err
	}
	var all []scope
	seen := map[schema.GroupResource]bool{}
	for _, k := range slices.Concat(then.Kinds, now.Kinds) {
		of := k.GroupResource()
		if seen[of] || sides.Passing[of] || !k.Namespaced && r.namespace != "" {
			continue
		}
		if !slices.Contains(k.Verbs, "list") || !slices.Contains(k.Verbs, "create") || !slices.Contains(k.Verbs, "update") {
			continue
		}
		seen[of] = true
		_, was := then.Of(of)
		_, is := now.Of(of)
		from := now
		if !is {
			from = then
		}
		stored, ok := from.StoredIn(of)
		if before, known := then.StoredIn(of); was && known && before.Version != stored.Version {
			stored, ok = now.Find(of, before.Version)
			r.moved[of] = true
		} else if was && !known {
			ok = false
		}
		if !ok {
			r.fail("%s: the version in which it is or was stored is not served, and in another one fields would be lost", of)
			continue
		}
		all = append(all, scope{stored, was, is})
	}
	return all, nil
}

// compare reads both sides, and returns the objects that differ.
func (r *restore) compare(ctx context.Context) ([]*pair, error) {
	scopes, err := r.scopes()
	if err != nil {
		return nil, err
	}
	var all []*pair
	for _, s := range scopes {
		found, err := r.read(ctx, s)
		of := s.kind.GroupResource()
		switch {
		case err != nil && (ctx.Err() != nil || !isAboutKind(err)):
			return nil, err
		case err != nil:
			r.fail("%s: %s", of, reason(err))
		case !s.now && r.namespace != "" && len(found) > 0:
			r.fail("%s: the kind is not served any more: 'undelete crd/%s', or restore with --all-namespaces", of, of)
		default:
			all = append(all, found...)
		}
	}
	if r.namespace != "" {
		one, err := r.itsNamespace(ctx)
		if err != nil {
			return nil, err
		}
		if one != nil {
			all = append(all, one)
		}
	}
	return r.withOrphans(ctx, all)
}

// withOrphans adds objects that have not changed but name an owner that is made again. Otherwise the garbage collector
// would delete such an object, if it has not done so yet, because the object names the owner's former uid.
func (r *restore) withOrphans(ctx context.Context, all []*pair) ([]*pair, error) {
	for _, owner := range all {
		if owner.then == nil || owner.now != nil && owner.now.GetUID() == owner.then.GetUID() {
			continue
		}
		for _, d := range r.dependents[owner.then.GetUID()] {
			if !d.same {
				continue
			}
			d.same = false
			r.status.Same--
			object, err := r.past.Get(ctx, d.kind, d.namespace, d.name)
			if err != nil {
				return nil, err
			}
			all = append(all, &pair{d.kind, object, object}) // an object that has changed since is not written
		}
	}
	return all, nil
}

func (r *restore) isSelected(one *pair) bool {
	for _, object := range []*unstructured.Unstructured{one.then, one.now} {
		if object != nil && r.selector.Matches(labels.Set(object.GetLabels())) {
			return true
		}
	}
	return false
}

// isAboutKind says that an error concerns only one kind, so that the other kinds can be restored.
func isAboutKind(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) || apierrors.IsServiceUnavailable(err) ||
		apierrors.IsInternalError(err) || apierrors.IsResourceExpired(err) // expired by a rule for the kind, since the moment itself is kept
}

// read returns the objects of a kind whose versions then and now differ. Both lists have the same order, so only a page
// of each is held.
func (r *restore) read(ctx context.Context, s scope) (found []*pair, err error) {
	list := func(there bool, side *sides.Side) (func() (*unstructured.Unstructured, error, bool), func()) {
		if !there {
			return func() (*unstructured.Unstructured, error, bool) { return nil, nil, false }, func() {}
		}
		return iter.Pull2(side.All(ctx, s.kind, r.namespace))
	}
	nextThen, stopThen := list(s.then, r.past)
	defer stopThen()
	nextNow, stopNow := list(s.now, r.live)
	defer stopNow()
	then, err, _ := nextThen()
	if err != nil {
		return nil, err
	}
	now, err, _ := nextNow()
	for err == nil && (then != nil || now != nil) {
		one := &pair{kind: s.kind, then: then, now: now}
		switch order := compareNames(then, now); {
		case order < 0:
			one.now = nil
		case order > 0:
			one.then = nil
		}
		if one.now != nil {
			r.owners.known[idOf(one.now)] = one.now.GetUID()
		}
		same := one.then != nil && one.now != nil && one.then.GetResourceVersion() == one.now.GetResourceVersion()
		selected := r.isSelected(one)
		if one.then != nil && one.now != nil {
			d := &dependent{s.kind, one.now.GetNamespace(), one.now.GetName(), same && selected}
			for _, owner := range one.now.GetOwnerReferences() {
				r.dependents[owner.UID] = append(r.dependents[owner.UID], d)
			}
		}
		switch {
		case !selected:
		case same:
			r.status.Same++
		case r.differing == mostDiffering:
			return nil, refuse(http.StatusRequestEntityTooLarge, "more than %d objects are not as they were: "+
				"restore one namespace at a time, or select by labels", mostDiffering)
		default:
			r.differing++
			found = append(found, one)
			if one.now == nil && one.then.GetDeletionTimestamp() == nil {
				r.owners.pending[idOf(one.then)] = true
			}
		}
		if one.then != nil {
			then, err, _ = nextThen()
		}
		if one.now != nil && err == nil {
			now, err, _ = nextNow()
		}
	}
	return found, err
}

// compareNames compares the positions of two objects in a list. nil is the end of the list.
func compareNames(a, b *unstructured.Unstructured) int {
	switch {
	case a == nil:
		return 1
	case b == nil:
		return -1
	}
	return strings.Compare(a.GetNamespace()+"/"+a.GetName(), b.GetNamespace()+"/"+b.GetName())
}

// itsNamespace returns the restored namespace itself, if the namespace has to be made first.
func (r *restore) itsNamespace(ctx context.Context) (*pair, error) {
	kinds, err := r.live.Catalog()
	if err != nil {
		return nil, err
	}
	k, ok := kinds.Of(namespaces)
	if !ok {
		return nil, errors.New("the API serves no namespaces")
	}
	now, err := r.live.Get(ctx, k, "", r.namespace)
	if err != nil {
		return nil, err
	}
	then, err := r.past.Get(ctx, k, "", r.namespace)
	switch {
	case err != nil:
		return nil, err
	case then != nil && then.GetDeletionTimestamp() != nil:
		return nil, refuse(http.StatusConflict, "namespace '%s' was being deleted at that moment: name an earlier or a later one", r.namespace)
	case then == nil && now == nil:
		return nil, refuse(http.StatusNotFound, "there was no namespace '%s' at that moment, and there is none now: is the name right?", r.namespace)
	case then == nil:
		return nil, refuse(http.StatusNotFound, "there was no namespace '%s' at that moment, so all that is in it came later: name a moment at which it was there", r.namespace)
	case now != nil && now.GetDeletionTimestamp() == nil:
		return nil, nil
	case now != nil:
		return nil, refuse(http.StatusConflict, "namespace '%s' is being deleted: run this again when it is gone", r.namespace)
	}
	one := &pair{kind: k, then: then}
	if !r.isSelected(one) {
		return nil, nil
	}
	r.owners.pending[idOf(then)] = true
	return one, nil
}

// steps returns the steps to take, in order.
func (r *restore) steps(ctx context.Context, all []*pair) ([]*step, error) {
	all = slices.DeleteFunc(inOrder(all, func(o *pair) (sides.Kind, *unstructured.Unstructured) { return o.kind, o.either() }), func(one *pair) bool {
		if one.then == nil || one.then.GetDeletionTimestamp() == nil {
			return false
		}
		if one.now == nil || one.now.GetUID() == one.then.GetUID() { // the object was being deleted at the moment
			r.status.Same++
			return true
		}
		one.then = nil // the present object of that name came later
		return false
	})
	for _, one := range all {
		if r.prunes(one) { // no object that stays may name the deleted object as owner
			r.owners.known[idOf(one.now)], r.pruned[one.now.GetUID()] = "", true
		}
	}
	var steps, deletes []*step
	for _, one := range all {
		s := &step{kind: one.kind, PlanChange: history.PlanChange{Object: one.reference(), Seen: seen(one.now, one.kind)}}
		s.write = func(ctx context.Context, done *history.PlanChange) error { return r.write(ctx, one, done) }
		moved := r.moved[one.kind.GroupResource()]
		var wanted *unstructured.Unstructured
		if one.then != nil && one.now != nil {
			var err error
			if wanted, _, err = r.wanted(ctx, one, one.now); err != nil {
				return nil, err
			}
		}
		switch {
		case one.now == nil:
			s.Verb = "create"
			var err error
			if s.Left, s.Failed, err = r.finished(ctx, one); err != nil {
				return nil, err
			}
			if s.Left != "" {
				delete(r.owners.pending, idOf(one.then))
			} else {
				s.Notes = r.lossOf(one)
			}
		case one.then == nil:
			if !r.prunes(one) {
				r.status.Later++
				continue
			}
			s.Verb = "delete"
			why, err := r.notSurelyLater(ctx, one)
			if err != nil {
				return nil, err
			}
			s.Left, s.Failed = why, why != ""
			deletes = append(deletes, s)
			continue
		case reflect.DeepEqual(wanted.Object, cleaned(one.now, one.kind).Object) &&
			(!moved || one.then.GetGeneration() == one.now.GetGeneration()): // a field of the new version may differ
			r.status.Same++
			continue
		case moved && one.then.GetResourceVersion() != one.now.GetResourceVersion():
			s.Verb, s.Left, s.Failed = "update", "its kind is stored in another version than at the moment, and fields that only the new one has would be lost", true
		default:
			s.Verb, s.Notes = "update", r.lossOf(one)
		}
		steps = append(steps, s)
	}
	slices.Reverse(deletes)
	return append(steps, deletes...), nil
}

// lossOf returns a note about lost fields, if the object's kind was stored in another version at the moment.
func (r *restore) lossOf(one *pair) []string {
	if !r.moved[one.kind.GroupResource()] {
		return nil
	}
	return []string{fmt.Sprintf("it was stored in version %s: fields that the version in which it is stored today lacks are lost", one.kind.Version)}
}

// prunes says that an object is newer than the moment and is to be deleted. An object with a controller is not deleted
// by the plan: the object is deleted with its controller, or the controller decides about it.
func (r *restore) prunes(one *pair) bool {
	return r.Prune && one.then == nil && metav1.GetControllerOf(one.now) == nil && one.now.GetDeletionTimestamp() == nil
}

// finished says why a deleted Job or Pod must not be made again: the object had finished at the moment or finished
// later. An object that was made in its place, for example by an earlier restore, may have finished, too. failed says
// that this is not known.
func (r *restore) finished(ctx context.Context, one *pair) (why string, failed bool, err error) {
	of := one.kind.GroupResource()
	if why := runsAgain(one.then, one.kind); why != "" || of != jobs && of != pods {
		return why, false, nil
	}
	if by := metav1.GetControllerOf(one.then); by != nil && by.Kind == "Job" && of == pods {
		return "its Job makes its Pods", false, nil // the Job may have finished by way of another Pod
	}
	since := func(v history.Version) bool { return history.IsAfter(v.Name, r.status.Revision) }
	versions, err := r.live.Versions(ctx, one.then.GetNamespace(), one.reference().String(), url.Values{"include": {"object"}, "limit": {"50"}},
		func(all []history.Version) bool { return !since(all[len(all)-1]) }) // versions come newest first
	switch {
	case err == nil:
	case ctx.Err() != nil || !isAboutKind(err):
		return "", false, err
	case apierrors.IsNotFound(err), apierrors.IsResourceExpired(err): // later versions are not kept
		return "", false, nil
	default:
		return "whether it has finished since: " + reason(err), true, nil
	}
	for _, v := range versions.Items {
		if v.Verb != "delete" || !since(v) {
			continue
		}
		last, err := v.Decoded()
		if err != nil {
			return "whether it has finished since: " + err.Error(), true, nil
		}
		if why := runsAgain(last, one.kind); why != "" {
			return why, false, nil
		}
	}
	return "", false, nil
}

// notSurelyLater says why an object that seems newer than the moment must not be deleted. The object may have existed
// at the moment, if its older versions were removed by 'logplane forget'.
func (r *restore) notSurelyLater(ctx context.Context, one *pair) (string, error) {
	made := func(v history.Version) bool { return v.Verb == "create" }
	versions, err := r.live.Versions(ctx, one.now.GetNamespace(), one.reference().String(), url.Values{}, func(all []history.Version) bool {
		return slices.ContainsFunc(all, made) // versions come newest first
	})
	if err != nil && (ctx.Err() != nil || !isAboutKind(err)) {
		return "", err
	}
	if err != nil {
		return "whether it came later: " + reason(err), nil
	}
	if i := slices.IndexFunc(versions.Items, made); i < 0 || !history.IsAfter(versions.Items[i].Name, r.status.Revision) {
		return "what it was is not kept, and it may have been there: it is left alone", nil
	}
	return "", nil
}

// wanted returns the state that an existing object should get. A field stays as it is now if its value of the moment
// cannot be written again.
func (r *restore) wanted(ctx context.Context, one *pair, now *unstructured.Unstructured) (out *unstructured.Unstructured, notes []string, err error) {
	out = again(one.then, one.kind)
	is := again(now, one.kind)
	keep := func(fields ...string) {
		value, found, _ := unstructured.NestedFieldCopy(now.Object, fields...)
		if found {
			_ = unstructured.SetNestedField(out.Object, value, fields...) // the parents are objects in both
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
		for _, label := range jobLabels {
			keep("spec", "template", "metadata", "labels", label)
			if value, had := one.then.GetLabels()[label]; had {
				if value == string(one.then.GetUID()) {
					value = string(now.GetUID())
				}
				_ = unstructured.SetNestedField(out.Object, value, "metadata", "labels", label) // the object's labels are texts
			}
		}
	case secrets:
		keep("metadata", "annotations", corev1.ServiceAccountUIDKey)
	case volumes:
		keep("spec", "claimRef", "uid")
		keep("spec", "claimRef", "resourceVersion")
	}
	notes, err = r.owners.adopt(ctx, out)
	if apierrors.IsForbidden(err) { // the owners may have new uids that the user cannot read
		keep("metadata", "ownerReferences")
		return out, []string{"its owners are as they are now: " + reason(err)}, nil
	}
	// A reference of the live object to an owner that does not exist is not a difference by itself: the garbage
	// collector handles such a reference.
	if is := now.GetOwnerReferences(); len(notes) > 0 && len(one.then.GetOwnerReferences()) == len(is) {
		isNew := func(r metav1.OwnerReference) bool {
			return !slices.ContainsFunc(is, func(n metav1.OwnerReference) bool { return n.UID == r.UID })
		}
		goes := func(n metav1.OwnerReference) bool { return r.pruned[n.UID] }
		same := out.DeepCopy()
		same.SetOwnerReferences(is)
		if !slices.ContainsFunc(out.GetOwnerReferences(), isNew) && !slices.ContainsFunc(is, goes) && reflect.DeepEqual(same.Object, cleaned(now, one.kind).Object) {
			return same, nil, nil
		}
	}
	return out, notes, err
}

// ownsWhatStays returns an error if the deletion of this owner would also delete an object that existed at the moment.
// The owner itself is newer than the moment.
func (r *restore) ownsWhatStays(ctx context.Context, owner *unstructured.Unstructured) error {
	for _, d := range r.dependents[owner.GetUID()] {
		object, err := r.live.Get(ctx, d.kind, d.namespace, d.name)
		if err != nil {
			return err
		}
		if object != nil && slices.ContainsFunc(object.GetOwnerReferences(), func(o metav1.OwnerReference) bool { return o.UID == owner.GetUID() }) {
			return refuse(http.StatusConflict, "it owns %s/%s, which was there at the moment and would go with it", d.kind.GroupResource(), d.name)
		}
	}
	return nil
}

// errMeanwhile says that an object has changed since the plan was computed.
var errMeanwhile = refuse(http.StatusConflict, "somebody else has changed it meanwhile: run this again")

// write carries out the plan for one object, if the object has not changed since it was compared. A new status does not
// count as a change.
func (r *restore) write(ctx context.Context, one *pair, done *history.PlanChange) error {
	object := one.either()
	now, err := r.live.Get(ctx, one.kind, object.GetNamespace(), object.GetName())
	if err != nil {
		return err
	}
	to := r.live.Objects(one.kind, object.GetNamespace())
	switch {
	case now == nil && one.then == nil: // already gone
		return nil
	case now == nil && one.now == nil:
		if err := r.create(ctx, one.kind, one.then, again(one.then, one.kind), done); err != nil {
			return r.whyNotMade(done.Object, err)
		}
		if one.kind.GroupResource() == namespaces {
			r.made[object.GetName()] = true
		}
		return nil
	case now == nil:
		return errMeanwhile
	}
	if one.now == nil {
		r.owners.known[idOf(now)] = now.GetUID()
		delete(r.owners.pending, idOf(now))
	}
	var wanted *unstructured.Unstructured
	if one.then != nil {
		var notes []string
		if wanted, notes, err = r.wanted(ctx, one, now); err != nil {
			return err
		}
		done.Notes = append(done.Notes, notes...)
		if reflect.DeepEqual(wanted.Object, cleaned(now, one.kind).Object) { // somebody else has already restored it
			done.Verb = ""
			return nil
		}
	}
	switch {
	case seen(now, one.kind) != done.Seen && (one.now != nil || !r.made[now.GetNamespace()] || !comesWithNamespace(done.Object)):
		return errMeanwhile
	case now.GetDeletionTimestamp() != nil:
		return refuse(http.StatusConflict, "it is being deleted: run this again when it is gone")
	case wanted == nil:
		if err := r.ownsWhatStays(ctx, now); err != nil {
			return err
		}
		return r.delete(ctx, one.kind, now)
	}
	_, err = to.Update(ctx, onto(now, wanted.Object, one.kind), metav1.UpdateOptions{FieldManager: r.config.UserAgent})
	return err
}
