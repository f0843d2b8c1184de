package simulate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

// pastSome begins a request of the past.
func (w *world) pastSome() {
	p, ok := pick(w, w.processes)
	if !ok || len(w.inFlight) >= w.config.parallel || len(w.model.order) == 0 {
		return
	}
	r := &request{process: p, kind: kinds[w.choices.choose(3)], at: w.model.order[w.choices.choose(len(w.model.order))]}
	r.verb = []string{"get past", "list past", "replay", "changes"}[w.choices.choose(4)]
	switch r.verb {
	case "get past":
		r.name = fmt.Sprintf("n%d", w.choices.choose(w.config.keys))
	case "list past":
		r.limit = []int64{0, 0, 1, 2}[w.choices.choose(4)]
	default:
		r.after = w.model.order[w.choices.choose(len(w.model.order))]
		r.after, r.at = min(r.after, r.at), max(r.after, r.at)
	}
	w.begin(r)
}

// doPast serves a request of the past in the way that the API does.
func (r *request) doPast(ctx context.Context, store storage.Interface) error {
	p := r.process.projection
	keys := projection.Keys{Start: r.prefix(), End: projection.PrefixEnd(r.prefix())}
	note := func(e eventlog.Event) {
		r.events = append(r.events, told{uint64(e.Revision), e.Key.RowKey()})
	}
	if r.verb == "changes" {
		if _, err := p.Latest(ctx); err != nil {
			return err
		}
		for e, err := range p.Archived(ctx, keys, eventlog.Revision(r.after), eventlog.Revision(r.at), nil) {
			if errors.Is(err, projection.ErrTrimmed) {
				r.warned = append(r.warned, err.Error())
				continue
			}
			if err != nil {
				return err
			}
			note(e)
		}
		return nil
	}
	v, err := p.AsOf(ctx, eventlog.Revision(r.at))
	if err != nil {
		return err
	}
	if err := r.think(ctx); err != nil { // time passes between two reads of one request
		return err
	}
	if r.verb == "replay" {
		for e, err := range v.EventsOf(ctx, keys, eventlog.Revision(r.after), eventlog.Revision(r.at)) {
			if err != nil {
				return err
			}
			note(e)
		}
		return nil
	}
	ctx = kubestore.WithPast(ctx, v)
	if r.verb == "list past" {
		return r.list(ctx, store)
	}
	var out example.Pod
	if err := store.Get(ctx, "/"+r.kind+"/ns/"+r.name, storage.GetOptions{}, &out); err != nil {
		return err
	}
	r.got = []result{resultOf(&out)}
	return nil
}

// told is an event in a client's answer.
type told struct {
	revision uint64
	key      string
}

func (r *request) prefix() string { return "main/" + r.kind + "/" }

// judgePast compares a client's answer about the past with the model.
func (w *world) judgePast(r *request) {
	if r.err != nil && (r.verb != "get past" || !storage.IsNotFound(r.err)) {
		return // the error says that the past is not kept any more; other errors are judged as those of any request
	}
	w.counted.past.Add(1)
	problem := ""
	for _, m := range w.lines(r) {
		if problem = r.differs(m); problem == "" {
			return
		}
	}
	w.violated("the past is told otherwise: "+r.verb, "%v: %s", r, problem)
}

// differs says how an answer of the past differs from a model.
func (r *request) differs(m *model) string {
	switch r.verb {
	case "get past":
		want := m.at(r.key(), r.at)
		if m.mayLack(r.key(), want.revision) && want.revision > 0 {
			return ""
		}
		got := version{}
		if len(r.got) > 0 {
			got = r.got[0].version
		}
		if got != want {
			return fmt.Sprintf("got %v, not %v", got, want)
		}
	case "list past":
		want := m.list(r.prefix(), "", r.at)
		got := map[string]version{}
		for _, p := range r.pages {
			for _, item := range p.items {
				got[r.prefix()+item.key] = item.version
			}
		}
		for key, v := range want {
			if got[key] != v && (!m.mayLack(key, v.revision) || got[key] != version{}) {
				return fmt.Sprintf("%s is %v, not %v", key, got[key], v)
			}
		}
		for key, v := range got {
			if _, there := want[key]; !there {
				return fmt.Sprintf("%s is %v, and there was none", key, v)
			}
		}
	default:
		return r.lacks(m)
	}
	return ""
}

// lacks names the events that are missing from an answer, or should not be in it.
func (r *request) lacks(m *model) string {
	var want []told
	for _, revision := range m.order {
		e := m.events[revision]
		if revision > r.after && revision <= r.at && e.void == "" && strings.HasPrefix(e.key, r.prefix()) {
			want = append(want, told{revision, e.key})
		}
	}
	for _, one := range want {
		if !slices.Contains(r.events, one) && !m.mayLack(one.key, one.revision) && len(r.warned) == 0 {
			return fmt.Sprintf("%s at %d is missing, warned: %v", one.key, one.revision, r.warned)
		}
	}
	for _, one := range r.events {
		if !slices.Contains(want, one) {
			return fmt.Sprintf("%s at %d was not there", one.key, one.revision)
		}
	}
	return ""
}

// expired says whether the answer was an error that a request of the past may get.
func (r *request) expired() bool {
	return r.at > 0 && (errors.Is(r.err, projection.ErrExpired) || errors.Is(r.err, projection.ErrTrimmed) || errors.Is(r.err, projection.ErrTooMuch))
}
