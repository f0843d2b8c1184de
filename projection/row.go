package projection

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/segment"
)

// Row is one version of an object, or its tombstone.
type Row struct {
	// Key is the row key: eventlog.Key.RowKey.
	Key string
	// Origin is the row key of the source's version, if the version is inherited; else it is empty.
	Origin string
	// ID is the key in its parts.
	ID eventlog.Key
	// Revision is the revision of the event that made this version.
	Revision Revision
	// Deleted marks a tombstone, which has no Value.
	Deleted bool
	// Void marks an event that lost (invariant 13); only History returns such rows.
	Void bool
	// Op of the event.
	Op eventlog.Op
	// Base is the live revision that the event replaced.
	Base        Revision
	RequestID   string
	ContentType string
	// Value must not be changed: it is shared by every reader.
	Value []byte
	// Size is the length of the value, also if ScanKeys has left the value out.
	Size int
	// Time is the log's timestamp of the event.
	Time time.Time
	// TTL is in seconds as written; 0 means that the object does not expire.
	TTL uint32
	// Author of the event.
	Author eventlog.Author
}

// Clone returns a copy for callers that keep it. A row that was read keeps in memory all bytes that were read with the
// row.
func (r Row) Clone() Row {
	r.Value = bytes.Clone(r.Value)
	id, by := &r.ID, &r.Author
	for _, s := range []*string{&r.Key, &r.Origin, &r.RequestID, &r.ContentType, &id.Cluster, &id.Prefix, &id.Group, &id.Resource, &id.Namespace, &id.Name,
		&by.User, &by.As, &by.Agent, &by.Cause.User, &by.Cause.As} {
		*s = strings.Clone(*s)
	}
	return r
}

// StoredKey is the row key under which the version is stored, and to which an encrypted value is bound.
func (r *Row) StoredKey() string { return cmp.Or(r.Origin, r.Key) }

// Began is the first revision of the append that made this version.
func (r *Row) Began() Revision { return r.Revision - indexInBatch(r.Revision, r.RequestID) }

// record is an event as the projection keeps it: in the tail, inline in the root, and in event segments. Key-ordered
// and event segments are both written from records.
type record struct {
	eventlog.Event
	// key is Event.Key.RowKey().
	key string
	// span is how many revisions the record stands for. The record's own revision is the last of these; the others were
	// barriers. A record whose Op is Barrier stands for barriers only.
	span uint64
	// void marks an event that lost (invariant 13).
	void bool
	// append is set in the tail if the event's append has several events.
	append *appended
}

func newRecord(e eventlog.Event) *record { return &record{Event: e, key: e.Key.RowKey(), span: 1} }

// size is about how many bytes of memory a record takes.
func (r *record) size() int {
	by := r.Author
	return 490 + len(r.key)*2 + len(r.Body) + len(by.User) + len(by.As) + len(by.Agent) + len(by.Cause.User) + len(by.Cause.As)
}

func (r *record) row() Row {
	row := Row{Key: r.key, ID: r.Key, Revision: r.Revision, Deleted: r.Op == eventlog.Deleted, Void: r.void, Op: r.Op, Base: r.Base,
		RequestID: r.RequestID, ContentType: r.ContentType, Time: r.Time, TTL: r.TTL, Author: r.Author}
	if !row.Deleted {
		row.Value, row.Size = r.Body, len(r.Body)
	}
	return row
}

func (r *record) flags() (f segment.Flags) {
	if r.Op == eventlog.Deleted {
		f |= segment.Tombstone
	}
	if r.void {
		f |= segment.Void
	}
	return f
}

// keyEntry is the record as a row of a key-ordered segment: a tombstone or void row has no body.
func (r *record) keyEntry() segment.Entry {
	body := r.Body
	if r.flags() != 0 {
		body = nil
	}
	return segment.Entry{Key: r.key, Revision: uint64(r.Revision), Flags: r.flags(), Value: appendRecord(nil, r, body)}
}

// eventEntry is the record as an entry of an event segment. A void event is kept without its body.
func (r *record) eventEntry() segment.Entry {
	body := r.Body
	if r.void {
		body = nil
	}
	value := binary.AppendUvarint(nil, r.span)
	value = appendString(value, r.key)
	return segment.Entry{Key: segment.EventKey(uint64(r.Revision)), Revision: uint64(r.Revision), Flags: r.flags(),
		Value: appendRecord(value, r, body)}
}

// contentTypes are the content types that have a code. Code 0 is followed by any other type as a string.
var contentTypes = [...]string{1: "application/vnd.kubernetes.protobuf", 2: "application/cbor", 3: "application/json"}

// These bits are set in the op's byte if the event names its author, if it names its cause, and if its key inherits a
// version.
const (
	authored = 1 << 2
	caused   = 1 << 3
	inherits = 1 << 4
)

// appendRecord encodes the parts of a record that are not in the key, the revision and the flags of an entry. Cluster,
// prefix and namespace are in the row key, so only their lengths are encoded.
func appendRecord(dst []byte, r *record, body []byte) []byte {
	op := byte(r.Op)
	cause, by := r.Author.Cause, r.Author
	by.Cause = eventlog.Cause{}
	if by != (eventlog.Author{}) {
		op |= authored
	}
	if cause.Revision > 0 {
		op |= caused
	}
	if r.Inherits > 0 {
		op |= inherits
	}
	dst = append(dst, op)
	dst = binary.AppendUvarint(dst, uint64(len(r.Key.Cluster)))
	dst = binary.AppendUvarint(dst, uint64(len(r.Key.Prefix)))
	dst = binary.AppendUvarint(dst, uint64(len(r.Key.Namespace)))
	dst = appendString(dst, r.Key.Group)
	dst = appendString(dst, r.Key.Resource)
	dst = binary.AppendUvarint(dst, uint64(r.Base))
	dst = binary.AppendUvarint(dst, uint64(r.Precondition))
	dst = binary.AppendUvarint(dst, r.Epoch)
	dst = appendString(dst, r.RequestID)
	if op&authored != 0 {
		dst = appendString(dst, by.User)
		dst = appendString(dst, by.As)
		dst = appendString(dst, by.Agent)
	}
	if op&caused != 0 {
		dst = binary.AppendUvarint(dst, uint64(cause.Revision))
		dst = appendString(dst, cause.User)
		dst = appendString(dst, cause.As)
	}
	if op&inherits != 0 {
		dst = binary.AppendUvarint(dst, uint64(r.Inherits))
	}
	dst = binary.AppendVarint(dst, r.Time.UnixNano())
	dst = binary.AppendUvarint(dst, uint64(r.TTL))
	if code := slices.Index(contentTypes[1:], r.ContentType); code >= 0 {
		dst = append(dst, byte(code+1))
	} else {
		dst = appendString(append(dst, 0), r.ContentType)
	}
	return append(dst, body...)
}

func appendString(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// errMalformed is wrapped when bytes with a correct checksum cannot be decoded.
var errMalformed = fmt.Errorf("malformed record: %w", segment.ErrCorrupt)

// recordDecoder decodes entries. It reuses strings that adjacent entries have in common, so each goroutine needs its
// own decoder.
type recordDecoder struct {
	segment.Decoder
	group, resource string
	scratch         record
}

// brief decodes an entry of a key-ordered segment into a record that is valid until the decoder's next use.
func (d *recordDecoder) brief(e segment.Entry) (*record, error) {
	d.Decoder, d.scratch = segment.Decoder{Rest: e.Value}, record{key: e.Key, span: 1}
	return d.record(&d.scratch, e)
}

// row decodes an entry of a key-ordered segment without keeping its record.
func (d *recordDecoder) row(e segment.Entry) (Row, error) {
	r, err := d.brief(e)
	if err != nil {
		return Row{}, err
	}
	row := r.row()
	row.Size += e.Omitted
	return row, nil
}

// keyed decodes an entry of a key-ordered segment.
func (d *recordDecoder) keyed(e segment.Entry) (*record, error) {
	d.Decoder = segment.Decoder{Rest: e.Value}
	return d.record(&record{key: e.Key, span: 1}, e)
}

// eventKey returns the row key of an entry of an event segment, empty for a barrier, and the number of revisions that
// the entry stands for. The key aliases the entry.
func eventKey(e segment.Entry) (key string, span uint64, err error) {
	var d recordDecoder
	key, span = d.begin(e)
	if d.Failed {
		return "", 0, fmt.Errorf("decode revision %d: %w", e.Revision, errMalformed)
	}
	return key, span, nil
}

// begin decodes the start of an entry of an event segment: its span and key.
func (d *recordDecoder) begin(e segment.Entry) (key string, span uint64) {
	d.Decoder = segment.Decoder{Rest: e.Value}
	span = d.Uvarint()
	key = d.string()
	d.Failed = d.Failed || span == 0 || span > e.Revision
	return key, span
}

// event decodes an entry of an event segment.
func (d *recordDecoder) event(e segment.Entry) (*record, error) {
	r := &record{}
	r.key, r.span = d.begin(e)
	return d.record(r, e)
}

func (d *recordDecoder) record(r *record, e segment.Entry) (*record, error) {
	r.Revision, r.void = Revision(e.Revision), e.Flags&segment.Void != 0
	op := d.Byte()
	r.Op = eventlog.Op(op &^ (authored | caused | inherits))
	if r.Op > eventlog.Deleted {
		return nil, fmt.Errorf("decode revision %d of %q: op %d is not known: %w", e.Revision, e.Key, op, ErrNewer)
	}
	cluster, prefix, namespace := d.Uvarint(), d.Uvarint(), d.Uvarint()
	r.Key.Group, r.Key.Resource = d.shared(&d.group), d.shared(&d.resource)
	r.Base, r.Precondition, r.Epoch = Revision(d.Uvarint()), Revision(d.Uvarint()), d.Uvarint()
	r.RequestID = d.string()
	if op&authored != 0 {
		r.Author = eventlog.Author{User: d.string(), As: d.string(), Agent: d.string()}
	}
	if op&caused != 0 {
		r.Author.Cause = eventlog.Cause{Revision: Revision(d.Uvarint()), User: d.string(), As: d.string()}
	}
	if op&inherits != 0 {
		r.Inherits = Revision(d.Uvarint())
	}
	r.Time = time.Unix(0, d.Varint()).UTC()
	ttl := d.Uvarint()
	r.TTL = uint32(ttl)
	r.ContentType = d.contentType()
	if len(d.Rest) > 0 {
		r.Body = d.Rest
	}
	whole := r.key == "" // a barrier has no key
	if r.Op != eventlog.Barrier {
		whole = splitKey(&r.Key, r.key, cluster, prefix, namespace)
	}
	if !whole || ttl != uint64(r.TTL) || (r.Op == eventlog.Deleted) != (e.Flags&segment.Tombstone != 0) {
		d.Failed = true
	}
	if d.Failed {
		return nil, fmt.Errorf("decode revision %d of %q: %w", e.Revision, e.Key, errMalformed)
	}
	return r, nil
}

// splitKey splits a row key by the lengths of its parts. It returns false if the lengths do not fit.
func splitKey(k *eventlog.Key, rowKey string, cluster, prefix, namespace uint64) bool {
	n := uint64(len(rowKey))
	if cluster > n || prefix > n-cluster || namespace > n {
		return false
	}
	k.Cluster, k.Prefix = rowKey[:cluster], rowKey[cluster:cluster+prefix]
	rest, whole := strings.CutPrefix(rowKey[cluster+prefix:], "/")
	if whole && namespace > 0 {
		if namespace >= uint64(len(rest)) || rest[namespace] != '/' {
			return false
		}
		k.Namespace, rest = rest[:namespace], rest[namespace+1:]
	}
	k.Name = rest
	return whole
}

// recordsOf yields every record of a segment, of either kind, in its order.
func recordsOf(ctx context.Context, reader *segment.Reader) iter.Seq2[*record, error] {
	return func(yield func(*record, error) bool) {
		decoder := recordDecoder{}
		decode := decoder.keyed
		if reader.Summary().Kind == segment.Events {
			decode = decoder.event
		}
		for cursor := reader.Scan("", ""); ; {
			e, ok, err := cursor.Next(ctx)
			if err == nil && !ok {
				return
			}
			var r *record
			if err == nil {
				r, err = decode(e)
			}
			if !yield(r, err) || err != nil {
				return
			}
		}
	}
}

// string returns a string that aliases the entry, whose bytes never change. The body aliases these bytes too.
func (d *recordDecoder) string() string {
	b := d.Sized()
	return unsafe.String(unsafe.SliceData(b), len(b))
}

// shared reads a string that is mostly equal to *last. It returns *last if both are equal; otherwise it replaces *last.
func (d *recordDecoder) shared(last *string) string {
	b := d.Sized()
	if string(b) != *last {
		*last = string(b)
	}
	return *last
}

func (d *recordDecoder) contentType() string {
	code := d.Byte()
	if code == 0 {
		return d.string()
	}
	if int(code) >= len(contentTypes) {
		d.Failed = true
		return ""
	}
	return contentTypes[code]
}
