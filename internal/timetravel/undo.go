package timetravel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/logplane/logplane/internal/apiserver/history"
)

// undoManager is the name by which an undo writes, also as its user agent. By that a later one knows it again.
const undoManager = "logplane-undo"

// mostTries is how often an object is read again because somebody else has written it meanwhile.
const mostTries = 5

// Undo says which changes to take back: one of an object, or all of a manager or user since a moment.
type Undo struct {
	Object, Revision     string
	Manager, User, Since string
	All                  bool
	Yes                  bool
}

// change is one event of an object. What is not there before or after it is none.
type change struct {
	version       *history.Version
	before, after any
	// last is the last state of an object that the change has deleted, or begun to delete.
	last *unstructured.Unstructured
	// deleting says that the change has only begun a deletion.
	deleting bool
}

// undoing is what is taken back of one object.
type undoing struct {
	object   history.Reference
	kind     kind
	changes  []change // newest first
	versions []history.Version
	// conflict says why nothing can be taken back.
	conflict string
}

// outcome is what an object shall become.
type outcome struct {
	verb     string // 'create', 'update', 'delete', or empty if there is nothing to do
	wanted   *unstructured.Unstructured
	last     *unstructured.Unstructured // of what is created, as it was in its former life
	fields   []string
	conflict string
}

// Undo takes changes back. What somebody else has changed since is a conflict: then the object is left alone.
func (t *Tool) Undo(ctx context.Context, u Undo) error {
	work, err := t.toUndo(ctx, u)
	if err != nil {
		return err
	}
	type planned struct {
		*undoing
		outcome
	}
	var plan []planned
	for _, one := range work {
		live, err := t.live(ctx, one)
		if err != nil {
			return err
		}
		plan = append(plan, planned{one, one.revert(live)})
	}
	plan = inOrder(plan, func(p planned) kind { return p.kind }, func(p planned) *unstructured.Unstructured { return p.asObject() })
	var deletes []planned // what needs others goes before them
	for i := len(plan) - 1; i >= 0; i-- {
		if plan[i].verb == "delete" {
			deletes = append(deletes, plan[i])
			plan = slices.Delete(plan, i, i+1)
		}
	}
	plan = append(plan, deletes...)
	writes, left := 0, 0
	for _, p := range plan {
		t.line("%s", t.undoLine(p.undoing, p.outcome))
		if p.outcome.conflict != "" {
			left++
		} else if p.verb != "" {
			writes++
		}
	}
	if writes > 0 {
		if err := t.confirm(ctx, u.Yes); err != nil {
			return err
		}
	}
	for _, p := range plan {
		if p.verb == "" || p.outcome.conflict != "" {
			continue
		}
		said, err := t.carryOut(ctx, p.undoing)
		if err != nil {
			left++
			said = fmt.Sprintf("leave %s: %v", t.title(p.object), err)
		}
		t.line("%s", said)
	}
	switch {
	case left > 0:
		return fmt.Errorf("%d of %d objects were left alone: 'history' and 'diff' show what stands against it", left, len(plan))
	case len(plan) == 0:
		t.line("no such change was made: nothing to do")
	}
	return nil
}

// asObject is a name and owners, for the order.
func (u *undoing) asObject() *unstructured.Unstructured {
	out := &unstructured.Unstructured{Object: map[string]any{}}
	for _, c := range u.changes {
		for _, state := range []any{c.before, c.after} {
			if fields, ok := state.(map[string]any); ok {
				out.Object = fields
			}
		}
	}
	if len(out.Object) == 0 {
		out.SetNamespace(u.object.Namespace)
		out.SetName(u.object.Name)
	}
	return out
}

// toUndo finds the changes, by object.
func (t *Tool) toUndo(ctx context.Context, u Undo) ([]*undoing, error) {
	if u.Object != "" {
		if u.Manager != "" || u.User != "" || u.Since != "" || u.All {
			return nil, errors.New("give an object, or --manager or --by with --since")
		}
		versions, err := t.contents(ctx, u.Object, t.Namespace, func(all []history.Version) bool {
			i := changeOf(all, u.Revision)
			return i >= 0 && i+1 < len(all) // with the version before
		})
		if err != nil {
			return nil, err
		}
		return t.ofOne(versions, u.Revision)
	}
	switch {
	case u.Manager == "" && u.User == "":
		return nil, errors.New("name what to take back: an object, or the changes of --manager or --by")
	case u.Since == "":
		return nil, errors.New("give --since with the moment from which on changes are taken back, such as 2h")
	case u.Revision != "":
		return nil, errors.New("--revision names a change of an object: name the object, too")
	}
	since, err := t.pin(ctx, u.Since)
	if apierrors.HasStatusCause(err, history.CauseYounger) {
		since, err = u.Since, nil // from the cell's beginning on
	}
	if err != nil {
		return nil, err
	}
	namespace, which := t.Namespace, fields.Set{"from": since}
	if u.All {
		namespace = ""
	}
	if u.Manager != "" {
		which["manager"] = u.Manager
	}
	if u.User != "" {
		which["user"] = u.User
	}
	list, err := t.changes(ctx, namespace, which, "")
	if err != nil {
		return nil, err
	}
	return t.ofMany(ctx, list.Items, u.Manager == undoManager)
}

// changeOf is the place of the change that is named, or of the last one that a user has made; -1 if it is not there.
func changeOf(versions []history.Version, revision string) int {
	return slices.IndexFunc(versions, func(v history.Version) bool {
		return revision != "" && v.Name == revision || revision == "" && !isUndo(&v) && !isStatus(&v)
	})
}

// ofOne takes back one change.
func (t *Tool) ofOne(versions []history.Version, revision string) ([]*undoing, error) {
	object := versions[0].Object
	if i := changeOf(versions, revision); i >= 0 {
		if revision == "" && versions[i].Verb == "create" {
			return nil, fmt.Errorf("the last change of %s is that it was made, and to take that back is to delete it: give --revision %s", t.title(object), versions[i].Name)
		}
		one, err := t.undoingOf(object, versions, []string{versions[i].Name})
		return []*undoing{one}, err
	}
	if revision != "" {
		return nil, fmt.Errorf("revision %s is none of %s, or is no longer kept: 'history' lists those that are", revision, t.title(object))
	}
	return nil, fmt.Errorf("no change of %s is kept that could be taken back: 'history' lists what is", t.title(object))
}

func isUndo(v *history.Version) bool { return v.UserAgent == undoManager }

// isStatus says that an update has changed nothing that an undo could write.
func isStatus(v *history.Version) bool {
	return v.Verb == "update" && v.Unreadable == "" && !slices.ContainsFunc(v.Changed, func(field string) bool {
		return field != "status" && !strings.HasPrefix(field, "status.") && !strings.HasPrefix(field, "status[")
	})
}

// ofMany groups changes by their objects. An undo takes back no other one, unless that is what was asked for.
func (t *Tool) ofMany(ctx context.Context, changes []history.Change, undos bool) ([]*undoing, error) {
	type id struct{ resource, namespace, name string }
	revisions, objects := map[id][]string{}, map[id]history.Reference{}
	var order []id
	for i := range changes {
		v := &changes[i].Version
		if isUndo(v) && !undos || isStatus(v) {
			continue
		}
		of := id{resourceOf(v.Object).String(), v.Object.Namespace, v.Object.Name}
		if revisions[of] == nil {
			order = append(order, of)
		}
		revisions[of] = append(revisions[of], v.Name)
		objects[of] = v.Object
	}
	var all []*undoing
	for _, of := range order {
		oldest := revisions[of][0]
		versions, err := t.contents(ctx, of.resource+"/"+of.name, of.namespace, func(all []history.Version) bool {
			return isAfter(oldest, all[len(all)-1].Name)
		})
		if err != nil {
			return nil, err
		}
		one, err := t.undoingOf(objects[of], versions, revisions[of])
		if err != nil {
			return nil, err
		}
		if len(one.changes) > 0 || one.conflict != "" {
			all = append(all, one)
		}
	}
	return all, nil
}

// undoingOf reads the objects before and after the changes of an object.
func (t *Tool) undoingOf(object history.Reference, versions []history.Version, revisions []string) (*undoing, error) {
	u := &undoing{object: object, versions: versions}
	byRevision := map[string]*history.Version{}
	ends := map[string]int{} // what began and ended in these changes has left nothing
	for i := range versions {
		v := &versions[i]
		byRevision[v.Name] = v
		if slices.Contains(revisions, v.Name) && v.Verb != "update" {
			ends[v.Object.UID]++
		}
	}
	version := ""
	for i := range versions {
		v := &versions[i]
		if !slices.Contains(revisions, v.Name) || ends[v.Object.UID] > 1 {
			continue
		}
		content, err := contentOf(v)
		if err != nil {
			u.conflict = err.Error()
			return u, nil
		}
		if of := content.GroupVersionKind().Version; version != of {
			if version != "" {
				u.conflict = fmt.Sprintf("it was stored as %s and then as %s: change it by hand", of, version)
				return u, nil
			}
			version = of
			if u.kind, err = t.servedNow(object, version); err != nil {
				u.conflict = err.Error()
				return u, nil
			}
		}
		c := change{version: v, before: none{}, after: none{}}
		switch v.Verb {
		case "delete":
			c.before, c.last = again(content, u.kind).Object, content
		case "create":
			c.after = cleaned(content, u.kind).Object
		default:
			c.after = cleaned(content, u.kind).Object
			before := byRevision[v.Before]
			if before == nil {
				u.conflict = fmt.Sprintf("what it was before revision %s is no longer kept", v.Name)
				return u, nil
			}
			was, err := contentOf(before)
			if err != nil {
				u.conflict = err.Error()
				return u, nil
			}
			c.before = cleaned(was, u.kind).Object
			c.last, c.deleting = was, was.GetDeletionTimestamp() == nil && content.GetDeletionTimestamp() != nil
		}
		u.changes = append(u.changes, c)
	}
	return u, nil
}

// live is the object as it is now, nil if it is not there.
func (t *Tool) live(ctx context.Context, u *undoing) (*unstructured.Unstructured, error) {
	if u.conflict != "" || len(u.changes) == 0 {
		return nil, nil
	}
	now, err := t.at("")
	if err != nil {
		return nil, err
	}
	return now.get(ctx, u.kind, u.object.Namespace, u.object.Name)
}

// revert computes what the object would be without the changes, newest first. It decides nothing by the history alone:
// what was taken back already, by an undo or by hand, is as it was before, and nothing is to do.
func (u *undoing) revert(live *unstructured.Unstructured) outcome {
	if u.conflict != "" {
		return outcome{conflict: u.conflict}
	}
	var is any = none{}
	if live != nil {
		is = cleaned(live, u.kind).Object
	}
	now := is
	var fields []string
	var last *unstructured.Unstructured
	for i := range u.changes {
		c := &u.changes[i]
		r := &reversal{undone: func(p path, value any) bool {
			return slices.ContainsFunc(u.changes[i+1:], func(older change) bool { return reflect.DeepEqual(p.of(older.before), value) })
		}}
		switch {
		case c.after == any(none{}) || c.deleting:
			switch {
			case now == any(none{}):
				if why := runsAgain(c.last, u.kind); why != "" {
					return outcome{conflict: why}
				}
				now, last, fields = c.before, c.last, append(fields, "")
			case c.deleting && live != nil && live.GetDeletionTimestamp() != nil:
				return outcome{conflict: "it is being deleted, which cannot be taken back: run this again when it is gone"}
			}
		case now == any(none{}):
			// Nothing is left of the change.
		case c.before == any(none{}):
			if problem := u.mayGo(c, now, is, live, r); problem != "" {
				return outcome{conflict: problem}
			}
			if reflect.DeepEqual(now, c.after) || !r.undone(nil, now) {
				now = none{}
			}
		default:
			now = r.value(nil, c.before, c.after, now)
			if len(r.conflicts) > 0 {
				return outcome{conflict: u.blame(c, r.conflicts)}
			}
			for _, p := range r.reverted {
				fields = append(fields, p.String())
			}
		}
	}
	out := outcome{fields: compact(fields), last: last}
	switch {
	case reflect.DeepEqual(now, is):
	case now == any(none{}):
		out.verb = "delete"
	case live == nil:
		out.verb, out.wanted = "create", again(&unstructured.Unstructured{Object: now.(map[string]any)}, u.kind)
	default:
		out.verb, out.wanted = "update", onto(live, now.(map[string]any), u.kind)
	}
	return out
}

// mayGo says why the object that a change has made must not be deleted.
func (u *undoing) mayGo(c *change, now, is any, live *unstructured.Unstructured, r *reversal) string {
	switch of := u.kind.GroupResource(); {
	case of == namespaces || of == definitions:
		return "deleting it would delete all that is in it: do that by hand"
	case reflect.DeepEqual(now, is) && live != nil && string(live.GetUID()) != c.version.Object.UID:
		if r.undone(nil, now) {
			return ""
		}
		return fmt.Sprintf("what was made at revision %s is gone, and another was made since", c.version.Name)
	case reflect.DeepEqual(now, c.after), r.undone(nil, now):
		return ""
	}
	for i := range u.versions {
		v := &u.versions[i]
		if v.Name == c.version.Name {
			return "" // only the control plane has written to it since
		}
		if !isStatus(v) && !ofControlPlane(v) && !isUndo(v) && !u.takesBack(v) {
			return fmt.Sprintf("it was changed since, at revision %s by %s, which would be lost", v.Name, v.Author())
		}
	}
	return ""
}

// takesBack says that a version is one of the changes.
func (u *undoing) takesBack(v *history.Version) bool {
	return slices.ContainsFunc(u.changes, func(c change) bool { return c.version == v })
}

// ofControlPlane says that a controller has written a version.
func ofControlPlane(v *history.Version) bool {
	return v.User == "system:kube-controller-manager" || v.User == "system:kube-scheduler" || strings.HasPrefix(v.User, "system:node:") ||
		strings.HasPrefix(v.User, "system:serviceaccount:kube-system:") || strings.HasPrefix(v.User, "system:logplane:")
}

// blame says which fields stand against an undo, and who else has changed the first of them last.
func (u *undoing) blame(c *change, conflicts []path) string {
	var names []string
	for _, p := range conflicts {
		names = append(names, p.String())
	}
	said := fmt.Sprintf("%s is not what revision %s left", shorten(names), c.version.Name)
	p := conflicts[0]
	for i := range u.versions {
		v := &u.versions[i]
		if v.Name == c.version.Name {
			break
		}
		if u.takesBack(v) { // what came before it stands against this
			continue
		}
		is, err := contentOf(v)
		if err != nil || i+1 >= len(u.versions) {
			continue
		}
		was, err := contentOf(&u.versions[i+1])
		if err == nil && !reflect.DeepEqual(p.of(was.Object), p.of(is.Object)) {
			return said + fmt.Sprintf(": %s changed it at revision %s", v.Author(), v.Name)
		}
	}
	return said
}

func compact(all []string) (out []string) {
	for _, name := range all {
		if name != "" && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// undoLine is a line of the plan.
func (t *Tool) undoLine(u *undoing, o outcome) string {
	name := t.title(u.object)
	var revisions []string
	for _, c := range u.changes {
		revisions = append(revisions, c.version.Name)
	}
	of := "revision "
	if len(revisions) > 1 {
		of = "revisions "
	}
	of += shorten(revisions)
	switch {
	case o.conflict != "":
		return fmt.Sprintf("leave %s: %s", name, o.conflict)
	case o.verb == "update":
		return fmt.Sprintf("revert %s: %s (%s)", name, cmp.Or(shorten(o.fields), "all"), of)
	case o.verb == "create":
		return fmt.Sprintf("create %s as it was before (%s)", name, of)
	case o.verb == "delete":
		return fmt.Sprintf("delete %s (%s)", name, of)
	}
	return fmt.Sprintf("%s is without the change already: nothing to do (%s)", name, of)
}

// carryOut writes an object once. What was computed from a version that is not the newest any more is computed again:
// so nothing that is written meanwhile is lost.
func (t *Tool) carryOut(ctx context.Context, u *undoing) (string, error) {
	now, err := t.at("")
	if err != nil {
		return "", err
	}
	to := now.objects(u.kind, u.object.Namespace)
	name := t.title(u.object)
	for range mostTries {
		live, err := t.live(ctx, u)
		if err != nil {
			return "", err
		}
		o := u.revert(live)
		if o.conflict != "" {
			return "", errors.New(o.conflict)
		}
		switch o.verb {
		case "":
			return name + " is without the change already: nothing to do", nil
		case "create":
			notes, err := newOwners(t.Client).adopt(ctx, o.wanted)
			if err != nil {
				return "", err
			}
			made, more, err := t.create(ctx, u.kind, o.wanted)
			if err == nil {
				return strings.Join(append([]string{fmt.Sprintf("%s was created, revision %s", name, made.GetResourceVersion())}, slices.Concat(notes, more, t.rebind(ctx, u.kind, o.last, made), contentsOf(u.kind, made.GetName()))...), "; "), nil
			}
			if !apierrors.IsAlreadyExists(err) {
				return "", t.whyNotMade(u.object, err)
			}
		case "update":
			written, err := to.Update(ctx, o.wanted, metav1.UpdateOptions{FieldManager: t.Manager})
			if err == nil {
				return fmt.Sprintf("%s was reverted, revision %s", name, written.GetResourceVersion()), nil
			}
			if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
				return "", err
			}
		case "delete":
			uid, revision := live.GetUID(), live.GetResourceVersion()
			err := to.Delete(ctx, u.object.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &revision}})
			if err == nil {
				return name + " was deleted", nil
			}
			if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
				return "", err
			}
		}
	}
	return "", fmt.Errorf("somebody else wrote it %d times meanwhile: run this again", mostTries)
}
