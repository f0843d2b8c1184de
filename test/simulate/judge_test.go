package simulate

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

// cached returns the object that the feed encodes once for many watches.
func cached(obj runtime.Object) runtime.Object { return obj.(runtime.CacheableObject).GetObject() }

// alarms are the messages that only processes of a broken or fenced cell may give, by words of the messages.
var alarms = map[string]string{
	"purged past the root":   "5 a healthy cell says that it was purged past the root",
	"beginning is gone":      "5 a healthy cell says that it has no root",
	"the log went back":      "5 a healthy cell says that the log went back",
	"the cell was fenced":    "5 a healthy cell says that it was fenced",
	"the bucket was emptied": "5 a healthy cell says that the bucket was emptied",
}

func falseAlarm(message string) string {
	for words, property := range alarms {
		if strings.Contains(message, words) {
			return property
		}
	}
	return ""
}

// misled says whether an error asks for an operator although the process's epoch has not ended.
func (w *world) misled(p *process, message string) bool {
	return p.epoch == w.epoch && falseAlarm(message) != ""
}

// judgeExpiry checks that an expiry deleted an object only after the end of its TTL, in the log's time.
func (w *world) judgeExpiry(e *event) {
	if e.kind != "deleted" || e.void != "" || strings.Contains(e.id, "request-") || len(w.leaps) > 0 || !strings.HasPrefix(e.key, mortals) {
		return
	}
	w.counted.expired.Add(1)
	if dead := w.model.events[e.live]; dead.ttl == 0 || e.at.Sub(dead.at) < dead.ttl {
		w.violated("expired early", "%s at %d, which is %v old and may live %v", e.key, dead.revision, e.at.Sub(dead.at), dead.ttl)
	}
}

// expireAll waits until every TTL has ended, expires all mortal objects, and checks that none is left.
func (w *world) expireAll(log *eventlog.Log, p *projection.Projection) error {
	w.sleep(longest)
	if _, err := lifecycleOf(kubestore.Cell{Log: log, Projection: p, Cluster: "main"}).Expire(w.life); err != nil {
		return err
	}
	w.settle()
	w.learn()
	for key := range w.model.list(mortals, "", w.model.head) {
		if e := w.model.events[w.model.at(key, w.model.head).revision]; e.ttl > 0 && len(w.leaps) == 0 {
			w.violated("expired late", "%s at %d is %v old and may live %v", key, e.revision, time.Since(e.at), e.ttl)
		}
	}
	return nil
}

// judge compares a client's answer with the model.
func (w *world) judge(r *request) {
	if r.err != nil {
		w.say("%v failed: %v", r, r.err)
		w.judgeError(r)
	}
	switch r.verb {
	case "commit":
		w.counted.commits.Add(1)
	case "compact", "sweep", "once":
		w.counted.compactions.Add(int64(r.count))
	case "collect":
		w.counted.collected.Add(int64(r.count))
	case "restore":
		w.judgeRestore(r)
	case "forget":
		w.judgeForget(r)
	case "trim":
		w.judgeTrim(r)
	case "get past", "list past", "replay", "changes":
		w.judgePast(r)
		return
	case "retain", "tidy":
		if r.err == nil {
			w.counted.purges.Add(1)
		}
	case "list":
		w.judgeList(r)
	}
	if r.err != nil || len(r.got) == 0 {
		return
	}
	got := r.got[0]
	got.key = "main/" + r.kind + "/" + got.key
	w.say("%v: %s %s at %d", r, got.key, got.tag, got.revision)
	if r.verb == "get" {
		w.judgeGet(r, got)
		return
	}
	w.judgeWrite(r, got)
}

func (w *world) judgeWrite(r *request, got result) {
	w.counted.writes.Add(1)
	e := w.model.events[got.revision]
	if w.fork != nil && r.fork != w.fork {
		if was := w.fork.before.events[got.revision]; was != nil && was.version.tag == got.tag {
			return // the client's answer is from a history that was lost since
		}
	}
	if r.process.epoch < w.epoch && e == nil && len(w.lost) > 0 && r.fencesBefore < len(w.model.fences) {
		return
	}
	switch {
	case e == nil || e.key != r.key() || e.version.tag != got.tag || r.tag != "" && r.tag != got.tag:
		w.violated("acknowledged", "%v: acknowledged as %v, and the log has %+v", r, got, e)
	case e.void != "" && e.epoch < w.model.epochAt(e.revision):
		w.violated("2 a fenced process acknowledges", "%v: acknowledged as %d, void: %s", r, e.revision, e.void)
	case e.half:
		w.violated("half of an append is part of the history", "%v: acknowledged as %d, void: %s", r, e.revision, e.void)
	case e.void != "" && w.begun:
		w.violated("9 a lost log is begun again in its epoch", "%v: acknowledged as %d, void: %s", r, e.revision, e.void)
	case e.void != "":
		w.violated("1 an acknowledged write is void", "%v: acknowledged as %d, void: %s", r, e.revision, e.void)
	default:
		w.judgeAcknowledged(r, got)
	}
	if e != nil && !r.guard.holds(w.model.at(e.key, e.revision-1)) {
		w.violated("precondition", "%v: it was %v", r, w.model.at(e.key, e.revision-1))
	}
}

// judgeAcknowledged checks the view from which an acknowledged write was computed, and that the write left no other
// valid event.
func (w *world) judgeAcknowledged(r *request, got result) {
	if w.begun && r.process.epoch == w.epoch {
		if was := w.fork; was != nil && was.before.events[got.revision] != nil {
			w.violated("9 a lost log is begun again in its epoch", "%v: acknowledged as %d, which was %s before the log was lost", r, got.revision, was.before.events[got.revision].key)
		}
	}
	w.acknowledged = max(w.acknowledged, got.revision)
	w.told = append(w.told, acknowledged{got.revision, time.Now()})
	if r.verb == "create" || r.verb == "update" {
		if n := w.landed(r); n > 1 {
			w.violated("a write that landed is computed again", "%v: %d valid events have %s", r, n, r.tag)
		}
	}
	newest, decided := uint64(0), time.Unix(0, r.decided.Load())
	for _, a := range w.told {
		if decided.Sub(a.at) > kubestore.Staleness+2*time.Second {
			newest = max(newest, a.revision)
		}
	}
	if from := r.alongside.Load(); from < newest {
		w.violated("a write is decided by an old view", "%v: %d, by a view of %d, when %d was told for long", r, got.revision, from, newest)
	}
}

// landed counts the valid events that a request has appended for its object.
func (w *world) landed(r *request) (n int) {
	for _, c := range w.model.keys[r.key()] {
		if c.now.tag == r.tag && c.now.revision == c.at {
			n++
		}
	}
	return n
}

// judgeTrim reports a trim that repeats earlier work.
func (w *world) judgeTrim(r *request) {
	if r.count == 0 || r.err != nil {
		return
	}
	said := strings.Join(r.warned, "; ")
	if said == "" || r.roots.Load() == 0 {
		return
	}
	w.trims[said]++
	if w.trims[said] == 3 { // two trims at once may each do a part, so two may report the same
		w.violated("a trim is done again and again", "%v: %s", r, said)
	}
}

func (w *world) judgeGet(r *request, got result) {
	w.counted.reads.Add(1)
	from := r.began
	if r.version != "" {
		from = revisionOf(r.version)
	}
	if w.went(r, got.revision) {
		return
	}
	if !slices.ContainsFunc(w.lines(r), func(m *model) bool {
		return m.ever(r.key(), min(from, m.head), m.head, func(v version) bool { return v == got.version })
	}) {
		w.violated(w.lossOf(got.revision, "get"), "%v: got %v, which it was not from %d on", r, got, from)
	}
}

func (w *world) judgeList(r *request) {
	if len(r.pages) == 0 {
		return
	}
	w.counted.lists.Add(1)
	revision := r.pages[0].revision
	w.say("%v: %d pages at %d", r, len(r.pages), revision)
	if w.went(r, revision) {
		return
	}
	var property, problem string
	for _, m := range w.lines(r) {
		if property, problem = w.listed(r, m); property == "" {
			return
		}
	}
	w.violated(property, "%s", problem)
}

// listed compares a list with a model, and says which property it breaks.
func (w *world) listed(r *request, m *model) (property, problem string) {
	revision := r.pages[0].revision
	prefix := r.prefix()
	var last string
	n := 0
	want := m.list(prefix, r.selected, revision)
	for _, p := range r.pages {
		if p.revision != revision {
			return "list", fmt.Sprintf("%v: pages of %d and %d", r, revision, p.revision)
		}
		for _, item := range p.items {
			item.key = prefix + item.key
			if item.key <= last {
				return "list", fmt.Sprintf("%v: %s after %s", r, item.key, last)
			}
			last = item.key
			if want[item.key] != item.version {
				return w.lossOf(item.revision, "list"), fmt.Sprintf("%v at %d: %s is %v, not %v", r, revision, item.key, want[item.key], item.version)
			}
			n++
		}
	}
	if r.err == nil && n != len(want) {
		return "list", fmt.Sprintf("%v at %d: %d objects, not %d: %v", r, revision, n, len(want), want)
	}
	asked := revisionOf(r.version)
	switch {
	case r.version == "" && revision < r.began:
		return "stale list", fmt.Sprintf("%v: at %d, and %d was acknowledged before", r, revision, r.began)
	case revision < asked || r.exact && revision > m.whole(asked):
		return "stale list", fmt.Sprintf("%v: at %d, and %d was asked for", r, revision, asked)
	case revision > m.head:
		return "list", fmt.Sprintf("%v: at %d, and the head is %d", r, revision, m.head)
	case m.within(revision):
		return "4 half a batch is visible", fmt.Sprintf("%v: at %d, inside of the batch %d", r, revision, m.events[revision].batch)
	}
	return "", ""
}

func (r *request) upkeep() bool { return r.kind == "" || r.verb == "forget" }

// judgeError reports an error that does not tell the truth.
func (w *world) judgeError(r *request) {
	message := r.err.Error()
	if w.fork != nil || r.process.epoch < w.epoch {
		return // processes may report a log that went back, or a fence, in many ways
	}
	if w.misled(r.process, message) && r.fencesBefore == len(w.model.fences) {
		w.violated(falseAlarm(message), "%v: %v", r, r.err)
		return
	}
	if r.disturbed || r.upkeep() { // a projector tries a failed task again
		return
	}
	if r.verb != "delete" && strings.Contains(message, "nothing was written") && r.tag != "" && w.landed(r) > 0 {
		w.violated("a write that landed is called lost", "%v: %v", r, r.err)
		return
	}
	if n := r.rootFaults.Load(); n > 0 && n == r.faults.Load() && r.warm && w.model.forgotten == nil && r.couldRead(w) {
		w.violated("a process that could read fails while the root cannot be read", "%v: %v", r, r.err)
		return
	}
	disturbed := r.faults.Load() > 0 || w.troubled >= r.turn || w.slept-r.begun >= 200*time.Millisecond || r.process.epoch != w.epoch
	from := r.began
	var claimed *kubestore.ClaimedError
	var status apierrors.APIStatus
	switch {
	case storage.IsNotFound(r.err):
		if r.version != "" || r.at > 0 {
			return
		}
		if !w.model.ever(r.key(), from, w.model.head, func(v version) bool { return v.revision == 0 }) {
			w.violated("error", "%v: not found, and it was there all the time", r)
		}
	case storage.IsExist(r.err):
		w.counted.refusals.Add(1)
		if !w.model.ever(r.key(), from, w.model.head, func(v version) bool { return v.revision != 0 && v.tag != r.tag }) {
			w.violated("a create meets itself", "%v: it exists, and it was never there", r)
		}
	case storage.IsInvalidObj(r.err):
		w.counted.refusals.Add(1)
		if !w.model.ever(r.key(), from, w.model.head, func(v version) bool { return v.revision != 0 && !r.guard.holds(v) }) {
			w.violated("error", "%v: %v, and the precondition held all the time", r, r.err)
		}
	case errors.As(r.err, &status) && status.Status().Code == 429:
		w.counted.behind.Add(1)
		if n := w.model.behind(r.applied); w.config.tail == 0 || n <= w.config.tail {
			w.violated("429", "%v: %v, and %d bytes are after %d, of %d", r, r.err, n, r.applied, w.config.tail)
		}
	case errors.As(r.err, &claimed):
		w.counted.refusals.Add(1)
		if !w.model.ever(claimed.Key.RowKey(), from, w.model.head, func(v version) bool { return v.revision != 0 }) {
			w.violated("error", "%v: %v, and nobody held it", r, r.err)
		}
	case disturbed, errors.Is(r.err, errFault), r.expired():
	case errors.As(r.err, &status) && status.Status().Code == 410:
		at := revisionOf(r.version)
		if len(r.pages) > 0 {
			at = r.pages[0].revision
		}
		if floor := w.floor(); floor <= at {
			w.violated("410", "%v: expired, and the floor is %d", r, floor)
		}
	case errors.Is(r.err, projection.ErrFuture), r.verb == "retain":
	case errors.As(r.err, &status) && status.Status().Code == 504 && revisionOf(r.version) > w.model.head:
	case errors.Is(r.err, eventlog.ErrNotPublished):
	default:
		w.violated("error", "%v: %v, and no fault met it", r, r.err)
	}
}

// couldRead says whether the log and the state that the request's process knew were enough to serve the request.
func (r *request) couldRead(w *world) bool {
	var status apierrors.APIStatus
	if !errors.As(r.err, &status) || status.Status().Code != 503 || !strings.Contains(r.err.Error(), "catch up to revision") {
		return false // the request may need the new root, because a segment of its own root was collected
	}
	first, _ := w.extent()
	v := r.process.projection.Current()
	return r.at == 0 && r.fencesBefore == len(w.model.fences) && v != nil && first <= uint64(v.Revision())+1
}
