package simulate

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"k8s.io/apimachinery/pkg/api/apitesting"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/rest"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/functions/lifecycle"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/internal/kubestore/fanout"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/cache"
)

var (
	scheme = runtime.NewScheme()
	codecs = serializer.NewCodecFactory(scheme)
)

func init() {
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	utilruntime.Must(example.AddToScheme(scheme))
	utilruntime.Must(examplev1.AddToScheme(scheme))
}

// kinds of objects: owners have claims, which are listed like others; events have none, and may have a TTL.
var kinds = []string{"owners", "events", "claims"}

// mortals is where Expire looks, and longest the longest TTL.
const (
	mortals = "main/events/"
	longest = time.Minute
)

func lifecycleOf(cell kubestore.Cell) (*lifecycle.Lifecycle, error) {
	beside := func(context.Context, *projection.View, projection.Row) ([]projection.Write, error) { return nil, nil }
	return lifecycle.New(lifecycle.Config{Cell: cell, BesideDeletion: beside, Client: &rest.Config{Host: "127.0.0.1:1"}}) // Expire calls nobody
}

func resource(name string) kubestore.Resource {
	r := kubestore.Resource{
		GroupResource: schema.GroupResource{Resource: name}, Prefix: "/" + name, Namespaced: true,
		Codec: apitesting.TestCodec(codecs, examplev1.SchemeGroupVersion), ContentType: "application/json",
		NewFunc:     func() runtime.Object { return &example.Pod{} },
		NewListFunc: func() runtime.Object { return &example.PodList{} },
	}
	if name == "owners" {
		r.Claims = claims
	}
	return r
}

func claims(_ context.Context, obj runtime.Object) (claims []kubestore.Claim, err error) {
	owner := obj.(*example.Pod)
	for _, name := range strings.Fields(owner.Annotations["claims"]) {
		claim := &examplev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: examplev1.SchemeGroupVersion.String(), Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{"tag": "of-" + owner.Name, "color": "red"}}}
		body, err := runtime.Encode(codecs.LegacyCodec(examplev1.SchemeGroupVersion), claim)
		if err != nil {
			return nil, err
		}
		claims = append(claims, kubestore.Claim{Key: eventlog.Key{Cluster: "main", Resource: "claims", Prefix: "/claims", Namespace: "ns", Name: name}, ContentType: "application/json", Body: body})
	}
	return claims, nil
}

// process is one process of the cell.
type process struct {
	world      *world
	name       string
	epoch      uint64
	link       *link
	conn       *nats.Conn
	log        *eventlog.Log
	projection *projection.Projection
	stores     map[string]storage.Interface
	objects    *kubestore.Objects // nil without them
	lifecycle  *lifecycle.Lifecycle
	life       context.Context
	end        context.CancelFunc
	feeds      bool
	dead       bool
}

func (w *world) start() *process {
	w.born++
	p := &process{world: w, name: fmt.Sprintf("p%02d", w.born), epoch: w.epoch, stores: map[string]storage.Interface{}, feeds: w.choices.choose(4) < w.config.feeding}
	p.life, p.end = context.WithCancel(w.life)
	p.link = &link{world: w, name: p.name, server: w.server, open: true}
	var err error
	p.conn, err = nats.Connect("", nats.InProcessServer(p.link), nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.ReconnectWait(200*time.Millisecond), nats.ReconnectJitter(0, 0),
		nats.FlusherTimeout(5*time.Second), nats.PingInterval(5*time.Second), nats.MaxPingsOutstanding(2), nats.Timeout(5*time.Second), nats.Name(p.name))
	if err == nil {
		p.log, err = eventlog.Open(p.life, eventlog.Config{Conn: p.conn, InMemory: !w.config.file})
	}
	if err == nil {
		p.projection, err = projection.Open(w.projection(p.log, &remote{p, w.bucket}))
	}
	if err != nil {
		panic(fmt.Sprintf("start a process: %v", err))
	}
	cell := kubestore.Cell{Log: p.log, Projection: p.projection, Cluster: "main"}
	if w.config.objects > 0 {
		p.objects = kubestore.NewObjects(cache.NewBudget(w.config.objects))
		cell.Objects = p.objects
	}
	if p.feeds {
		cell.Feed = fanout.NewFeed(p.projection)
		w.running.Go(func() { _ = cell.Feed.Run(p.life) })
	}
	for _, kind := range kinds {
		p.stores[kind] = kubestore.New(cell, resource(kind))
	}
	if p.lifecycle, err = lifecycleOf(cell); err != nil {
		panic(fmt.Sprintf("start a process: %v", err))
	}
	if w.config.cadence > 0 && w.choices.choose(4) < 3 {
		began := len(w.model.fences)
		w.running.Go(func() { p.run(began) })
	}
	w.settle()
	p.link.hold()
	w.processes = append(w.processes, p)
	w.say("%s starts, epoch %d, watches %v", p.name, p.epoch, p.feeds)
	return p
}

// run is a projector, which begins again a second after it has failed.
func (p *process) run(began int) {
	for p.life.Err() == nil {
		err := p.projection.Run(p.life, p.world.config.cadence)
		if p.life.Err() != nil {
			return
		}
		p.world.mu.Lock()
		p.world.finished = append(p.world.finished, &request{process: p, verb: "run", fencesBefore: began, err: err})
		p.world.mu.Unlock()
		if errors.Is(err, eventlog.ErrDiverged) {
			return
		}
		_ = eventlog.Pause(p.life, time.Second)
	}
}

// kill ends a process between two instructions.
func (w *world) kill(p *process) {
	w.say("%s is killed", p.name)
	w.counted.kills.Add(1)
	w.budgets(p)
	p.dead = true
	p.link.kill()
	p.end()
	p.conn.Close()
	w.processes = without(w.processes, p)
	for _, r := range w.inFlight {
		if r.process == p {
			r.disturbed = true
		}
	}
	for _, watch := range w.watches {
		if watch.process == p {
			watch.over = true
		}
	}
	w.watches = keep(w.watches, func(watch *watching) bool { return !watch.over })
}

func without[T comparable](list []T, one T) []T {
	return keep(list, func(other T) bool { return other != one })
}

func keep[T any](list []T, is func(T) bool) (kept []T) {
	for _, one := range list {
		if is(one) {
			kept = append(kept, one)
		}
	}
	return kept
}

// owner is the request or watch that a fault has met.
type owner struct{ faults atomic.Int64 }

type ownerKey struct{}

var nobody owner

func ownerOf(ctx context.Context) *owner {
	if o, ok := ctx.Value(ownerKey{}).(*owner); ok {
		return o
	}
	return &nobody
}

// request is what one client asks of one process, or a task of a projector.
type request struct {
	owner
	id      int
	process *process
	verb    string
	kind    string
	name    string
	// of a write
	tag, color, claims string
	// of a list
	selected     string
	version      string
	ttl          time.Duration // of a write
	guard        guard
	exact        bool
	limit        int64
	floor, upto  eventlog.Revision // of a projector's task
	cancel       context.CancelFunc
	began, since uint64 // the newest acknowledged revision, and the log's head, when it began
	fencesBefore int
	begun        time.Duration
	applied      uint64 // what the process's view had from the bucket when it began
	disturbed    bool   // cancelled, or its process killed
	thinks       bool
	err          error
	got          []result
	pages        []page
	count        int
}

// guard is a write's precondition: one of them, or none.
type guard struct {
	uid      string
	revision uint64
}

func (g guard) holds(v version) bool {
	return (g.uid == "" || g.uid == v.uid) && (g.revision == 0 || g.revision == v.revision)
}

func (g guard) preconditions() *storage.Preconditions {
	switch {
	case g.uid != "":
		return storage.NewUIDPreconditions(g.uid)
	case g.revision != 0:
		revision := strconv.FormatUint(g.revision, 10)
		return &storage.Preconditions{ResourceVersion: &revision}
	}
	return nil
}

// result is an object that a client got.
type result struct {
	key string
	version
}

// page is a list's answer.
type page struct {
	revision uint64
	items    []result
}

func (r *request) key() string { return "main/" + r.kind + "/ns/" + r.name }

func (r *request) String() string {
	words := []string{fmt.Sprintf("request %d of %s: %s", r.id, r.process.name, r.verb)}
	for _, more := range []string{r.kind, r.name, r.tag, r.color, r.claims, r.selected} {
		if more != "" {
			words = append(words, more)
		}
	}
	if r.guard != (guard{}) {
		words = append(words, fmt.Sprintf("if it is %v", r.guard))
	}
	if r.ttl > 0 {
		words = append(words, "for", r.ttl.String())
	}
	if r.version != "" {
		words = append(words, "at", r.version)
	}
	if r.exact {
		words = append(words, "exactly")
	}
	if r.limit > 0 {
		words = append(words, fmt.Sprintf("limit %d", r.limit))
	}
	if r.upto+r.floor > 0 {
		words = append(words, fmt.Sprintf("floor %d, up to %d", r.floor, r.upto))
	}
	return strings.Join(words, " ")
}

// deadline is that of every request.
const deadline = time.Minute

// begin starts a request.
func (w *world) begin(r *request) {
	w.requests++
	r.id, r.began, r.since, r.fencesBefore, r.begun = w.requests, w.acknowledged, w.model.head, len(w.model.fences), w.slept
	if v := r.process.projection.Current(); v != nil {
		r.applied = uint64(v.Applied())
	}
	if r.verb == "create" || r.verb == "update" {
		r.tag = fmt.Sprintf("t%d", r.id)
	}
	w.say("%v", r)
	ctx, cancel := context.WithTimeout(context.WithValue(r.process.life, ownerKey{}, &r.owner), deadline)
	r.cancel = cancel
	w.inFlight = append(w.inFlight, r)
	w.running.Go(func() {
		defer cancel()
		r.err = r.do(ctx)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.finished = append(w.finished, r)
	})
}

func (r *request) do(ctx context.Context) error {
	p := r.process
	store := p.stores[r.kind]
	ctx = kubestore.WithRequestID(ctx, fmt.Sprintf("request-%d", r.id))
	if r.thinks {
		v, err := p.projection.Latest(ctx)
		if err != nil {
			return err
		}
		ctx = kubestore.WithView(ctx, v)
		if err := r.think(ctx); err != nil {
			return err
		}
	}
	path := "/" + r.kind + "/ns/" + r.name
	var out example.Pod
	switch r.verb {
	case "create":
		if err := store.Create(ctx, path, r.fill(&example.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(r.tag)}}), &out, uint64(r.ttl.Seconds())); err != nil {
			return err
		}
	case "update":
		err := store.GuaranteedUpdate(ctx, path, &out, false, r.guard.preconditions(), func(in runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
			if r.thinks {
				if err := r.think(ctx); err != nil {
					return nil, nil, err
				}
			}
			ttl := uint64(r.ttl.Seconds())
			return r.fill(in.DeepCopyObject().(*example.Pod)), &ttl, nil
		}, nil)
		if err != nil {
			return err
		}
	case "delete":
		if err := store.Delete(ctx, path, &out, r.guard.preconditions(), func(context.Context, runtime.Object) error { return nil }, nil, storage.DeleteOptions{}); err != nil {
			return err
		}
	case "get":
		if err := store.Get(ctx, path, storage.GetOptions{ResourceVersion: r.version}, &out); err != nil {
			return err
		}
	case "list":
		return r.list(ctx, store)
	case "commit":
		_, err := p.projection.Commit(ctx)
		return err
	case "expire":
		_, err := p.lifecycle.Expire(ctx)
		return err
	case "compact":
		done, err := p.projection.Compact(ctx)
		if done {
			r.count = 1
		}
		return err
	case "collect":
		n, err := p.projection.Collect(ctx, 0)
		r.count = n
		return err
	case "sweep":
		_, err := p.projection.Commit(ctx)
		for done := true; done && err == nil; {
			if done, err = p.projection.Compact(ctx); done {
				r.count++
			}
		}
		if err == nil {
			_, err = p.projection.Collect(ctx, 0)
		}
		return err
	case "tidy":
		applied, err := p.projection.Commit(ctx)
		if err == nil {
			err = p.projection.Retain(ctx, 0, min(applied, r.upto))
		}
		return err
	case "retain":
		return p.projection.Retain(ctx, r.floor, r.upto)
	}
	r.got = []result{resultOf(&out)}
	return nil
}

func (r *request) think(ctx context.Context) error {
	_, err := r.process.world.wait(ctx, &step{from: r.process.name + " client", what: fmt.Sprintf("request %d thinks", r.id)})
	return err
}

func (r *request) fill(pod *example.Pod) *example.Pod {
	pod.Namespace, pod.Name = "ns", r.name
	pod.Labels = map[string]string{"tag": r.tag, "color": r.color}
	if r.kind == "owners" {
		pod.Annotations = map[string]string{"claims": r.claims}
	}
	return pod
}

func (r *request) list(ctx context.Context, store storage.Interface) error {
	opts := storage.ListOptions{ResourceVersion: r.version, Recursive: true, Predicate: predicate(r.selected)}
	opts.Predicate.Limit = r.limit
	if r.exact {
		opts.ResourceVersionMatch = metav1.ResourceVersionMatchExact
	} else if r.version != "" && r.version != "0" {
		opts.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	}
	for {
		var list example.PodList
		if err := store.GetList(ctx, "/"+r.kind, opts, &list); err != nil {
			return err
		}
		got := page{revision: revisionOf(list.ResourceVersion)}
		for i := range list.Items {
			got.items = append(got.items, resultOf(&list.Items[i]))
		}
		r.pages = append(r.pages, got)
		if list.Continue == "" {
			return nil
		}
		if err := r.think(ctx); err != nil {
			return err
		}
		opts.ResourceVersion, opts.ResourceVersionMatch, opts.Predicate.Continue = "", "", list.Continue
	}
}

func predicate(color string) storage.SelectionPredicate {
	p := storage.SelectionPredicate{Label: labels.Everything(), Field: fields.Everything(), GetAttrs: func(obj runtime.Object) (labels.Set, fields.Set, error) {
		return obj.(*example.Pod).Labels, nil, nil
	}}
	if color != "" {
		p.Label = labels.SelectorFromSet(labels.Set{"color": color})
	}
	return p
}

func resultOf(pod *example.Pod) result {
	return result{version: version{revisionOf(pod.ResourceVersion), string(pod.UID), pod.Labels["tag"], pod.Labels["color"]}, key: pod.Namespace + "/" + pod.Name}
}

func revisionOf(s string) (n uint64) {
	_, _ = fmt.Sscan(s, &n)
	return n
}
