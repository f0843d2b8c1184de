package projection

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/segment"
)

// Root is the cell's root for people to read.
type Root struct {
	Serial      uint64    `json:"serial,string"`
	Epoch       uint64    `json:"epoch,string"`
	Applied     Revision  `json:"applied,string"`
	AppliedTime time.Time `json:"appliedTime"`
	AppliedID   string    `json:"appliedRequestID"`
	Clock       time.Time `json:"clock"`
	Floor       Revision  `json:"floor,string"`
	Purge       Revision  `json:"purge,string"`
	Generation  uint64    `json:"generation,string"`
	// InlineRows are the events after Spilled, the last revision in the segments.
	Spilled     Revision  `json:"spilled,string"`
	InlineRows  int       `json:"inlineRows"`
	InlineBytes int       `json:"inlineBytes"`
	Segments    []Segment `json:"segments"`
	Events      []Segment `json:"eventSegments"`
}

// Segment is an entry of a root's list.
type Segment struct {
	Key         string   `json:"key"`
	Level       int      `json:"level"`
	Bytes       int64    `json:"bytes"`
	Rows        uint64   `json:"rows,string"`
	MinKey      string   `json:"minKey,omitempty"`
	MaxKey      string   `json:"maxKey,omitempty"`
	MinRevision Revision `json:"minRevision,string"`
	MaxRevision Revision `json:"maxRevision,string"`
}

// Root reads the root from the bucket; the log is not asked. Before the first commit the result is empty; if
// Config.Founded is set, Root fails instead.
func (p *Projection) Root(ctx context.Context) (Root, error) {
	s, err := p.rootNow(ctx)
	if err == nil && s.etag == "" && p.config.Founded {
		err = fmt.Errorf("no '%s': %w", p.rootKey(), ErrNoRoot)
	}
	if err != nil {
		return Root{}, err
	}
	r := s.root
	return Root{Serial: r.Serial, Epoch: r.Epoch, Applied: r.Applied, AppliedTime: unixTime(r.AppliedTime), AppliedID: r.AppliedID, Clock: unixTime(r.Clock),
		Floor: r.Floor, Purge: r.Purge, Generation: r.Generation, Spilled: r.Spilled, InlineRows: len(s.inline), InlineBytes: len(r.Inline),
		Segments: listed(r.Segments, true), Events: listed(r.Events, false)}, nil
}

// Tending reports the state of each kind of tending, its due work and its problems. It reads every checkpoint.
func (p *Projection) Tending(ctx context.Context, say func(job, state string, problem error)) error {
	v, err := p.Latest(ctx)
	if err != nil {
		return err
	}
	r, swept := v.snap.root, "garbage was never collected"
	needed, err := p.needed(ctx, r, nil)
	if err != nil {
		return err
	}
	if r.Swept > 0 {
		swept = fmt.Sprintf("garbage was last collected %s of log time ago", time.Duration(r.Clock-r.Swept).Round(time.Second))
	}
	for _, key := range needed.lost {
		needed.damaged = append(needed.damaged, fmt.Errorf("checkpoint %s is lost: the next collection drops it", key))
	}
	say("collect", fmt.Sprintf("%s, and %d checkpoints are kept", swept, len(r.Checkpoints)), errors.Join(needed.damaged...))
	trims := []string{"no rule has let go of anything"}
	for i, t := range r.Trimmed {
		trims = append(trims[:i], fmt.Sprintf("the past of '%s' begins with revision %d", t.Prefix, t.Revision))
	}
	say("trim", strings.Join(trims, ", "), nil)
	behind := func(count, most int, due bool) error {
		if !due || count < 2*most {
			return nil
		}
		return fmt.Errorf("that is twice as many as it should be: start a projector, or look in its log for this job")
	}
	say("join", fmt.Sprintf("%d event segments", len(r.Events)), behind(len(r.Events), p.manyEvents, v.neighbours() != nil))
	say("compact", fmt.Sprintf("%d runs of segments", len(v.snap.runs)), behind(len(v.snap.runs), 2*runsPerLevel, v.choose() != nil))
	return nil
}

func listed(refs []segmentRef, keyed bool) []Segment {
	out := make([]Segment, len(refs))
	for i, s := range refs {
		out[i] = Segment{Key: s.Key, Level: int(s.level()), Bytes: s.Size, Rows: s.Rows, MinRevision: s.MinRevision, MaxRevision: s.MaxRevision}
		if keyed {
			out[i].MinKey, out[i].MaxKey = string(s.MinKey), string(s.MaxKey)
		}
	}
	return out
}

// Dump yields every row of a segment, in order, until yield fails. Barriers are rows without a key.
func (p *Projection) Dump(ctx context.Context, key string, yield func(Row) error) error {
	body, _, err := p.config.Bucket.Get(ctx, key)
	if err != nil {
		return fmt.Errorf("read segment %s: %w", key, err)
	}
	reader, err := segment.OpenBytes(key, body)
	if err != nil {
		return err
	}
	for r, err := range recordsOf(ctx, reader) {
		if err != nil {
			return err
		}
		row := r.row()
		if r.Op == eventlog.Deleted {
			row.Value = r.Body
		}
		if err := yield(row); err != nil {
			return err
		}
	}
	return nil
}
