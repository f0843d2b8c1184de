package simulate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"k8s.io/apimachinery/pkg/api/apitesting"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
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

// kinds are the kinds of objects. Owners have claims, which are listed like other objects. Events have no claims, and
// may have a TTL.
var kinds = []string{"owners", "events", "claims"}

// mortals is the prefix of the objects that Expire examines. longest is the longest TTL.
const (
	mortals = "main/events/"
	longest = time.Minute
)

func lifecycleOf(cell kubestore.Cell) *lifecycle.Lifecycle {
	return lifecycle.New(lifecycle.Config{Cell: cell, Servers: lifecycle.Only(cell.Cluster, unreachable{})})
}

// unreachable is the server of a lifecycle that only calls Expire, which sends no requests.
type unreachable struct{ lifecycle.Server }

func (unreachable) Loopback() *rest.Config { return &rest.Config{Host: "127.0.0.1:1"} }

func (unreachable) AlongsideDeletion(context.Context, *projection.View, projection.Row) ([]projection.Write, error) {
	return nil, nil
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

// alongside notes the view from which a write is computed. It may also let time pass.
func alongside(ctx context.Context, v *projection.View, _ kubestore.Change) ([]projection.Write, error) {
	o := ownerOf(ctx)
	o.alongside.Store(uint64(v.Revision()))
	o.decided.Store(time.Now().UnixNano())
	if o.request != nil && o.request.thinks {
		return nil, o.request.think(ctx)
	}
	return nil, nil
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
	objects    *kubestore.Objects // nil if the process has no such cache
	lifecycle  *lifecycle.Lifecycle
	life       context.Context
	end        context.CancelFunc
	feeds      bool
	dead       bool
	// away is the turn until which the connection stays broken, 0 if it works.
	away int
	// fork is the fork at the start of the process. knew: the process has seen events that a later fork lost.
	fork *fork
	knew bool
}

func (w *world) start() *process {
	w.born++
	p := &process{world: w, name: fmt.Sprintf("p%02d", w.born), epoch: w.epoch, stores: map[string]storage.Interface{}, feeds: w.choices.choose(4) < w.config.feeding, fork: w.fork}
	p.life, p.end = context.WithCancel(w.life)
	p.link = &link{world: w, name: p.name, open: true}
	var err error
	p.conn, err = nats.Connect("", nats.InProcessServer(p.link), nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.ReconnectWait(200*time.Millisecond), nats.ReconnectJitter(0, 0),
		nats.FlusherTimeout(5*time.Second), nats.PingInterval(5*time.Second), nats.MaxPingsOutstanding(2), nats.Timeout(5*time.Second), nats.Name(p.name))
	if err == nil {
		p.log, err = eventlog.Open(p.life, eventlog.Config{Conn: p.conn, InMemory: !w.config.file})
	}
	if err == nil {
		c := w.projection(p.log, &remote{p, w.bucket})
		if len(w.folders) > 0 {
			c.CacheFolder = w.folders[w.choices.choose(len(w.folders))]
			c.CacheFolderBytes = []int64{0, 5000, 20_000}[w.choices.choose(3)]
		}
		p.projection, err = projection.Open(c)
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
		r := resource(kind)
		r.Alongside = alongside
		p.stores[kind] = kubestore.New(cell, r)
	}
	p.lifecycle = lifecycleOf(cell)
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

// disturb marks all requests and watches of the process as disturbed by a fault.
func (p *process) disturb(fault string) {
	for _, r := range p.world.inFlight {
		if r.process == p {
			r.faults.Add(1)
			p.world.counted.meet(fault, r.verb)
		}
	}
	for _, x := range p.world.watches {
		if x.process == p {
			x.faults.Add(1)
			p.world.counted.meet(fault, "watch")
		}
	}
	p.world.counted.meet(fault, "")
}

// cutSome breaks the connection of a process for a while.
func (w *world) cutSome() {
	there := keep(w.processes, func(p *process) bool { return p.away == 0 })
	if appending := keep(there, (*process).appends); len(appending) > 0 && w.choices.choose(4) > 0 {
		there = appending
	}
	if p, ok := pick(w, there); ok {
		w.cut(p)
	}
}

// appends says whether an event of the process waits to be sent.
func (p *process) appends() bool {
	return slices.ContainsFunc(p.link.waiting(), func(s *step) bool { return strings.HasPrefix(s.what, "the event") })
}

func (w *world) cut(p *process) {
	p.away = w.turn + 1 + w.choices.choose(max(1, w.config.away))
	w.say("%s is cut off until %d", p.name, p.away)
	p.disturb("a connection breaks")
	w.haunt(p.link.kill(w.choices.choose(10) < w.config.ghosts))
}

// haunt keeps sent messages that have not arrived, so that they may arrive later.
func (w *world) haunt(ghost *wire) {
	if ghost != nil {
		w.haunts++
		ghost.name = fmt.Sprintf("ghost %d of %s", w.haunts, ghost.name)
		w.stalled[ghost.name] = w.turn + w.choices.choose(400)
		w.say("what %s sent is on its way", ghost.name)
		w.meetAll("a message comes late")
		w.mu.Lock()
		w.ghosts = append(w.ghosts, ghost)
		w.mu.Unlock()
	}
}

// comeBack reconnects the processes whose time without a connection is over.
func (w *world) comeBack() {
	for _, p := range w.processes {
		if p.away > 0 && (w.calm || p.away <= w.turn) {
			w.say("%s may connect again", p.name)
			p.away = 0
			p.link.mend()
		}
	}
}

// run runs a projector, and starts it again a second after it failed.
func (p *process) run(began int) {
	for p.life.Err() == nil {
		var err error
		panicked := caught(func() { err = p.projection.Run(p.life, p.world.config.cadence) })
		if panicked != "" {
			p.world.mu.Lock()
			p.world.problems = append(p.world.problems, problem{"a process panics: run", panicked})
			p.world.mu.Unlock()
			return
		}
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

// kill ends a process at a random instruction.
func (w *world) kill(p *process) {
	w.say("%s is killed", p.name)
	w.counted.kills.Add(1)
	w.budgets(p)
	p.dead = true
	p.disturb("a process is killed")
	w.haunt(p.link.kill(w.choices.choose(10) < w.config.ghosts))
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

type ownerKey struct{}

var nobody owner

func ownerOf(ctx context.Context) *owner {
	if o, ok := ctx.Value(ownerKey{}).(*owner); ok {
		return o
	}
	return &nobody
}
