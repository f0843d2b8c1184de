package apiserver

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/apiserver/history"
	"github.com/logplane/logplane/internal/apiserver/services"
	"github.com/logplane/logplane/projection"
)

// TestPlansAndTransactionsAreTheModel changes objects of many kinds at random, and takes the changes back. An undo, an
// undelete, a restore or a transaction must leave each object as a model predicts, byte for byte except for the
// differences that docs/history.md lists.
//
// The model does not merge. In the model, an object consists of places with values: the JSON that a client has read in
// the stored version. A change is the set of places whose values differ afterwards. The outcome of a transaction is
// compared with twins of the objects: copies that get the same requests one after the other. A dry run writes nothing.
// After a plan was carried out, the same plan has nothing left to do.
//
// LOGPLANE_PLANS_SEED sets another seed, and LOGPLANE_PLANS_STEPS sets how many steps each cell makes.
func TestPlansAndTransactionsAreTheModel(t *testing.T) {
	number := func(name string, value uint64) uint64 {
		if text := os.Getenv(name); text != "" {
			var err error
			value, err = strconv.ParseUint(text, 10, 64)
			require.NoError(t, err)
		}
		return value
	}
	seed, steps := number("LOGPLANE_PLANS_SEED", 1), number("LOGPLANE_PLANS_STEPS", 120/eventlogtest.Slowdown)
	const cells = 4 // each has some of the kinds
	for cell := range cells {
		t.Run(fmt.Sprint(cell), func(t *testing.T) {
			t.Parallel()
			var kinds []*modelKind
			for i, k := range rand.New(rand.NewPCG(seed, seed)).Perm(len(modelKinds)) {
				if i%cells == cell {
					kinds = append(kinds, &modelKinds[k])
				}
			}
			m := newModel(t, rand.New(rand.NewPCG(seed, uint64(cell))), kinds)
			defer func() {
				if t.Failed() {
					t.Logf("LOGPLANE_PLANS_SEED=%d, and before it failed:\n%s", seed, strings.Join(m.did, "\n"))
				}
			}()
			for _, o := range m.objects {
				m.make(o, actors[0])
			}
			for i := range steps {
				if i%20 == 0 {
					m.focus = nil
					for range 4 {
						m.focus = append(m.focus, m.objects[m.IntN(len(m.objects))])
					}
				}
				m.step()
			}
			t.Logf("what was tried: %v", m.counts)
		})
	}
}

// space is the namespace of all objects that have one.
const space = "model"

// model is a cell, and everything that should be in it.
type model struct {
	*rand.Rand
	t       *testing.T
	s       *Server
	objects []*modelled // by kind and name
	began   projection.Revision
	did     []string
	counts  map[string]int
	// focus are the objects that the test changes more often for some time.
	focus []*modelled
	// owners are two of the objects. A life of an owner lasts from its creation to its deletion. uids says for each uid
	// which owner it belongs to, and in which life. creating are the objects that the present plan makes again, and
	// pruning the objects that the plan deletes.
	owners   []*modelled
	uids     map[string]string
	creating map[*modelled]bool
	pruning  map[*modelled]bool
	// gaps are ranges of revisions in which the namespace was missing, or had objects that the model does not know.
	gaps [][2]projection.Revision
}

// modelled is an object with all of its versions.
type modelled struct {
	kind     *modelKind
	name     string
	versions []*state // oldest first
}

// state is a version of an object.
type state struct {
	revision                   projection.Revision
	verb, user, manager, agent string
	// object is the object as a client reads it. For a deletion, it is the object before the deletion.
	object map[string]any
}

// actor is the user and field manager of a write.
type actor struct{ user, manager string }

var actors = []actor{{"ann", "one"}, {"bob", "two"}, {"ann", "two"}}

const upstreams = "system:kube-controller-manager"

func newModel(t *testing.T, r *rand.Rand, kinds []*modelKind) *model {
	s := newServer(t, withUsers(t, "ann", "bob", upstreams), withFeed(t), func(c *Config) {
		c.Services = services.Ranges{CIDR: "10.0.0.0/16"}
	})
	require.NoError(t, s.Bootstrap(t.Context()))
	m := &model{Rand: r, t: t, s: s, counts: map[string]int{}, uids: map[string]string{}}
	for _, definition := range modelDefinitions {
		s.must(t, 201, request{method: "POST", path: definitionPath, body: definition}.as("root"))
	}
	s.must(t, 201, request{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"` + space + `"}}`}.as("root"))
	s.must(t, 201, request{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"` + twin + `"}}`}.as("root"))
	m.began = s.head(t)
	for _, name := range []string{"owner-a", "owner-b"} {
		m.owners = append(m.owners, &modelled{kind: &ownerKind, name: name})
	}
	m.objects = append(m.objects, m.owners...)
	for _, kind := range kinds {
		for _, name := range []string{"a", "b"} {
			m.objects = append(m.objects, &modelled{kind: kind, name: name})
		}
	}
	return m
}

// note records an action, to explain a later failure.
func (m *model) note(what string, format string, args ...any) {
	m.counts[what]++
	m.did = append(m.did, fmt.Sprintf("%d: %s %s", m.s.head(m.t), what, fmt.Sprintf(format, args...)))
}

func (o *modelled) String() string { return o.kind.resource + "/" + o.name }

func (o *modelled) path() string { return o.kind.collection() + "/" + o.name }

// last is the newest version, nil if there are no versions.
func (o *modelled) last() *state {
	if len(o.versions) == 0 {
		return nil
	}
	return o.versions[len(o.versions)-1]
}

// life names one of an object's lives: the present life for 0, the next life for 1.
func (o *modelled) life(next int) string {
	for _, v := range o.versions {
		if v.verb == "create" {
			next++
		}
	}
	return fmt.Sprintf("%s#%d", o.name, next)
}

// now is the present object, nil if the object does not exist.
func (o *modelled) now() map[string]any {
	if s := o.last(); s != nil && s.verb != "delete" {
		return s.object
	}
	return nil
}

// at is the object at a revision, nil if the object did not exist.
func (o *modelled) at(revision projection.Revision) map[string]any {
	var found map[string]any
	for _, s := range o.versions {
		if s.revision > revision {
			break
		}
		if found = s.object; s.verb == "delete" {
			found = nil
		}
	}
	return found
}

func revisionOf(object map[string]any) projection.Revision {
	text, _ := fieldOf(object, "metadata.resourceVersion").(string)
	n, _ := strconv.ParseUint(text, 10, 64)
	return projection.Revision(n)
}

func copyOf(object map[string]any) map[string]any {
	out, _ := deepCopy(object).(map[string]any)
	return out
}

func deepCopy(value any) any {
	switch v := value.(type) {
	case map[string]any:
		out := map[string]any{}
		for name, field := range v {
			out[name] = deepCopy(field)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = deepCopy(item)
		}
		return out
	}
	return value
}

// exact decodes JSON and keeps every digit.
func exact(t testing.TB, text string) map[string]any {
	t.Helper()
	var object map[string]any
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	require.NoError(t, decoder.Decode(&object), text)
	return object
}

// encoded is a value in the one JSON encoding that this test uses.
func encoded(value any) string {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		panic(err)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// read gets the object from the server, nil if the object does not exist.
func (m *model) read(o *modelled) map[string]any {
	m.t.Helper()
	a := request{method: "GET", path: o.path()}.as("root").do(m.t, m.s)
	if a.code == 404 {
		return nil
	}
	require.Equal(m.t, 200, a.code, a.body)
	return exact(m.t, a.body)
}

// learn adds an object's present state to its versions. An unchanged revision means an unchanged object.
func (m *model) learn(o *modelled, by state) {
	m.t.Helper()
	is, was := m.read(o), o.now()
	switch {
	case is == nil && was == nil:
		return
	case is == nil:
		by.verb, by.object, by.revision = "delete", was, m.deletion(o)
	case was == nil || fieldOf(is, "metadata.uid") != fieldOf(was, "metadata.uid"):
		by.verb, by.object, by.revision = "create", is, revisionOf(is)
		if o.kind == &ownerKind {
			m.uids[fieldOf(is, "metadata.uid").(string)] = o.life(1)
		}
	case revisionOf(is) == revisionOf(was):
		require.Equal(m.t, encoded(was), encoded(is), "%s has changed without a revision", o)
		return
	default:
		by.verb, by.object, by.revision = "update", is, revisionOf(is)
	}
	o.versions = append(o.versions, &by)
	m.did = append(m.did, fmt.Sprintf("%d: %s by %s %s%s: %s %s", by.revision, o, by.user, by.manager, by.agent, by.verb, difference(m.contentOf(o, was), m.contentOf(o, is))))
}

// difference lists the lines that are gone, and the lines that are new.
func difference(was, is *content) string {
	var all []string
	for _, side := range []struct {
		sign    string
		one, by *content
	}{{"-", was, is}, {"+", is, was}} {
		if side.one == nil {
			continue
		}
		for _, line := range strings.Split(side.one.String(), "\n") {
			if side.by == nil || !strings.Contains("\n"+side.by.String(), "\n"+line+"\n") {
				all = append(all, side.sign+line)
			}
		}
	}
	return strings.Join(all, " ")
}

// deletion is the revision at which an object was deleted.
func (m *model) deletion(o *modelled) projection.Revision {
	events := m.s.events(m.t, o.last().revision)
	for _, e := range slices.Backward(events) {
		if o.isKey(e.Key) {
			return e.Revision
		}
	}
	require.Fail(m.t, "no event of the deletion", o.String())
	return 0
}

func (o *modelled) isKey(k eventlog.Key) bool {
	resource, group, _ := strings.Cut(o.kind.resource, ".")
	namespace := ""
	if o.kind.namespaced() {
		namespace = space
	}
	return k.Resource == resource && k.Group == group && k.Name == o.name && k.Namespace == namespace
}

// only requires that no other objects have changed since a revision.
func (m *model) only(since projection.Revision, changed map[*modelled]bool) {
	m.t.Helper()
	for _, e := range m.s.events(m.t, since) {
		i := slices.IndexFunc(m.objects, func(o *modelled) bool { return o.isKey(e.Key) })
		require.True(m.t, i < 0 || changed[m.objects[i]], "%v has changed", e.Key)
	}
}

func (m *model) pick(which func(*modelled) bool) *modelled {
	for _, from := range [][]*modelled{m.focus, m.objects} {
		var all []*modelled
		for _, o := range from {
			if which(o) {
				all = append(all, o)
			}
		}
		if len(all) > 0 && (len(from) == len(m.objects) || m.IntN(4) > 0) {
			return all[m.IntN(len(all))]
		}
	}
	return nil
}

func isThere(o *modelled) bool { return o.now() != nil }

func isTerminating(o *modelled) bool {
	return o.now() != nil && fieldOf(o.now(), "metadata.deletionTimestamp") != nil
}

// step does one random thing.
func (m *model) step() {
	by := actors[m.IntN(len(actors))]
	switch n := m.IntN(100); {
	case n < 18:
		m.make(m.pick(func(o *modelled) bool { return o.now() == nil }), by)
	case n < 58:
		m.edit(by)
	case n < 62:
		m.setStatus()
	case n < 68:
		m.remove(by)
	case n < 85:
		m.undoOne(by)
	case n < 89:
		m.undoSince(by)
	case n < 92:
		m.undelete(by)
	case n < 95:
		m.restore(by)
	case n < 96:
		m.removeSpace(by)
	default:
		m.transact(by)
	}
}

// make creates an object.
func (m *model) make(o *modelled, by actor) {
	if o == nil {
		return
	}
	object := m.fresh(o)
	m.note("create", "%s by %v", o, by)
	m.s.must(m.t, 201, request{method: "POST", path: o.kind.collection() + "?fieldManager=" + by.manager, body: encoded(object)}.as(by.user))
	m.learn(o, state{user: by.user, manager: by.manager})
}

// fresh is a new object, randomly edited.
func (m *model) fresh(o *modelled) map[string]any {
	object := exact(m.t, o.kind.object)
	under(object, "metadata")["name"] = o.name
	m.edits(o, object)
	if o.kind.fixed != nil && m.IntN(2) == 0 {
		o.kind.fixed(object)
	}
	return object
}

// edits changes an object in some random places.
func (m *model) edits(o *modelled, object map[string]any) {
	all := slices.Concat(o.kind.edits, commonEdits)
	if !o.kind.everywhere && o.kind != &ownerKind {
		all = append(all, owned)
	}
	if !o.kind.protected {
		all = append(all, held)
	}
	for range 1 + m.IntN(3) {
		all[m.IntN(len(all))](m, object)
	}
}

// edit changes a random object on the server.
func (m *model) edit(by actor) {
	o := m.pick(isThere)
	if o == nil {
		return
	}
	object := copyOf(o.now())
	path := o.path()
	if o.kind.other != "" && m.IntN(4) == 0 { // fields that this version does not have are lost
		kind := *o.kind
		kind.version = o.kind.other
		path = (&modelled{kind: &kind, name: o.name}).path()
		object = exact(m.t, m.s.must(m.t, 200, request{method: "GET", path: path}.as(by.user)).body)
	}
	m.edits(o, object)
	if metadata := under(object, "metadata"); isTerminating(o) { // no finalizer may be added
		delete(metadata, "finalizers")
		if had := fieldOf(o.now(), "metadata.finalizers"); m.IntN(2) == 0 {
			metadata["finalizers"] = had
		}
	}
	m.note("update", "%s by %v in %s", o, by, path)
	m.s.must(m.t, 200, request{method: "PUT", path: path + "?fieldManager=" + by.manager, body: encoded(object)}.as(by.user))
	m.learn(o, state{user: by.user, manager: by.manager})
}

// setStatus writes a status, as a controller does.
func (m *model) setStatus() {
	o := m.pick(func(o *modelled) bool { return isThere(o) && o.kind.status != nil })
	if o == nil {
		return
	}
	object := copyOf(o.now())
	o.kind.status(m, object)
	m.note("status", "%s: %s", o, encoded(object["status"]))
	m.s.must(m.t, 200, request{method: "PUT", path: o.path() + "/status?fieldManager=controller", body: encoded(object)}.as(upstreams))
	m.learn(o, state{user: upstreams, manager: "controller"})
}

// remove deletes an object. An object with a finalizer stays.
func (m *model) remove(by actor) {
	o := m.pick(isThere)
	if o == nil {
		return
	}
	m.note("delete", "%s by %v", o, by)
	m.s.must(m.t, 200, request{method: "DELETE", path: o.path() + "?propagationPolicy=Background"}.as(by.user))
	m.learn(o, state{user: by.user})
}

// plan sends a plan twice: as a dry run, which must write nothing, and then to carry it out. It returns both answers.
// If the plan is refused, the dry run must be refused with the same message.
func (m *model) plan(by actor, spec string) (dry, done *history.Plan, refused string) {
	m.t.Helper()
	before := m.s.head(m.t)
	ask := func(query string, status history.PlanStatus) (*history.Plan, string) {
		a := request{method: "POST", path: historyPath + "/plans" + query,
			body: fmt.Sprintf(`{"apiVersion":"history.logplane.dev/v1","kind":"Plan","spec":%s,"status":%s}`, spec, encoded(status))}.as(by.user).do(m.t, m.s)
		if a.code != 201 {
			require.Contains(m.t, []int{404, 409}, a.code, a.body)
			return nil, fmt.Sprint(fieldOf(exact(m.t, a.body), "message"))
		}
		plan := &history.Plan{}
		require.NoError(m.t, json.Unmarshal([]byte(a.body), plan))
		return plan, ""
	}
	dry, refused = ask("?dryRun=All", history.PlanStatus{})
	require.Equal(m.t, before, m.s.head(m.t), "a dry run writes nothing")
	if refused != "" {
		_, again := ask("", history.PlanStatus{})
		require.Equal(m.t, refused, again)
		require.Equal(m.t, before, m.s.head(m.t))
		return nil, nil, refused
	}
	done, refused = ask("", dry.Status)
	require.Empty(m.t, refused)
	return dry, done, ""
}

// expected is the change that a plan should make to an object.
type expected struct {
	verb string // empty if the object is left alone
	// wanted is the object that should result, without the fields that the server keeps. It is nil if the object should
	// be deleted.
	wanted *content
	// last is the last state of an object that is made again.
	last map[string]any
	// conflict says that the object is left alone because others have changed it.
	conflict bool
	// same says that the object already has the wanted state.
	same bool
	// refused says that the API refuses the wanted state.
	refused bool
}

// isWritten says whether the plan changes the object.
func (e expected) isWritten() bool { return e.verb != "" && !e.conflict && !e.refused && !e.same }

// undoOne undoes one change of an object.
func (m *model) undoOne(by actor) {
	o := m.pick(func(o *modelled) bool { return len(o.versions) > 0 })
	if o == nil {
		return
	}
	undo := history.PlanUndo{Object: o.kind.resource + "/" + o.name}
	var chosen *state
	if m.IntN(3) > 0 {
		for i := range slices.Backward(o.versions) {
			if v := o.versions[i]; v.agent != "logplane-undo" && !o.isStatus(i) {
				chosen = v
				break
			}
		}
	} else {
		chosen = o.versions[m.IntN(len(o.versions))]
		undo.Revision = fmt.Sprint(chosen.revision)
	}
	m.note("undo", "%s by %v: %+v", o, by, undo)
	spec := encoded(history.PlanSpec{Namespace: o.kind.namespace(), Undo: &undo})
	if chosen == nil || undo.Revision == "" && chosen.verb == "create" {
		_, _, refused := m.plan(by, spec)
		require.NotEmpty(m.t, refused)
		m.counts["refused"]++
		return
	}
	expect := func() map[*modelled]expected {
		m.creating = nil
		return map[*modelled]expected{o: m.undone(o, []*state{chosen})}
	}
	m.twice(by, spec, expect, "logplane-undo")
}

// twice carries a plan out twice. The second time, nothing must be left to do.
func (m *model) twice(by actor, spec string, expect func() map[*modelled]expected, agent string) {
	m.t.Helper()
	m.expect(by, spec, expect(), agent)
	all := expect()
	for o, e := range all {
		require.True(m.t, !e.isWritten(), "%s: %+v", o, e)
	}
	m.expect(by, spec, all, agent)
}

// undoSince undoes all changes by a user or a manager since a moment.
func (m *model) undoSince(by actor) {
	since, end := m.moment()
	undo := history.PlanUndo{Since: fmt.Sprint(since)}
	namespace := []string{"", space}[m.IntN(2)]
	whose := actors[m.IntN(len(actors))]
	if m.IntN(2) == 0 {
		undo.User = whose.user
	} else {
		undo.Manager = whose.manager
	}
	m.note("undo", "since by %v: %+v", by, undo)
	spec := history.PlanSpec{Namespace: namespace, Undo: &undo}
	expect := func() map[*modelled]expected {
		managers := m.managers(end)
		all := map[*modelled]expected{}
		m.creating = map[*modelled]bool{}
		for _, o := range m.objects {
			if namespace != "" && o.kind.namespace() != namespace {
				continue
			}
			var chosen []*state
			for i := range o.versions {
				v := o.versions[i]
				if v.revision <= end || v.agent == "logplane-undo" || o.isStatus(i) {
					continue
				}
				if undo.User != "" && v.user == undo.User || undo.Manager != "" && managers[v.revision] == undo.Manager {
					chosen = append(chosen, v)
				}
			}
			if len(chosen) > 0 {
				all[o] = m.undone(o, chosen)
				m.creating[o] = all[o].verb == "create"
			}
		}
		return all
	}
	m.twice(by, encoded(spec), expect, "logplane-undo")
}

// number parses a revision in an answer.
func (m *model) number(text string) projection.Revision {
	n, err := strconv.ParseUint(text, 10, 64)
	require.NoError(m.t, err)
	return projection.Revision(n)
}

// managers are the managers of each version since a revision, as the API reports them. A version that sets a field must
// have the manager who wrote the version.
func (m *model) managers(since projection.Revision) map[projection.Revision]string {
	m.t.Helper()
	all := map[projection.Revision]string{}
	for token := ""; ; {
		a := m.s.must(m.t, 200, request{method: "GET", path: fmt.Sprintf("%s/changes?fieldSelector=from%%3D%d&continue=%s", historyPath, since, token)}.as("root"))
		list := &history.ChangeList{}
		require.NoError(m.t, json.Unmarshal([]byte(a.body), list))
		for _, c := range list.Items {
			all[m.number(c.Name)] = c.Manager
		}
		if token = list.Continue; token == "" {
			break
		}
	}
	for _, o := range m.objects {
		for i := range o.versions {
			v := o.versions[i]
			if v.revision <= since || v.verb == "delete" || v.agent != "" {
				continue
			}
			set := v.verb == "create"
			if v.verb == "update" && !o.isStatus(i) {
				was, is := m.contentOf(o, o.versions[i-1].object), m.contentOf(o, v.object)
				for at, value := range is.values {
					set = set || was.values[at] != value
				}
			}
			if set && fieldOf(v.object, "metadata.managedFields") != nil { // without managedFields, nobody is known: the object was made without any field
				require.Equal(m.t, v.manager, all[v.revision], "%s at %d", o, v.revision)
			}
		}
	}
	return all
}

// moment is a revision at which something was written, more often a recent revision. "A moment inside a transaction is
// the end of it."
func (m *model) moment() (revision, end projection.Revision) {
	all := []projection.Revision{m.began}
	for _, o := range m.objects {
		for _, v := range o.versions {
			if !slices.ContainsFunc(m.gaps, func(gap [2]projection.Revision) bool { return v.revision > gap[0] && v.revision <= gap[1] }) {
				all = append(all, v.revision)
			}
		}
	}
	slices.Sort(all)
	if recent := len(all) - 12; recent > 0 && m.IntN(4) > 0 {
		all = all[recent:]
	}
	revision = all[m.IntN(len(all))]
	return revision, revision + projection.Revision(m.s.events(m.t, revision-1)[0].Left)
}

// undelete makes a deleted object again.
func (m *model) undelete(by actor) {
	o := m.pick(func(o *modelled) bool { return len(o.versions) > 0 && (o.now() == nil || m.IntN(20) == 0) })
	if o == nil {
		return
	}
	m.note("undelete", "%s by %v", o, by)
	spec := encoded(history.PlanSpec{Namespace: o.kind.namespace(), Undelete: &history.PlanObject{Object: o.String()}})
	last := o.last().object
	if isTerminating(o) || o.now() == nil && o.kind.finished != nil && o.kind.finished(last) {
		_, _, refused := m.plan(by, spec)
		require.NotEmpty(m.t, refused)
		m.counts["refused"]++
		return
	}
	m.creating = nil
	m.twice(by, spec, func() map[*modelled]expected {
		if o.now() != nil {
			return nil
		}
		return map[*modelled]expected{o: m.outcome(o, m.contentOf(o, last), last)}
	}, "logplane-undelete")
}

// restore restores everything to a random moment.
func (m *model) restore(by actor) {
	to, end := m.moment()
	m.restoreTo(by, history.PlanSpec{Namespace: []string{"", space}[m.IntN(2)],
		Restore: &history.PlanRestore{To: fmt.Sprint(to), Prune: m.IntN(2) == 0}}, end)
}

func (m *model) restoreTo(by actor, spec history.PlanSpec, to projection.Revision) {
	m.note("restore", "by %v: %s %+v", by, spec.Namespace, *spec.Restore)
	inScope := func(o *modelled) bool {
		return !o.kind.passes && (spec.Namespace == "" || o.kind.namespace() == spec.Namespace)
	}
	// An owner that is made again gets another uid.
	ownerComes := func(then map[string]any) bool {
		references, _ := fieldOf(then, "metadata.ownerReferences").([]any)
		return slices.ContainsFunc(m.owners, func(owner *modelled) bool {
			was, is := owner.at(to), owner.now()
			if !inScope(owner) || was == nil || is != nil && fieldOf(is, "metadata.uid") == fieldOf(was, "metadata.uid") {
				return false
			}
			return slices.ContainsFunc(references, func(r any) bool { return r.(map[string]any)["uid"] == fieldOf(was, "metadata.uid") })
		})
	}
	compute := func() map[*modelled]expected {
		all := map[*modelled]expected{}
		for _, o := range m.objects {
			if !inScope(o) {
				continue
			}
			then, now := o.at(to), o.now()
			if then != nil && fieldOf(then, "metadata.deletionTimestamp") != nil && now != nil && fieldOf(now, "metadata.uid") != fieldOf(then, "metadata.uid") {
				then = nil // another object was made later
			}
			switch {
			case then != nil && (fieldOf(then, "metadata.deletionTimestamp") != nil ||
				now != nil && revisionOf(then) == revisionOf(now) && !ownerComes(then)):
			case then == nil:
				if now != nil && spec.Restore.Prune && !isTerminating(o) {
					all[o] = expected{verb: "delete"}
					m.pruning[o] = true
				}
			case now == nil && o.kind.finished != nil && (o.kind.finished(then) || slices.ContainsFunc(o.versions, func(s *state) bool {
				return s.revision > to && s.verb == "delete" && o.kind.finished(s.object)
			})):
				all[o] = expected{conflict: true}
			default:
				wanted := m.contentOf(o, then)
				if now != nil {
					is := m.contentOf(o, now)
					for _, at := range o.kind.kept {
						wanted.values[at] = is.values[at]
					}
					wanted = m.stillOwned(o, wanted, is)
				}
				e := m.outcome(o, wanted, then)
				e.refused = e.refused || e.verb != "" && isTerminating(o)
				all[o] = e
				m.creating[o] = e.verb == "create"
			}
		}
		return all
	}
	expect := func() map[*modelled]expected {
		m.creating, m.pruning = map[*modelled]bool{}, map[*modelled]bool{}
		compute() // finds out which owners are made again and deleted
		return compute()
	}
	m.twice(by, encoded(spec), expect, "logplane-restore")
	m.pruning = nil
}

// stillOwned is an existing object after a restore: its old content, with the owners as they will be. If nothing but a
// missing owner would change, the reference to that owner stays.
func (m *model) stillOwned(o *modelled, wanted, is *content) *content {
	will := m.adopted(o, wanted)
	kept := wanted.withOwners(o, func(name string, _ any) any {
		for _, p := range []*content{will, is} {
			for _, item := range p.order[references] {
				if p.values[item+`."name"`] == strconv.Quote(name) {
					uid, err := strconv.Unquote(p.values[item+`."uid"`])
					require.NoError(m.t, err)
					if slices.ContainsFunc(m.owners, func(owner *modelled) bool { return m.pruning[owner] && owner.life(0) == uid }) {
						return nil
					}
					return uid
				}
			}
		}
		return nil
	})
	if kept.equal(is) {
		return kept
	}
	return will
}

// removeSpace deletes the namespace, and restores the namespace with all of its objects.
func (m *model) removeSpace(by actor) {
	to := m.s.head(m.t)
	m.note("delete", "the namespace by %v", by)
	const path = "/api/v1/namespaces/" + space
	m.s.must(m.t, 200, request{method: "DELETE", path: path}.as(by.user))
	for _, o := range m.objects { // as the lifecycle does
		if !isThere(o) || o.kind.everywhere {
			continue
		}
		m.s.must(m.t, 200, request{method: "DELETE", path: o.path() + "?propagationPolicy=Background"}.as("root"))
		m.learn(o, state{user: "root"})
		if isThere(o) {
			m.s.must(m.t, 200, merging("PATCH", o.path(), `{"metadata":{"finalizers":null}}`).as("root"))
			m.learn(o, state{user: "root"})
		}
	}
	m.s.must(m.t, 200, request{method: "DELETE", path: path + "/serviceaccounts/default"}.as("root"))
	m.s.must(m.t, 200, request{method: "PUT", path: path + "/finalize", body: `{"metadata":{"name":"` + space + `"},"spec":{}}`}.as("root"))
	m.s.must(m.t, 404, request{method: "GET", path: path}.as("root"))
	m.gaps = append(m.gaps, [2]projection.Revision{to, m.s.head(m.t)})
	m.restoreTo(by, history.PlanSpec{Namespace: space, Restore: &history.PlanRestore{To: fmt.Sprint(to)}}, to)
	m.s.must(m.t, 200, request{method: "GET", path: path + "/serviceaccounts/default"}.as("root"))
}

// twin is the namespace of the twins. Twins get the changes of a transaction one after the other.
const twin = "twin"

// transact sends several operations as one transaction. Before the transaction, it sends each operation as a request to
// a twin of the object. Afterwards the objects must be equal to their twins.
func (m *model) transact(by actor) {
	var operations []string
	twins := map[*modelled]*modelled{}
	before := m.s.head(m.t)
	made := map[*modelled]bool{}
	add := func(verb string, more map[string]any) {
		more["verb"] = verb
		operations = append(operations, encoded(more))
	}
	for range 1 + m.IntN(5) {
		o := m.pick(func(o *modelled) bool { return !o.kind.alone })
		if len(twins) > 0 && m.IntN(3) == 0 {
			all := slices.SortedFunc(maps.Keys(twins), func(a, b *modelled) int { return strings.Compare(a.String(), b.String()) })
			o = all[m.IntN(len(all))]
		}
		w := twins[o]
		isFirst := w == nil
		if isFirst {
			w = m.twinOf(o)
			twins[o] = w
		}
		is := m.read(w)
		version, reference := fieldOf(exact(m.t, `{"a":`+o.kind.typed()+`}`), "a").(map[string]any), map[string]any{"name": o.name}
		maps.Copy(reference, version)
		if !o.kind.everywhere {
			reference["namespace"] = space
		}
		asSent := func(object map[string]any) map[string]any { // the same change for the object itself
			sent := copyOf(object)
			maps.Copy(sent, version)
			metadata := under(sent, "metadata")
			for _, of := range []string{"uid", "resourceVersion", "creationTimestamp", "managedFields", "generation"} {
				delete(metadata, of)
			}
			if o.now() != nil { // many kinds require a resourceVersion
				metadata["resourceVersion"] = fieldOf(o.now(), "metadata.resourceVersion")
			}
			if metadata["name"] = o.name; !o.kind.everywhere {
				metadata["namespace"] = space
			}
			if o.kind.fromTwin != nil {
				o.kind.fromTwin(sent, o.now())
			}
			return sent
		}
		const query = "?fieldManager=twin"
		switch n := m.IntN(6); {
		case is == nil && (o.now() == nil || made[o]):
			object := m.fresh(o)
			under(object, "metadata")["name"] = w.name
			m.s.must(m.t, 201, request{method: "POST", path: w.kind.collection() + query, body: encoded(object)}.as("root"))
			under(object, "metadata")["name"] = o.name
			made[o] = true
			add("create", map[string]any{"object": asSent(object)})
		case is == nil: // a transaction cannot delete an object and make it again
		case n == 0:
			m.s.must(m.t, 200, request{method: "DELETE", path: w.path() + "?propagationPolicy=Background"}.as("root"))
			add("delete", map[string]any{"reference": reference, "propagationPolicy": "Background"})
		case n < 3 || !isFirst: // an update would name the provisional revision
			text, suffix := encoded(map[string]any{"metadata": map[string]any{"labels": map[string]any{"l": []any{"1", "2", nil}[m.IntN(3)]},
				"annotations": map[string]any{"a": []any{"1", "<", nil}[m.IntN(3)]}}}), "merge"
			if m.IntN(2) == 0 && fieldOf(is, "metadata.labels") != nil {
				text, suffix = `[{"op":"add","path":"/metadata/labels/l","value":"4"},{"op":"test","path":"/metadata/labels/l","value":"4"}]`, "json"
			}
			m.s.must(m.t, 200, request{method: "PATCH", path: w.path() + query, body: text,
				contentType: map[string]string{"merge": "application/merge-patch+json", "json": "application/json-patch+json"}[suffix]}.as("root"))
			add("patch", map[string]any{"reference": reference, "patchType": suffix, "patch": json.RawMessage(text)})
		default:
			m.edits(o, is)
			if fieldOf(is, "metadata.deletionTimestamp") != nil {
				delete(under(is, "metadata"), "finalizers")
			}
			m.s.must(m.t, 200, request{method: "PUT", path: w.path() + query, body: encoded(is)}.as("root"))
			add("update", map[string]any{"object": asSent(is)})
		}
	}
	m.only(before, nil)
	m.note("transaction", "by %v: %s", by, strings.Join(operations, ","))
	if len(operations) > 0 {
		m.transaction(by, operations, twins)
	}
	for _, w := range twins {
		if m.read(w) != nil {
			m.s.must(m.t, 200, merging("PATCH", w.path(), `{"metadata":{"finalizers":null}}`).as("root"))
		}
		if m.read(w) != nil {
			m.s.must(m.t, 200, request{method: "DELETE", path: w.path() + "?propagationPolicy=Background"}.as("root"))
		}
	}
	m.gaps = append(m.gaps, [2]projection.Revision{before, m.s.head(m.t)}) // a restore would make the twins again
}

// transaction sends operations, and compares the objects with their twins.
func (m *model) transaction(by actor, operations []string, twins map[*modelled]*modelled) {
	send := func(query string, operations []string) answer {
		q := transaction(operations...)
		q.path += query
		return q.as(by.user).do(m.t, m.s)
	}
	before := m.s.head(m.t)
	manager := "?fieldManager=" + by.manager
	if m.IntN(2) == 0 { // if one operation is refused, none is written
		bad := []string{
			creating(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"default"}}`),
			creating(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"No","namespace":"` + space + `"}}`),
			updating(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"none","namespace":"` + space + `","resourceVersion":"1"}}`),
			`{"verb":"delete","reference":{"apiVersion":"v1","kind":"Namespace","name":"none"}}`,
			`{"verb":"patch","reference":{"apiVersion":"v1","kind":"Namespace","name":"default"},"patchType":"merge","patch":{"metadata":{"labels":{"a":"b"}}},"precondition":{"resourceVersion":"1"}}`,
		}[m.IntN(5)]
		at := m.IntN(len(operations) + 1)
		a := send(manager+[]string{"", "&dryRun=All"}[m.IntN(2)], slices.Insert(slices.Clone(operations), at, bad))
		require.Contains(m.t, []int{404, 409, 422}, a.code, a.body)
		require.Contains(m.t, a.body, fmt.Sprintf("nothing was written: operation %d of %d", at+1, len(operations)+1))
		require.Equal(m.t, before, m.s.head(m.t))
		m.counts["refused transaction"]++
	}
	results := func(query string) []history.TransactionResult {
		a := send(manager+query, operations)
		require.Equal(m.t, 201, a.code, a.body)
		done := &history.Transaction{}
		require.NoError(m.t, json.Unmarshal([]byte(a.body), done))
		require.Len(m.t, done.Status.Results, len(operations))
		return done.Status.Results
	}
	dry := results("&dryRun=All")
	require.Equal(m.t, before, m.s.head(m.t), "a dry run writes nothing")
	done := results("")
	for i := range done {
		require.Equal(m.t, dry[i].Code, done[i].Code)
		require.Equal(m.t, dry[i].Name, done[i].Name)
		require.Contains(m.t, []string{"", done[i].ResourceVersion}, dry[i].ResourceVersion) // of unchanged objects
	}
	events := m.s.events(m.t, before)
	for i, e := range events {
		require.Equal(m.t, before+projection.Revision(i)+1, e.Revision)
		require.Equal(m.t, uint32(len(events)-i-1), e.Left, "one append")
	}
	changed := map[*modelled]bool{}
	for o, w := range twins {
		changed[o] = true
		m.learn(o, state{user: by.user, manager: by.manager})
		want, is := m.read(w), o.now()
		require.Equal(m.t, want == nil, is == nil, "%s", o)
		if is == nil {
			continue
		}
		under(want, "metadata")["name"] = o.name
		if !o.kind.everywhere {
			under(want, "metadata")["namespace"] = space
		}
		if o.kind.fromTwin != nil {
			o.kind.fromTwin(want, is)
		}
		require.Equal(m.t, encoded(o.kind.written(want)), encoded(o.kind.written(is)), "%s", o)
		require.Equal(m.t, fieldOf(want, "metadata.deletionTimestamp") != nil, isTerminating(o), "%s", o)
	}
	m.only(before, changed)
}

// twinOf makes a twin of an object, if the object exists.
func (m *model) twinOf(o *modelled) *modelled {
	kind := *o.kind
	w := &modelled{kind: &kind, name: o.name}
	if kind.in = twin; kind.everywhere {
		w.name = "twin-" + o.name
	}
	if o.now() == nil {
		return w
	}
	object := kind.written(o.now())
	metadata := under(object, "metadata")
	metadata["name"] = w.name
	if delete(metadata, "namespace"); kind.toTwin != nil {
		kind.toTwin(object)
	}
	m.s.must(m.t, 201, request{method: "POST", path: kind.collection(), body: encoded(object)}.as("root"))
	m.s.must(m.t, 200, merging("PATCH", w.path(), encoded(map[string]any{"metadata": map[string]any{"finalizers": metadata["finalizers"]}})).as("root"))
	if isTerminating(o) {
		m.s.must(m.t, 200, request{method: "DELETE", path: w.path() + "?propagationPolicy=Background"}.as("root"))
	}
	return w
}

// isStatus says whether a version has changed only the status.
func (o *modelled) isStatus(i int) bool {
	return o.versions[i].verb == "update" && encoded(o.kind.written(o.versions[i].object)) == encoded(o.kind.written(o.versions[i-1].object)) &&
		!o.deletes(i)
}

// deletes says whether a version has begun the deletion of an object with finalizers.
func (o *modelled) deletes(i int) bool {
	const of = "metadata.deletionTimestamp"
	return o.versions[i].verb == "update" && fieldOf(o.versions[i].object, of) != nil && fieldOf(o.versions[i-1].object, of) == nil
}

// expect carries a plan out, and compares all objects with their expected states.
func (m *model) expect(by actor, spec string, all map[*modelled]expected, agent string) {
	m.t.Helper()
	before := m.s.head(m.t)
	dry, done, refused := m.plan(by, spec)
	require.Empty(m.t, refused)
	require.Len(m.t, done.Status.Changes, len(dry.Status.Changes))
	seen := map[*modelled]bool{}
	for i, planned := range dry.Status.Changes {
		was := done.Status.Changes[i]
		j := slices.IndexFunc(m.objects, func(o *modelled) bool { return o.is(planned.Object) })
		if r := planned.Object; r.Resource == "namespaces" && r.Name == space || r.Resource == "serviceaccounts" && r.Name == "default" {
			require.True(m.t, was.Left == "" || agent == "logplane-undo", was.Left) // an undo of the namespace's creation would delete everything
			continue
		}
		require.GreaterOrEqual(m.t, j, 0, "%+v", planned)
		o := m.objects[j]
		e := all[o]
		seen[o] = true
		require.Equal(m.t, e.conflict, planned.Left != "", "%s: %+v", o, planned)
		if !e.conflict {
			require.Equal(m.t, e.verb, planned.Verb, "%s: %+v, and it is\n%s", o, planned, encoded(o.now()))
		}
		require.Equal(m.t, planned.Object, was.Object)
		require.Equal(m.t, planned.Fields, was.Fields)
		require.Equal(m.t, planned.Revisions, was.Revisions)
		require.Equal(m.t, e.conflict || e.refused, was.Left != "", "%s: %+v", o, was)
		if !e.refused {
			require.Equal(m.t, planned.Verb, was.Verb)
		}
		if e.isWritten() {
			require.NotEmpty(m.t, was.ResourceVersion, "%s: %+v", o, was)
		} else {
			require.Empty(m.t, was.ResourceVersion, "%s: %+v", o, was)
		}
	}
	for o, e := range all {
		require.True(m.t, seen[o] || e.verb == "" && !e.conflict, "%s is not in the plan: %+v", o, e)
	}
	changed := map[*modelled]bool{}
	for _, o := range m.objects {
		e := all[o]
		if changed[o] = e.isWritten(); !changed[o] {
			continue
		}
		was := o.now()
		m.learn(o, state{user: by.user, manager: agent, agent: agent})
		m.counts["took back by "+e.verb]++
		m.is(o, was, e)
	}
	m.only(before, changed)
}

func (o *modelled) is(r history.Reference) bool {
	resource, group, _ := strings.Cut(o.kind.resource, ".")
	return r.Resource == resource && r.Group == group && r.Name == o.name && r.Namespace == o.kind.namespace()
}

// is compares an object with its expected state. Only the differences that docs/history.md lists are allowed.
func (m *model) is(o *modelled, was map[string]any, e expected) {
	m.t.Helper()
	is := o.now()
	if e.wanted == nil && is != nil { // finalizers hold the object
		require.NotNil(m.t, fieldOf(is, "metadata.deletionTimestamp"), "%s", o)
		require.NotNil(m.t, fieldOf(is, "metadata.finalizers"), "%s", o)
	}
	if e.wanted == nil {
		return
	}
	require.NotNil(m.t, is, "%s", o)
	require.Equal(m.t, e.wanted.String(), m.contentOf(o, is).String(), "%s", o)
	if was != nil { // it is still the same object, and its status is left to controllers
		for _, field := range []string{"metadata.uid", "metadata.creationTimestamp", "metadata.deletionTimestamp"} {
			require.Equal(m.t, fieldOf(was, field), fieldOf(is, field), "%s: %s", o, field)
		}
		if o.kind.status != nil {
			require.Equal(m.t, encoded(was["status"]), encoded(is["status"]), "%s", o)
		}
		return
	}
	// "The fields of an object that is made again belong to the managers who had them." The status is left to
	// controllers. Fields that a plan itself changes belong to the plan, such as a Job's labels with its uid. Upstream
	// keeps the newer time of two entries that are equal otherwise, so times are not compared.
	managed := func(object map[string]any) []any {
		all, _ := fieldOf(object, "metadata.managedFields").([]any)
		var out []any
		for _, entry := range all {
			e := copyOf(entry.(map[string]any))
			delete(e, "time")
			if manager, _ := e["manager"].(string); e["subresource"] == nil && (o.kind.resource != "jobs.batch" || !strings.HasPrefix(manager, "logplane-")) {
				out = append(out, e)
			}
		}
		return out
	}
	if o.kind.other == "" { // upstream drops managers who used a version that does not have all fields
		require.Equal(m.t, encoded(managed(e.last)), encoded(managed(is)), "%s", o)
	}
	require.NotEqual(m.t, fieldOf(e.last, "metadata.uid"), fieldOf(is, "metadata.uid"), "%s", o)
}

// undone is the object without some of its changes.
func (m *model) undone(o *modelled, changes []*state) expected {
	ends := map[any]int{} // an object that was created and deleted by these changes needs no step
	for _, v := range changes {
		if v.verb != "update" {
			ends[fieldOf(v.object, "metadata.uid")]++
		}
	}
	isChosen := func(i int) bool {
		return slices.Contains(changes, o.versions[i]) && ends[fieldOf(o.versions[i].object, "metadata.uid")] < 2
	}
	live := m.contentOf(o, o.now())
	contentOf := func(object map[string]any) *content { // an owner that was made again counts as the same
		c := m.contentOf(o, object)
		if live == nil || c == nil {
			return c
		}
		return c.withOwners(o, func(name string, uid any) any {
			for _, item := range live.order[references] {
				if live.values[item+`."name"`] == strconv.Quote(name) {
					is, err := strconv.Unquote(live.values[item+`."uid"`])
					require.NoError(m.t, err)
					return is
				}
			}
			return uid
		})
	}
	was := func(i int) *content { // the object before a version
		switch o.versions[i].verb {
		case "delete":
			return contentOf(o.versions[i].object)
		case "create":
			return nil
		}
		return contentOf(o.versions[i-1].object)
	}
	now := live
	var last map[string]any
	for i := len(o.versions) - 1; i >= 0; i-- {
		if !isChosen(i) {
			continue
		}
		var older []*content // the object before each earlier change that is undone, too
		for j := range i {
			if isChosen(j) {
				older = append(older, was(j))
			}
		}
		isOld := slices.ContainsFunc(older, func(p *content) bool { return p.equal(now) })
		v := o.versions[i]
		switch {
		case v.verb == "delete" || o.deletes(i):
			switch {
			case now == nil:
				if last = v.object; v.verb == "update" {
					last = o.versions[i-1].object
				}
				if o.kind.finished != nil && o.kind.finished(last) {
					return expected{conflict: true}
				}
				now = contentOf(last)
			case v.verb == "update" && isTerminating(o):
				return expected{conflict: true}
			}
		case now == nil: // nothing of the change is left
		case v.verb == "create":
			isIt := fieldOf(o.now(), "metadata.uid") == fieldOf(v.object, "metadata.uid")
			left := now.equal(contentOf(v.object))
			if now.equal(live) && !isIt && !isOld || (isIt || !now.equal(live)) && !left && !isOld && m.othersHaveWritten(o, i, isChosen) {
				return expected{conflict: true}
			}
			if left || !isOld {
				now = nil
			}
		default:
			without, conflict := now.without(was(i), contentOf(v.object), older)
			if conflict {
				return expected{conflict: true}
			}
			now = without
		}
	}
	return m.outcome(o, now, last)
}

// othersHaveWritten says whether somebody has changed an object after a version, in a way that is not undone.
func (m *model) othersHaveWritten(o *modelled, since int, isChosen func(int) bool) bool {
	for i := since + 1; i < len(o.versions); i++ {
		if v := o.versions[i]; !isChosen(i) && !o.isStatus(i) && v.user != upstreams && v.agent != "logplane-undo" {
			return true
		}
	}
	return false
}

// outcome is the step that brings an object into the wanted state.
func (m *model) outcome(o *modelled, wanted *content, last map[string]any) expected {
	live := o.now()
	for _, at := range []string{`."metadata"."labels"`, `."metadata"."annotations"`} { // never written empty
		if wanted != nil && wanted.below(at) == fmt.Sprintf("%s: %s\n", at, isAnObject) {
			delete(wanted.values, at)
		}
	}
	switch {
	case wanted == nil && live == nil:
		return expected{}
	case wanted == nil:
		return expected{verb: "delete", same: isTerminating(o)}
	case live == nil:
		return expected{verb: "create", wanted: m.adopted(o, wanted), last: last}
	}
	is := m.contentOf(o, live)
	if is.equal(wanted) {
		return expected{}
	}
	if is.below(references) != wanted.below(references) {
		wanted = m.adopted(o, wanted)
	}
	e := expected{verb: "update", wanted: wanted, same: is.equal(wanted), refused: slices.ContainsFunc(o.kind.immutable, func(of string) bool {
		return is.below(of) != wanted.below(of)
	})}
	if isTerminating(o) { // no finalizer may be added, and the object is deleted with the last finalizer
		had, has := is.finalizers(), wanted.finalizers()
		e.refused = e.refused || slices.ContainsFunc(has, func(f string) bool { return !slices.Contains(had, f) })
		if len(has) == 0 {
			e.wanted = nil
		}
	}
	return e
}

// finalizers are the finalizers of an object.
func (p *content) finalizers() (all []string) {
	const at = `."metadata"."finalizers"`
	for _, item := range p.order[at] {
		all = append(all, p.values[item])
	}
	if len(all) == 0 {
		_ = json.Unmarshal([]byte(p.values[at]), &all) // an empty list is stored as a value
	}
	return all
}

// references is the place at which an object names its owners.
const references = `."metadata"."ownerReferences"`

// adopted is an object with the owners as they will be after a plan: owners that are made again have another uid, and
// missing owners are dropped.
func (m *model) adopted(o *modelled, wanted *content) *content {
	return wanted.withOwners(o, func(name string, _ any) any {
		for _, owner := range m.owners {
			switch {
			case owner.name != name || m.pruning[owner]:
			case owner.now() != nil:
				return owner.life(0)
			case m.creating[owner]:
				return owner.life(1)
			}
		}
		return nil
	})
}

// withOwners gives owners another uid, and removes owners without one.
func (p *content) withOwners(o *modelled, uidOf func(name string, uid any) any) *content {
	var all []any
	for _, item := range p.order[references] {
		r := map[string]any{}
		for place, value := range p.values {
			if name, ok := strings.CutPrefix(place, item+"."); ok {
				var field any
				if json.Unmarshal([]byte(value), &field) != nil {
					panic(value)
				}
				r[strings.Trim(name, `"`)] = field
			}
		}
		if r["uid"] = uidOf(r["name"].(string), r["uid"]); r["uid"] != nil {
			all = append(all, r)
		}
	}
	out := &content{maps.Clone(p.values), maps.Clone(p.order)}
	maps.DeleteFunc(out.values, func(place, _ string) bool { return isBelow(place, references) })
	delete(out.order, references)
	if len(all) > 0 {
		out.add(o.kind, references, "metadata.ownerReferences", all)
	}
	return out
}

// content is an object as places. values has the value at each place. At the place of an object, a list or an item, the
// value is a word such as 'an object'. order has the order of items in lists whose items have names.
type content struct {
	values map[string]string
	order  map[string][]string
}

// contentOf is the part of an object that a client may write. Owners' uids are replaced by the model's names of lives.
func (m *model) contentOf(o *modelled, object map[string]any) *content {
	if object == nil {
		return nil
	}
	p := &content{map[string]string{}, map[string][]string{}}
	object = o.kind.written(object)
	if references, ok := fieldOf(object, "metadata.ownerReferences").([]any); ok {
		for _, r := range references {
			r.(map[string]any)["uid"] = m.uids[r.(map[string]any)["uid"].(string)]
		}
	}
	p.add(o.kind, "", "", object)
	return p
}

// add adds a value at a place. way is the place without the names of items.
func (p *content) add(k *modelKind, at, way string, value any) {
	switch v := value.(type) {
	case map[string]any:
		p.values[at] = isAnObject
		for name, field := range v {
			if document := documentOf(name, field); document != nil {
				field = document
			}
			p.add(k, at+"."+strconv.Quote(name), strings.TrimPrefix(way+"."+name, "."), field)
		}
		return
	case []any:
		keys := k.keysOf(way)
		if keys == nil {
			break
		}
		p.values[at], p.order[at] = isAList, []string{}
		for _, item := range v {
			name := at + "[" + nameIn(item, keys) + "]"
			p.order[at] = append(p.order[at], name)
			if p.add(k, name, way, item); p.values[name] == isAnObject {
				p.values[name] = isAnItem
			}
		}
		return
	}
	p.values[at] = encoded(value)
}

// documentOf is the document that 'kubectl apply' has kept in an annotation, nil if kubectl did not write it.
func documentOf(name string, value any) map[string]any {
	text, _ := value.(string)
	var document map[string]any
	if name != lastApplied || json.Unmarshal([]byte(text), &document) != nil || encoded(document)+"\n" != text {
		return nil
	}
	return document
}

// nameIn is the name of an item in its list: some of its fields, or its value.
func nameIn(item any, keys []string) string {
	fields, ok := item.(map[string]any)
	if !ok {
		return encoded(item)
	}
	var parts []any
	for _, key := range keys {
		parts = append(parts, fields[key])
	}
	return encoded(parts)
}

func (p *content) String() string {
	var b strings.Builder
	places := slices.Sorted(maps.Keys(p.values))
	for i, at := range places {
		if strings.HasSuffix(at, `."annotations"`) && (i+1 == len(places) || !isBelow(places[i+1], at)) {
			continue // the API leaves out empty annotations
		}
		fmt.Fprintf(&b, "%s: %s\n", at, p.values[at])
	}
	for _, at := range slices.Sorted(maps.Keys(p.order)) {
		fmt.Fprintf(&b, "%s: %v\n", at, p.order[at])
	}
	return b.String()
}

func (p *content) equal(q *content) bool {
	return (p == nil) == (q == nil) && (p == nil || p.String() == q.String())
}

// below lists all values at a place and below it.
func (p *content) below(at string) string {
	if p == nil {
		return ""
	}
	var b strings.Builder
	for _, place := range slices.Sorted(maps.Keys(p.values)) {
		if isBelow(place, at) {
			fmt.Fprintf(&b, "%s: %s\n", place, p.values[place])
		}
	}
	for _, place := range slices.Sorted(maps.Keys(p.order)) {
		if isBelow(place, at) {
			fmt.Fprintf(&b, "%s: %v\n", place, p.order[place])
		}
	}
	return b.String()
}

func isBelow(place, at string) bool {
	rest, ok := strings.CutPrefix(place, at)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// without undoes a change, or reports a conflict if others have changed the same places. older are the states before
// earlier changes that are undone, too. A place with such an older value was already changed back, and is not a
// conflict.
func (p *content) without(before, after *content, older []*content) (out *content, conflict bool) {
	out = &content{maps.Clone(p.values), map[string][]string{}}
	var undone []string // places whose values, with all values below, are as before an earlier change
	for at, kind := range p.values {
		is := func(q *content) string { return q.below(at) }
		if isHolder(kind) && p.below(at) != after.below(at) && isOlder(p.below(at), older, is) {
			undone = append(undone, at)
		}
	}
	for at := range before.both(after) {
		if before.isInItem(at, after) || after.isInItem(at, before) ||
			slices.ContainsFunc(undone, func(of string) bool { return isBelow(at, of) }) {
			continue
		}
		// of is the part of a content at the place. If the change has added or removed an item, the part is all of the
		// item.
		of := func(q *content) string { return q.valueAt(at) }
		isItem := (of(before) == isAnItem || of(after) == isAnItem) && of(before) != of(after)
		if isItem {
			of = func(q *content) string { return q.below(at) }
		}
		was, left, is := of(before), of(after), of(p)
		switch {
		case was == left:
			if is != was && isHolder(was) && before.below(at) != after.below(at) && !isOlder(is, older, of) {
				return nil, true // others have removed the whole object, list or item
			}
		case is == was:
		case is == left:
			taken := func(place string) bool { return place == at || isItem && isBelow(place, at) }
			maps.DeleteFunc(out.values, func(place, _ string) bool { return taken(place) })
			for place, value := range before.values {
				if taken(place) {
					out.values[place] = value
				}
			}
		case isOlder(is, older, of):
		default:
			return nil, true
		}
	}
	return out, !out.hold(before, p)
}

// isOlder says whether a value is the value before an earlier change that is undone, too.
func isOlder(is string, older []*content, of func(*content) string) bool {
	return slices.ContainsFunc(older, func(p *content) bool { return of(p) == is })
}

const (
	isAnObject = "an object"
	isAList    = "a list"
	isAnItem   = "an item"
)

// isHolder says whether a value stands for a holder of other values: an object, a list or an item.
func isHolder(value string) bool { return value == isAnObject || value == isAList || value == isAnItem }

// isInItem says whether a place is in an item that the other content does not have.
func (p *content) isInItem(at string, others *content) bool {
	for item, value := range p.values {
		if value == isAnItem && item != at && isBelow(at, item) && others.values[item] != isAnItem {
			return true
		}
	}
	return false
}

func (p *content) valueAt(at string) string {
	if p == nil {
		return ""
	}
	return p.values[at]
}

func (p *content) both(q *content) map[string]string {
	all := maps.Clone(p.values)
	maps.Copy(all, q.values)
	return all
}

// hold adds the missing objects, lists and items that hold values, and orders the items of lists: an item that comes
// back is placed after the items that it followed before. It returns false if there is another value in place of a
// holder.
func (p *content) hold(before, now *content) bool {
	for _, at := range slices.Collect(maps.Keys(p.values)) {
		for _, from := range []*content{now, before} {
			for holder, kind := range from.values {
				if holder == at || !isBelow(at, holder) || !isHolder(kind) {
					continue
				}
				if is, there := p.values[holder]; !there {
					p.values[holder] = kind
				} else if !isHolder(is) {
					return false
				}
			}
		}
	}
	for at, kind := range p.values {
		if kind != isAList {
			continue
		}
		p.order[at] = []string{}
		for _, item := range now.order[at] {
			if p.values[item] != "" {
				p.order[at] = append(p.order[at], item)
			}
		}
		for i, item := range before.order[at] {
			if p.values[item] == "" || slices.Contains(p.order[at], item) {
				continue
			}
			place := 0
			for _, earlier := range before.order[at][:i] {
				if j := slices.Index(p.order[at], earlier); j >= 0 {
					place = j + 1
				}
			}
			p.order[at] = slices.Insert(p.order[at], place, item)
		}
	}
	return true
}

// under is the object at a way. It makes the object if it is missing.
func under(object map[string]any, way ...string) map[string]any {
	for _, name := range way {
		below, ok := object[name].(map[string]any)
		if !ok {
			below = map[string]any{}
			object[name] = below
		}
		object = below
	}
	return object
}
