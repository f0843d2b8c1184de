package simulate

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

// request is one client's request to one process, or a task of a projector.
type request struct {
	owner
	id      int
	process *process
	verb    string
	kind    string
	name    string
	// for a write
	tag, color, claims string
	heavy              int
	audit              string // the beginning of its request id, as an Audit-Id is
	// for a list
	selected     string
	version      string
	ttl          time.Duration // for a write
	guard        guard
	exact        bool
	limit        int64
	floor, upto  eventlog.Revision // for a projector's task
	cancel       context.CancelFunc
	began, since uint64 // when the request began: the newest acknowledged revision, and the log's head
	fencesBefore int
	begun        time.Duration
	applied      uint64 // when the request began: the snapshot's revision in the process's view
	disturbed    bool   // the request was cancelled, or its process killed
	thinks       bool
	err          error
	got          []result
	pages        []page
	count        int
	fork         *fork // when it began
	turn         int   // in which it began
	warm         bool  // the process had a view when the request began
	// for a request of the past
	at, after uint64
	events    []told
	warned    []string
	// for a restore, and for forgetting
	prefixed string
	restored projection.Restored
	forgot   projection.Forgotten
	stopped  bool // all writers have stopped until the forgetting ends
}

// guard is a write's precondition: on a uid, on a revision, or none.
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

// page is one answer of a list.
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
	if r.at > 0 {
		words = append(words, fmt.Sprintf("of %d, after %d", r.at, r.after))
	}
	if r.upto+r.floor > 0 {
		words = append(words, fmt.Sprintf("floor %d, up to %d", r.floor, r.upto))
	}
	return strings.Join(words, " ")
}

// deadline is how long every request may take.
const deadline = time.Minute

// begin starts a request.
func (w *world) begin(r *request) {
	w.requests++
	r.id, r.began, r.since, r.fencesBefore, r.begun = w.requests, w.acknowledged, w.model.head, len(w.model.fences), w.slept
	r.owner.request = r
	r.owner.verb, r.fork, r.turn = r.verb, w.fork, w.turn
	if v := r.process.projection.Current(); v != nil {
		r.applied, r.warm = uint64(v.Applied()), true
	}
	if !r.process.conn.IsConnected() {
		r.faults.Add(1)
		w.counted.meet("a connection breaks", r.verb)
	}
	if r.verb == "create" || r.verb == "update" {
		r.tag = fmt.Sprintf("t%d", r.id)
	}
	w.say("%v", r)
	patience := deadline
	if r.verb == "forget" || r.verb == "restore" {
		patience = time.Hour
	}
	ctx, cancel := context.WithTimeout(context.WithValue(r.process.life, ownerKey{}, &r.owner), patience)
	r.cancel = cancel
	w.inFlight = append(w.inFlight, r)
	w.running.Go(func() {
		defer cancel()
		panicked := caught(func() { r.err = r.do(ctx) })
		w.mu.Lock()
		defer w.mu.Unlock()
		if panicked != "" {
			r.err = errors.New("panic")
			w.problems = append(w.problems, problem{"a process panics: " + r.verb, panicked})
		}
		w.finished = append(w.finished, r)
	})
}

// caught runs a function, and returns its panic, if any.
func caught(do func()) (panicked string) {
	defer func() {
		if p := recover(); p != nil {
			panicked = fmt.Sprintf("%v\n%s", p, debug.Stack())
		}
	}()
	do()
	return ""
}

func (r *request) do(ctx context.Context) error {
	p := r.process
	store := p.stores[r.kind]
	asked := kubestore.RequestOf(ctx)
	asked.SetID(fmt.Sprintf("%srequest-%d", r.audit, r.id))
	ctx = asked.In(ctx)
	if r.at > 0 && r.verb != "restore" {
		return r.doPast(ctx, store)
	}
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
	case "expel":
		return p.projection.Retain(ctx, r.floor, 0)
	case "trim":
		trimmed, err := p.projection.Trim(ctx)
		if trimmed && err == nil {
			r.count, r.warned = 1, p.trims(ctx)
		}
		return err
	case "prune":
		_, err := p.projection.Trim(ctx)
		if err == nil {
			_, err = p.projection.Collect(ctx, 0)
		}
		return err
	case "once":
		_, merged, err := p.projection.Once(ctx)
		if merged {
			r.count = 1
		}
		return err
	case "restore":
		return r.restore(ctx)
	case "forget":
		return r.forget(ctx)
	}
	r.got = []result{resultOf(&out)}
	return nil
}

// trims returns, by kind of object, the revision up to which the history rules have dropped the past.
func (p *process) trims(ctx context.Context) (said []string) {
	for _, kind := range kinds {
		keys := projection.Keys{Start: "main/" + kind + "/", End: projection.PrefixEnd("main/" + kind + "/")}
		for _, err := range p.projection.Archived(ctx, keys, 0, 1, nil) {
			if !errors.Is(err, projection.ErrTrimmed) {
				break
			}
			said = append(said, err.Error())
		}
	}
	return said
}

func (r *request) think(ctx context.Context) error {
	began := time.Now()
	_, err := r.process.world.wait(ctx, &step{from: r.process.name + " client", what: fmt.Sprintf("request %d thinks", r.id)})
	if time.Since(began) > kubestore.Staleness {
		r.process.world.counted.meet("a webhook is slow", r.verb)
	}
	return err
}

func (r *request) fill(pod *example.Pod) *example.Pod {
	pod.Namespace, pod.Name = "ns", r.name
	pod.Labels = map[string]string{"tag": r.tag, "color": r.color}
	if r.kind == "owners" {
		pod.Annotations = map[string]string{"claims": r.claims}
	}
	if r.heavy > 0 {
		pod.Annotations = map[string]string{"claims": r.claims, "ballast": ballast(r.id, r.heavy)}
	}
	return pod
}

// ballast returns a text that is different for every write and that does not compress.
func ballast(seed, bytes int) string {
	raw := make([]byte, bytes*3/4)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(raw)
	return base64.StdEncoding.EncodeToString(raw)
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
