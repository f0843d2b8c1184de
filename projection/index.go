package projection

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
)

const (
	indexMagic = 0x7869_504c // "LPix", little endian
	// rootFooters is how many bytes of footers a root holds itself. Beyond it they go to an idx object, which so is
	// written once for many spills.
	rootFooters = 32 << 10
	// indexedBase is how many bytes of footers a base may have in the idx object: those of about 300,000 objects. A
	// larger base keeps them in its segments, so that a cold reader does not read what it has no use for.
	indexedBase = 1 << 20
)

// footer is a copy of a segment's footer, byte by byte. With it a reader goes straight to the segment's blocks.
type footer struct {
	_      struct{} `cbor:",toarray"`
	Key    string
	Sealed []byte
}

// index is an idx object, read on first use. A footer that it lacks is read from the segment.
type index struct {
	key     string
	p       *Projection
	reading gate
	footers atomic.Pointer[map[string][]byte]
}

func (p *Projection) newIndex(key string) *index { return &index{key: key, p: p, reading: newGate()} }

// footer is the kept footer of a segment, nil if there is none.
func (x *index) footer(ctx context.Context, segment string) ([]byte, error) {
	if x.key == "" {
		return nil, nil
	}
	kept := x.footers.Load()
	if kept != nil {
		return (*kept)[segment], nil
	}
	if err := x.reading.enter(ctx); err != nil {
		return nil, err
	}
	defer x.reading.leave()
	kept = x.footers.Load()
	if kept != nil { // somebody else read them meanwhile
		return (*kept)[segment], nil
	}
	footers, err := x.read(ctx)
	if err != nil {
		return nil, err
	}
	read := bySegment(footers)
	x.footers.Store(&read)
	return read[segment], nil
}

func (x *index) read(ctx context.Context) ([]footer, error) {
	local := x.p.folder
	if local != nil {
		if footers, err := decodeIndex(local.whole(x.key)); err == nil {
			return footers, nil
		}
	}
	body, _, err := x.p.config.Bucket.Get(ctx, x.key)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", x.key, err)
	}
	footers, err := decodeIndex(body)
	if err != nil {
		return nil, fmt.Errorf("decode %s: %w", x.key, err)
	}
	if local != nil {
		local.keep(x.key, 0, body)
	}
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

// writeIndex lets a reader get all footers of the draft in one piece. The root itself holds those of the newest
// segments. Once they are too many, all footers go into a new idx object.
func (p *Projection) writeIndex(ctx context.Context, next *draft) error {
	indexed := next.indexed()
	known := bySegment(slices.Concat(next.over.root.Footers, next.footers))
	if next.keepFooters(indexed, known, p.rootFooters) {
		return nil
	}
	if len(indexed) < 2 { // to read the footer of one segment costs no more than to read an idx object
		return nil
	}
	footers := make([]footer, 0, len(indexed))
	for _, s := range indexed {
		f := footer{Key: s.Key, Sealed: known[s.Key]}
		if f.Sealed == nil {
			reader, err := next.over.part(p, s).open(ctx)
			if err != nil {
				return err
			}
			f.Sealed = reader.Footer()
		}
		footers = append(footers, f)
	}
	key, err := p.createIndex(ctx, footers)
	if err == nil {
		next.Index = key
	}
	return err
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

// keepFooters lists the footers that are known in the root, and leaves the others to the idx object that the root
// already names. If one of the others is not in that object, or the known ones take more bytes than the limit, it
// clears both and returns false: a new idx object must hold all.
func (d *draft) keepFooters(indexed []segmentRef, known map[string][]byte, limit int) (kept bool) {
	before := d.over.root.indexed()
	inIndex := func(s segmentRef) bool {
		return d.Index != "" && slices.ContainsFunc(before, func(had segmentRef) bool { return had.Key == s.Key })
	}
	footers, size, left := []footer(nil), 0, 0 // left to the idx object
	kept = true
	for _, s := range indexed {
		sealed := known[s.Key]
		if sealed == nil {
			left++
			kept = kept && inIndex(s)
			continue
		}
		footers, size = append(footers, footer{Key: s.Key, Sealed: sealed}), size+len(sealed)
	}
	if !kept || size > limit {
		d.Index, d.Footers = "", nil
		return false
	}
	if left == 0 {
		d.Index = ""
	}
	d.Footers = footers
	return true
}

// verifyIndex reports kept footers that are not those of their segments.
func (s *snapshot) verifyIndex(ctx context.Context, p *Projection, report func(problem error)) error {
	kept := bySegment(s.root.Footers)
	if s.root.Index != "" {
		body, _, err := p.config.Bucket.Get(ctx, s.root.Index)
		if err != nil {
			return fmt.Errorf("read %s: %w", s.root.Index, err)
		}
		footers, err := decodeIndex(body)
		if err != nil {
			return fmt.Errorf("decode %s: %w", s.root.Index, err)
		}
		for _, f := range footers {
			kept[f.Key] = f.Sealed
		}
	}
	for _, r := range s.runs {
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
	return nil
}
