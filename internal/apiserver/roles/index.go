package roles

import (
	"context"
	"fmt"
	"strings"
	"sync"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/logplane/logplane/internal/apiserver/listers"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/cache"
)

// Index has a table of the ClusterRoleBindings, a table of the RoleBindings of each namespace in use, and the grants of
// the roles in use.
//
// Each question brings the index forward to the newest view. The question goes once through the events since the last
// question, and marks the objects that must be read again. So an answer is as new as the request, and costs only as
// much as the user's own bindings. The index does no work between two questions. It is safe for concurrent use.
type Index struct {
	// These indexers read the objects.
	roles, clusterRoles, roleBindings, clusterRoleBindings *listers.Indexer
	aggregated                                             aggregatedRoles

	mu      sync.Mutex // guards the fields below and the tables; never held during a read
	changes listers.Changes
	// cluster is the table of ClusterRoleBindings; namespaced has the tables of RoleBindings, by namespace.
	cluster    *table
	namespaced *cache.Cache[string, *table]
	// granted has the grants of roles; composed names the ClusterRoles in granted whose rules come from other roles.
	granted  *cache.Cache[roleName, *grant]
	composed map[roleName]bool
}

// roleName names a Role, or a ClusterRole if the namespace is empty.
type roleName struct{ namespace, name string }

// grant has the rules of a role, in a Role or a ClusterRole without other fields. Both are nil if there is no such
// role.
type grant struct {
	role        *rbacv1.Role
	clusterRole *rbacv1.ClusterRole
}

// forget drops everything, because anything may have changed. It requires mu.
func (i *Index) forget() {
	i.cluster.whole = true
	i.namespaced.Clear()
	i.granted.Clear()
	i.composed = map[roleName]bool{}
}

// forward goes through the events since the last question, and returns the newest view. It requires mu.
func (i *Index) forward() (*projection.View, error) { return i.changes.Forward(i.mark, i.forget) }

// mark makes sure that a row is read again before it is used. It requires mu.
func (i *Index) mark(row string) {
	if name, ok := strings.CutPrefix(row, i.roleBindings.Prefix()); ok {
		namespace, name, _ := strings.Cut(name, "/")
		if t, ok := i.namespaced.Get(namespace); ok {
			t.mark(name)
		}
	} else if name, ok := strings.CutPrefix(row, i.roles.Prefix()); ok {
		namespace, name, _ := strings.Cut(name, "/")
		i.granted.Remove(roleName{namespace, name})
	} else if name, ok := strings.CutPrefix(row, i.clusterRoleBindings.Prefix()); ok {
		i.cluster.mark(name)
	} else if name, ok := strings.CutPrefix(row, i.clusterRoles.Prefix()); ok {
		i.granted.Remove(roleName{"", name})
		for other := range i.composed {
			i.granted.Remove(other)
		}
		clear(i.composed)
	}
}

// Shrink drops most tables and grants, the least recently used first.
func (i *Index) Shrink() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.namespaced.Shrink()
	i.granted.Shrink()
}

// bindingsOf returns the RoleBindings of a namespace that may apply to the user, or the ClusterRoleBindings if the
// namespace is empty. They are sorted by name, and shared.
func (i *Index) bindingsOf(ctx context.Context, who user.Info, namespace string) ([]*binding, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	v, err := i.forward()
	if err != nil {
		return nil, err
	}
	wanted := v.Revision()
	for {
		t := i.tableOf(namespace)
		if t.holds(wanted) {
			return t.of(who), nil
		}
		if t.reading != nil {
			err = i.wait(ctx, t.reading)
		} else if err = i.read(ctx, t); err == nil {
			return t.of(who), nil // even if the table is too large to be kept
		}
		if err != nil {
			return nil, err
		}
	}
}

// tableOf returns the table of a namespace, or of the cluster if the namespace is empty. It requires mu.
func (i *Index) tableOf(namespace string) *table {
	if namespace == "" {
		return i.cluster
	}
	t, ok := i.namespaced.Get(namespace)
	if !ok {
		t = newTable(i.roleBindings, namespace)
		i.namespaced.Add(namespace, namespace, t, t.bytes)
	}
	return t
}

// wait returns when the request that reads the table is done. It requires mu, but releases mu while it waits.
func (i *Index) wait(ctx context.Context, reading <-chan struct{}) error {
	i.mu.Unlock()
	defer i.mu.Lock()
	select {
	case <-reading:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for bindings: %w", context.Cause(ctx))
	}
}

// read reads the marked bindings of a table. It requires mu, but releases mu while it reads.
func (i *Index) read(ctx context.Context, t *table) error {
	v, err := i.forward() // the view must contain every marked change
	if err != nil {
		return err
	}
	work := t.begin()
	defer func() { t.end(work) }() // after a panic the bindings must still be marked
	changes, err := func() (map[string]*binding, error) {
		i.mu.Unlock()
		defer i.mu.Lock()
		return work.read(ctx, v)
	}()
	if err != nil {
		return err
	}
	t.change(changes, work.whole)
	t.at, work.done = v.Revision(), true
	if kept, ok := i.namespaced.Get(t.namespace); ok && kept == t { // updates the table's size, which may have grown
		i.namespaced.Remove(t.namespace)
		i.namespaced.Add(t.namespace, t.namespace, t, t.bytes)
	}
	return nil
}

// grantOf returns the grant of a role. Callers share it.
func (i *Index) grantOf(ctx context.Context, name roleName) (*grant, error) {
	i.mu.Lock()
	v, err := i.forward()
	g, ok := i.granted.Get(name)
	i.mu.Unlock()
	if err != nil || ok {
		return g, err
	}
	g, size, composed, err := i.readRole(ctx, v, name)
	if err != nil {
		return nil, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.unchanged(v, name, composed) {
		i.granted.Add(name, name.namespace, g, int64(size))
		if composed {
			i.composed[name] = true
		}
	}
	return g, nil
}

// unchanged reports whether a role that was read from a view has not changed since, so that its grant may be kept. It
// requires mu.
func (i *Index) unchanged(v *projection.View, name roleName, composed bool) bool {
	newest, err := i.forward()
	if err != nil {
		return false
	}
	row, same := i.rowOf(name), true
	known := newest.Since(v.Revision(), func(changed string) {
		same = same && changed != row && (!composed || !strings.HasPrefix(changed, i.clusterRoles.Prefix()))
	})
	return known && same
}

func (i *Index) rowOf(name roleName) string {
	if name.namespace == "" {
		return i.clusterRoles.Prefix() + name.name
	}
	return i.roles.Prefix() + name.namespace + "/" + name.name
}

// grantOverhead is roughly how many bytes a role takes besides its rules, which take several times their encoded size.
const grantOverhead = 1 << 10

// readRole returns the grant of a role, about how many bytes it takes, and whether it is composed of other roles'
// rules.
func (i *Index) readRole(ctx context.Context, v *projection.View, name roleName) (g *grant, size int, composed bool, err error) {
	row, ok, err := v.Get(ctx, i.rowOf(name), v.Revision())
	if err != nil {
		return nil, 0, false, fmt.Errorf("read %s: %w", i.rowOf(name), err)
	}
	g, size = &grant{}, grantOverhead+4*len(row.Value)
	if !ok {
		return g, size, false, nil
	}
	rows := i.roles
	if name.namespace == "" {
		rows = i.clusterRoles
	}
	object, err := rows.Parse(ctx, row)
	if err != nil {
		return nil, 0, false, err
	}
	switch role := object.(type) {
	case *rbacv1.Role:
		g.role = &rbacv1.Role{Rules: role.Rules}
	case *rbacv1.ClusterRole:
		g.clusterRole, composed = &rbacv1.ClusterRole{}, role.AggregationRule != nil
		g.clusterRole.Rules, err = i.aggregated.rulesOf(role)
	}
	return g, size, composed, err
}
