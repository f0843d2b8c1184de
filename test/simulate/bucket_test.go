package simulate

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/logplane/logplane/projection/bucket"
)

// errFault replaces an answer of the bucket where the schedule wants a fault.
var errFault = errors.New("the simulated bucket did not answer")

// remote is the bucket as a process reaches it: a request waits for the schedule before it is served, and again before
// it is answered.
type remote struct {
	process *process
	bucket.Bucket
}

// kindOf returns the folder of a cell's object, or 'root'.
func kindOf(key string) string {
	_, rest, _ := strings.Cut(key, "/")
	kind, _, _ := strings.Cut(rest, "/")
	return kind
}

func (b *remote) pass(ctx context.Context, op, key string, serve func() error) error {
	w := b.process.world
	_, folder, _ := strings.Cut(path.Dir(key), "/")
	what := op + " " + folder
	if path.Base(key) == "root" {
		what = op + " root"
	}
	fault, err := w.wait(ctx, &step{from: b.process.name + " bucket", what: what, request: true, locks: ownerOf(ctx).verb == "watch"})
	if err != nil {
		return err
	}
	err = errFault
	if fault != fails && fault != gone {
		err = w.trouble(ctx, op, key, serve)
	}
	switch {
	case fault == gone && op != "get" && op != "read" && op != "copy":
		err = errFault
	case fault == gone:
		err = fmt.Errorf("%s %s: %w", op, key, bucket.ErrNotFound)
	case fault != works:
		err = errFault
	}
	if fault != works {
		ownerOf(ctx).meets(w, faultNames[fault], op, key)
	}
	if _, late := w.wait(ctx, &step{from: b.process.name + " bucket", what: what + ", answered", locks: ownerOf(ctx).verb == "watch"}); late != nil {
		return late
	}
	return err
}

func (b *remote) Get(ctx context.Context, key string) (body []byte, etag string, err error) {
	err = b.pass(ctx, "get", key, func() error {
		body, etag, err = b.Bucket.Get(detached, key)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	return b.process.world.damaged(ctx, key, body, 0), etag, nil
}

func (b *remote) GetRange(ctx context.Context, key string, offset, length int64) (part []byte, err error) {
	err = b.pass(ctx, "read", key, func() error { part, err = b.Bucket.GetRange(detached, key, offset, length); return err })
	if err != nil {
		return nil, err
	}
	return b.process.world.damaged(ctx, key, part, offset), nil
}

func (b *remote) Create(ctx context.Context, key string, body []byte) (etag string, err error) {
	served := false
	err = b.pass(ctx, "create", key, func() error {
		etag, err = b.Bucket.Create(detached, key, body)
		served = err == nil
		return err
	})
	if served {
		b.process.world.enter(ctx, key, body, err == nil)
	}
	return etag, err
}

func (b *remote) Replace(ctx context.Context, key string, body []byte, old string) (etag string, err error) {
	err = b.pass(ctx, "replace", key, func() error {
		etag, err = b.Bucket.Replace(detached, key, body, old)
		if err == nil {
			ownerOf(ctx).roots.Add(1)
			b.process.world.swaps.Add(1)
		}
		return err
	})
	return etag, err
}

func (b *remote) Copy(ctx context.Context, from, to string) error {
	return b.pass(ctx, "copy", to, func() error { return b.Bucket.Copy(detached, from, to) })
}

func (b *remote) List(ctx context.Context, prefix string, yield func(bucket.Attributes) error) error {
	var listed []bucket.Attributes
	err := b.pass(ctx, "list", prefix, func() error {
		return b.Bucket.List(detached, prefix, func(a bucket.Attributes) error { listed = append(listed, a); return nil })
	})
	for _, a := range listed {
		if err == nil {
			err = yield(a)
		}
	}
	return err
}

func (b *remote) Delete(ctx context.Context, key string) error {
	return b.pass(ctx, "delete", key, func() error {
		err := b.Bucket.Delete(detached, key)
		if err == nil {
			b.process.world.leave(key)
		}
		return err
	})
}

// detached is the context in which a request that has arrived is served. The request continues even if its client gives
// up.
var detached = context.Background()

// kept is an object of the cell's bucket.
type kept struct {
	size int64
	body []byte // in worlds that forget
}

// mostBytes is the largest size that an object may have: that of a part of a compaction, or that of the events that one
// commit spills. Either may be larger by one entry.
func mostBytes(key string) int {
	if kindOf(key) == "events" || strings.Contains(key, "/seg/0/") {
		return 25 << 20
	}
	return 17 << 20
}

// enter notes a new object. It reports a request that would never end: one that has written the same bytes, with
// success, four times since the last new root.
func (w *world) enter(ctx context.Context, key string, body []byte, answered bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	k := kept{size: int64(len(body))}
	if w.config.folders > 0 {
		k.body = body
		w.ever[path.Base(key)] = body
	}
	w.objects[key] = k
	if len(body) > mostBytes(key) {
		w.problems = append(w.problems, problem{"an object is larger than two parts", fmt.Sprintf("%s has %d MiB", key, len(body)>>20)})
	}
	o := ownerOf(ctx)
	if o == &nobody || !answered {
		return
	}
	// work that lost to another root is done again on the next root
	if swaps := w.swaps.Load(); o.made == nil || o.swaps != swaps {
		o.made, o.swaps = map[[32]byte]int{}, swaps
	}
	sum := sha256.Sum256(body)
	o.made[sum]++
	if o.made[sum] == 4 {
		w.problems = append(w.problems, problem{"the same bytes are written again and again", fmt.Sprintf("%s, by one %s", key, o.verb)})
	}
}

func (w *world) leave(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.objects, key)
}

// trouble is a temporary or permanent fault of the bucket.
type trouble struct {
	what string
	// key is the object with the fault; if key is empty, all objects have the fault. writing and reading say which
	// requests meet the fault.
	key              string
	writing, reading bool
	effect           effect
	// until is the last turn in which the fault lasts.
	until int
}

// effect is the effect of a trouble on a request.
type effect int

const (
	failing effect = iota
	missing
	damaging
)

func (x *trouble) about(op, key string) bool {
	reads := op == "get" || op == "read" || op == "list"
	return (x.key == "" || x.key == key) && (reads && x.reading || !reads && x.writing)
}

// lasts says whether the trouble never ends.
func (x *trouble) lasts() bool { return x.until == forGood }

const forGood = 1 << 30

// trouble serves a request, or makes it fail as the bucket's troubles demand.
func (w *world) trouble(ctx context.Context, op, key string, serve func() error) error {
	for _, x := range w.troubles() {
		if !x.about(op, key) || x.effect == damaging {
			continue
		}
		ownerOf(ctx).meets(w, x.what, op, key)
		if x.effect == missing {
			return fmt.Errorf("%s %s: %w", op, key, bucket.ErrNotFound)
		}
		return errFault
	}
	return serve()
}

// damaged returns the part of an object that a request has read. If the object is damaged, one bit in its middle is
// changed.
func (w *world) damaged(ctx context.Context, key string, part []byte, offset int64) []byte {
	for _, x := range w.troubles() {
		if x.effect != damaging || x.key != key {
			continue
		}
		w.mu.Lock()
		size := w.objects[key].size
		w.mu.Unlock()
		if size == 0 { // the part is a whole root
			size = int64(len(part))
		}
		if offset < 0 {
			offset += size
		}
		if at := size/2 - offset; at >= 0 && at < int64(len(part)) {
			ownerOf(ctx).meets(w, x.what, "read", key)
			part[at] ^= 1
		}
	}
	return part
}

func (w *world) troubles() []*trouble {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.wrongs
}

// troubleSome begins a trouble of the bucket, or of one of its objects.
func (w *world) troubleSome() {
	x := &trouble{reading: true, until: w.turn + 20 + w.choices.choose(200)}
	switch n := w.choices.choose(17); n {
	case 0:
		x.what, x.writing = "the bucket is away", true
	case 1, 2:
		x.what, x.key, x.reading, x.writing = "the root is not taken", w.prefix+"/root", false, true
	case 3:
		x.what, x.key, x.effect = "the root is damaged", w.prefix+"/root", damaging
	case 4:
		x.what, x.key = "the root is not read", w.prefix+"/root"
	default:
		kind := []string{"seg", "events", "pages", "ckpt", "idx", "seg"}[n%6]
		key, ok := pick(w, w.named(kind))
		if !ok {
			return
		}
		x.key = key
		x.effect = []effect{failing, missing, damaging}[w.choices.choose(3)]
		x.what = kind + []string{" is not read", " is missing", " is damaged"}[x.effect]
		if x.effect != failing && w.choices.choose(2) == 0 {
			x.until = forGood
		}
	}
	if w.config.away > 0 {
		x.what, x.key, x.effect, x.writing, x.until = "the bucket is away", "", failing, true, w.turn+w.config.away
	}
	w.say("%s: %s, until %d", x.what, x.key, x.until)
	w.mu.Lock()
	w.wrongs = append(w.wrongs, x)
	w.mu.Unlock()
}

// named returns the bucket's objects of a kind, oldest first.
func (w *world) named(kind string) (keys []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key := range w.objects {
		if kindOf(key) == kind && strings.HasPrefix(key, w.prefix+"/") {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// passes ends the troubles whose time is over.
func (w *world) passes() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wrongs = keep(w.wrongs, func(x *trouble) bool { return x.until >= w.turn && (!w.calm || x.lasts()) })
	if slices.ContainsFunc(w.wrongs, func(x *trouble) bool { return x.key != "" && kindOf(x.key) != "root" }) {
		w.troubled = w.turn
	}
}

// broken says whether an object of the bucket is permanently damaged or lost.
func (w *world) broken() bool {
	return len(keep(w.troubles(), (*trouble).lasts)) > 0
}

// troubled is the bucket for a process that runs alone: requests do not wait for the schedule, but meet the bucket's
// troubles.
type troubled struct{ *remote }

func (b *troubled) Get(ctx context.Context, key string) (body []byte, etag string, err error) {
	w := b.process.world
	err = w.trouble(ctx, "get", key, func() error { body, etag, err = b.Bucket.Get(ctx, key); return err })
	if err != nil {
		return nil, "", err
	}
	return w.damaged(ctx, key, body, 0), etag, nil
}

func (b *troubled) GetRange(ctx context.Context, key string, offset, length int64) (part []byte, err error) {
	w := b.process.world
	err = w.trouble(ctx, "read", key, func() error { part, err = b.Bucket.GetRange(ctx, key, offset, length); return err })
	if err != nil {
		return nil, err
	}
	return w.damaged(ctx, key, part, offset), nil
}

func (b *troubled) Create(ctx context.Context, key string, body []byte) (string, error) {
	etag, err := b.Bucket.Create(ctx, key, body)
	if err == nil {
		b.process.world.enter(ctx, key, body, true)
	}
	return etag, err
}

func (b *troubled) Replace(ctx context.Context, key string, body []byte, old string) (string, error) {
	return b.Bucket.Replace(ctx, key, body, old)
}

func (b *troubled) Copy(ctx context.Context, from, to string) error {
	return b.Bucket.Copy(ctx, from, to)
}

func (b *troubled) List(ctx context.Context, prefix string, yield func(bucket.Attributes) error) error {
	return b.Bucket.List(ctx, prefix, yield)
}

func (b *troubled) Delete(ctx context.Context, key string) error { return b.Bucket.Delete(ctx, key) }
