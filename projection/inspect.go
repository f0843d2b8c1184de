package projection

import (
	"context"
	"fmt"
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

// Root reads the root from the bucket; the log is not asked. Before the first commit it is empty.
func (p *Projection) Root(ctx context.Context) (Root, error) {
	s, err := p.readRoot(ctx)
	if err != nil {
		return Root{}, err
	}
	r := s.root
	return Root{Serial: r.Serial, Epoch: r.Epoch, Applied: r.Applied, AppliedTime: unixTime(r.AppliedTime), AppliedID: r.AppliedID, Clock: unixTime(r.Clock),
		Floor: r.Floor, Purge: r.Purge, Generation: r.Generation, Spilled: r.Spilled, InlineRows: len(s.inline), InlineBytes: len(r.Inline),
		Segments: listed(r.Segments, true), Events: listed(r.Events, false)}, nil
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

// history is what this view alone has of the key, void events included.
func (v *View) history(ctx context.Context, key string) (rows []Row, err error) {
	for row, err := range v.versions(ctx, key, v.Revision()+1, 0) {
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// Dump yields every row of a segment, in its order, until yield fails. Barriers of an event segment are rows without a
// key.
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
