package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/test/product"
)

const (
	undoKills  = 50 / eventlogtest.Slowdown
	undoCopies = 2 // objects of each shape
)

// TestUndoThroughKills: an undo of one manager's changes takes back exactly those changes, among the changes of others,
// and names the conflicts. If the undo is killed at any of 50 random points and run again, the result is the same: the
// second run continues with the remaining changes, and does nothing twice. The same holds at 25 points for an undo of a
// user's changes, which include deletions.
//
// A point is a request of the undo. The undo is killed before the request is forwarded, while the request is on its
// way, or before the answer is forwarded. LOGPLANE_UNDO_SEED chooses other points.
func TestUndoThroughKills(t *testing.T) {
	t.Parallel()
	rounds, seed := undoKills, uint64(1)
	if testing.Short() {
		rounds = 3
	}
	if other := os.Getenv("LOGPLANE_UNDO_SEED"); other != "" {
		var err error
		seed, err = strconv.ParseUint(other, 10, 64)
		require.NoError(t, err)
	}
	server := product.Dev(t, t.TempDir(), "--in-memory")
	_, _, client := clientsFor(t, server.URL())
	defineWidgets(t, client)
	for which, rounds := range map[string]int{"manager": rounds, "by": (rounds + 1) / 2} {
		t.Run(which, func(t *testing.T) {
			t.Parallel()
			whole := newUndone(t, server.URL(), which, "whole-"+which, seed, 0)
			requests, writes := whole.finish()
			whole.judge()
			want := whole.content()
			for round := 1; round <= rounds; round++ {
				t.Run(strconv.Itoa(round), func(t *testing.T) {
					t.Parallel()
					u := newUndone(t, server.URL(), which, fmt.Sprintf("%s-%d", which, round), seed, uint64(round))
					require.True(t, u.kill(requests, writes))
					if u.random.IntN(2) == 0 {
						u.kill(requests, writes)
					}
					u.finish()
					require.Equal(t, whole.said, u.said, "the conflicts")
					is := u.content()
					require.Len(t, is, len(want))
					for name := range want {
						require.Equal(t, want[name], is[name], name)
					}
					require.Equal(t, whole.written(), u.written(), "what was written, and how often")
				})
			}
		})
	}
}

// shape describes objects that get the same changes: those changes, and the state that an undo must give the objects.
type shape struct {
	kind          string // ConfigMap if it is empty
	before, after []deed // changes before and after the moment at which the undone changes begin
	// manager and by are the fields that an object must have after an undo: manager after an undo of the manager's
	// changes, by after an undo of the user's changes. If by is empty, manager holds after both undos; 'gone' means
	// that there is no object.
	manager, by string
	// conflict is the reason why the undo leaves the object alone.
	conflict string
}

// deed is one change of an object. The changes of robot, who is both a field manager and a user, are taken back.
type deed struct{ who, verb, body string }

const (
	robot = "robot"
	alice = "alice"
)

func made(who, body string) deed    { return deed{who, "create", body} }
func patched(who, body string) deed { return deed{who, "patch", body} }
func deleted(who string) deed       { return deed{who, "delete", ""} }

// shapes has the shapes by name. The names of a shape's objects begin with the shape's name.
var shapes = map[string]shape{
	"untouched": {before: []deed{made(robot, `{"data":{"a":"1"}}`), patched(robot, `{"data":{"a":"2"}}`)},
		after: []deed{patched(alice, `{"data":{"b":"3"}}`)}, manager: `{"data":{"a":"2","b":"3"}}`},
	"changed": {before: []deed{made(alice, `{"data":{"a":"1","b":"1"}}`)},
		after: []deed{patched(robot, `{"data":{"a":"2"}}`)}, manager: `{"data":{"a":"1","b":"1"}}`},
	"twice": {before: []deed{made(alice, `{"data":{"a":"1","b":"1"}}`)},
		after:   []deed{patched(robot, `{"data":{"a":"2"}}`), patched(alice, `{"data":{"b":"9"}}`), patched(robot, `{"data":{"a":"3"}}`)},
		manager: `{"data":{"a":"1","b":"9"}}`},
	"forth-and-back": {before: []deed{made(alice, `{"data":{"a":"1"}}`)},
		after: []deed{patched(robot, `{"data":{"a":"2"}}`), patched(robot, `{"data":{"a":"1"}}`), patched(robot, `{"data":{"a":"3"}}`)}, manager: `{"data":{"a":"1"}}`},
	"added": {before: []deed{made(alice, `{"data":{"a":"1"}}`)},
		after: []deed{patched(robot, `{"data":{"c":"2"}}`), patched(alice, `{"data":{"a":"5"}}`)}, manager: `{"data":{"a":"5","c":null}}`},
	"conflict": {before: []deed{made(alice, `{"data":{"a":"1","b":"1"}}`)},
		after:   []deed{patched(robot, `{"data":{"a":"2","b":"2"}}`), patched(alice, `{"data":{"a":"7"}}`)},
		manager: `{"data":{"a":"7","b":"2"}}`, conflict: "data.a is not what revision N left: system:admin as alice changed it at revision N"},
	"overwritten": {before: []deed{made(alice, `{"data":{"a":"1"}}`)},
		after:   []deed{patched(robot, `{"data":{"a":"2"}}`), patched(alice, `{"data":{"a":"3"}}`), patched(robot, `{"data":{"a":"4"}}`)},
		manager: `{"data":{"a":"4"}}`, conflict: "data.a is not what revision N left: system:admin as alice changed it at revision N"},
	"back-by-hand": {before: []deed{made(alice, `{"data":{"a":"1"}}`)},
		after: []deed{patched(robot, `{"data":{"a":"2"}}`), patched(alice, `{"data":{"a":"1"}}`)}, manager: `{"data":{"a":"1"}}`},
	"made":         {after: []deed{made(robot, `{"data":{"a":"1"}}`)}, manager: "gone"},
	"made-changed": {after: []deed{made(robot, `{"data":{"a":"1"}}`), patched(robot, `{"data":{"a":"2"}}`)}, manager: "gone"},
	"made-used": {after: []deed{made(robot, `{"data":{"a":"1"}}`), patched(alice, `{"data":{"b":"2"}}`)},
		manager: `{"data":{"a":"1","b":"2"}}`, conflict: "it was changed since, at revision N by system:admin as alice, which would be lost"},
	"made-gone":    {after: []deed{made(robot, `{"data":{"a":"1"}}`), deleted(robot)}, manager: "gone"},
	"changed-gone": {before: []deed{made(alice, `{"data":{"a":"1"}}`)}, after: []deed{patched(robot, `{"data":{"a":"2"}}`), deleted(alice)}, manager: "gone"},
	// A change that only removes fields leaves no trace of its field manager, but its user is known.
	"removed": {before: []deed{made(alice, `{"data":{"a":"1","b":"1"}}`)},
		after:   []deed{patched(robot, `{"data":{"a":null}}`), patched(alice, `{"data":{"b":"5"}}`)},
		manager: `{"data":{"a":null,"b":"5"}}`, by: `{"data":{"a":"1","b":"5"}}`},
	"deleted": {before: []deed{made(alice, `{"data":{"a":"1"}}`)}, after: []deed{patched(robot, `{"data":{"a":"2"}}`), deleted(robot)},
		manager: "gone", by: `{"data":{"a":"1"}}`},
	"replaced": {before: []deed{made(alice, `{"data":{"a":"1"}}`)}, after: []deed{deleted(robot), made(robot, `{"data":{"z":"9"}}`)},
		manager: "gone", by: `{"data":{"a":"1","z":null}}`},
	"held": {after: []deed{made(robot, `{"metadata":{"finalizers":["example.com/hold"]}}`)},
		manager: `{"metadata":{"deletionTimestamp":"set","finalizers":["example.com/hold"]}}`},
	"deployment": {kind: "Deployment",
		before: []deed{made(alice, `{"spec":{"replicas":1,"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},
			"spec":{"containers":[{"name":"web","image":"web:1"},{"name":"side","image":"side:1"}]}}}}`)},
		after: []deed{patched(robot, `{"spec":{"template":{"spec":{"containers":[{"name":"web","image":"web:2"}]}}}}`),
			patched(alice, `{"spec":{"replicas":3,"template":{"spec":{"containers":[{"name":"side","image":"side:2"}]}}}}`)},
		manager: `{"spec":{"replicas":3,"template":{"spec":{"containers":[{"name":"web","image":"web:1"},{"name":"side","image":"side:2"}]}}}}`},
	"service": {kind: "Service", before: []deed{made(alice, `{"spec":{"selector":{"a":"b"},"ports":[{"name":"http","port":80}]}}`)},
		after:   []deed{patched(robot, `{"spec":{"selector":{"a":"c"}}}`), patched(alice, `{"spec":{"ports":[{"name":"https","port":443}]}}`)},
		manager: `{"spec":{"selector":{"a":"b"}}}`},
	"service-made": {kind: "Service", after: []deed{made(robot, `{"spec":{"ports":[{"port":80}]}}`)}, manager: "gone"},
	"widget": {kind: "Widget", before: []deed{made(alice, `{"spec":{"size":1}}`)},
		after:   []deed{patched(robot, `{"spec":{"size":2}}`), patched(alice, `{"spec":{"colour":"red"}}`), patched(robot, `{"metadata":{"labels":{"seen":"yes"}}}`)},
		manager: `{"spec":{"size":1,"colour":"red"},"metadata":{"labels":null}}`},
	"applied": {kind: "Widget", before: []deed{{alice, "apply", `{"spec":{"size":1}}`}},
		after: []deed{{robot, "apply", `{"spec":{"colour":"red"}}`}, {alice, "apply", `{"spec":{"size":2}}`}}, manager: `{"spec":{"size":2,"colour":null}}`},
}

var undoKinds = map[string]struct {
	schema.GroupVersionResource
	merge types.PatchType
}{
	"ConfigMap":  {configMaps, types.MergePatchType},
	"Service":    {schema.GroupVersionResource{Version: "v1", Resource: "services"}, types.StrategicMergePatchType},
	"Deployment": {schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, types.StrategicMergePatchType},
	"Widget":     {widgets, types.MergePatchType},
}

// undone is a namespace in which changes are taken back.
type undone struct {
	t                             *testing.T
	server, which, name, revision string
	random                        *rand.Rand
	client                        dynamic.Interface
	// said is the last run's output about conflicts, without revisions.
	said string
}

// newUndone makes a namespace and its objects. Changes of different objects are made in random order.
func newUndone(t *testing.T, server, which, name string, seed, round uint64) *undone {
	t.Helper()
	u := &undone{t: t, server: server, which: which, name: name, random: rand.New(rand.NewPCG(seed, round))}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("LOGPLANE_UNDO_SEED=%d repeats this", seed)
		}
	})
	_, _, client := clientsFor(t, server)
	u.client = client
	namespace := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name}}}
	_, err := client.Resource(namespaces).Create(t.Context(), namespace, metav1.CreateOptions{})
	require.NoError(t, err)
	authors := map[string]dynamic.Interface{}
	for _, who := range []string{robot, alice} {
		authors[who], err = dynamic.NewForConfig(&rest.Config{Host: server, QPS: -1, Impersonate: rest.ImpersonationConfig{UserName: who, Groups: []string{"system:masters"}}})
		require.NoError(t, err)
	}
	u.do(authors, func(s shape) []deed { return s.before })
	list, err := client.Resource(configMaps).Namespace(name).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	u.revision = list.GetResourceVersion()
	u.do(authors, func(s shape) []deed { return s.after })
	return u
}

// do makes the changes. The changes of one object are made in their order, but the objects come in a random order.
func (u *undone) do(authors map[string]dynamic.Interface, which func(shape) []deed) {
	u.t.Helper()
	type step struct {
		shape, name string
		deed
	}
	for n, more := 0, true; more; n++ {
		var steps []step
		for of, s := range shapes {
			if all := which(s); n < len(all) {
				for i := range undoCopies {
					steps = append(steps, step{of, fmt.Sprintf("%s-%d", of, i), all[n]})
				}
			}
		}
		more = len(steps) > 0
		slices.SortFunc(steps, func(a, b step) int { return strings.Compare(a.name, b.name) })
		u.random.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
		group, ctx := errgroup.WithContext(u.t.Context())
		group.SetLimit(4)
		for _, s := range steps {
			group.Go(func() error {
				if err := s.do(ctx, authors[s.who], shapes[s.shape].of(), u.name, s.name); err != nil {
					return fmt.Errorf("%s %s: %w", s.verb, s.name, err)
				}
				return nil
			})
		}
		require.NoError(u.t, group.Wait())
	}
}

func (s shape) of() string {
	if s.kind == "" {
		return "ConfigMap"
	}
	return s.kind
}

func (d deed) do(ctx context.Context, author dynamic.Interface, kind, namespace, name string) error {
	objects := author.Resource(undoKinds[kind].GroupVersionResource).Namespace(namespace)
	object := &unstructured.Unstructured{Object: map[string]any{}}
	if d.body != "" {
		if err := json.Unmarshal([]byte(d.body), &object.Object); err != nil {
			return err
		}
	}
	object.SetGroupVersionKind(undoKinds[kind].GroupVersion().WithKind(kind))
	object.SetName(name)
	var err error
	switch d.verb {
	case "create":
		_, err = objects.Create(ctx, object, metav1.CreateOptions{FieldManager: d.who})
	case "patch":
		_, err = objects.Patch(ctx, name, undoKinds[kind].merge, []byte(d.body), metav1.PatchOptions{FieldManager: d.who})
	case "apply":
		_, err = objects.Apply(ctx, name, object, metav1.ApplyOptions{FieldManager: d.who, Force: true})
	case "delete":
		err = objects.Delete(ctx, name, metav1.DeleteOptions{})
	}
	return err
}

// point is where an undo is killed: at its n-th request, or at its n-th write.
type point struct {
	n       int
	ofWrite bool
	when    moment
}

// moment says how far the request gets before the kill. The request's answer never arrives.
type moment int

const (
	unsent moment = iota
	onItsWay
	answered
	moments = iota
)

// gate is a proxy that kills its client at a point. It stands in front of the server.
type gate struct {
	*httputil.ReverseProxy
	point point
	kill  func()
	gone  chan struct{} // closed when the process has ended

	mu               sync.Mutex
	requests, writes int  // guarded by mu
	killed           bool // guarded by mu
}

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	isWrite := r.Method != http.MethodGet
	g.requests++
	if isWrite {
		g.writes++
	}
	here := g.requests == g.point.n
	if g.point.ofWrite {
		here = isWrite && g.writes == g.point.n
	}
	g.killed = g.killed || here
	g.mu.Unlock()
	switch {
	case !here:
		g.ReverseProxy.ServeHTTP(w, r)
	case g.point.when == unsent:
		g.kill()
	case g.point.when == onItsWay:
		go g.kill()
		g.ReverseProxy.ServeHTTP(httptest.NewRecorder(), r)
	case g.point.when == answered:
		g.ReverseProxy.ServeHTTP(httptest.NewRecorder(), r)
		g.kill()
	}
	if here {
		<-g.gone
	}
}

// run runs an undo behind a gate, to its end or to the point. It returns the error of the process.
func (u *undone) run(at point) (g *gate, out, said string, err error) {
	u.t.Helper()
	target, err := url.Parse(u.server)
	require.NoError(u.t, err)
	cmd, started := exec.Command(product.Logplane(u.t)), make(chan struct{})
	g = &gate{ReverseProxy: httputil.NewSingleHostReverseProxy(target), point: at, gone: make(chan struct{}),
		kill: func() { <-started; _ = cmd.Process.Kill() }}
	g.ErrorHandler = func(http.ResponseWriter, *http.Request, error) {} // expected: the process is gone
	proxy := httptest.NewServer(g)
	defer proxy.Close() // waits for the requests on their way
	cmd.Args = append(cmd.Args, "undo", "--"+u.which, robot, "--since", u.revision, "--yes", "--server", proxy.URL, "--namespace", u.name)
	cmd.Env = append(os.Environ(), "KUBECONFIG=", "HOME="+u.t.TempDir())
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(u.t, cmd.Start())
	close(started)
	bound := time.AfterFunc(startTimeout, g.kill)
	defer bound.Stop()
	err = cmd.Wait()
	close(g.gone)
	return g, stdout.String(), stderr.String(), err
}

// kill runs the undo, and kills it at a random point of a whole run. A run that continues where another run was killed
// may end before that point.
func (u *undone) kill(requests, writes int) (killed bool) {
	u.t.Helper()
	at := point{1 + u.random.IntN(requests), false, moment(u.random.IntN(int(moments)))}
	if u.random.IntN(3) > 0 {
		at.n, at.ofWrite = 1+u.random.IntN(writes), true
	}
	g, out, said, err := u.run(at)
	if g.killed {
		require.ErrorContains(u.t, err, "signal: killed", "%+v: %s%s", at, out, said)
	}
	return g.killed
}

var (
	aRevision = regexp.MustCompile(`revisions? [0-9]+`)
	theMoment = regexp.MustCompile(`'[0-9]+' is taken for .*`) // revision and time differ from namespace to namespace
)

// finish runs the undo to its end, and returns how many requests and writes it made.
func (u *undone) finish() (requests, writes int) {
	u.t.Helper()
	g, out, said, err := u.run(point{})
	require.ErrorContains(u.t, err, "exit status 1", "%s%s", out, said)
	var conflicts []string
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "leave ") {
			conflicts = append(conflicts, aRevision.ReplaceAllString(line, "revision N"))
		}
	}
	slices.Sort(conflicts)
	u.said = strings.Join(conflicts, "") + theMoment.ReplaceAllString(said, "the moment")
	return g.requests, g.writes
}

// judge requires that each object is in the state that its shape demands.
func (u *undone) judge() {
	u.t.Helper()
	content, conflicts := u.content(), 0
	for of, s := range shapes {
		want := s.manager
		if u.which == "by" && s.by != "" {
			want = s.by
		}
		for i := range undoCopies {
			name := fmt.Sprintf("%s-%d", of, i)
			is, there := content[s.of()+" "+name]
			if want == "gone" {
				require.False(u.t, there, name)
				continue
			}
			var fields any
			require.NoError(u.t, json.Unmarshal([]byte(want), &fields), name)
			require.True(u.t, holds(fields, is), "%s is %v, not %s", name, is, want)
			if s.conflict != "" {
				conflicts++
				require.Regexp(u.t, "(?m)^leave [a-z.]+/"+name+": "+regexp.QuoteMeta(s.conflict)+"$", u.said)
			}
		}
	}
	require.Equal(u.t, conflicts, strings.Count(u.said, "leave "), u.said)
	require.Contains(u.t, u.said, fmt.Sprintf("logplane: %d of ", conflicts))
	for what, times := range u.written() {
		require.Equal(u.t, 1, times, what)
	}
}

// holds says whether a value has all wanted fields; null stands for a field that must be missing.
func holds(want, is any) bool {
	switch want := want.(type) {
	case map[string]any:
		fields, _ := is.(map[string]any)
		for name, value := range want {
			if !holds(value, fields[name]) {
				return false
			}
		}
		return fields != nil
	case []any:
		items, _ := is.([]any)
		for i, value := range want {
			if i >= len(items) || !holds(value, items[i]) {
				return false
			}
		}
		return len(items) == len(want)
	}
	return want == is
}

// content returns all objects of the namespace, without the fields that differ between namespaces: names, uids,
// revisions, times and addresses.
func (u *undone) content() map[string]any {
	u.t.Helper()
	all := map[string]any{}
	for kind, of := range undoKinds {
		list, err := u.client.Resource(of.GroupVersionResource).Namespace(u.name).List(u.t.Context(), metav1.ListOptions{})
		require.NoError(u.t, err)
		for _, object := range list.Items {
			text, err := json.Marshal(object.Object)
			require.NoError(u.t, err)
			var fields map[string]any
			// so that numbers have the same types as in the wanted value
			require.NoError(u.t, json.Unmarshal(text, &fields))
			metadata := fields["metadata"].(map[string]any)
			for _, name := range []string{"namespace", "uid", "resourceVersion", "creationTimestamp", "managedFields"} {
				delete(metadata, name)
			}
			if metadata["deletionTimestamp"] != nil {
				metadata["deletionTimestamp"] = "set"
			}
			if kind == "Service" {
				delete(fields["spec"].(map[string]any), "clusterIP")
				delete(fields["spec"].(map[string]any), "clusterIPs")
			}
			all[kind+" "+object.GetName()] = fields
		}
	}
	return all
}

// written counts the writes of undos, by object and verb.
func (u *undone) written() map[string]int {
	u.t.Helper()
	answer, err := http.Get(fmt.Sprintf("%s/apis/history.logplane.dev/v1/namespaces/%s/changes?limit=1000&fieldSelector=from%%3D%s", u.server, u.name, u.revision))
	require.NoError(u.t, err)
	defer answer.Body.Close()
	require.Equal(u.t, http.StatusOK, answer.StatusCode)
	var list struct {
		Metadata metav1.ListMeta
		Items    []struct {
			Verb, UserAgent string
			Object          struct{ Resource, Name string }
		}
	}
	require.NoError(u.t, json.NewDecoder(answer.Body).Decode(&list))
	require.Empty(u.t, list.Metadata.Continue)
	all := map[string]int{}
	for _, change := range list.Items {
		if change.UserAgent == "logplane-undo" {
			all[change.Verb+" "+change.Object.Resource+"/"+change.Object.Name]++
		}
	}
	return all
}
