package simulate

import (
	"context"
	"fmt"
	"strings"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/cache"
)

// restoreSome begins a restore of one of the cell's revisions to another prefix of the bucket, while the cell continues
// to work.
func (w *world) restoreSome() {
	p, ok := pick(w, w.processes)
	if !ok || len(w.inFlight) >= w.config.parallel {
		return
	}
	w.restores++
	w.begin(&request{process: p, verb: "restore", at: w.some(), prefixed: fmt.Sprintf("%s-copy%d", w.prefix, w.restores)})
}

func (r *request) restore(ctx context.Context) error {
	b := &remote{&process{world: r.process.world, name: fmt.Sprintf("restore%d", r.id)}, r.process.world.bucket}
	source, err := projection.OpenSource(ctx, b, r.process.world.prefix, cache.NewBudget(1<<20))
	if err != nil {
		return err
	}
	newest := source.Newest()
	r.restored, err = source.Restore(ctx, min(newest, eventlog.Revision(r.at)), nil, r.prefixed)
	return err
}

// judgeRestore counts the objects of the restored cell, and removes it.
func (w *world) judgeRestore(r *request) {
	var keys []string
	_ = w.bucket.List(w.life, r.prefixed+"/", func(a bucket.Attributes) error { keys = append(keys, a.Key); return nil })
	for _, key := range keys {
		_ = w.bucket.Delete(w.life, key)
		w.leave(key)
	}
	if r.err != nil {
		return
	}
	w.counted.restores.Add(1)
	done := r.restored
	problem := ""
	for _, m := range w.lines(r) {
		want := 0
		for key := range m.list("main/", "", uint64(done.Revision)) {
			if !trimmedOf(key, done.Trimmed) {
				want++
			}
		}
		if uint64(want) == done.Objects {
			return
		}
		problem = fmt.Sprintf("%d objects of revision %d, not %d; said to be left out: %v", done.Objects, done.Revision, want, done.Trimmed)
	}
	w.violated("a restore leaves something out", "%v: %s", r, problem)
}

func trimmedOf(key string, prefixes []string) bool {
	_, path, _ := strings.Cut(key, "/")
	for _, prefix := range prefixes {
		if strings.HasPrefix("/"+path, prefix+"/") {
			return true
		}
	}
	return false
}
