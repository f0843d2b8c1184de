package simulate

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/segment"
)

// forgetSome begins to forget the old versions of an object.
func (w *world) forgetSome() {
	p, ok := pick(w, w.processes)
	if !ok || len(keep(w.inFlight, func(r *request) bool { return r.verb == "forget" })) > 0 || w.forgets >= 5 {
		return
	}
	w.forgets++
	r := &request{process: p, verb: "forget", kind: "events", name: fmt.Sprintf("n%d", w.choices.choose(w.config.keys))}
	if len(w.model.keys[r.key()]) == 0 {
		return
	}
	writes := func(r *request) bool { return r.verb == "create" || r.verb == "update" || r.verb == "delete" }
	if len(keep(w.inFlight, writes)) == 0 && w.choices.choose(4) > 0 { // forgetting need not wait for writers then
		r.stopped = true
		w.hushed = w.turn + 100_000
	}
	w.model.forgetting[r.key()] = true // even if the forgetting fails, versions may be gone
	w.begin(r)
}

func (r *request) forget(ctx context.Context) (err error) {
	settled := eventlog.MinRetention(deadline)
	if r.stopped {
		settled = 0
	}
	r.forgot, err = r.process.projection.Forget(ctx, []string{r.key()}, settled)
	return err
}

// judgeForget notes the versions that are gone: all versions except the newest one, if that one is live.
func (w *world) judgeForget(r *request) {
	if r.stopped {
		w.hushed = w.turn
	}
	if r.err != nil {
		return
	}
	w.counted.forgotten.Add(1)
	changes := w.model.keys[r.key()]
	upto := uint64(0)
	for _, c := range changes {
		if c.at > uint64(r.forgot.Floor) {
			break
		}
		upto = c.at
		if c.now.revision > 0 {
			upto = c.at - 1
		}
	}
	if w.model.forgotten == nil {
		w.model.forgotten = map[string]uint64{}
	}
	w.model.forgotten[r.key()] = upto
	delete(w.model.forgetting, r.key())
	w.say("forgotten: %s up to %d", r.key(), upto)
}

// hidden checks that the block caches on disk hold no forgotten version. Every process that has read the root since the
// forgetting has removed these versions.
func (w *world) hidden() {
	for _, folder := range w.folders {
		_ = filepath.WalkDir(folder, func(name string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || w.ever[e.Name()] == nil {
				return nil
			}
			if file, err := os.ReadFile(name); err == nil {
				if problem := w.remembers(e.Name(), w.ever[e.Name()], file); problem != "" {
					w.violated("a forgotten version is on a disk", "%s: %s", filepath.Base(folder), problem)
					return fs.SkipAll
				}
			}
			return nil
		})
	}
}

// gone checks that the bucket holds no forgotten version, once all of its garbage is collected.
func (w *world) gone() {
	if w.model.forgotten == nil {
		return
	}
	for _, kind := range []string{"seg", "events"} {
		_ = w.bucket.List(w.life, w.prefix+"/"+kind+"/", func(a bucket.Attributes) error {
			body, _, err := w.bucket.Get(w.life, a.Key)
			if err == nil {
				if problem := w.remembers(a.Key, body, body); problem != "" {
					w.violated("a forgotten version is in the bucket", "%s", problem)
				}
			}
			return nil
		})
	}
}

// remembers names a forgotten version that a file still holds, or returns "". The file holds parts of an object of the
// bucket. In this test objects have one block, right after the header.
func (w *world) remembers(name string, object, file []byte) string {
	const header, enough = 8, 16
	if len(file) < header+enough || !bytes.Equal(file[header:header+enough], object[header:header+enough]) {
		return "" // the file has only the footer
	}
	reader, err := segment.OpenBytes(name, object)
	if err != nil || reader.Blocks() != 1 {
		return ""
	}
	for cursor := reader.Through(nil).Scan("", ""); ; {
		e, ok, err := cursor.Next(w.life)
		if err != nil || !ok {
			return ""
		}
		for key, upto := range w.model.forgotten {
			if of := w.model.events[e.Revision]; e.Revision <= upto && of != nil && of.key == key && len(of.version.tag) > 0 && strings.Contains(string(e.Value), of.version.tag) {
				return fmt.Sprintf("%s has %s at %d, which is forgotten up to %d", name, key, e.Revision, upto)
			}
		}
	}
}
