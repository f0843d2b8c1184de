package lifecycle

import (
	"context"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/apiserver/dependents"
)

// policies has upstream's documented cases of the three deletion policies, from upstream's integration tests and from
// upstream's pages on garbage collection. A step runs a command, and says which objects exist when the collectors have
// finished.
//
// An object is '[KIND/]NAME[@m] [of OWNER...] [+FINALIZER...]'. It is a ConfigMap in namespace n, or in m. An owner is
// an object's name. It ends with '!' if the dependent blocks the owner's deletion, and with '-' if the dependent says
// that it does not block the owner's deletion. The owner 'NAME=OTHER' has OTHER's uid, and the owner 'NAME=' has a uid
// that no object has. '*' marks an object that is being deleted.
var policies = []struct {
	name     string
	says     string // upstream's test; empty if the case is from its documentation or code
	steps    [][2]string
	oursOnly bool
}{
	{name: "background", says: "TestCascadingDeletion", steps: [][2]string{
		{"owner; other; child of owner!; grandchild of child; both of owner other; independent; delete owner background", "both of other; independent; other"},
		{"delete other", "independent"}}},
	{name: "an owner that never was", says: "TestCreateWithNonExistentOwner", steps: [][2]string{
		{"child of nobody", ""}}},
	{name: "orphan", says: "TestOrphaning", steps: [][2]string{
		{"owner; one of owner; two of owner!; three of owner; delete owner orphan", "one; three; two"}}},
	{name: "orphan of two owners", steps: [][2]string{
		{"owner; other; child of owner! other!; grandchild of child; delete owner orphan", "child of other!; grandchild of child; other"},
		{"delete other background", ""}}},
	{name: "orphan by default", says: "TestStressingCascadingDeletion", steps: [][2]string{
		{"rc/owner; child of rc/owner; delete rc/owner", "child"}}},
	{name: "orphan by finalizer", says: "TestStressingCascadingDeletion", steps: [][2]string{
		{"owner +orphan; child of owner; delete owner", "child"}}},
	{name: "not orphan against the default", says: "TestStressingCascadingDeletion", steps: [][2]string{
		{"rc/owner; child of rc/owner; delete rc/owner background", ""}}},
	{name: "a living owner does not block one that waits", says: "TestSolidOwnerDoesNotBlockWaitingOwner", steps: [][2]string{
		{"owner; other; child of owner! other; delete owner foreground", "child of other; other"}}},
	{name: "who does not block does not block", says: "TestNonBlockingOwnerRefDoesNotBlock", steps: [][2]string{
		{"owner; unset of owner +hold; no of owner- +hold; delete owner foreground", "no* of owner- +hold; unset* of owner +hold"},
		{"release no; release unset", ""}}},
	{name: "who blocks does block", says: "TestBlockingOwnerRefDoesBlock", steps: [][2]string{
		{"owner; child of owner! +hold; delete owner foreground", "child* of owner! +hold; owner* +foreground"},
		{"release child", ""}}},
	{name: "foreground deletes also who does not block", steps: [][2]string{
		{"owner; child of owner! +hold; unset of owner; grandchild of unset; delete owner foreground", "child* of owner! +hold; owner* +foreground"},
		{"release child", ""}}},
	{name: "foreground through levels", steps: [][2]string{
		{"owner; child of owner!; grandchild of child! +hold; delete owner foreground", "child* of owner! +foreground; grandchild* of child! +hold; owner* +foreground"},
		{"release grandchild", ""}}},
	{name: "a dependent that leaves a waiting owner", steps: [][2]string{
		{"owner; one of owner! +hold; two of owner! +hold; delete owner foreground", "one* of owner! +hold; owner* +foreground; two* of owner! +hold"},
		{"own one", "one* +hold; owner* +foreground; two* of owner! +hold"},
		{"own two of owner-", "one* +hold; two* of owner- +hold"}}},
	{name: "a dependent that comes while its owner waits", steps: [][2]string{
		{"owner; child of owner! +hold; delete owner foreground", "child* of owner! +hold; owner* +foreground"},
		{"late of owner!; release child", ""}}},
	{name: "deleted twice", says: "TestDoubleDeletionWithFinalizer", steps: [][2]string{
		{"lucy +hold; delete lucy foreground", "lucy* +hold"},
		{"delete lucy foreground", "lucy* +hold"},
		{"release lucy", ""}}},
	{name: "an owner that somebody holds", steps: [][2]string{
		{"owner +hold; child of owner!; delete owner background", "child of owner!; owner* +hold"},
		{"release owner", ""}}},
	{name: "an owner that somebody holds, foreground", steps: [][2]string{
		{"owner +hold; child of owner!; delete owner foreground", "owner* +hold"},
		{"release owner", ""}}},
	{name: "an owner that somebody holds, orphan", steps: [][2]string{
		{"owner +hold; child of owner!; delete owner orphan", "child; owner* +hold"},
		{"release owner", "child"}}},
	{name: "finalizers of dependents are obeyed", steps: [][2]string{
		{"owner; orphans of owner +orphan; waits of owner +foreground; a of orphans; b of waits! +hold; delete owner background", "a; b* of waits! +hold; waits* of owner +foreground"},
		{"release b", "a"}}},
	{name: "foreground obeys orphan of a dependent without dependents", steps: [][2]string{
		{"owner; child of owner! +orphan; delete owner foreground", ""}}},
	{name: "custom resources", says: "TestCustomResourceCascadingDeletion", steps: [][2]string{
		{"widget/owner; widget/child of widget/owner; delete widget/owner foreground", ""}}},
	{name: "mixed", says: "TestMixedRelationships", steps: [][2]string{
		{"widget/owner; a of widget/owner; owner; widget/a of owner; delete widget/owner foreground", "owner; widget/a of owner"},
		{"delete owner foreground", ""}}},
	{name: "mixed, blocking", steps: [][2]string{
		{"widget/owner; a of widget/owner!; widget/b of a! +hold; delete widget/owner foreground", "a* of widget/owner! +foreground; widget/b* of a! +hold; widget/owner* +foreground"},
		{"release widget/b", ""}}},
	{name: "the kind comes later than its owner's name", oursOnly: true, steps: [][2]string{
		{"child of gadget/nobody", "child of gadget/nobody"},
		{"define", ""},
		{"undefine", ""}}},
	{name: "the definition goes", says: "TestCRDDeletionCascading", oursOnly: true, steps: [][2]string{
		{"define; gadget/owner; other; child of gadget/owner; kept of gadget/owner other", "child of gadget/owner; gadget/owner; kept of gadget/owner other; other"},
		{"undefine", "kept of other; other"},
		{"define; gadget/owner; child of gadget/owner", "child of gadget/owner; gadget/owner; kept of other; other"},
		{"undefine", "kept of other; other"}}},
	{name: "owners elsewhere", says: "TestCrossNamespaceReferences", steps: [][2]string{
		{"parent@m; valid@m of parent@m; a of parent@m; b of pod/invalid=parent@m", "parent@m; valid@m of parent@m"},
		{"c of unknown/x parent@m; d of parent@m", "c of unknown/x parent@m; parent@m; valid@m of parent@m"},
		{"delete parent@m", "c of unknown/x parent@m"}}},
	{name: "owners without a namespace", says: "TestClusterScopedOwners", steps: [][2]string{
		{"node/owner; valid of node/owner; missing of node/nobody; invalid of unknown/x", "invalid of unknown/x; node/owner; valid of node/owner"},
		{"valid@m of node/owner; node/child of node/owner", "invalid of unknown/x; node/child of node/owner; node/owner; valid of node/owner; valid@m of node/owner"},
		{"delete node/owner background", "invalid of unknown/x"}}},
	{name: "owners without a namespace, foreground", steps: [][2]string{
		{"node/owner; a of node/owner! +hold; b@m of node/owner!; delete node/owner foreground", "a* of node/owner! +hold; node/owner* +foreground"},
		{"release a", ""}}},
	{name: "what has no namespace has no owner in one", steps: [][2]string{
		{"owner; node/child of owner; node/other of nobody", "node/child of owner; node/other of nobody; owner"},
		{"delete owner background", "node/child of owner; node/other of nobody"}}},
	{name: "another uid", steps: [][2]string{
		{"owner; child of owner=; both of owner= owner", "both of owner; owner"}}},
	{name: "the owner comes again", steps: [][2]string{
		{"owner +hold; child of owner; delete owner", "child of owner; owner* +hold"},
		{"release owner; owner; second of owner", "owner; second of owner"}}},
	{name: "who has an owner of an unknown kind is left alone", steps: [][2]string{
		{"owner; child of owner! unknown/x; dangling of nobody unknown/x; delete owner foreground", "child of owner! unknown/x; dangling of nobody unknown/x; owner* +foreground"},
		{"own child of unknown/x", "child of unknown/x; dangling of nobody unknown/x"}}},
	{name: "an owner is named later", steps: [][2]string{
		{"owner; child; own child of owner; delete owner", ""},
		{"child; own child of nobody", ""}}},
	{name: "a circle, background", steps: [][2]string{
		{"a; b of a; own a of b", "a of b; b of a"},
		{"delete a background", ""}}},
	{name: "a circle, foreground", steps: [][2]string{
		{"a; b of a; own a of b; delete a foreground", ""}}},
	{name: "a circle that blocks", steps: [][2]string{
		{"a; b of a!; own a of b!; delete a foreground", ""}}},
	{name: "a circle of three that blocks", steps: [][2]string{
		{"a; b of a!; c of b!; own a of c!; delete a foreground", ""}}},
	{name: "a circle that is orphaned", steps: [][2]string{
		{"a; b of a!; own a of b!; delete a orphan", "b"}}},
	{name: "a circle that a living owner keeps", steps: [][2]string{
		{"a; owner; b of a! owner; own a of b!; delete a foreground", "b of owner; owner"}}},
	{name: "an object that owns itself", steps: [][2]string{
		{"a; own a of a!; delete a background", ""},
		{"b; own b of b; delete b foreground", ""}}},
	{name: "an object that waits for itself", steps: [][2]string{
		{"a; own a of a!; delete a foreground", "a* of a! +foreground"},
		{"own a", ""}}},
}

// TestGarbage: each case ends as upstream says, with our collector, with upstream's collector, and with both at the
// same time.
func TestGarbage(t *testing.T) {
	for _, by := range []struct {
		name    string
		collect func(c *watched)
	}{
		{"ours", func(c *watched) { c.run() }},
		{"two", func(c *watched) { c.run(); c.restart(); c.run() }},
		{"upstream", func(c *watched) { c.runUpstream() }},
		{"both", func(c *watched) { c.run(); c.runUpstream() }},
	} {
		t.Run(by.name, func(t *testing.T) {
			if testing.Short() && by.name != "ours" {
				t.Skip("one collector will do")
			}
			if eventlogtest.Slowdown > 1 && (by.name == "two" || by.name == "upstream") {
				t.Skip("it is slow under the race detector, and a part of the others")
			}
			t.Parallel()
			c := newWatched(t)
			c.createDefinition()
			by.collect(c)
			for i, p := range policies {
				t.Run(p.name, func(t *testing.T) {
					if p.oursOnly && by.name == "upstream" {
						t.Skip("upstream's collector does not empty definitions")
					}
					if p.says != "" {
						t.Log("upstream's", p.says)
					}
					g := &graph{watched: c.with(t), number: i, uids: map[string]types.UID{}, tokens: map[metav1.OwnerReference]string{}}
					c.createNamespace(g.namespace("n"))
					c.createNamespace(g.namespace("m"))
					for _, step := range p.steps {
						for _, command := range split(step[0]) {
							g.do(command)
						}
						g.becomes(step[1])
						g.sentinel()
						require.Equal(t, step[1], g.String(), "it stays so")
						g.isIndexed()
					}
				})
			}
		})
	}
}

// watched is a cluster with collectors. upstream is nil if upstream's collector does not run.
type watched struct {
	*cluster
	outside  *rest.Config
	upstream *garbagecollector.GarbageCollector
}

// with returns the same cluster for a part of the test.
func (c *watched) with(t *testing.T) *watched {
	part := *c.cluster
	part.T = t
	return &watched{&part, c.outside, c.upstream}
}

// newWatched returns a cluster that clients outside this process can use.
func newWatched(t *testing.T) *watched {
	t.Helper()
	c := newCluster(t)
	server := httptest.NewServer(c.server)
	t.Cleanup(server.Close)
	ctx, cancel := context.WithCancel(context.Background())
	fed := make(chan error, 1)
	go func() { fed <- c.cell.Feed.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-fed)
	})
	config := &rest.Config{Host: server.URL, QPS: -1}
	custom, err := dynamic.NewForConfig(config)
	require.NoError(t, err)
	c.custom = custom
	return &watched{cluster: c, outside: config}
}

// metadataInformers are the informers that upstream's collector asks for.
type metadataInformers struct {
	metadatainformer.SharedInformerFactory
}

func (m metadataInformers) ForResource(r schema.GroupVersionResource) (informers.GenericInformer, error) {
	return m.SharedInformerFactory.ForResource(r), nil
}

// runUpstream runs upstream's collector until the test ends, as upstream's controller manager does.
func (c *watched) runUpstream() {
	c.Helper()
	const sync = time.Second // how often the collector looks for new kinds
	client, err := kubernetes.NewForConfig(c.outside)
	require.NoError(c, err)
	metadataClient, err := metadata.NewForConfig(c.outside)
	require.NoError(c, err)
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery()))
	started := make(chan struct{})
	close(started)
	ctx, cancel := context.WithCancel(context.Background())
	factory := metadatainformer.NewSharedInformerFactory(metadataClient, 0)
	c.upstream, err = garbagecollector.NewGarbageCollector(ctx, client, metadataClient, mapper,
		garbagecollector.DefaultIgnoredResources(), metadataInformers{factory}, started)
	require.NoError(c, err)
	ended := make(chan struct{}, 2)
	go func() { c.upstream.Run(ctx, 5, sync); ended <- struct{}{} }()
	go func() { c.upstream.Sync(ctx, client.Discovery(), sync); ended <- struct{}{} }()
	c.Cleanup(func() {
		cancel()
		<-ended
		<-ended
		factory.Shutdown()
	})
}

// graph has the objects of one case.
type graph struct {
	*watched
	number int
	// uids are the uids of all objects that ever existed, by name.
	uids map[string]types.UID
	// tokens has the case's name of each owner.
	tokens    map[metav1.OwnerReference]string
	sentinels int
}

func split(list string) []string {
	return slices.DeleteFunc(strings.Split(list, "; "), func(s string) bool { return s == "" })
}

func (g *graph) namespace(n string) string { return fmt.Sprintf("%s-%d", n, g.number) }

// kinds are the kinds of the cases.
var kinds = map[string]struct {
	resource   schema.GroupVersionResource
	kind       string
	namespaced bool
}{
	"":       {schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, "ConfigMap", true},
	"pod":    {schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "Pod", true},
	"rc":     {schema.GroupVersionResource{Version: "v1", Resource: "replicationcontrollers"}, "ReplicationController", true},
	"node":   {schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, "Node", false},
	"widget": {widgets, "Widget", true},
	"gadget": {schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "gadgets"}, "Gadget", true},
	"unknown": {schema.GroupVersionResource{Group: "unknown.example.com", Version: "v1", Resource: "unknowns"},
		"Unknown", true},
}

// object returns a client for an object of a case, and its name.
func (g *graph) object(spec string) (dynamic.ResourceInterface, string) {
	kind, name, found := strings.Cut(spec, "/")
	if !found {
		kind, name = "", spec
	}
	name, elsewhere := strings.CutSuffix(name, "@m")
	k := kinds[kind]
	switch {
	case !k.namespaced:
		return g.custom.Resource(k.resource), g.namespace(name)
	case elsewhere:
		return g.custom.Resource(k.resource).Namespace(g.namespace("m")), name
	}
	return g.custom.Resource(k.resource).Namespace(g.namespace("n")), name
}

// owners returns the references for a list of owners. An owner need not exist.
func (g *graph) owners(tokens []string) []metav1.OwnerReference {
	var owners []metav1.OwnerReference
	for _, token := range tokens {
		token, no := strings.CutSuffix(token, "-")
		token, yes := strings.CutSuffix(token, "!")
		spec, other, differs := strings.Cut(token, "=")
		if !differs {
			other = spec
		}
		uid, known := g.uids[other]
		if !known {
			uid = types.UID("nobody-" + token)
		}
		kind, _, found := strings.Cut(spec, "/")
		if !found {
			kind = ""
		}
		_, name := g.object(spec)
		owner := metav1.OwnerReference{APIVersion: kinds[kind].resource.GroupVersion().String(), Kind: kinds[kind].kind, Name: name, UID: uid}
		g.tokens[owner] = token
		if yes || no {
			owner.BlockOwnerDeletion = &yes
		}
		owners = append(owners, owner)
	}
	return owners
}

// do carries out a step of a case.
func (g *graph) do(command string) {
	g.Helper()
	ctx := context.Background()
	words := strings.Fields(command)
	switch words[0] {
	case "define":
		g.createDefinitionOf("gadgets", "Gadget")
	case "undefine":
		definitions := g.extensions.ApiextensionsV1().CustomResourceDefinitions()
		require.NoError(g, definitions.Delete(ctx, "gadgets.example.com", metav1.DeleteOptions{}))
		g.eventually(func() bool {
			_, err := definitions.Get(ctx, "gadgets.example.com", metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		}, "the definition is gone")
	case "delete":
		g.observed()
		client, name := g.object(words[1])
		var options metav1.DeleteOptions
		if len(words) > 2 {
			policy := metav1.DeletionPropagation(strings.ToUpper(words[2][:1]) + words[2][1:])
			options.PropagationPolicy = &policy
		}
		require.NoError(g, client.Delete(ctx, name, options), command)
	case "release":
		client, name := g.object(words[1])
		g.change(client, name, func(o *unstructured.Unstructured) {
			o.SetFinalizers(slices.DeleteFunc(o.GetFinalizers(), func(f string) bool { return f == finalizers["+hold"] }))
		})
	case "own":
		client, name := g.object(words[1])
		var owners []metav1.OwnerReference
		if len(words) > 2 {
			owners = g.owners(words[3:])
		}
		g.change(client, name, func(o *unstructured.Unstructured) { o.SetOwnerReferences(owners) })
	default:
		g.create(words)
	}
}

// change rewrites an object, and tries again if collectors write the object at the same time.
func (g *graph) change(client dynamic.ResourceInterface, name string, change func(*unstructured.Unstructured)) {
	g.Helper()
	for {
		o, err := client.Get(context.Background(), name, metav1.GetOptions{})
		require.NoError(g, err)
		change(o)
		_, err = client.Update(context.Background(), o, metav1.UpdateOptions{})
		if !apierrors.IsConflict(err) {
			require.NoError(g, err)
			return
		}
	}
}

var finalizers = map[string]string{"+hold": "example.com/hold", "+orphan": metav1.FinalizerOrphanDependents, "+foreground": metav1.FinalizerDeleteDependents}

func (g *graph) create(words []string) {
	g.Helper()
	client, name := g.object(words[0])
	kind, _, found := strings.Cut(words[0], "/")
	if !found {
		kind = ""
	}
	o := &unstructured.Unstructured{Object: map[string]any{}}
	o.SetAPIVersion(kinds[kind].resource.GroupVersion().String())
	o.SetKind(kinds[kind].kind)
	o.SetName(name)
	o.SetLabels(map[string]string{"case": fmt.Sprint(g.number)})
	if kind == "rc" {
		pod := map[string]any{"metadata": map[string]any{"labels": map[string]any{"a": "b"}}, "spec": map[string]any{"containers": []any{map[string]any{"name": "c", "image": "i"}}}}
		o.Object["spec"] = map[string]any{"replicas": int64(0), "selector": map[string]any{"a": "b"}, "template": pod}
	}
	var owners, held []string
	for _, word := range words[1:] {
		switch {
		case word == "of":
		case word[0] == '+':
			held = append(held, finalizers[word])
		default:
			owners = append(owners, word)
		}
	}
	o.SetFinalizers(held)
	o.SetOwnerReferences(g.owners(owners))
	made, err := client.Create(context.Background(), o, metav1.CreateOptions{})
	require.NoError(g, err, words)
	g.uids[words[0]] = made.GetUID()
}

// observed waits until upstream's collector knows all objects that have owners, since the collector would not orphan
// unknown objects.
func (c *watched) observed() {
	c.Helper()
	if c.upstream == nil {
		return
	}
	view, err := c.cell.Projection.Latest(context.Background())
	require.NoError(c, err)
	for r, err := range dependents.All(context.Background(), view, "main") {
		require.NoError(c, err)
		eventlogtest.Eventually(c, "upstream's collector knows "+r.Dependent.String(), func() bool { return c.upstream.GraphHasUID(r.Dependent.UID) })
	}
}

func (g *graph) objects() (all []unstructured.Unstructured) {
	for _, k := range kinds {
		list, err := g.custom.Resource(k.resource).List(context.Background(), metav1.ListOptions{LabelSelector: fmt.Sprintf("case=%d", g.number)})
		if !apierrors.IsNotFound(err) { // not found: the kind is not served
			require.NoError(g, err)
			all = append(all, list.Items...)
		}
	}
	return all
}

// isIndexed requires that the index matches the owners that the objects name.
func (g *graph) isIndexed() {
	g.Helper()
	var want, have []string
	for _, o := range g.objects() {
		for _, r := range o.GetOwnerReferences() {
			want = append(want, fmt.Sprint(r.UID, " of ", o.GetUID()))
		}
	}
	view, err := g.cell.Projection.Latest(context.Background())
	require.NoError(g, err)
	for r, err := range dependents.All(context.Background(), view, "main") {
		require.NoError(g, err)
		of := r.Dependent.Namespace
		if of == "" {
			of = r.Dependent.Name
		}
		if strings.HasSuffix(of, fmt.Sprintf("-%d", g.number)) {
			have = append(have, fmt.Sprint(r.Owner.UID, " of ", r.Dependent.UID))
		}
	}
	require.ElementsMatch(g, want, have)
}

// String is the graph in the notation of the cases.
func (g *graph) String() string {
	var lines []string
	for _, o := range g.objects() {
		line := strings.TrimSuffix(o.GetName(), fmt.Sprintf("-%d", g.number))
		for kind, k := range kinds {
			if kind != "" && k.kind == o.GetKind() {
				line = kind + "/" + line
			}
		}
		if o.GetNamespace() == g.namespace("m") {
			line += "@m"
		}
		if o.GetDeletionTimestamp() != nil {
			line += "*"
		}
		for i, owner := range o.GetOwnerReferences() {
			if i == 0 {
				line += " of"
			}
			block := owner.BlockOwnerDeletion
			owner.BlockOwnerDeletion, owner.Controller = nil, nil
			line += " " + g.tokens[owner]
			switch {
			case block == nil:
			case *block:
				line += "!"
			default:
				line += "-"
			}
		}
		for _, held := range o.GetFinalizers() {
			for short, f := range finalizers {
				if f == held {
					line += " " + short
				}
			}
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return strings.Join(lines, "; ")
}

// becomes waits until the graph is as wanted.
func (g *graph) becomes(want string) {
	g.Helper()
	last := ""
	defer func() {
		if g.Failed() {
			g.Logf("want: %s\nhave: %s", want, last)
		}
	}()
	g.eventually(func() bool { last = g.String(); return last == want }, want)
}

// sentinel waits until the collectors have looked at all earlier changes.
func (g *graph) sentinel() {
	g.Helper()
	g.sentinels++
	name := fmt.Sprintf("sentinel-%d", g.sentinels)
	g.own(g.namespace("n"), name, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "nobody", UID: types.UID(name)})
	g.eventually(func() bool { return !g.has(g.namespace("n"), name) }, name+" is gone")
}
