package plans

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/logplane/logplane/internal/apiserver/history"
	"github.com/logplane/logplane/internal/merge"
	"github.com/logplane/logplane/internal/sides"
)

// UndoAgent is the user agent with which an undo writes. A later undo recognizes earlier undos by this user agent, so
// the server never records this user agent for a client.
const UndoAgent = "logplane-undo"

// undo takes changes back: one change of an object, or all changes of a manager or user since a moment. A later change
// of the same fields by somebody else is a conflict, and the object is left alone.
type undo struct {
	*planner
	history.PlanUndo
	kinds *sides.Catalog // the kinds that are served now
}

// change is one event of an object. before or after is merge.None if there was no object then.
type change struct {
	version       *history.Version
	before, after any
	// last is the last state of an object that the change has deleted, or begun to delete.
	last *unstructured.Unstructured
	// deleting says that the change has only begun a deletion.
	deleting bool
}

// undoing holds the changes of one object that are taken back.
type undoing struct {
	object   history.Reference
	kind     sides.Kind
	changes  []change // newest first
	versions []history.Version
	// schema is an example value of the kind, which carries the kind's schema.
	schema *typed.TypedValue
	// conflict says why nothing can be taken back.
	conflict string
}

// outcome is the state that an object should get.
type outcome struct {
	verb     string // 'create', 'update', 'delete', or empty if there is nothing to do
	wanted   *unstructured.Unstructured
	last     *unstructured.Unstructured // if the object is created: its last state before its deletion
	fields   []string
	conflict string
}

func (u *undo) compute(ctx context.Context) ([]*step, error) {
	var err error
	if u.kinds, err = u.live.Catalog(); err != nil {
		return nil, err
	}
	work, err := u.toUndo(ctx)
	if err != nil {
		return nil, err
	}
	var all []*step
	for _, one := range work {
		live, err := u.now(ctx, one)
		if err != nil {
			return nil, err
		}
		o := one.revert(live)
		s := &step{kind: one.kind, PlanChange: history.PlanChange{Object: one.object, Verb: o.verb, Fields: o.fields, Left: o.conflict}}
		for _, c := range one.changes {
			s.Revisions = append(s.Revisions, c.version.Name)
		}
		s.write = func(ctx context.Context, done *history.PlanChange) error { return u.write(ctx, one, done) }
		// Steps are ordered by the owners in the wanted state, or in the live object if the step deletes the object.
		if s.object = cmp.Or(o.wanted, live); s.object == nil { // nothing is written
			s.object = &unstructured.Unstructured{}
			s.object.SetNamespace(one.object.Namespace)
			s.object.SetName(one.object.Name)
		}
		all = append(all, s)
	}
	var steps, deletes []*step // deletes are reversed: an object is deleted before the objects that it needs
	for _, s := range inOrder(all, func(s *step) (sides.Kind, *unstructured.Unstructured) { return s.kind, s.object }) {
		if s.Verb == "delete" {
			deletes = append(deletes, s)
		} else {
			steps = append(steps, s)
		}
	}
	slices.Reverse(deletes)
	return append(steps, deletes...), nil
}

// write reads the object again, and writes the object as it would be without the changes.
func (u *undo) write(ctx context.Context, one *undoing, done *history.PlanChange) error {
	live, err := u.now(ctx, one)
	if err != nil {
		return err
	}
	o := one.revert(live)
	done.Verb = o.verb
	to := u.live.Objects(one.kind, one.object.Namespace)
	switch {
	case o.conflict != "":
		return refuse(http.StatusConflict, "%s", o.conflict)
	case o.verb == "create":
		if err := u.create(ctx, one.kind, o.last, o.wanted, done); err != nil {
			return u.whyNotMade(one.object, err)
		}
		if u.Object != "" { // an undo of all changes of a user also brings the contents back
			done.Notes = append(done.Notes, contentsOf(one.kind, one.object.Name)...)
		}
	case o.verb == "update":
		if !reflect.DeepEqual(o.wanted.GetOwnerReferences(), live.GetOwnerReferences()) { // the owner may have a new uid by now
			notes, err := u.owners.adopt(ctx, o.wanted)
			if err != nil {
				return err
			}
			done.Notes = append(done.Notes, notes...)
		}
		_, err = to.Update(ctx, o.wanted, metav1.UpdateOptions{FieldManager: UndoAgent})
	case o.verb == "delete":
		err = u.delete(ctx, one.kind, live)
	}
	return err
}

// whyNotMade explains the error of an object that could not be created.
func (p *planner) whyNotMade(object history.Reference, err error) error {
	switch {
	case apierrors.IsNotFound(err) && strings.Contains(err.Error(), "namespaces"):
		return refuse(http.StatusNotFound, "namespace '%s' is not there: 'undelete namespace/%s' makes it again", object.Namespace, object.Namespace)
	case apierrors.IsAlreadyExists(err):
		return refuse(http.StatusConflict, "it was made meanwhile: 'history' says by whom")
	}
	return err
}

// toUndo finds the changes, by object.
func (u *undo) toUndo(ctx context.Context) ([]*undoing, error) {
	if u.Object != "" {
		if u.Manager != "" || u.User != "" || u.Since != "" {
			return nil, apierrors.NewBadRequest("name an object, or a manager or a user with a moment since which, and not both")
		}
		if u.Revision = strings.TrimPrefix(u.Revision, "@"); strings.Trim(u.Revision, "0123456789") != "" {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("'%s' is not a revision: 'history' lists those of the object", u.Revision))
		}
		versions, err := u.contents(ctx, u.Object, u.namespace, func(all []history.Version) bool {
			i := u.changeOf(all)
			return i >= 0 && i+1 < len(all) // the versions include the version before the change
		})
		if err != nil {
			return nil, err
		}
		return u.ofOne(ctx, versions)
	}
	switch {
	case u.Manager == "" && u.User == "":
		return nil, apierrors.NewBadRequest("name what to take back: an object, or the changes of a manager or a user")
	case u.Since == "":
		return nil, apierrors.NewBadRequest("name the moment from which on changes are taken back, such as 2h")
	case u.Revision != "":
		return nil, apierrors.NewBadRequest("a revision is that of a change of an object: name the object, too")
	}
	list, err := u.live.Changes(ctx, u.namespace, fields.Set{"from": u.Since, "manager": u.Manager, "user": u.User}, "")
	if err != nil {
		return nil, err
	}
	return u.ofMany(ctx, list.Items, u.Manager == UndoAgent)
}

// changeOf returns the index of the change that the plan names, or else of the last change that a user has made; -1 if
// there is none.
func (u *undo) changeOf(versions []history.Version) int {
	return slices.IndexFunc(versions, func(v history.Version) bool {
		return u.Revision != "" && v.Name == u.Revision || u.Revision == "" && !isUndo(&v) && !isStatus(&v, u.kindOf(&v))
	})
}

// kindOf returns the kind of a version as it is served now. A kind that is not served is taken to have a status.
func (u *undo) kindOf(v *history.Version) sides.Kind {
	if k, ok := u.kinds.Of(v.Object.GroupResource()); ok {
		return k
	}
	return sides.Kind{HasStatus: true}
}

// ofOne takes back one change.
func (u *undo) ofOne(ctx context.Context, versions []history.Version) ([]*undoing, error) {
	object, revision := versions[0].Object, u.Revision
	if i := u.changeOf(versions); i >= 0 {
		if revision == "" && versions[i].Verb == "create" {
			return nil, refuse(http.StatusConflict, "the last change of %s is that it was made, and to take that back is to delete it: "+
				"name revision %s", object.In(u.namespace), versions[i].Name)
		}
		one, err := u.undoingOf(ctx, object, versions, []string{versions[i].Name})
		return []*undoing{one}, err
	}
	if revision != "" {
		return nil, refuse(http.StatusNotFound, "revision %s is none of %s, or is no longer kept: 'history' lists those that are", revision, object.In(u.namespace))
	}
	return nil, refuse(http.StatusNotFound, "no change of %s is kept that could be taken back: 'history' lists what is", object.In(u.namespace))
}

func isUndo(v *history.Version) bool { return v.UserAgent == UndoAgent }

// isStatus says that an update has changed only the status, which an undo cannot write.
func isStatus(v *history.Version, k sides.Kind) bool {
	return v.Verb == "update" && v.Unreadable == "" && !slices.ContainsFunc(v.Changed, func(field string) bool {
		return !k.HasStatus || field != "status" && !strings.HasPrefix(field, "status.") && !strings.HasPrefix(field, "status[")
	})
}

// ofMany groups changes by their objects. An undo takes back other undos only if the client asks for that. IPAddresses
// are skipped because they are written with their Services: a Service that stays must keep its address.
func (u *undo) ofMany(ctx context.Context, changes []history.Change, undos bool) ([]*undoing, error) {
	type id struct{ resource, namespace, name string }
	revisions, objects := map[id][]string{}, map[id]history.Reference{}
	var order []id
	for i := range changes {
		v := &changes[i].Version
		if isUndo(v) && !undos || isStatus(v, u.kindOf(v)) || v.Object.GroupResource() == ipAddresses ||
			v.Verb == "create" && comesWithNamespace(v.Object) {
			continue
		}
		of := id{v.Object.GroupResource().String(), v.Object.Namespace, v.Object.Name}
		if revisions[of] == nil {
			order = append(order, of)
		}
		revisions[of] = append(revisions[of], v.Name)
		objects[of] = v.Object
	}
	var all []*undoing
	for _, of := range order {
		oldest := revisions[of][0]
		versions, err := u.contents(ctx, of.resource+"/"+of.name, of.namespace, func(all []history.Version) bool {
			return history.IsAfter(oldest, all[len(all)-1].Name)
		})
		if err != nil {
			return nil, err
		}
		one, err := u.undoingOf(ctx, objects[of], versions, revisions[of])
		if err != nil {
			return nil, err
		}
		if len(one.changes) > 0 || one.conflict != "" {
			all = append(all, one)
		}
	}
	return all, nil
}

// undoingOf reads an object's states before and after its changes.
func (u *undo) undoingOf(ctx context.Context, object history.Reference, versions []history.Version, revisions []string) (*undoing, error) {
	one := &undoing{object: object, versions: versions}
	byRevision := map[string]*history.Version{}
	ends := map[string]int{} // an object that these changes both created and deleted is skipped
	for i := range versions {
		v := &versions[i]
		byRevision[v.Name] = v
		if slices.Contains(revisions, v.Name) && v.Verb != "update" {
			ends[v.Object.UID]++
		}
	}
	version := ""
	// States in two versions cannot be compared: a conversion would lose fields that only one version has.
	moved := func(older, newer string) bool {
		if older != newer {
			one.conflict = fmt.Sprintf("it was stored as %s and then as %s: change it by hand", older, newer)
		}
		return older != newer
	}
	for i := range versions {
		v := &versions[i]
		if !slices.Contains(revisions, v.Name) || ends[v.Object.UID] > 1 {
			continue
		}
		content, err := v.Decoded()
		if err != nil {
			one.conflict = err.Error()
			return one, nil
		}
		if of := content.GroupVersionKind().Version; version != of {
			if version != "" && moved(of, version) {
				return one, nil
			}
			version = of
			if newest, err := versions[0].Decoded(); err == nil && versions[0].Verb != "delete" && moved(of, newest.GroupVersionKind().Version) {
				return one, nil
			}
			if one.kind, one.conflict, err = u.servedNow(object, version); err != nil || one.conflict != "" {
				return one, err
			}
			if one.schema, err = u.schemaOf(ctx, one.kind); err != nil {
				return nil, err
			}
		}
		c := change{version: v, before: merge.None{}, after: merge.None{}}
		switch v.Verb {
		case "delete":
			c.before, c.last = again(content, one.kind).Object, content
		case "create":
			c.after = cleaned(content, one.kind).Object
		default:
			c.after = cleaned(content, one.kind).Object
			before := byRevision[v.Before]
			if before == nil {
				one.conflict = fmt.Sprintf("what it was before revision %s is no longer kept", v.Name)
				return one, nil
			}
			was, err := before.Decoded()
			if err != nil {
				one.conflict = err.Error()
				return one, nil
			}
			if moved(was.GroupVersionKind().Version, version) {
				return one, nil
			}
			c.before = cleaned(was, one.kind).Object
			c.last, c.deleting = was, was.GetDeletionTimestamp() == nil && content.GetDeletionTimestamp() != nil
		}
		one.changes = append(one.changes, c)
	}
	return one, nil
}

// now returns the live object, nil if there is none.
func (u *undo) now(ctx context.Context, one *undoing) (*unstructured.Unstructured, error) {
	if one.conflict != "" || len(one.changes) == 0 {
		return nil, nil
	}
	return u.live.Get(ctx, one.kind, one.object.Namespace, one.object.Name)
}

// revert computes the state that the object would have without the changes. It takes the newest change back first. It
// compares with the live object and does not rely on the history alone: a change that was already taken back, by an
// undo or by hand, needs no step.
func (u *undoing) revert(live *unstructured.Unstructured) outcome {
	if u.conflict != "" {
		return outcome{conflict: u.conflict}
	}
	var is any = merge.None{}
	if live != nil {
		is = cleaned(live, u.kind).Object
	}
	now := is
	changes := slices.Clone(u.changes)
	for i := range changes {
		changes[i].before, changes[i].after = withOwnersOf(live, changes[i].before), withOwnersOf(live, changes[i].after)
	}
	var fields []string
	var last *unstructured.Unstructured
	for i := range changes {
		c := &changes[i]
		r := &merge.Reversal{Type: u.schema, Undone: func(p merge.Path, value any) bool {
			return slices.ContainsFunc(changes[i+1:], func(older change) bool { return reflect.DeepEqual(p.Of(older.before), value) })
		}}
		switch {
		case c.after == any(merge.None{}) || c.deleting:
			switch {
			case now == any(merge.None{}):
				if why := runsAgain(c.last, u.kind); why != "" {
					return outcome{conflict: why}
				}
				now, last, fields = c.before, c.last, append(fields, "")
			case c.deleting && live != nil && live.GetDeletionTimestamp() != nil:
				return outcome{conflict: "it is being deleted, which cannot be taken back: run this again when it is gone"}
			}
		case now == any(merge.None{}):
			// Nothing is left of the change.
		case c.before == any(merge.None{}):
			if problem := u.mayGo(c, now, is, live, r); problem != "" {
				return outcome{conflict: problem}
			}
			if reflect.DeepEqual(now, c.after) || !r.Undone(nil, now) {
				now = merge.None{}
			}
		default:
			now = r.Object(c.before, c.after, now)
			if len(r.Conflicts) > 0 {
				return outcome{conflict: u.blame(c, r.Conflicts)}
			}
			for _, p := range r.Reverted {
				if name := p.String(); !slices.Contains(fields, name) {
					fields = append(fields, name)
				}
			}
		}
	}
	if slices.Contains(fields, "") { // the whole object
		fields = nil
	}
	out := outcome{fields: fields, last: last}
	switch {
	case reflect.DeepEqual(now, is):
	case now == any(merge.None{}):
		out.verb = "delete"
	case live == nil:
		out.verb, out.wanted = "create", again(&unstructured.Unstructured{Object: now.(map[string]any)}, u.kind)
	default:
		out.verb, out.wanted = "update", onto(live, now.(map[string]any), u.kind)
	}
	return out
}

// withOwnersOf returns a state whose owner references have the live object's uids for owners of the same name: an owner
// that was made again counts as the same owner.
func withOwnersOf(live *unstructured.Unstructured, state any) any {
	fields, ok := state.(map[string]any)
	if live == nil || !ok {
		return state
	}
	is := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(fields)}
	owners := is.GetOwnerReferences()
	for i, o := range owners {
		same := func(n metav1.OwnerReference) bool {
			return n.APIVersion == o.APIVersion && n.Kind == o.Kind && n.Name == o.Name
		}
		if j := slices.IndexFunc(live.GetOwnerReferences(), same); j >= 0 {
			owners[i].UID = live.GetOwnerReferences()[j].UID
		}
	}
	is.SetOwnerReferences(owners)
	return is.Object
}

// mayGo says why the object that a change has made must not be deleted.
func (u *undoing) mayGo(c *change, now, is any, live *unstructured.Unstructured, r *merge.Reversal) string {
	switch of := u.kind.GroupResource(); {
	case of == namespaces || of == definitions:
		return "deleting it would delete all that is in it: do that by hand"
	case reflect.DeepEqual(now, is) && live != nil && string(live.GetUID()) != c.version.Object.UID:
		if r.Undone(nil, now) {
			return ""
		}
		return fmt.Sprintf("what was made at revision %s is gone, and another was made since", c.version.Name)
	case reflect.DeepEqual(now, c.after), r.Undone(nil, now):
		return ""
	}
	for i := range u.versions {
		v := &u.versions[i]
		if v.Name == c.version.Name {
			return "" // only the control plane and undos have written since
		}
		if !isStatus(v, u.kind) && !ofControlPlane(v) && !isUndo(v) && !u.takesBack(v) {
			return fmt.Sprintf("it was changed since, at revision %s by %s, which would be lost", v.Name, v.Author())
		}
	}
	return ""
}

// takesBack says that a version is one of the changes that are taken back.
func (u *undoing) takesBack(v *history.Version) bool {
	return slices.ContainsFunc(u.changes, func(c change) bool { return c.version == v })
}

// ofControlPlane says that a controller has written a version.
func ofControlPlane(v *history.Version) bool {
	return v.User == "system:kube-controller-manager" || v.User == "system:kube-scheduler" || strings.HasPrefix(v.User, "system:node:") ||
		strings.HasPrefix(v.User, "system:serviceaccount:kube-system:") || strings.HasPrefix(v.User, "system:logplane:")
}

// blame says which fields conflict with an undo, and which other writer last changed the first of these fields.
func (u *undoing) blame(c *change, conflicts []merge.Path) string {
	var names []string
	for _, p := range conflicts {
		names = append(names, p.String())
	}
	said := fmt.Sprintf("%s is not what revision %s left", history.Shorten(names), c.version.Name)
	p := conflicts[0]
	for i := range u.versions {
		v := &u.versions[i]
		if v.Name == c.version.Name {
			break
		}
		if u.takesBack(v) { // the conflict is with an earlier version
			continue
		}
		is, err := v.Decoded()
		if err != nil || i+1 >= len(u.versions) {
			continue
		}
		was, err := u.versions[i+1].Decoded()
		if err == nil && !reflect.DeepEqual(p.Of(was.Object), p.Of(is.Object)) {
			return said + fmt.Sprintf(": %s changed it at revision %s", v.Author(), v.Name)
		}
	}
	return said
}
