package simulate

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
)

// watching is one client's watch.
type watching struct {
	owner
	id       int
	process  *process
	kind     string
	selected string
	// position: every change up to it was delivered.
	position uint64
	cancel   context.CancelFunc
	over     bool
}

// sighting is what a watch has delivered; with a failure, or closed, at its end.
type sighting struct {
	kind string
	result
	failure *metav1.Status
	closed  bool
}

func (x *watching) String() string {
	return fmt.Sprintf("watch %d of %s: %s %s", x.id, x.process.name, x.kind, x.selected)
}

// watch starts a watch after a revision.
func (w *world) watch(p *process, kind, selected string, after uint64) {
	w.requests++
	x := &watching{id: w.requests, process: p, kind: kind, selected: selected, position: after}
	w.say("%v after %d", x, after)
	ctx, cancel := context.WithCancel(context.WithValue(p.life, ownerKey{}, &x.owner))
	x.cancel = cancel
	w.watches = append(w.watches, x)
	w.running.Go(func() {
		defer cancel()
		opts := storage.ListOptions{ResourceVersion: strconv.FormatUint(after, 10), Recursive: true, Predicate: predicate(selected)}
		opts.Predicate.AllowWatchBookmarks = true
		stream, err := p.stores[kind].Watch(ctx, "/"+kind, opts)
		if err != nil {
			w.note(x, sighting{closed: true})
			return
		}
		defer stream.Stop()
		for e := range stream.ResultChan() {
			if status, ok := e.Object.(*metav1.Status); ok {
				w.note(x, sighting{kind: "ERROR", failure: status})
				continue
			}
			w.note(x, sighting{kind: string(e.Type), result: resultOf(podOf(e))})
		}
		w.note(x, sighting{closed: true})
	})
}

func podOf(e watch.Event) *example.Pod {
	if pod, ok := e.Object.(*example.Pod); ok {
		return pod
	}
	return cached(e.Object).(*example.Pod)
}

func (w *world) note(x *watching, s sighting) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noted = append(w.noted, note{x, s})
}

// judge compares what a watch has delivered with what it had to deliver next.
func (x *watching) judge(s sighting) {
	w := x.process.world
	if x.over {
		return
	}
	switch {
	case s.closed:
		x.over = true
		w.watches = without(w.watches, x)
		w.say("%v ends at %d", x, x.position)
		return
	case s.failure != nil:
		x.judgeFailure(s.failure)
		return
	}
	kind, key, v, ok := w.model.next("main/"+x.kind+"/", x.selected, x.position)
	if s.kind == "BOOKMARK" {
		w.counted.bookmarks.Add(1)
		if ok && v.revision <= s.revision {
			w.violated("watch", "%v: a bookmark at %d before %s %s at %d", x, s.revision, kind, key, v.revision)
		}
		if s.revision > w.model.head || s.revision < x.position {
			w.violated("watch", "%v: a bookmark at %d, the head is %d, and it was at %d", x, s.revision, w.model.head, x.position)
		}
		x.position = max(x.position, s.revision)
		return
	}
	w.counted.watchEvents.Add(1)
	w.say("%v delivers %s %s %s at %d", x, s.kind, s.key, s.tag, s.revision)
	want := sighting{kind: kind, result: result{strings.TrimPrefix(key, "main/"+x.kind+"/"), v}}
	if ok && want == s {
		x.position = s.revision
		return
	}
	property := "watch"
	if e := w.model.events[s.revision]; e != nil && e.void != "" {
		property = "watch delivers what is void"
		if e.epoch < w.model.epochAt(s.revision) {
			property = "3 watch delivers an old epoch's event"
		}
	}
	w.violated(property, "%v: delivered %s %s %s at %d; next after %d was %s %s %s at %d (%v)", x, s.kind, s.key, s.tag, s.revision, x.position, kind, want.key, v.tag, v.revision, ok)
	x.position = max(x.position, s.revision)
}

func (x *watching) judgeFailure(status *metav1.Status) {
	w := x.process.world
	w.say("%v fails at %d: %s", x, x.position, status.Message)
	switch {
	case status.Code == 410:
		if floor := w.floor(); floor <= x.position {
			w.violated("410", "%v: expired at %d, and the floor is %d", x, x.position, floor)
		}
	case w.misled(x.process, status.Message):
		w.violated(falseAlarm(status.Message), "%v: %s", x, status.Message)
	case x.process.epoch < w.epoch:
	case status.Code >= 500 && x.faults.Load() == 0:
		w.violated("6 a fault ends a watch that it did not meet", "%v: %s", x, status.Message)
	}
}

// behind are the watches that have not delivered all there is, although their processes can.
func (w *world) behind() []*watching {
	return keep(w.watches, func(x *watching) bool {
		_, _, _, more := w.model.next("main/"+x.kind+"/", x.selected, x.position)
		return more && x.process.epoch == w.epoch
	})
}
