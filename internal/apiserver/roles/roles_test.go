package roles

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/registry/rbac/validation"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/apiserver/listers"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket/memory"
	"github.com/logplane/logplane/projection/cache"
)

// process is one process of a cell.
type process struct {
	projection *projection.Projection
	listers    *listers.Factory
	index      *Index
}

// processes returns a function that opens processes of one cell.
func processes(t *testing.T, c projection.Config) func() *process {
	c.Log = eventlogtest.Log(t)
	return func() *process {
		p, err := projection.Open(c)
		require.NoError(t, err)
		l := listers.New(listers.Config{Projection: p, Cluster: "main", Storage: plain{}, Logger: slog.Default()})
		return &process{p, l, New(Config{Projection: p, Listers: l})}
	}
}

// plain stores RBAC's objects as upstream does, and encrypts nothing.
type plain struct{}

func (plain) Prefix(resource schema.GroupResource) string        { return resource.Resource }
func (plain) Transformer(schema.GroupResource) value.Transformer { return nil }

type object interface {
	runtime.Object
	metav1.Object
}

var codec = legacyscheme.Codecs.EncoderForVersion(protobuf.NewSerializer(legacyscheme.Scheme, legacyscheme.Scheme), rbacv1.SchemeGroupVersion)

func (p *process) state(t *testing.T, o object) (*projection.View, projection.State) {
	t.Helper()
	kinds, _, err := legacyscheme.Scheme.ObjectKinds(o)
	require.NoError(t, err)
	resource, _ := meta.UnsafeGuessKindToResource(kinds[0])
	view, err := p.projection.Latest(t.Context())
	require.NoError(t, err)
	state, err := view.State(t.Context(), eventlog.Key{Cluster: "main", Group: rbacv1.GroupName, Resource: resource.Resource,
		Prefix: "/" + resource.Resource, Namespace: o.GetNamespace(), Name: o.GetName()})
	require.NoError(t, err)
	return view, state
}

// put writes an object, whether or not it exists.
func (p *process) put(t *testing.T, o object) {
	t.Helper()
	body, err := runtime.Encode(codec, o)
	require.NoError(t, err)
	view, state := p.state(t, o)
	_, err = view.Append(t.Context(), uuid.NewString(), state.Put(runtime.ContentTypeProtobuf, body, 0))
	require.NoError(t, err)
}

// remove deletes an object if it exists.
func (p *process) remove(t *testing.T, o object) {
	t.Helper()
	view, state := p.state(t, o)
	if _, live := state.Row(); !live {
		return
	}
	_, err := view.Append(t.Context(), uuid.NewString(), state.Delete())
	require.NoError(t, err)
}

// withoutIndex is upstream's resolver with upstream's getters and listers, over all objects.
func withoutIndex(p *process) *validation.DefaultRuleResolver {
	v1 := p.listers.Rbac().V1()
	return validation.NewDefaultRuleResolver(&rbac.RoleGetter{Lister: v1.Roles().Lister()}, &rbac.RoleBindingLister{Lister: v1.RoleBindings().Lister()},
		resolvedRoles{p}, &rbac.ClusterRoleBindingLister{Lister: v1.ClusterRoleBindings().Lister()})
}

// resolvedRoles are ClusterRoles with their aggregated rules.
type resolvedRoles struct{ *process }

func (r resolvedRoles) GetClusterRole(_ context.Context, name string) (*rbacv1.ClusterRole, error) {
	role, err := r.listers.Rbac().V1().ClusterRoles().Lister().Get(name)
	if err != nil {
		return nil, err
	}
	rules, err := r.index.aggregated.rulesOf(role)
	return &rbacv1.ClusterRole{Rules: rules}, err
}

// visited returns every rule and error that a resolver finds, with its source.
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

// TestIndexIsExact: after any writes, commits and cuts of the tail, upstream's resolver finds the same rules and
// errors, in the same order, over the index and over lists of all objects. The test asks one process often, and another
// process seldom.
func TestIndexIsExact(t *testing.T) {
	open := processes(t, projection.Config{Bucket: memory.New(), InlineBytes: 3000})
	often, seldom, projector := open(), open(), open().projection
	r := rand.New(rand.NewPCG(1, 2))
	pick := func(from ...string) string { return from[r.IntN(len(from))] }
	namespaces := []string{"red", "green"}
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
	// step writes or removes one object at random. A binding's role may not exist, and a role may be aggregated.
	step := func() {
		name := metav1.ObjectMeta{Name: fmt.Sprint("x", r.IntN(12)), Namespace: pick(namespaces...)}
		global := metav1.ObjectMeta{Name: name.Name}
		ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: pick("Role", "ClusterRole"), Name: fmt.Sprint("x", r.IntN(12))}
		write := often.put
		kind, gone := r.IntN(4), r.IntN(3) == 0
		if gone {
			write = often.remove
		}
		switch kind {
		case 0:
			write(t, &rbacv1.Role{ObjectMeta: name, Rules: rules()})
		case 1:
			write(t, &rbacv1.RoleBinding{ObjectMeta: name, RoleRef: ref, Subjects: subjects()})
		case 2:
			role := &rbacv1.ClusterRole{ObjectMeta: global, Rules: rules()}
			role.Labels = map[string]string{"part": pick("of-a", "of-b")}
			if r.IntN(3) == 0 {
				role.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"part": pick("of-a", "of-b")}}}}
			}
			write(t, role)
		case 3:
			ref.Kind = "ClusterRole"
			write(t, &rbacv1.ClusterRoleBinding{ObjectMeta: global, RoleRef: ref, Subjects: subjects()})
		}
	}
	who := []user.Info{
		&user.DefaultInfo{Name: "ann", Groups: []string{"users", "admins"}},
		&user.DefaultInfo{Name: "bob", Groups: []string{"users", "users"}},
		&user.DefaultInfo{Name: "system:serviceaccount:red:builder"},
		&user.DefaultInfo{Name: "nobody"},
	}
	rulesSeen := 0
	for n := range 600 {
		step()
		if n%7 == 0 {
			_, err := projector.Commit(t.Context())
			require.NoError(t, err)
		}
		p := often
		if r.IntN(20) == 0 { // the process that is asked seldom then has a view without the events that it missed
			p = seldom
			_, err := p.projection.Commit(t.Context())
			require.NoError(t, err)
		}
		_, err := p.projection.Latest(t.Context())
		require.NoError(t, err)
		resolver := p.index.Resolver()
		for _, u := range who {
			for _, namespace := range append(namespaces, "", "missing") {
				want := visited(t.Context(), withoutIndex(p), u, namespace)
				got := visited(t.Context(), resolver, u, namespace)
				for i := range got { // upstream's registries name the resource in the plural
					got[i] = strings.NewReplacer("roles.rbac", "role.rbac").Replace(got[i])
				}
				require.Equal(t, want, got, "step %d: %s in %q", n, u.GetName(), namespace)
				rulesSeen += len(got)
			}
		}
	}
	require.Greater(t, rulesSeen, 10_000)
}

// TestMarksSurvive: a name is read again if it was marked while the table was read, or if reading it failed.
func TestMarksSurvive(t *testing.T) {
	p := processes(t, projection.Config{Bucket: memory.Strict(t)})()
	table := newTable(p.index.roleBindings, "default")
	table.mark("before") // the whole table will be read anyway
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

// coldRules returns a process that has not yet read its rules, which are in segments; a process that writes; and their
// bucket. The rules include ann's RoleBinding to 'reader'.
func coldRules(t *testing.T) (cold, writer *process, bucket *memory.Bucket) {
	bucket = memory.New()
	open := processes(t, projection.Config{Bucket: bucket, InlineBytes: 1, Budget: cache.NewBudget(16 << 10)}) // no block fits: every read goes to the bucket
	writer = open()
	for n := range 50 {
		name := metav1.ObjectMeta{Name: fmt.Sprint("other-", n)}
		ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name.Name}
		writer.put(t, &rbacv1.ClusterRole{ObjectMeta: name})
		writer.put(t, &rbacv1.ClusterRoleBinding{ObjectMeta: name, RoleRef: ref})
	}
	writer.put(t, annsRole)
	writer.put(t, annsBinding)
	_, err := writer.projection.Commit(t.Context())
	require.NoError(t, err)
	cold = open()
	_, err = cold.projection.Latest(t.Context())
	require.NoError(t, err)
	return cold, writer, bucket
}

var (
	annsRole = &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "reader", Namespace: "default"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get"}}},
	}
	annsBinding = &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "ann", Namespace: "default"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
		Subjects:   []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "ann"}},
	}
)

// mayGet asks whether ann may get ConfigMaps.
func (p *process) mayGet(ctx context.Context) (allowed bool, err error) {
	defer listers.Catch(ctx, &err)
	decided, _, err := p.index.Authorizer().Authorize(ctx, authorizer.AttributesRecord{
		User: &user.DefaultInfo{Name: "ann"}, Verb: "get", APIVersion: "v1", Resource: "configmaps", Namespace: "default", ResourceRequest: true})
	return decided == authorizer.DecisionAllow, err
}

// TestChangesWhileRulesAreRead: if a rule changes during any of the reads, its old state is not kept.
func TestChangesWhileRulesAreRead(t *testing.T) {
	for _, taken := range []object{annsBinding, annsRole} {
		for n := 1; ; n++ {
			cold, writer, bucket := coldRules(t)
			writer.remove(t, taken)
			var reads atomic.Int64
			bucket.Inject(func(memory.Op, string) memory.Fault { // cold learns of the removal only now
				if reads.Add(1) == int64(n) {
					_, err := cold.projection.Latest(t.Context())
					require.NoError(t, err)
					cold.index.mu.Lock() // another request asks
					defer cold.index.mu.Unlock()
					_, err = cold.index.forward()
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
			require.False(t, allowed, "%T went while reading %d", taken, n)
		}
	}
}

// TestReadersShareOneReading: many requests that need a table wait for the request that reads the table. A waiting
// request may leave.
func TestReadersShareOneReading(t *testing.T) {
	cold, _, bucket := coldRules(t)
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
