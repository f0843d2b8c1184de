package apiserver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/registry/rbac/validation"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// withoutIndex is upstream's resolver with upstream's getters and listers, over everything there is.
func withoutIndex(s *Server) *validation.DefaultRuleResolver {
	v1 := s.informers.Rbac().V1()
	return validation.NewDefaultRuleResolver(&rbac.RoleGetter{Lister: v1.Roles().Lister()}, &rbac.RoleBindingLister{Lister: v1.RoleBindings().Lister()},
		resolvedRoles{s}, &rbac.ClusterRoleBindingLister{Lister: v1.ClusterRoleBindings().Lister()})
}

// resolvedRoles are ClusterRoles with their aggregated rules.
type resolvedRoles struct{ *Server }

func (r resolvedRoles) GetClusterRole(_ context.Context, name string) (*rbacv1.ClusterRole, error) {
	role, err := r.informers.Rbac().V1().ClusterRoles().Lister().Get(name)
	if err != nil {
		return nil, err
	}
	rules, err := r.rules.aggregated.rulesOf(role)
	return &rbacv1.ClusterRole{Rules: rules}, err
}

// visited is every rule and error that a resolver comes by, with where each is from.
func visited(ctx context.Context, r validation.AuthorizationRuleResolver, who user.Info, namespace string) (all []string) {
	r.VisitRulesFor(ctx, who, namespace, func(source fmt.Stringer, rule *rbacv1.PolicyRule, err error) bool {
		if err != nil {
			all = append(all, err.Error())
		} else {
			all = append(all, fmt.Sprint(source, " ", rule))
		}
		return true
	})
	return all
}

// twoServers are two processes of one cell with little room in the root, and a projector's view of it.
func twoServers(t testing.TB, change ...func(*Config)) (one, other *Server, projector *projection.Projection) {
	t.Helper()
	log, bucket := eventlogtest.Log(t), memory.New()
	process := func() kubestore.Cell {
		p, err := projection.Open(projection.Config{Log: log, Bucket: bucket, InlineBytes: 3000})
		require.NoError(t, err)
		return kubestore.Cell{Log: log, Projection: p, Cluster: "main", Objects: kubestore.NewObjects(1 << 20)}
	}
	server := func() *Server {
		c := Config{Cell: process()}
		for _, f := range change {
			f(&c)
		}
		s, err := New(c)
		require.NoError(t, err)
		return s
	}
	return server(), server(), process().Projection
}

// TestIndexIsExact: whatever is written, committed and cut off the tail, upstream's resolver comes by the same rules and errors in
// the same order as with lists of everything, on a process that is asked often and on one that is asked seldom.
func TestIndexIsExact(t *testing.T) {
	often, seldom, projector := twoServers(t)
	r := rand.New(rand.NewPCG(1, 2))
	pick := func(from ...string) string { return from[r.IntN(len(from))] }
	namespaces := []string{"red", "green"}
	for _, name := range namespaces {
		often.must(t, 201, request{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"` + name + `"}}`})
	}
	subjects := func() (all []rbacv1.Subject) {
		for range r.IntN(4) {
			switch r.IntN(3) {
			case 0:
				all = append(all, rbacv1.Subject{Kind: "User", APIGroup: rbacv1.GroupName, Name: pick("ann", "bob", "system:serviceaccount:red:builder")})
			case 1:
				all = append(all, rbacv1.Subject{Kind: "Group", APIGroup: rbacv1.GroupName, Name: pick("users", "admins")})
			case 2:
				all = append(all, rbacv1.Subject{Kind: "ServiceAccount", Name: "builder", Namespace: pick(namespaces...)})
			}
		}
		return all
	}
	rules := func() []rbacv1.PolicyRule {
		return []rbacv1.PolicyRule{{Verbs: []string{pick("get", "list", "watch")}, APIGroups: []string{""}, Resources: []string{fmt.Sprint("r", r.IntN(1000))}}}
	}
	// step writes one object at random; a role's name may be that of no role, and its rules those of others.
	step := func() error {
		api, name := often.client.RbacV1(), metav1.ObjectMeta{Name: fmt.Sprint("x", r.IntN(12)), Namespace: pick(namespaces...)}
		ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: pick("Role", "ClusterRole"), Name: fmt.Sprint("x", r.IntN(12))}
		kind, gone := r.IntN(4), r.IntN(3) == 0
		var err error
		switch {
		case kind == 0 && gone:
			err = api.Roles(name.Namespace).Delete(t.Context(), name.Name, metav1.DeleteOptions{})
		case kind == 0:
			role := &rbacv1.Role{ObjectMeta: name, Rules: rules()}
			if _, err = api.Roles(name.Namespace).Create(t.Context(), role, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
				_, err = api.Roles(name.Namespace).Update(t.Context(), role, metav1.UpdateOptions{})
			}
		case kind == 1 && gone:
			err = api.RoleBindings(name.Namespace).Delete(t.Context(), name.Name, metav1.DeleteOptions{})
		case kind == 1:
			b := &rbacv1.RoleBinding{ObjectMeta: name, RoleRef: ref, Subjects: subjects()}
			if _, err = api.RoleBindings(name.Namespace).Create(t.Context(), b, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
				old, got := api.RoleBindings(name.Namespace).Get(t.Context(), name.Name, metav1.GetOptions{})
				require.NoError(t, got)
				b.RoleRef = old.RoleRef
				_, err = api.RoleBindings(name.Namespace).Update(t.Context(), b, metav1.UpdateOptions{})
			}
		case kind == 2 && gone:
			err = api.ClusterRoles().Delete(t.Context(), name.Name, metav1.DeleteOptions{})
		case kind == 2:
			role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name.Name, Labels: map[string]string{"part": pick("of-a", "of-b")}}, Rules: rules()}
			if r.IntN(3) == 0 {
				role.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"part": pick("of-a", "of-b")}}}}
			}
			if _, err = api.ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
				_, err = api.ClusterRoles().Update(t.Context(), role, metav1.UpdateOptions{})
			}
		case gone:
			err = api.ClusterRoleBindings().Delete(t.Context(), name.Name, metav1.DeleteOptions{})
		default:
			ref.Kind = "ClusterRole"
			_, err = api.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name.Name}, RoleRef: ref, Subjects: subjects()}, metav1.CreateOptions{})
		}
		if apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	}
	who := []user.Info{
		&user.DefaultInfo{Name: "ann", Groups: []string{"users", "admins"}},
		&user.DefaultInfo{Name: "bob", Groups: []string{"users", "users"}},
		&user.DefaultInfo{Name: "system:serviceaccount:red:builder"},
		&user.DefaultInfo{Name: "nobody"},
	}
	rulesSeen := 0
	for n := range 600 {
		require.NoError(t, step())
		if n%7 == 0 {
			_, err := projector.Commit(t.Context())
			require.NoError(t, err)
		}
		s := often
		if r.IntN(20) == 0 { // whose view then has no events of what it has missed
			s = seldom
			_, err := s.config.Cell.Projection.Commit(t.Context())
			require.NoError(t, err)
		}
		_, err := s.config.Cell.Projection.Latest(t.Context())
		require.NoError(t, err)
		resolver := newRBACResolver(s.rules)
		for _, u := range who {
			for _, namespace := range append(namespaces, "", "missing") {
				want := visited(t.Context(), withoutIndex(s), u, namespace)
				got := visited(t.Context(), resolver, u, namespace)
				for i := range got { // upstream's registries say it in the plural
					got[i] = strings.NewReplacer("roles.rbac", "role.rbac").Replace(got[i])
				}
				require.Equal(t, want, got, "step %d: %s in %q", n, u.GetName(), namespace)
				rulesSeen += len(got)
			}
		}
	}
	require.Greater(t, rulesSeen, 10_000)
}

// TestRevokedIsRefused: while many ask on two processes, a right that was given is there, and one that was taken is gone, for
// every request that begins after the write was acknowledged.
func TestRevokedIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.csv")
	require.NoError(t, os.WriteFile(path, []byte("root-token,root,1,system:masters\nann-token,ann,2\n"), 0o600))
	one, other, projector := twoServers(t, func(c *Config) {
		c.Authentication, c.Authorization = Authentication{TokenFile: path}, Authorization{Mode: "RBAC"}
	})
	one.must(t, 201, request{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"default"}}`}.as("root"))
	one.must(t, 201, request{method: "POST", path: rbacPath + "/clusterroles", body: `{"metadata":{"name":"reader"},"rules":[{"apiGroups":[""],"resources":["configmaps"],"verbs":["list"]}]}`}.as("root"))
	list := request{method: "GET", path: configMaps}.as("ann")
	ctx, stop := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	for i := range 6 {
		asking.Go(func() {
			for ctx.Err() == nil {
				code := list.do(t, []*Server{one, other}[i%2]).code
				if code != 200 && code != 403 {
					t.Errorf("code %d", code)
				}
			}
		})
	}
	defer asking.Wait()
	defer stop()
	const binding = `{"metadata":{"name":"ann"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"reader"},"subjects":[{"kind":"User","name":"ann","apiGroup":"rbac.authorization.k8s.io"}]}`
	for n := range 40 {
		kind := []string{"/namespaces/default/rolebindings", "/clusterrolebindings"}[n%2]
		one.must(t, 201, request{method: "POST", path: rbacPath + kind, body: binding}.as("root"))
		other.must(t, 200, list)
		one.must(t, 200, list)
		if n%5 == 0 {
			_, err := projector.Commit(t.Context())
			require.NoError(t, err)
		}
		other.must(t, 200, request{method: "DELETE", path: rbacPath + kind + "/ann"}.as("root"))
		one.must(t, 403, list)
		other.must(t, 403, list)
	}
}

// TestUnreadableRulesAreNoRefusal: a bucket that does not answer is a 500, and once it answers the user has his rights.
func TestUnreadableRulesAreNoRefusal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.csv")
	require.NoError(t, os.WriteFile(path, []byte("root-token,root,1,system:masters\nann-token,ann,2\n"), 0o600))
	guarded := func(c *Config) {
		c.Authentication, c.Authorization = Authentication{TokenFile: path}, Authorization{Mode: "RBAC"}
	}
	log, bucket := eventlogtest.Log(t), memory.Strict(t)
	process := func() *Server {
		p, err := projection.Open(projection.Config{Log: log, Bucket: bucket, InlineBytes: 1})
		require.NoError(t, err)
		c := Config{Cell: kubestore.Cell{Log: log, Projection: p, Cluster: "main"}}
		guarded(&c)
		s, err := New(c)
		require.NoError(t, err)
		return s
	}
	s := process()
	require.NoError(t, s.Bootstrap(t.Context()))
	s.must(t, 201, request{method: "POST", path: rbacPath + "/namespaces/default/rolebindings", body: `{"metadata":{"name":"ann"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"edit"},"subjects":[{"kind":"User","name":"ann","apiGroup":"rbac.authorization.k8s.io"}]}`}.as("root"))
	_, err := s.config.Cell.Projection.Commit(t.Context())
	require.NoError(t, err)

	cold := process()
	_, err = cold.config.Cell.Projection.Latest(t.Context())
	require.NoError(t, err)
	bucket.Inject(func(op memory.Op, _ string) memory.Fault { return memory.Fails })
	failed := cold.must(t, 500, request{method: "GET", path: configMaps}.as("ann"))
	require.Contains(t, failed.body, "read the rules of RBAC")
	bucket.Inject(nil)
	cold.must(t, 200, request{method: "GET", path: configMaps}.as("ann"))
}

// TestUndecodableRulesHarmNobody: a binding and a role that nobody can read grant nothing, and keep no others from it.
func TestUndecodableRulesHarmNobody(t *testing.T) {
	s := newGuarded(t)
	require.NoError(t, s.Bootstrap(t.Context()))
	bind := func(name, role string) request {
		return request{method: "POST", path: rbacPath + "/clusterrolebindings", body: `{"metadata":{"name":"` + name + `"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"` + role + `"},"subjects":[{"kind":"User","name":"ann","apiGroup":"rbac.authorization.k8s.io"}]}`}.as("root")
	}
	s.must(t, 201, bind("first", "broken"))
	spoil := func(resource, name string) {
		v, err := s.config.Cell.Projection.Latest(t.Context())
		require.NoError(t, err)
		w, err := bootstrapWrite(t.Context(), v, stored{eventlog.Key{Cluster: "main", Group: rbacv1.GroupName, Resource: resource, Prefix: "/" + resource, Name: name}, "application/vnd.kubernetes.protobuf", []byte("junk")})
		require.NoError(t, err)
		_, err = v.Append(t.Context(), "spoil-"+name, w)
		require.NoError(t, err)
	}
	list := request{method: "GET", path: configMaps}.as("ann")
	spoil("clusterroles", "broken")
	spoil("clusterrolebindings", "before")
	require.Contains(t, s.must(t, 403, list).body, "clusterroles/broken")
	s.must(t, 201, bind("second", "view"))
	spoil("clusterrolebindings", "zz")
	s.must(t, 200, list)
}

// TestManyBindingsToOneRole: whoever binds himself to one role a thousand times has its rules once.
func TestManyBindingsToOneRole(t *testing.T) {
	s := newGuarded(t)
	require.NoError(t, s.Bootstrap(t.Context()))
	bind := func(name, role string) {
		s.must(t, 201, request{method: "POST", path: rbacPath + "/namespaces/default/rolebindings", body: `{"metadata":{"name":"` + name + `"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"` + role + `"},"subjects":[{"kind":"User","name":"ann","apiGroup":"rbac.authorization.k8s.io"}]}`}.as("root"))
	}
	bind("last", "edit")
	rules := func() int {
		got := s.must(t, 201, request{method: "POST", path: "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", body: `{"spec":{"namespace":"default"}}`}.as("ann"))
		return len(fieldOf(got.object(t), "status.resourceRules").([]any))
	}
	once := rules()
	for n := range 100 {
		bind(fmt.Sprint("many-", n), "view")
	}
	view, err := s.rules.grantOf(t.Context(), roleName{"", "view"})
	require.NoError(t, err)
	require.Equal(t, once+len(view.clusterRole.Rules), rules())
	s.must(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"x"}}`}.as("ann"))
}

// TestMarksSurvive: what is marked while a table is read, or when reading it fails, is read again.
func TestMarksSurvive(t *testing.T) {
	s := newGuarded(t)
	table := newBindingTable(s.rules.roleBindings, "default")
	table.mark("before") // read whole anyway
	require.Empty(t, table.stale)
	work := table.begin()
	require.True(t, work.whole)
	table.mark("during")
	table.change(map[string]*binding{"a": {name: "a"}}, work.whole)
	table.at, work.done = 5, true
	table.end(work)
	require.Equal(t, map[string]bool{"during": true}, table.stale)
	require.True(t, table.holds(5), "for a request that began before")
	require.False(t, table.holds(6))

	work = table.begin()
	require.False(t, work.whole)
	require.False(t, table.holds(6), "while it is read")
	table.end(work) // it failed
	require.Equal(t, map[string]bool{"during": true}, table.stale)
	work = table.begin()
	table.change(map[string]*binding{"during": nil}, work.whole)
	table.at, work.done = 6, true
	table.end(work)
	require.True(t, table.holds(9))

	for n := range manyStale + 10 {
		table.mark(fmt.Sprint(n))
	}
	require.True(t, table.whole)
	require.Empty(t, table.stale)
	require.True(t, table.holds(6))
	require.False(t, table.holds(7))
	work = table.begin()
	require.True(t, work.whole)
	table.mark("late")
	table.end(work) // it failed
	require.True(t, table.whole)
}

// coldRBAC returns a server whose rules lie in segments, which it has not read yet, beside ann's RoleBinding to 'reader'; one that
// writes; and their bucket.
func coldRBAC(t *testing.T) (cold, writer *Server, bucket *memory.Bucket) {
	log, bucket := eventlogtest.Log(t), memory.New()
	process := func() *Server {
		p, err := projection.Open(projection.Config{Log: log, Bucket: bucket, InlineBytes: 1, CacheBytes: 1}) // every reading is the bucket's
		require.NoError(t, err)
		s, err := New(Config{Cell: kubestore.Cell{Log: log, Projection: p, Cluster: "main"}, Authorization: Authorization{Mode: "RBAC"}})
		require.NoError(t, err)
		return s
	}
	writer = process()
	require.NoError(t, writer.Bootstrap(t.Context()))
	writer.must(t, 201, request{method: "POST", path: rbacPath + "/namespaces/default/roles", body: `{"metadata":{"name":"reader"},"rules":[{"apiGroups":[""],"resources":["configmaps"],"verbs":["get"]}]}`})
	writer.must(t, 201, request{method: "POST", path: rbacPath + "/namespaces/default/rolebindings", body: `{"metadata":{"name":"ann"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"reader"},"subjects":[{"kind":"User","name":"ann","apiGroup":"rbac.authorization.k8s.io"}]}`})
	_, err := writer.config.Cell.Projection.Commit(t.Context())
	require.NoError(t, err)
	cold = process()
	_, err = cold.config.Cell.Projection.Latest(t.Context())
	require.NoError(t, err)
	return cold, writer, bucket
}

// mayGet asks whether ann may get ConfigMaps.
func (s *Server) mayGet(ctx context.Context) (bool, error) {
	decided, _, err := s.generic.Authorization.Authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: &user.DefaultInfo{Name: "ann"}, Verb: "get", APIVersion: "v1", Resource: "configmaps", Namespace: "default", ResourceRequest: true})
	return decided == authorizer.DecisionAllow, err
}

// TestChangesWhileRulesAreRead: what changes while it is read is not kept as it was, whichever of the readings that is.
func TestChangesWhileRulesAreRead(t *testing.T) {
	for _, taken := range []string{"/rolebindings/ann", "/roles/reader"} {
		for n := 1; ; n++ {
			cold, writer, bucket := coldRBAC(t)
			writer.must(t, 200, request{method: "DELETE", path: rbacPath + "/namespaces/default" + taken})
			var reads atomic.Int64
			bucket.Inject(func(memory.Op, string) memory.Fault { // the other process has not heard of it before
				if reads.Add(1) == int64(n) {
					_, err := cold.config.Cell.Projection.Latest(t.Context())
					require.NoError(t, err)
					cold.rules.mu.Lock() // another request asks
					defer cold.rules.mu.Unlock()
					_, err = cold.rules.forward()
					require.NoError(t, err)
				}
				return memory.Works
			})
			allowed, err := cold.mayGet(t.Context())
			require.NoError(t, err)
			bucket.Inject(nil)
			if reads.Load() < int64(n) {
				require.True(t, allowed)
				require.Greater(t, n, 2)
				break
			}
			allowed, err = cold.mayGet(t.Context())
			require.NoError(t, err)
			require.False(t, allowed, "%s went while reading %d", taken, n)
		}
	}
}

// TestReadersShareOneReading: many requests that need a table wait for the one that reads it, and who waits may go.
func TestReadersShareOneReading(t *testing.T) {
	cold, _, bucket := coldRBAC(t)
	var reads atomic.Int64
	arrived, goOn := make(chan struct{}), make(chan struct{})
	bucket.Inject(func(memory.Op, string) memory.Fault {
		if reads.Add(1) == 1 {
			close(arrived)
			<-goOn
		}
		return memory.Works
	})
	ask := func(ctx context.Context) error {
		allowed, err := cold.mayGet(ctx)
		if err == nil && !allowed {
			err = errors.New("refused")
		}
		return err
	}
	gone, leave := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() { first <- ask(t.Context()) }()
	<-arrived
	leave()
	require.ErrorIs(t, ask(gone), context.Canceled)
	var rest sync.WaitGroup
	for range 20 {
		rest.Go(func() { require.NoError(t, ask(t.Context())) })
	}
	close(goOn)
	rest.Wait()
	require.NoError(t, <-first)
	all := reads.Load()
	require.NoError(t, ask(t.Context()))
	require.Equal(t, all, reads.Load(), "nothing is read again")
	bucket.Inject(nil)
}
