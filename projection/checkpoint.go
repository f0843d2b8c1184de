package projection

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/logplane/logplane/projection/bucket"
)

// CheckpointRule keeps one root for each period of log time of length Every. Each of these roots is kept for the time
// Keep.
type CheckpointRule struct{ Every, Keep time.Duration }

// DefaultCheckpoints keeps hourly roots for a day, and daily roots for a month.
var DefaultCheckpoints = []CheckpointRule{{Every: time.Hour, Keep: 24 * time.Hour}, {Every: 24 * time.Hour, Keep: 30 * 24 * time.Hour}}

// checkpoint names an immutable copy of a root: its applied revision, its clock, and the copy's key. As long as the
// newest root lists the checkpoint, no object that the copy names is garbage. So the copy names no event segment of the
// archive: otherwise the checkpoint would keep that segment for another History period.
type checkpoint struct {
	_        struct{} `cbor:",toarray"`
	Revision Revision
	Time     int64
	Key      string
}

// archiveParts is the least number of checkpoints of an archive: one an hour in a week (docs/decisions/the-past.md).
const archiveParts = 168

// rules are the configured rules and the archive's own.
func (c *Config) rules() []CheckpointRule {
	if c.History <= 0 {
		return c.Checkpoints
	}
	return append(slices.Clone(c.Checkpoints), CheckpointRule{Every: c.History / archiveParts, Keep: c.History})
}

// checkpoint writes a copy of the draft if a rule wants one, and lists the copy. Checkpoints that no rule wants any
// more leave the list, and become garbage. If the draft does not win, its copy is garbage too, and the copy's name is
// never used again.
func (p *Projection) checkpoint(ctx context.Context, next *draft) error {
	rules := p.config.rules()
	if len(rules) == 0 {
		return nil // a process without rules leaves the others' checkpoints alone
	}
	next.Checkpoints = kept(next.Checkpoints, next.Clock, rules, next.bases())
	start := next.pastStart()
	next.Trimmed = slices.DeleteFunc(slices.Clone(next.Trimmed), func(t trim) bool { return t.Revision <= start })
	if !due(next.Checkpoints, next.Clock, rules) {
		return nil
	}
	c, err := p.writeCheckpoint(ctx, next.root)
	next.made = append(next.made, c.Key)
	if err == nil {
		next.Checkpoints = append(next.Checkpoints, c)
	}
	return err
}

// writeCheckpoint writes a copy of a root without the archive. It returns the name even if it returns an error. The
// name contains a sum of the content. This sum lets a reader notice another cell's checkpoint under that name. The
// nonce makes content and name unique.
func (p *Projection) writeCheckpoint(ctx context.Context, r *root) (checkpoint, error) {
	copied := *r
	copied.Checkpoints, copied.Nonce = nil, []byte(rand.Text())
	copied.dropEvents(r.Floor)
	body := encodeRoot(&copied)
	c := checkpoint{Revision: r.Applied, Time: r.Clock,
		Key: fmt.Sprintf("%s/ckpt/%020d-%s", p.config.Prefix, r.Applied, checkpointSum(body))}
	return c, p.createObject(ctx, "checkpoint", c.Key, body)
}

func checkpointSum(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:16])
}

// due reports whether a new period of some rule has begun since the last checkpoint, or there is no checkpoint.
func due(ascending []checkpoint, clock int64, rules []CheckpointRule) bool {
	if len(ascending) == 0 {
		return true
	}
	last := ascending[len(ascending)-1].Time
	return slices.ContainsFunc(rules, func(r CheckpointRule) bool { return r.stretch(clock) > r.stretch(last) })
}

func (r CheckpointRule) stretch(nanos int64) int64 { return nanos / max(1, int64(r.Every)) }

// bases are the revisions of the checkpoints onto which archived events are folded: the archive's base, and the bases
// from which trimmed objects have a past.
func (r *root) bases() []Revision {
	bases := []Revision{r.archiveBase()}
	for _, t := range r.Trimmed {
		bases = append(bases, t.Revision)
	}
	return bases
}

// kept are the checkpoints to keep: the bases, and the first checkpoint of each period of a rule, for as long as the
// rule keeps this checkpoint.
func kept(ascending []checkpoint, clock int64, rules []CheckpointRule, bases []Revision) (out []checkpoint) {
	for i, c := range ascending {
		wanted := slices.Contains(bases, c.Revision)
		for _, r := range rules {
			first := i == 0 || r.stretch(ascending[i-1].Time) < r.stretch(c.Time)
			wanted = wanted || first && clock-c.Time <= int64(r.Keep)
		}
		if wanted {
			out = append(out, c)
		}
	}
	return out
}

// checkpointed reads a checkpoint. ErrNotFound says that the checkpoint is lost, ErrDamaged and ErrNewer that this
// process cannot read its content.
func (p *Projection) checkpointed(ctx context.Context, c checkpoint) (*root, error) {
	body, _, err := p.config.Bucket.Get(ctx, c.Key)
	if err != nil {
		return nil, fmt.Errorf("read checkpoint %s: %w", c.Key, err)
	}
	r, err := decodeRoot(body)
	_, sum, _ := strings.Cut(c.Key[strings.LastIndexByte(c.Key, '/')+1:], "-")
	switch {
	case err != nil:
	case r.Applied != c.Revision:
		err = fmt.Errorf("it is of revision %d, not %d", r.Applied, c.Revision)
	case len(sum) == len(checkpointSum(nil)) && sum != checkpointSum(body): // earlier versions chose the name at random
		err = errors.New("it is another one, maybe of another cell")
	}
	if err != nil && !errors.Is(err, ErrNewer) {
		err = fmt.Errorf("%w (%w): put back what was there, or drop it with 'logplane inspect fsck --drop-checkpoint %s'", err, ErrDamaged, c.Key)
	}
	if err != nil {
		return nil, fmt.Errorf("read checkpoint %s: %w", c.Key, err)
	}
	r.dropEvents(r.Floor) // earlier versions copied the archive too
	return r, nil
}

// DropCheckpoint takes a checkpoint off the root's list at an operator's request, because the checkpoint, or an object
// that it names, is damaged. The moments that need the checkpoint can no longer be read.
func (p *Projection) DropCheckpoint(ctx context.Context, key string) error {
	listed := false
	_, err := p.swap(ctx, func(_ context.Context, v *View) (*draft, error) {
		next := v.snap.draft()
		if listed = next.drop([]string{key}) != nil; !listed {
			return nil, nil
		}
		return next, nil
	})
	if err != nil {
		return fmt.Errorf("drop a checkpoint: %w", err)
	}
	if !listed {
		return fmt.Errorf("the root lists no checkpoint '%s': give a key as 'inspect fsck' prints it: %w", key, bucket.ErrNotFound)
	}
	return nil
}

// drop takes the checkpoints with these keys off the list, and returns the keys that were on it.
func (r *root) drop(keys []string) (dropped []string) {
	r.Checkpoints = slices.DeleteFunc(slices.Clone(r.Checkpoints), func(c checkpoint) bool {
		found := slices.Contains(keys, c.Key)
		if found {
			dropped = append(dropped, c.Key)
		}
		return found
	})
	return dropped
}

// needs says which objects a root and its checkpoints name.
type needs struct {
	named map[string]bool
	// lost are the keys of checkpoints that are not in the bucket: nobody needs the objects that these checkpoints
	// named.
	lost []string
	// damaged says which checkpoints and pages cannot be read. These objects stay, since this reader may be at fault,
	// or too old. They may name any segment up to 'upto', the last revision of the newest of these objects.
	damaged []error
	upto    Revision
}

// cannotRead reports whether the error says that an object is there, but this process cannot read its content.
func cannotRead(err error) bool { return errors.Is(err, ErrDamaged) || errors.Is(err, ErrNewer) }

func (n *needs) has(key string) bool {
	if n.named[key] || n.upto == 0 {
		return n.named[key]
	}
	var first, last Revision
	_, err := fmt.Sscanf(key[strings.LastIndexByte(key, '/')+1:], "%d-%d-", &first, &last)
	return err == nil && last <= n.upto
}

// needed returns the names of all objects that the root, its pages and its checkpoints name. It does not read the
// checkpoints in older.
func (p *Projection) needed(ctx context.Context, r *root, older []checkpoint) (*needs, error) {
	p.pins.Range(func(key, _ any) bool { // a checkpoint that is no longer listed pins nothing
		if !slices.ContainsFunc(r.Checkpoints, func(c checkpoint) bool { return c.Key == key }) {
			p.pins.Delete(key)
		}
		return true
	})
	n := &needs{named: r.names()}
	for _, pg := range r.Pages {
		refs, err := p.page(ctx, pg)
		if errors.Is(err, bucket.ErrNotFound) || cannotRead(err) {
			n.damaged, n.upto = append(n.damaged, err), pg.MaxRevision
		} else if err != nil {
			return nil, err
		}
		maps.Copy(n.named, namesOf(refs))
	}
	for _, c := range r.Checkpoints {
		n.named[c.Key] = true
		if slices.Contains(older, c) {
			continue
		}
		pinned, ok := p.pins.Load(c.Key)
		if !ok {
			copied, err := p.checkpointed(ctx, c)
			switch {
			case errors.Is(err, bucket.ErrNotFound):
				n.lost = append(n.lost, c.Key)
				continue
			case cannotRead(err):
				n.damaged, n.upto = append(n.damaged, err), max(n.upto, c.Revision)
				continue
			case err != nil:
				return nil, err
			}
			pinned, _ = p.pins.LoadOrStore(c.Key, copied.names())
		}
		maps.Copy(n.named, pinned.(map[string]bool))
	}
	return n, nil
}

// pastSnapshot is the snapshot of a checkpoint. It never changes. Segments that the snapshot has opened stay open while
// the snapshot is kept.
func (p *Projection) pastSnapshot(ctx context.Context, c checkpoint) (*snapshot, error) {
	if known, ok := p.pasts.Get(c.Key); ok {
		return known, nil
	}
	r, err := p.checkpointed(ctx, c)
	if err != nil {
		return nil, err
	}
	s, err := p.newSnapshot(r, "", nil)
	if err != nil {
		return nil, err
	}
	size := int64(len(r.Inline)) * 4
	for _, ref := range slices.Concat(r.Segments, r.Events) {
		size += 512 + 2*ref.Footer // with the footer, once it is open
	}
	p.pasts.Add(c.Key, "", s, size)
	return s, nil
}

// checkpointAt is the index of the oldest checkpoint at or above the revision.
func (r *root) checkpointAt(at Revision) int {
	i, _ := slices.BinarySearchFunc(r.Checkpoints, at, func(c checkpoint, at Revision) int { return cmp.Compare(c.Revision, at) })
	return i
}
