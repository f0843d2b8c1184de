package simulate

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket"
)

// tended lets one projector work, although some objects are permanently damaged or lost. Then it checks that the
// projector still commits, and that the bucket has the objects that the root and its checkpoints name.
func (w *world) tended() {
	w.right()
	alone := &process{world: w, name: "projector"}
	log, err := eventlog.Open(w.life, eventlog.Config{Conn: w.desk, InMemory: !w.config.file})
	if err != nil {
		w.violated("projector", "%v", err)
		return
	}
	c := w.projection(log, &troubled{&remote{alone, w.bucket}})
	c.Budget, c.TailBytes, c.Grace = nil, 0, time.Millisecond
	p, err := projection.Open(c)
	if err != nil {
		w.violated("projector", "%v", err)
		return
	}
	// at revisions above those that an older checkpoint may name
	garbage := fmt.Sprintf("%s/seg/0/%020d-%020d-LEFT", w.prefix, w.model.head+1, w.model.head+1)
	if _, err := w.bucket.Create(w.life, garbage, []byte("of a crash")); err != nil {
		w.violated("projector", "%v", err)
	}
	rounds := 4
	if w.config.inline == 1 {
		rounds = 10
	}
	pause := time.Second
	if w.ends() {
		rounds, pause = 16, w.config.history/6 // one checkpoint in each round, and more time in all than history is kept
	}
	var last, applied eventlog.Revision
	var failed error
	left := 0 // the number of rounds that garbage has survived
	for n := range rounds {
		if last, err = w.beat(log); err != nil {
			w.violated("projector", "append: %v", err)
			return
		}
		if n < rounds-1 {
			_, _, err = p.Once(w.life)
		} else { // the last round's garbage is younger than that of the other rounds
			if _, _, missing := w.bucket.Get(w.life, garbage); missing == nil {
				left = n
			}
			_, err = p.Commit(w.life)
			if err == nil {
				_, err = p.Collect(w.life, time.Millisecond)
			}
		}
		w.say("tending %d: %v", n, err)
		failed = errors.Join(failed, err)
		w.settle()
		w.slept += pause
		time.Sleep(pause)
	}
	if v := p.Current(); v != nil {
		applied = v.Applied()
	}
	if applied < last {
		w.violated("a projector stands still", "applied %d of %d, with %v: %v", applied, last, w.saidTroubles(), failed)
	}
	if left > 0 {
		w.violated("garbage is not collected"+w.because(failed), "what a crash has left is there after %d rounds, with %v: %v", left, w.saidTroubles(), failed)
	}
	w.learn()
	_, healthy, err := w.operator()
	if err != nil {
		w.violated("verify", "%v", err)
		return
	}
	got, err := healthy.Verify(w.life, func(problem error) { w.violated("verify", "%v", problem) })
	if err != nil {
		w.violated("verify", "%v", err)
	}
	// the objects that such an object names are unknown
	pins := func(x *trouble) bool { return kindOf(x.key) == "ckpt" || kindOf(x.key) == "pages" }
	if got.Orphans > 0 && len(keep(w.troubles(), pins)) == 0 {
		w.violated("garbage is not collected"+w.because(failed), "%d objects that nothing names, with %v: %v", got.Orphans, w.saidTroubles(), failed)
	}
	w.kept()
	w.gone()
}

// beat appends an event of a new object.
func (w *world) beat(log *eventlog.Log) (eventlog.Revision, error) {
	w.tends++
	key := eventlog.Key{Cluster: "main", Resource: "ticks", Prefix: "/ticks", Name: fmt.Sprint(w.tends)}
	b, err := log.Head(w.life)
	if err != nil {
		return 0, err
	}
	write := eventlog.Write{Key: key, Op: eventlog.Added, ContentType: "text/plain"}
	return log.Append(w.life, eventlog.Basis{Head: b.Head, Epoch: w.epoch}, fmt.Sprintf("tick-%d", w.tends), write)
}

// ends says whether the cell keeps the past for less time than the world lasts.
func (w *world) ends() bool { return w.config.history > 0 && w.config.history < 24*time.Hour }

// kept checks that no archived event is much older than the history that the cell keeps. The checkpoint just below the
// kept events must be older, so that the states after the checkpoint can be folded.
func (w *world) kept() {
	if !w.ends() || len(w.leaps) > 0 || w.broken() {
		return
	}
	newest := w.model.events[w.model.order[len(w.model.order)-1]].at
	most := w.config.history*3/2 + time.Minute
	_ = w.bucket.List(w.life, w.prefix+"/events/", func(a bucket.Attributes) error {
		var first, last uint64
		_, _ = fmt.Sscanf(a.Key[len(w.prefix+"/events/"):], "%d-%d", &first, &last)
		e := w.model.events[last]
		if e == nil {
			return nil
		}
		w.counted.kept.Add(1)
		if age := newest.Sub(e.at); age > most {
			w.violated("events outlive --history", "%s is %v old, and %v are kept", a.Key, age, w.config.history)
			return errors.New("enough")
		}
		return nil
	})
}

// because names the kind of object that caused a failure, or the other cause that stopped the projector.
func (w *world) because(failed error) string {
	text := fmt.Sprint(failed)
	for _, kind := range []string{"ckpt", "seg", "events", "pages", "idx"} {
		if strings.Contains(text, "/"+kind+"/") {
			return ", as one of '" + kind + "' cannot be read"
		}
	}
	if len(w.leaps) > 0 {
		return ", as the log's clock was ahead"
	}
	return ""
}

func (w *world) saidTroubles() (said []string) {
	for _, x := range w.troubles() {
		said = append(said, x.what)
	}
	return said
}
