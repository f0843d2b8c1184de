package projection

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"

	"github.com/logplane/logplane/projection/bucket"
)

const (
	indexMagic = 0x7869_504c // "LPix", little endian
	// rootFooters is how many bytes of footers of a kind of segments a root holds itself. Beyond it they go to an idx
	// object, which so is written once for many spills.
	rootFooters = 32 << 10
	// indexedBase is how many bytes of footers a base may have in the idx object: those of about 300,000 objects. A
	// larger base keeps them in its segments, so that a cold reader does not read what it has no use for.
	indexedBase = 1 << 20
	// indexedEvents is how many bytes of footers of event segments an idx object has, the newest ones: those of about a
	// million events of 4 KiB. Those of older segments are read from them.
	indexedEvents = 1 << 20
	// unkept is how many footers are read from their segments at most when an idx object is written, so that a commit
	// does not take long. Some have to be after an idx object was lost, and where an earlier Logplane wrote none.
	unkept = 64
)

// footer is a copy of a segment's footer, byte by byte. With it a reader goes straight to the segment's blocks.
type footer struct {
	_      struct{} `cbor:",toarray"`
	Key    string
	Sealed []byte
}

// footerOf is the footer of a finished file.
func footerOf(ref segmentRef, file []byte) footer {
	return footer{Key: ref.Key, Sealed: slices.Clone(file[ref.Size-ref.Footer:])}
}

// index is an idx object, read on first use. A footer that it lacks is read from the segment.
type index struct {
	key     string
	p       *Projection
	forgets uint64 // of the root that names it
	reading gate
	footers atomic.Pointer[map[string][]byte]
	missed  atomic.Bool // it was not there once
}

func (r *root) newIndex(p *Projection, key string) *index {
	return &index{key: key, p: p, forgets: r.Forgets, reading: newGate()}
}

// footer is the kept footer of a segment, nil if there is none.
func (x *index) footer(ctx context.Context, segment string) ([]byte, error) {
	kept, err := x.all(ctx)
	return kept[segment], err
}

// all are the footers by segment.
func (x *index) all(ctx context.Context) (map[string][]byte, error) {
	if x.key == "" {
		return nil, nil
	}
	kept := x.footers.Load()
	if kept != nil {
		return *kept, nil
	}
	missed := x.missed.Load()
	if err := x.reading.enter(ctx); err != nil {
		return nil, err
	}
	defer x.reading.leave()
	kept = x.footers.Load()
	if kept != nil { // somebody else read them meanwhile
		return *kept, nil
	}
	if !missed && x.missed.Load() { // or missed them: this caller has not read the root since either
		return nil, fmt.Errorf("read %s: %w", x.key, bucket.ErrNotFound)
	}
	footers, err := x.read(ctx)
	if err != nil {
		return nil, err
	}
	read := bySegment(footers)
	x.footers.Store(&read)
	return read, nil
}

// read returns no footers if the object is lost or damaged: then they are read from the segments. An object that is
// not there may have been collected since the root was read, so that only the second miss is a loss.
func (x *index) read(ctx context.Context) ([]footer, error) {
	if footers, err := decodeIndex(x.p.local(x.forgets).whole(x.key)); err == nil {
		return footers, nil
	}
	body, _, err := x.p.config.Bucket.Get(ctx, x.key)
	missed := errors.Is(err, bucket.ErrNotFound)
	if err != nil && (!missed || !x.missed.Load()) {
		x.missed.Store(missed)
		return nil, fmt.Errorf("read %s: %w", x.key, err)
	}
	var footers []footer
	if err == nil {
		footers, err = decodeIndex(body)
	}
	if err != nil {
		slog.WarnContext(ctx, "an idx object cannot be read, segments are opened without it", "key", x.key, "error", err)
		return nil, nil
	}
	x.p.local(x.forgets).keep(x.key, 0, body)
	return footers, nil
}

func bySegment(footers []footer) map[string][]byte {
	m := make(map[string][]byte, len(footers))
	for _, f := range footers {
		m[f.Key] = f.Sealed
	}
	return m
}

func encodeIndex(footers []footer) ([]byte, error) { return encodeFrame(indexMagic, footers) }

func decodeIndex(b []byte) (footers []footer, err error) {
	if err := decodeFrame(indexMagic, b, &footers); err != nil {
		return nil, err
	}
	for i := 1; i < len(footers); i++ {
		if footers[i].Key <= footers[i-1].Key {
			return nil, errors.New("its footers are out of order")
		}
	}
	return footers, nil
}

// indexed are the key-ordered segments whose footers are kept beside them: all, except those of a large base.
func (r *root) indexed() []segmentRef {
	base := slices.IndexFunc(r.Segments, func(s segmentRef) bool { return s.Level == baseLevel })
	if base < 0 {
		return r.Segments
	}
	size := int64(0)
	for _, s := range r.Segments[base:] {
		size += s.Footer
	}
	if size > indexedBase {
		return r.Segments[:base]
	}
	return r.Segments
}

// indexedEvents are the event segments whose footers are kept beside them: the newest.
func (r *root) indexedEvents() []segmentRef {
	first, size := len(r.Events), int64(0)
	for first > 0 && size+r.Events[first-1].Footer <= indexedEvents {
		first--
		size += r.Events[first].Footer
	}
	return r.Events[first:]
}

func namesOf(refs []segmentRef) map[string]bool {
	names := make(map[string]bool, len(refs))
	for _, ref := range refs {
		names[ref.Key] = true
	}
	return names
}

// writeIndex lets a reader get the footers of the draft in few pieces. The root itself holds those of the newest
// segments. Once they are too many, all footers of their kind go into a new idx object. Event segments have one of
// their own, since most readers of a cell read no events.
func (p *Projection) writeIndex(ctx context.Context, next *draft) error {
	known := bySegment(slices.Concat(next.over.root.Footers, next.footers))
	next.Footers = nil
	err := p.keepFooters(ctx, next, known, (*root).indexed, &next.Index)
	if err != nil {
		return err
	}
	return p.keepFooters(ctx, next, known, (*root).indexedEvents, &next.EventIndex)
}

// keepFooters lists the footers of one kind that are known in the root, and leaves the others to the idx object that
// the root already names. If one of the others was not there before, or the known ones take more bytes than the
// limit, a new idx object gets all.
func (p *Projection) keepFooters(ctx context.Context, next *draft, known map[string][]byte, kind func(*root) []segmentRef, index *string) error {
	segments, inIndex := kind(next.root), map[string]bool{}
	if *index != "" {
		inIndex = namesOf(kind(next.over.root))
	}
	var held []footer
	size, kept := 0, true
	for _, s := range segments {
		sealed := known[s.Key]
		if sealed == nil {
			kept = kept && inIndex[s.Key]
			continue
		}
		held, size = append(held, footer{Key: s.Key, Sealed: sealed}), size+len(sealed)
	}
	if kept && size <= p.rootFooters {
		if len(held) == len(segments) {
			*index = ""
		}
		next.Footers = append(next.Footers, held...)
		return nil
	}
	*index = ""
	if len(segments) < 2 { // to read the footer of one segment costs no more than to read an idx object
		return nil
	}
	footers, err := p.footersOf(ctx, next.over, segments, known)
	if err == nil {
		*index, err = p.createIndex(ctx, footers)
	}
	return err
}

// footersOf gathers the footers of the segments. It leaves out what it cannot get.
func (p *Projection) footersOf(ctx context.Context, over *snapshot, segments []segmentRef, known map[string][]byte) ([]footer, error) {
	footers, unread := make([]footer, 0, len(segments)), unkept
	for _, s := range slices.Backward(segments) {
		sealed, part := known[s.Key], over.part(p, s)
		if sealed == nil {
			var err error
			sealed, err = part.keptFooter(ctx)
			if err != nil {
				return nil, err
			}
		}
		if sealed == nil && unread > 0 {
			unread--
			reader, err := part.open(ctx)
			if err != nil {
				unread = 0 // a segment that is lost, or a bucket that fails: a commit needs neither
				continue
			}
			sealed = reader.Footer()
		}
		if sealed != nil {
			footers = append(footers, footer{Key: s.Key, Sealed: sealed})
		}
	}
	return footers, nil
}

// createIndex writes an idx object under a name that was never used before.
func (p *Projection) createIndex(ctx context.Context, footers []footer) (string, error) {
	slices.SortFunc(footers, func(a, b footer) int { return cmp.Compare(a.Key, b.Key) })
	body, err := encodeIndex(footers)
	if err != nil {
		return "", err
	}
	key := p.config.Prefix + "/idx/" + rand.Text()
	if _, err := p.config.Bucket.Create(ctx, key, body); err != nil {
		return "", fmt.Errorf("write %s: %w", key, err)
	}
	written("index", len(body))
	return key, nil
}

// verifyIndex reports kept footers that are not those of their segments.
func (s *snapshot) verifyIndex(ctx context.Context, p *Projection, report func(problem error)) {
	kept := bySegment(s.root.Footers)
	for _, key := range []string{s.root.Index, s.root.EventIndex} {
		if key == "" {
			continue
		}
		body, _, err := p.config.Bucket.Get(ctx, key)
		if err != nil {
			report(fmt.Errorf("read %s: %w", key, err))
			continue
		}
		footers, err := decodeIndex(body)
		if err != nil {
			report(fmt.Errorf("decode %s: %w", key, err))
			continue
		}
		for _, f := range footers {
			kept[f.Key] = f.Sealed
		}
	}
	for _, r := range slices.Concat([]run{s.events}, s.runs) {
		for _, part := range r {
			sealed, ok := kept[part.ref.Key]
			if !ok {
				continue
			}
			reader, err := part.openWith(ctx, nil)
			if err != nil {
				report(err)
			} else if string(reader.Footer()) != string(sealed) {
				report(fmt.Errorf("the kept footer of segment %s is not its own", part.ref.Key))
			}
		}
	}
}
