package projection

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/segment"
)

// RecoverPlan is the effect that Recover would have, or has had, on a cell whose root is damaged, lost or old.
type RecoverPlan struct {
	// Wrong says what is wrong with the root. If it is nil, nothing is wrong, and there is nothing to recover.
	Wrong error
	// From is the key of the newest root or checkpoint that can be read completely, empty for the cell's beginning.
	// Passed says why newer roots and checkpoints, and other objects that were examined, are not used.
	From   string
	Passed []error
	// Revision is the last revision up to which From and the event segments after From have every event. Time is the
	// log time of Revision.
	Revision Revision
	Time     time.Time
	// Log has the log's bounds. Lost says why none of the log's events can be kept: the log does not belong to the
	// bucket, or one of the events is undamaged on no server. Lost is nil if the events can be kept.
	Log  eventlog.Bounds
	Lost error
	// Missing is the last revision that neither bucket nor log has; the first missing revision comes right after
	// Revision. Missing is 0 if nothing is missing. Until is the log time of the first event after the gap, zero if
	// there is none.
	Missing Revision
	Until   time.Time
	// To is the first revision after the fence that must follow. It is 0 if nothing is lost, so that no fence is
	// needed.
	To Revision

	etag   string // of the root, empty if there is none
	root   *root  // the new one, without the events that are still to be folded
	bridge []eventFile
	end    root // its position is that of Revision
	// highest is the highest revision in the log or in any name of an object of the bucket.
	highest Revision
}

// eventFile is an event segment as the bucket lists it.
type eventFile struct {
	bucket.Attributes
	first, last Revision
}

// remains are the remaining objects of a cell, by key.
type remains map[string]bucket.Attributes

// recoveredSerials is more than the number of roots that can have been written since a checkpoint.
const recoveredSerials = 1 << 32

// recoveredID is the prefix of the applied request id of a recovered root that must still be fenced. The log has no
// such event, so every process stops with ErrDiverged.
const recoveredID = "recover-"

// PlanRecover finds out how much can be recovered of a cell whose root cannot be read, is missing, or ends before the
// log begins. It reads all objects that the new root would name, and writes nothing.
func (p *Projection) PlanRecover(ctx context.Context) (*RecoverPlan, error) {
	plan, err := p.planRecover(ctx)
	if err != nil {
		return nil, fmt.Errorf("recover: %w", err)
	}
	return plan, nil
}

func (p *Projection) planRecover(ctx context.Context) (*RecoverPlan, error) {
	plan, there := &RecoverPlan{}, remains{}
	var err error
	if plan.Log, err = p.config.Log.Extent(ctx); err != nil {
		return nil, err
	}
	err = p.config.Bucket.List(ctx, p.config.Prefix+"/", func(a bucket.Attributes) error {
		there[a.Key] = a
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the bucket: %w", err)
	}
	newest, err := p.examineRoot(ctx, plan, there)
	if err != nil || plan.Wrong == nil {
		return plan, err
	}
	candidates, err := p.readCheckpoints(ctx, plan, there)
	if err != nil {
		return nil, err
	}
	listed := slices.Clone(candidates)
	if newest != nil && len(there.lacks(newest)) == 0 {
		candidates = append(candidates, candidate{p.rootKey(), newest})
	}
	slices.SortStableFunc(candidates, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.root.Forgets, a.root.Forgets), cmp.Compare(b.root.Applied, a.root.Applied))
	})
	files, highest := there.events(p.config.Prefix)
	plan.highest = max(highest, plan.Log.Head)
	if len(candidates)+len(files)+len(plan.Passed) > 0 { // otherwise this is not the cell's bucket
		candidates = append(candidates, candidate{"", &root{}})
	}
	for _, c := range candidates {
		err := p.planFrom(ctx, plan, c, listed, files)
		if err == nil {
			return plan, nil
		}
		if !cannotRead(err) && !errors.Is(err, errUseless) {
			return nil, err
		}
		plan.Passed = append(plan.Passed, fmt.Errorf("%s: %w", cmp.Or(c.key, "the cell's beginning"), err))
	}
	return nil, fmt.Errorf("the root: %w; there is nothing below '%s' that a root can be made of: give the cell's own bucket and prefix, or put back a copy of the bucket (%w)",
		plan.Wrong, p.config.Prefix, errors.Join(plan.Passed...))
}

// errUseless says that a root or checkpoint cannot be the start of a new root.
var errUseless = errors.New("nothing can be recovered from it")

// candidate is a root or checkpoint that a new root may start from.
type candidate struct {
	key  string
	root *root
}

// examineRoot reads the root, and records in the plan what is wrong with the root. It returns nil if the root cannot be
// read.
func (p *Projection) examineRoot(ctx context.Context, plan *RecoverPlan, there remains) (*root, error) {
	body, etag, err := p.config.Bucket.Get(ctx, p.rootKey())
	if errors.Is(err, bucket.ErrNotFound) {
		plan.Wrong = errors.New("it is not there")
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the root: %w", err)
	}
	plan.etag = etag
	r, err := decodeRoot(body)
	if err == nil {
		_, err = r.inlineRecords()
	}
	switch {
	case errors.Is(err, ErrNewer):
		return nil, err
	case err != nil:
		plan.Wrong = err
		return nil, nil
	case len(there.lacks(r)) > 0:
		plan.Wrong = fmt.Errorf("it names '%s', which is not there as it was", there.lacks(r)[0])
	case plan.Log.First > r.Applied+1:
		plan.Wrong = fmt.Errorf("it ends at revision %d, and the log begins at %d: %w", r.Applied, plan.Log.First, ErrHole)
	}
	return r, nil
}

// lacks are the keys of the objects that a root needs, but that the bucket lacks or has with another size.
func (there remains) lacks(r *root) (missing []string) {
	for _, ref := range slices.Concat(r.Segments, r.Events) {
		if there[ref.Key].Size != ref.Size {
			missing = append(missing, ref.Key)
		}
	}
	for _, pg := range r.Pages {
		if there[pg.Key].Size == 0 {
			missing = append(missing, pg.Key)
		}
	}
	return missing
}

// readCheckpoints returns the checkpoints that can be read and whose objects are all there, ascending. If two have the
// same revision, it returns the younger: the older was rewritten, and is garbage. The plan says which checkpoints
// cannot be used.
func (p *Projection) readCheckpoints(ctx context.Context, plan *RecoverPlan, there remains) (whole []candidate, err error) {
	found := slices.SortedFunc(maps.Values(there), func(a, b bucket.Attributes) int {
		return cmp.Or(cmp.Compare(keyRevision(a.Key), keyRevision(b.Key)), a.Modified.Compare(b.Modified))
	})
	for _, a := range found {
		if !strings.HasPrefix(a.Key, p.config.Prefix+"/ckpt/") {
			continue
		}
		r, err := p.checkpointed(ctx, checkpoint{Revision: keyRevision(a.Key), Key: a.Key})
		if err == nil {
			_, err = r.inlineRecords()
		}
		switch {
		case err != nil && !errors.Is(err, ErrDamaged):
			return nil, err
		case err != nil:
			plan.Passed = append(plan.Passed, fmt.Errorf("checkpoint %s: %w", a.Key, ErrDamaged))
		case len(there.lacks(r)) > 0:
			plan.Passed = append(plan.Passed, fmt.Errorf("checkpoint %s names '%s', which is not there as it was", a.Key, there.lacks(r)[0]))
		default:
			if n := len(whole); n > 0 && whole[n-1].root.Applied == r.Applied {
				whole = whole[:n-1]
			}
			whole = append(whole, candidate{a.Key, r})
		}
	}
	return whole, nil
}

// keyRevision is the first revision in the name of an object; 0 if the name has none.
func keyRevision(key string) (rev Revision) {
	_, _ = fmt.Sscanf(key[strings.LastIndexByte(key, '/')+1:], "%d-", &rev)
	return rev
}

// events are the event segments, sorted by their last revision and then by age, the youngest last. It also returns the
// highest revision in any object's name.
func (there remains) events(prefix string) (files []eventFile, highest Revision) {
	for key, a := range there {
		f := eventFile{Attributes: a}
		_, err := fmt.Sscanf(key[strings.LastIndexByte(key, '/')+1:], "%d-%d-", &f.first, &f.last)
		if highest = max(highest, f.first); err != nil { // a checkpoint's name has one revision
			continue
		}
		highest = max(highest, f.last)
		if strings.HasPrefix(key, prefix+"/events/") && f.first > 0 {
			files = append(files, f)
		}
	}
	slices.SortFunc(files, func(a, b eventFile) int { return cmp.Or(cmp.Compare(a.last, b.last), a.Modified.Compare(b.Modified)) })
	return files, highest
}

// planFrom completes the plan with a candidate, if all objects that the new root would name can be read.
func (p *Projection) planFrom(ctx context.Context, plan *RecoverPlan, c candidate, listed []candidate, files []eventFile) error {
	plan.From, plan.Missing, plan.To, plan.Lost, plan.Until, plan.bridge = c.key, 0, 0, nil, time.Time{}, nil
	if err := p.contradicted(ctx, c.root, files); err != nil {
		return err
	}
	v, err := p.readable(ctx, plan, c.root, files)
	if err != nil {
		return err
	}
	// Extend the root with the event segments of the bucket, and then compare with the log: is it the same history?
	bridged := *plan.root
	plan.bridge, err = p.readBridge(ctx, v, &bridged, files)
	if err != nil {
		return err
	}
	within := bridged.Applied >= plan.Log.First && bridged.Applied <= plan.Log.Head
	if bridged.Applied > plan.root.Applied && bridged.AppliedID == "" && within { // the bridge ends with a barrier
		e, err := p.config.Log.EventAt(ctx, bridged.Applied)
		if err != nil && !errors.Is(err, eventlog.ErrNowhere) { // compareLog below finds it again
			return err
		}
		bridged.AppliedID, bridged.AppliedTime = e.RequestID, e.Time.UnixNano()
	}
	v.root, v.problems, plan.end = &bridged, nil, bridged
	v.p.config.Log = p.config.Log
	err = cmp.Or(v.compareLog(ctx), errors.Join(v.problems...))
	if errors.Is(err, ErrHole) { // then the whole log is to be folded, so try to read it
		unread := p.config.Log.Tail(ctx, plan.Log.First-1, plan.Log.Head, func(e eventlog.Event) error {
			if plan.Until.IsZero() {
				plan.Until = e.Time
			}
			return nil
		})
		if unread != nil {
			err, plan.Until = unread, time.Time{}
		}
	}
	plan.Revision, plan.Time = bridged.Applied, unixTime(bridged.AppliedTime)
	plan.root.Checkpoints = nil
	for _, older := range listed {
		if older.root.Applied <= plan.root.Applied && older.root.Forgets <= plan.root.Forgets {
			plan.root.Checkpoints = append(plan.root.Checkpoints, checkpoint{Revision: older.root.Applied, Time: older.root.Clock, Key: older.key})
		}
	}
	switch {
	case err == nil:
		if plan.Log.First <= plan.root.Applied+1 { // the next commit folds the rest
			plan.bridge = nil
		}
		return nil
	case errors.Is(err, ErrHole):
		plan.Missing = plan.Log.First - 1
	case errors.Is(err, eventlog.ErrDiverged) || errors.Is(err, eventlog.ErrNowhere) || len(v.problems) > 0:
		plan.Lost, plan.Missing = err, max(plan.Log.Head, bridged.Applied)
	default:
		return err
	}
	if c.key == "" {
		return fmt.Errorf("neither bucket nor log reaches back to there: %w", errUseless)
	}
	plan.To = max(plan.highest, plan.Revision) + eventlog.FenceGap
	return nil
}

// contradicted fails if an event segment has another event at the candidate's last revision, and no event segment has
// the candidate's event. Then the candidate belongs to another cell. An event segment that cannot be read proves
// nothing.
func (p *Projection) contradicted(ctx context.Context, r *root, files []eventFile) error {
	var other error
	confirmed := false
	for _, f := range files {
		if f.first > r.Applied || f.last < r.Applied {
			continue
		}
		err := p.bridged(ctx, f, r.Applied-1, func(e *record) error {
			switch {
			case e.Revision != r.Applied || e.Op == eventlog.Barrier:
			case e.RequestID == r.AppliedID && e.Time.UnixNano() == r.AppliedTime:
				confirmed = true
			default:
				other = fmt.Errorf("it ends with request %q, and '%s' has request %q there: it is another cell's: %w",
					r.AppliedID, f.Key, e.RequestID, errUseless)
			}
			return nil
		})
		if err != nil && !cannotRead(err) && !errors.Is(err, bucket.ErrNotFound) {
			return err
		}
	}
	if confirmed {
		return nil
	}
	return other
}

// readable makes the plan's root from the candidate's root, and reads all objects that the plan's root names. No
// checkpoint names the event segments of an archive. So if there is an archive, readable lists these segments again, as
// far back as they have no hole. Rules may have trimmed some of these events since, and nobody knows which. So the past
// of the objects of such rules begins at the floor.
func (p *Projection) readable(ctx context.Context, plan *RecoverPlan, of *root, files []eventFile) (*verification, error) {
	r := of.clone()
	r.Serial += recoveredSerials
	r.Checkpoints, r.Trimmed, r.Index, r.Footers = nil, slices.Clone(r.Trimmed), "", nil
	for i := range r.Trimmed {
		r.Trimmed[i].Revision = max(r.Trimmed[i].Revision, r.Floor)
	}
	for i := len(files) - 1; i >= 0 && r.Archive < r.Horizon && len(r.Pages) == 0; i-- {
		if files[i].last == r.archiveStart() && (len(r.Events) > 0 || r.Spilled == files[i].last) {
			_, ref, err := p.openEvents(ctx, files[i])
			if err != nil {
				plan.Passed = append(plan.Passed, fmt.Errorf("events before revision %d are given up: %w", files[i].last+1, err))
				break
			}
			r.Events = append([]segmentRef{ref}, r.Events...)
		}
	}
	reader, err := open(Config{Bucket: p.config.Bucket, Prefix: p.config.Prefix, Budget: p.config.Budget})
	if err != nil {
		return nil, err
	}
	snap, err := reader.newSnapshot(r, "", nil)
	if err != nil {
		return nil, err
	}
	v := &verification{p: reader}
	v.read(ctx, snap)
	v.compareFloor()
	slices.SortFunc(v.events, func(a, b fact) int { return cmp.Compare(a.revision, b.revision) })
	plan.root = r
	if err := ctx.Err(); err != nil || v.problems == nil {
		return v, err
	}
	return nil, fmt.Errorf("%w: %w", errors.Join(v.problems...), errUseless)
}

// openEvents reads an event segment completely.
func (p *Projection) openEvents(ctx context.Context, f eventFile) (*segment.Reader, segmentRef, error) {
	body, _, err := p.config.Bucket.Get(ctx, f.Key)
	if err != nil {
		return nil, segmentRef{}, fmt.Errorf("read segment %s: %w", f.Key, err)
	}
	reader, err := segment.OpenBytes(f.Key, body)
	if err == nil {
		err = reader.Verify(ctx)
	}
	if err != nil {
		return nil, segmentRef{}, err
	}
	sum := reader.Summary()
	return reader, segmentRef{Key: f.Key, Size: sum.Size, Footer: sum.Footer, Rows: sum.Rows, MinKey: []byte(sum.MinKey),
		MaxKey: []byte(sum.MaxKey), MinRevision: f.first, MaxRevision: f.last}, nil
}

// readBridge continues from a root with event segments that no checkpoint names, as far as the segments go, and returns
// the segments. It advances the root's applied revision, and adds the segments' events to the events that are compared
// with the log. It skips a damaged segment.
func (p *Projection) readBridge(ctx context.Context, v *verification, at *root, files []eventFile) (bridge []eventFile, err error) {
	for i := len(files) - 1; i >= 0; i-- { // take the segment that reaches farthest
		f := files[i]
		if f.first > at.Applied+1 || f.last <= at.Applied {
			continue
		}
		var facts []fact
		end := *at
		err := p.bridged(ctx, f, at.Applied, func(r *record) error {
			end.Applied, end.AppliedID, end.AppliedTime = r.Revision, r.RequestID, r.Time.UnixNano()
			end.Epoch = max(end.Epoch, r.Epoch)
			if r.Op != eventlog.Barrier {
				facts = append(facts, v.factOf(r))
			}
			return nil
		})
		if cannotRead(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		*at, v.events, bridge, i = end, append(v.events, facts...), append(bridge, f), len(files)
	}
	return bridge, nil
}

// bridged yields the records of an event segment that come after a revision.
func (p *Projection) bridged(ctx context.Context, f eventFile, after Revision, yield func(*record) error) error {
	reader, _, err := p.openEvents(ctx, f)
	if err != nil {
		return err
	}
	for r, err := range recordsOf(ctx, reader) {
		if err == nil && r.Revision > after {
			err = yield(r)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Recover carries out the plan. The operator vouches that all processes of the cell have stopped.
//
//  1. Events that the bucket and the log have after the plan's checkpoint are written as segments, if needed. A crash
//     here leaves garbage.
//  2. The root is created, or replaced if it is still the one that the plan has seen. If nothing is lost, Recover is
//     done, and the log continues. Otherwise the new root ends with an event that the log does not have. A crash after
//     this leaves a cell that every process refuses with ErrDiverged, until an operator fences it.
//  3. The cell is fenced above every revision that was ever used (invariant 9).
func (p *Projection) Recover(ctx context.Context, plan *RecoverPlan) error {
	next := &draft{root: plan.root.clone(), over: p.snapshotOf(&root{}, nil, nil, plan.etag, nil)}
	err := p.refold(ctx, plan, next)
	if err == nil {
		err = p.writeIndex(ctx, next)
	}
	if err == nil {
		err = next.check()
	}
	if err == nil {
		_, err = p.put(ctx, next)
	}
	if err != nil {
		return fmt.Errorf("recover: nothing was changed yet, or all of the root was: recover again: %w", err)
	}
	if plan.To == 0 {
		return nil
	}
	fence, err := p.PlanFence(ctx, 0)
	if err == nil {
		fence.To = max(fence.To, plan.To)
		err = p.Fence(ctx, fence)
	}
	if err != nil {
		return fmt.Errorf("recover: there is a root again, and it must be fenced: run 'logplane fence': %w", err)
	}
	return nil
}

// refold adds to the draft the events in the bucket that come after the draft's root. If revisions are missing, it adds
// the log's events too.
func (p *Projection) refold(ctx context.Context, plan *RecoverPlan, next *draft) (err error) {
	if next.records, err = next.inlineRecords(); err != nil || plan.To == 0 && plan.bridge == nil {
		return err
	}
	records, bytes := next.records, 0
	fold := func(r *record) error {
		next.Epoch = max(next.Epoch, r.Epoch)
		records = appendRun(records, next.Applied, r)
		next.Applied, next.AppliedID, next.AppliedTime = r.Revision, r.RequestID, r.Time.UnixNano()
		if bytes += len(r.Body); bytes <= spillBytes && len(records) < spillEvents {
			return nil
		}
		file, sum, err := sealRecords(records)
		if err == nil {
			err = p.writeSegments(ctx, next, records, file, sum)
		}
		records, bytes = nil, 0
		return err
	}
	for _, f := range plan.bridge {
		if err := p.bridged(ctx, f, next.Applied, fold); err != nil {
			return err
		}
	}
	if plan.To > 0 && plan.Lost == nil {
		if err := p.foldOver(ctx, plan, next, fold); err != nil {
			return err
		}
	}
	if plan.To == 0 {
		next.AppliedID, next.AppliedTime = plan.end.AppliedID, plan.end.AppliedTime
	}
	if plan.To > 0 {
		// The time must differ too, in case the log's last event has no id.
		next.AppliedID, next.AppliedTime, next.Floor = recoveredID+rand.Text(), next.AppliedTime+1, next.Applied
	}
	return p.spill(ctx, next, records)
}

// foldOver folds the log's events, with barriers for the missing revisions before them. The base that a key's first
// event names is trusted, since that base may be among the missing revisions.
func (p *Projection) foldOver(ctx context.Context, plan *RecoverPlan, next *draft, fold func(*record) error) error {
	log, err := p.config.Log.Extent(ctx)
	if err != nil {
		return err
	}
	if log.First != plan.Log.First {
		return fmt.Errorf("the log begins at %d now, and at %d before: a process of the cell is still running, stop it", log.First, plan.Log.First)
	}
	barriers := func(upto Revision, at time.Time) error {
		if upto <= next.Applied {
			return nil
		}
		return fold(&record{Event: eventlog.Event{Revision: upto, Time: at}})
	}
	if err := barriers(log.First-1, unixTime(next.AppliedTime)); err != nil || log.Head < log.First {
		return err
	}
	live := map[string]Revision{} // live revisions of the keys that the log has events of
	var batch []*record
	var last time.Time
	err = p.config.Log.Tail(ctx, log.First-1, log.Head, func(e eventlog.Event) error {
		if last = e.Time; e.Op == eventlog.Barrier {
			return nil
		}
		if batch = append(batch, newRecord(e)); e.Left > 0 {
			return nil
		}
		void := slices.ContainsFunc(batch, func(r *record) bool {
			before, known := live[r.key]
			if !known {
				before = r.Base
			}
			return !valid(&r.Event, next.Epoch, before)
		})
		for _, r := range batch {
			if r.void = void; !void {
				live[r.key] = r.Revision
			}
			if !void && r.Op == eventlog.Deleted {
				live[r.key] = 0
			}
			if err := fold(r); err != nil {
				return err
			}
		}
		batch = nil
		return nil
	})
	if err != nil {
		return err
	}
	return barriers(log.Head, last)
}
