package projection

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/fxamacker/cbor/v2"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/segment"
)

// root is the one object of a cell that is ever replaced. It names the immutable segments of the snapshot, and holds
// the newest events itself. It is replaced whole, by compare-and-swap. docs/format.md says more about each field.
type root struct {
	Serial uint64 `cbor:"17,keyasint"` // of two roots of a cell, the one with the higher serial is newer
	Epoch  uint64 `cbor:"1,keyasint"`
	// Applied is the last revision that was folded in. Time and request id of its event show whether the log went back.
	Applied     Revision `cbor:"2,keyasint"`
	AppliedTime int64    `cbor:"3,keyasint"`
	AppliedID   string   `cbor:"4,keyasint"`
	Clock       int64    `cbor:"5,keyasint"` // the newest log time that was applied (invariant 12)
	Floor       Revision `cbor:"6,keyasint"`
	Horizon     int64    `cbor:"18,keyasint"` // the log time up to which Retention has passed
	Swept       int64    `cbor:"19,keyasint"` // Clock at the last collection of garbage
	Purge       Revision `cbor:"7,keyasint"`  // this root permits purging the log up to here
	// Generation is raised before garbage is deleted. A commit that began in an older generation starts again.
	Generation uint64 `cbor:"8,keyasint"`
	// Nonce makes the bytes of every root unique. It tells the author of a root whether its root has won.
	Nonce []byte `cbor:"9,keyasint"`
	Ring  []mark `cbor:"10,keyasint"`
	// Segments are key-ordered, newest first. Events are revision-ordered, oldest first, and contiguous. They follow
	// the event segments that the Pages list.
	Segments []segmentRef `cbor:"11,keyasint"`
	Events   []segmentRef `cbor:"12,keyasint"`
	Pages    []page       `cbor:"25,keyasint,omitempty"`
	// Index is the key of the idx object, empty for none. Footers are the footers of the key-ordered segments that are
	// newer than the idx object. EventIndex is an idx object of event segments. Only older roots have an EventIndex,
	// and decodeRoot drops it.
	Index       string       `cbor:"13,keyasint"`
	EventIndex  string       `cbor:"22,keyasint,omitempty"`
	Footers     []footer     `cbor:"21,keyasint,omitempty"`
	Checkpoints []checkpoint `cbor:"14,keyasint"` // ascending
	Archive     int64        `cbor:"20,keyasint"` // the log time up to which History has passed
	Trimmed     []trim       `cbor:"23,keyasint,omitempty"`
	Forgets     uint64       `cbor:"24,keyasint,omitempty"` // how often something was forgotten
	Holds       []mark       `cbor:"26,keyasint,omitempty"` // ascending; revisions that branches begin at, with the Clock of the hold
	// Spilled is the last revision in the segments. Inline is an event segment with the rest, up to Applied.
	Spilled Revision `cbor:"15,keyasint"`
	Inline  []byte   `cbor:"16,keyasint"`
}

// mark is a revision and its log time.
type mark struct {
	_        struct{} `cbor:",toarray"`
	Revision Revision
	Time     int64
}

// segmentRef names a segment and has the data that a reader needs before it opens the segment.
type segmentRef struct {
	_                        struct{} `cbor:",toarray"`
	Key                      string
	Size, Footer             int64
	Rows                     uint64
	MinKey, MaxKey           []byte
	MinRevision, MaxRevision Revision
	// Level is 0 for segments that a commit wrote, and rises with every merge. The base has baseLevel. goesOn is added
	// if the segment continues the run of the segment before it.
	Level uint8
}

// goesOn is added to the level of each segment of a run except the first. The base needs no goesOn: there is only one
// base.
const goesOn = 1 << 7

func (s *segmentRef) level() uint8 { return s.Level &^ goesOn }

// oneRun marks segments of one level as a run.
func oneRun(refs []segmentRef) []segmentRef {
	for i := range refs {
		refs[i].Level = refs[i].level()
		if i > 0 && refs[i].Level != baseLevel {
			refs[i].Level |= goesOn
		}
	}
	return refs
}

// The root's CBOR is deterministic. The decoder rejects encodings that our writer never writes.
var (
	rootEncoding = must(cbor.EncOptions{
		Sort: cbor.SortCoreDeterministic, IndefLength: cbor.IndefLengthForbidden,
		NilContainers: cbor.NilContainerAsEmpty,
	}.EncMode())
	rootDecoding = must(cbor.DecOptions{
		DupMapKey: cbor.DupMapKeyEnforcedAPF, IndefLength: cbor.IndefLengthForbidden, TagsMd: cbor.TagsForbidden,
		MaxNestedLevels: 8, MaxArrayElements: 1 << 20, MaxMapPairs: 64, ExtraReturnErrors: cbor.ExtraDecErrorUnknownField,
	}.DecMode())
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

const (
	rootMagic    = 0x7472_504c // "LPrt", little endian
	frameVersion = 2
	frameHeader  = 12
)

func encodeRoot(r *root) []byte { return encodeFrame(rootMagic, r) }

// encodeFrame writes CBOR after magic, version and CRC32C.
func encodeFrame(magic uint32, v any) []byte {
	body := must(rootEncoding.Marshal(v)) // it cannot fail for the types that frames hold
	b := binary.LittleEndian.AppendUint32(make([]byte, 0, frameHeader+len(body)), magic)
	b = binary.LittleEndian.AppendUint32(b, frameVersion)
	b = binary.LittleEndian.AppendUint32(b, segment.Checksum(b, body))
	return append(b, body...)
}

func decodeFrame(magic uint32, b []byte, v any) error {
	if len(b) < frameHeader || binary.LittleEndian.Uint32(b) != magic {
		return fmt.Errorf("it does not begin as one: %w", ErrDamaged)
	}
	version := binary.LittleEndian.Uint32(b[4:])
	if version == 0 || version > frameVersion {
		return fmt.Errorf("version %d is not known: %w", version, ErrNewer)
	}
	if binary.LittleEndian.Uint32(b[8:]) != segment.Checksum(b[:8], b[frameHeader:]) {
		return fmt.Errorf("its checksum does not match: %w", ErrDamaged)
	}
	err := rootDecoding.Unmarshal(b[frameHeader:], v)
	if _, ok := errors.AsType[*cbor.UnknownFieldError](err); ok {
		return fmt.Errorf("%w: %w", err, ErrNewer)
	}
	return err
}

func decodeRoot(b []byte) (*root, error) {
	r := new(root)
	err := decodeFrame(rootMagic, b, r)
	if err == nil {
		err = r.check()
	}
	if err != nil {
		return nil, fmt.Errorf("decode the root: %w", err)
	}
	r.EventIndex = ""
	return r, nil
}

// check verifies the promises of every root (invariant 11).
func (r *root) check() error {
	switch {
	case r.Floor > r.Applied || r.Purge > r.Applied || r.Spilled > r.Applied:
		return fmt.Errorf("floor %d, purge point %d and spilled %d must not be above applied %d", r.Floor, r.Purge, r.Spilled, r.Applied)
	case len(r.Inline) == 0 && r.Spilled != r.Applied:
		return fmt.Errorf("no rows between spilled %d and applied %d", r.Spilled, r.Applied)
	case len(r.Events) > 0 && r.Events[len(r.Events)-1].MaxRevision != r.Spilled:
		return fmt.Errorf("event segments end at %d, not at %d", r.Events[len(r.Events)-1].MaxRevision, r.Spilled)
	}
	if start := r.archiveStart(); start > r.Floor {
		return fmt.Errorf("events begin after %d, above the floor %d", start, r.Floor)
	}
	lists := make([]segmentRef, 0, len(r.Pages)+1) // each page as if it were one segment
	for _, pg := range r.Pages {
		lists = append(lists, segmentRef{MinRevision: pg.MinRevision, MaxRevision: pg.MaxRevision})
	}
	if err := cmp.Or(contiguous(r.Events), contiguous(append(lists, r.Events[:min(1, len(r.Events))]...))); err != nil {
		return err
	}
	for _, refs := range r.runs() {
		for i := 1; i < len(refs); i++ {
			if bytes.Compare(refs[i-1].MaxKey, refs[i].MinKey) > 0 || refs[i].level() != refs[i-1].level() {
				return fmt.Errorf("segments %s and %s are not a run", refs[i-1].Key, refs[i].Key)
			}
		}
	}
	if !slices.IsSortedFunc(r.Holds, byRevision) {
		return errors.New("the holds are out of order")
	}
	for i := 1; i < len(r.Ring); i++ {
		if r.Ring[i].Revision <= r.Ring[i-1].Revision || r.Ring[i].Time < r.Ring[i-1].Time {
			return fmt.Errorf("the ring is out of order at %d", r.Ring[i].Revision)
		}
	}
	return nil
}

// clone returns a root that may be changed and committed next. The new root shares the slices of the old root: replace
// these slices, never write to them.
func (r *root) clone() *root {
	c := *r
	c.Serial++
	c.Nonce = make([]byte, 16)
	rand.Read(c.Nonce)
	return &c
}

// position is the position of the last event that the root has applied.
func (r *root) position() eventlog.Position {
	return eventlog.Position{Revision: r.Applied, RequestID: r.AppliedID, Time: r.AppliedTime}
}

// sealRecords encodes records, in order, as the inline part or an event segment.
func sealRecords(records []*record) ([]byte, segment.Summary, error) {
	w := segment.NewWriter(segment.Events)
	for _, r := range records {
		if err := w.Add(r.eventEntry()); err != nil {
			return nil, segment.Summary{}, err
		}
	}
	file, sum := w.Finish()
	return file, sum, nil
}

// inlineRecords decodes the inline part and checks that it reaches from Spilled to Applied without a hole.
func (r *root) inlineRecords() ([]*record, error) {
	if len(r.Inline) == 0 {
		return nil, nil
	}
	reader, err := segment.OpenBytes("inline", r.Inline)
	if err != nil {
		return nil, err
	}
	out, last := make([]*record, 0, reader.Summary().Rows), r.Spilled
	for rec, err := range recordsOf(context.Background(), reader) {
		if err != nil {
			return nil, err
		}
		if rec.Revision-Revision(rec.span) != last {
			return nil, fmt.Errorf("inline rows have a hole after %d", last)
		}
		last = rec.Revision
		out = append(out, rec)
	}
	if last != r.Applied {
		return nil, fmt.Errorf("inline rows end at %d, not at %d", last, r.Applied)
	}
	return out, nil
}

// keyOrdered returns the rows of records: key ascending, revision descending, barriers left out.
func keyOrdered(records []*record) []*record {
	rows := slices.DeleteFunc(slices.Clone(records), func(r *record) bool { return r.Op == eventlog.Barrier })
	slices.SortFunc(rows, func(a, b *record) int {
		return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(b.Revision, a.Revision))
	})
	return rows
}
