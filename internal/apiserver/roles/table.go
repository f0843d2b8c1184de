package roles

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/logplane/logplane/internal/apiserver/listers"
	"github.com/logplane/logplane/projection"
)

// table holds the RoleBindings of a namespace, or all ClusterRoleBindings, by the subjects that they bind. The index's
// lock guards it.
type table struct {
	rows *listers.Indexer
	// namespace is empty for the cluster; prefix is the rows' prefix.
	namespace, prefix string

	byName map[string]*binding // nil until the first read
	// users and groups hold the bindings of each subject, sorted by name. An element of a list is never overwritten,
	// because answers share the list.
	users, groups map[string][]*binding
	// bytes is roughly the memory that the table takes.
	bytes int64

	// at is the revision of the view that the table was last read from.
	at projection.Revision
	// stale has the names that must be read again; whole says that all names must be read again.
	stale map[string]bool
	whole bool
	// reading is closed when the request that reads the table is done. It is nil while no request reads it.
	reading chan struct{}
}

// binding holds the parts of one binding that authorization needs.
type binding struct {
	name     string
	subjects []rbacv1.Subject
	role     rbacv1.RoleRef
	// object is a RoleBinding or a ClusterRoleBinding with only the fields that authorization looks at.
	object any
	bytes  int64
}

// Roughly how many bytes tables and bindings take, besides the encoded objects.
const (
	tableOverhead   = 1 << 10
	bindingOverhead = 600
	subjectOverhead = 150
)

func newTable(rows *listers.Indexer, namespace string) *table {
	t := &table{rows: rows, namespace: namespace, prefix: rows.Prefix(), bytes: tableOverhead}
	if namespace != "" {
		t.prefix += namespace + "/"
	}
	return t
}

// manyStale bounds the names of a small table that are read one by one.
const manyStale = 1000

// mark makes sure that a name is read again.
func (t *table) mark(name string) {
	if t.whole || t.byName == nil && t.reading == nil {
		return // the name will be read anyway
	}
	if t.stale == nil {
		t.stale = map[string]bool{}
	}
	t.stale[name] = true
	if len(t.stale) > manyStale+len(t.byName) {
		t.whole, t.stale = true, nil
	}
}

// holds reports whether the table is up to date at a revision. The index must have gone through the events up to that
// revision.
func (t *table) holds(wanted projection.Revision) bool {
	return t.byName != nil && (t.at >= wanted || t.reading == nil && !t.whole && len(t.stale) == 0)
}

// reread holds the names in a table that one request has to read again.
type reread struct {
	rows   *listers.Indexer
	prefix string
	names  map[string]bool
	whole  bool
	done   bool
}

// begin takes the marked names from the table. The caller must call end.
func (t *table) begin() *reread {
	r := &reread{rows: t.rows, prefix: t.prefix, names: t.stale, whole: t.whole || t.byName == nil}
	t.reading, t.stale, t.whole = make(chan struct{}), nil, false
	return r
}

// end marks again the names that were not read.
func (t *table) end(r *reread) {
	close(t.reading)
	t.reading = nil
	if r.done {
		return
	}
	t.whole = t.whole || r.whole
	for name := range r.names {
		t.mark(name)
	}
}

// read returns the bindings by name, nil for a binding that is gone.
func (r *reread) read(ctx context.Context, v *projection.View) (map[string]*binding, error) {
	found := map[string]*binding{}
	if r.whole {
		for row, err := range listers.Rows(ctx, v, r.prefix) {
			if err != nil {
				return nil, err
			}
			if found[row.Key[len(r.prefix):]], err = r.binding(ctx, row); err != nil {
				return nil, err
			}
		}
		return found, nil
	}
	for name := range r.names {
		row, ok, err := v.Get(ctx, r.prefix+name, v.Revision())
		if err != nil {
			return nil, err
		}
		found[name] = nil
		if ok {
			if found[name], err = r.binding(ctx, row); err != nil {
				return nil, err
			}
		}
	}
	return found, nil
}

// binding returns nil for an object that cannot be decoded. Such an object binds nobody, and must not affect the other
// bindings.
func (r *reread) binding(ctx context.Context, row projection.Row) (*binding, error) {
	object, err := r.rows.Parse(ctx, row)
	if listers.IsUndecodable(err) {
		r.rows.LeaveOut(ctx, row, err)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return newBinding(object, len(row.Value)), nil
}

func newBinding(object runtime.Object, encoded int) *binding {
	b := &binding{}
	switch o := object.(type) {
	case *rbacv1.RoleBinding:
		b.name, b.subjects, b.role = o.Name, o.Subjects, o.RoleRef
		b.object = &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: o.Name, Namespace: o.Namespace}, Subjects: o.Subjects, RoleRef: o.RoleRef}
	case *rbacv1.ClusterRoleBinding:
		b.name, b.subjects, b.role = o.Name, o.Subjects, o.RoleRef
		b.object = &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: o.Name}, Subjects: o.Subjects, RoleRef: o.RoleRef}
	}
	b.bytes = bindingOverhead + int64(encoded) + subjectOverhead*int64(len(b.subjects))
	return b
}

// change replaces bindings by the bindings that were read: all bindings, or only the bindings with the names in read.
func (t *table) change(read map[string]*binding, whole bool) {
	if whole {
		t.byName, t.users, t.groups = map[string]*binding{}, map[string][]*binding{}, map[string][]*binding{}
		t.bytes = tableOverhead
	}
	for _, name := range slices.Sorted(maps.Keys(read)) { // so that each list grows at its end
		b := read[name]
		if old := t.byName[name]; old != nil {
			t.remove(old)
		}
		if b != nil {
			t.add(b)
		}
	}
}

// add adds a binding. The table must not have a binding of that name.
func (t *table) add(b *binding) {
	t.byName[b.name] = b
	t.bytes += b.bytes
	t.eachSubject(b, func(of map[string][]*binding, subject string) {
		list := of[subject]
		at, there := slices.BinarySearchFunc(list, b.name, byName)
		switch {
		case there: // the binding names the subject twice
		case at == len(list): // answers that share the list do not look beyond its end
			of[subject] = append(list, b)
		default:
			of[subject] = slices.Insert(slices.Clone(list), at, b)
		}
	})
}

func (t *table) remove(b *binding) {
	delete(t.byName, b.name)
	t.bytes -= b.bytes
	t.eachSubject(b, func(of map[string][]*binding, subject string) {
		list := of[subject]
		at, there := slices.BinarySearchFunc(list, b.name, byName)
		switch {
		case there && len(list) == 1:
			delete(of, subject)
		case there:
			of[subject] = slices.Delete(slices.Clone(list), at, at+1)
		}
	})
}

func byName(b *binding, name string) int { return strings.Compare(b.name, name) }

// eachSubject calls f with the map and the key of each of the binding's subjects. It identifies subjects as upstream
// does: a service account by its user name, with the binding's namespace if the subject names none.
func (t *table) eachSubject(b *binding, f func(of map[string][]*binding, subject string)) {
	for _, s := range b.subjects {
		switch s.Kind {
		case rbacv1.UserKind:
			f(t.users, s.Name)
		case rbacv1.GroupKind:
			f(t.groups, s.Name)
		case rbacv1.ServiceAccountKind:
			if namespace := cmp.Or(s.Namespace, t.namespace); namespace != "" {
				f(t.users, serviceaccount.MakeUsername(namespace, s.Name))
			}
		}
	}
}

// of returns the bindings that name the user or one of the user's groups, sorted by name. If there are many, it returns
// only the first binding to each role, since the other bindings grant the same. The list is shared.
func (t *table) of(who user.Info) []*binding {
	found, several := t.users[who.GetName()], false
	for _, group := range who.GetGroups() {
		switch more := t.groups[group]; {
		case len(more) == 0:
		case len(found) == 0:
			found = more
		default:
			found, several = append(slices.Clip(found), more...), true
		}
	}
	if several {
		slices.SortFunc(found, func(a, b *binding) int { return strings.Compare(a.name, b.name) })
		found = slices.Compact(found)
	}
	if len(found) > manyBindings {
		return distinctRoles(found)
	}
	return found
}

// manyBindings is how many bindings a user may have before only the first binding to each role is returned.
const manyBindings = 16

func distinctRoles(found []*binding) (distinct []*binding) {
	seen := map[rbacv1.RoleRef]bool{}
	for _, b := range found {
		if !seen[b.role] {
			seen[b.role] = true
			distinct = append(distinct, b)
		}
	}
	return distinct
}
