package projection

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/logplane/logplane/projection/bucket"
)

const (
	indexMagic = 0x7869_504c // "LPix", little endian
	// rootFooters is how many bytes of footers a root holds itself before they go to an idx object.
	rootFooters = 32 << 10
	// indexedBase is the most bytes of footers that a base may have in the idx object: the footers of about 300,000
	// objects. With a larger base, a cold reader would read too many footers that it does not need.
	indexedBase = 1 << 20
)

// footer is an exact copy of a segment's footer. With the footer a reader goes straight to the segment's blocks.
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
	footers lazy[map[string][]byte]
}

// all returns the footers by segment.
func (x *index) all(ctx context.Context) (map[string][]byte, error) {
	if x.key == "" {
		return nil, nil
	}
	footers, err := x.footers.get(ctx, x.read)
	if err != nil {
		return nil, err
	}
	return *footers, nil
}

// read returns no footers if the object is damaged or missing: then readers take the footers from the segments.
func (x *index) read(ctx context.Context) (*map[string][]byte, error) {
	footers, err := decodeIndex(x.p.local(x.forgets).whole(x.key))
	if err != nil {
		var body []byte
		body, _, err = x.p.config.Bucket.Get(ctx, x.key)
		if err != nil && !errors.Is(err, bucket.ErrNotFound) {
			return nil, fmt.Errorf("read %s: %w", x.key, err)
		}
		if err == nil {
			footers, err = decodeIndex(body)
		}
		if err == nil {
			x.p.local(x.forgets).keep(x.key, 0, body)
		} else {
			slog.WarnContext(ctx, "an idx object cannot be read, segments are opened without it",
				"key", x.key, "error", err)
		}
	}
	read := bySegment(footers)
	return &read, nil
}

func bySegment(footers []footer) map[string][]byte {
	m := make(map[string][]byte, len(footers))
	for _, f := range footers {
		m[f.Key] = f.Sealed
	}
	return m
}

func decodeIndex(b []byte) (footers []footer, err error) {
	if err := decodeFrame(indexMagic, b, &footers); err != nil {
		return nil, err
	}
	if !slices.IsSortedFunc(footers, byKey) {
		return nil, errors.New("its footers are out of order")
	}
	return footers, nil
}

func byKey(a, b footer) int { return cmp.Compare(a.Key, b.Key) }

// indexed are the key-ordered segments whose footers are also kept outside of the segments: all key-ordered segments
// except those of a large base.
func (r *root) indexed() []segmentRef {
	base, size := len(r.Segments), int64(0)
	for i, s := range r.Segments {
		if s.Level == baseLevel {
			base, size = min(base, i), size+s.Footer
		}
	}
	if size > indexedBase {
		return r.Segments[:base]
	}
	return r.Segments
}

func namesOf(refs []segmentRef) map[string]bool {
	names := make(map[string]bool, len(refs))
	for _, ref := range refs {
		names[ref.Key] = true
	}
	return names
}

// writeIndex lets a reader get the draft's footers in few reads. The root itself holds the footers that are known here,
// those of the newest segments. For the other footers the root relies on the idx object that it already names. If that
// object lacks one of these footers, or the known footers are too large, a new idx object gets all footers.
func (p *Projection) writeIndex(ctx context.Context, next *draft) error {
	known := bySegment(slices.Concat(next.over.root.Footers, next.footers))
	segments, inIndex := next.indexed(), namesOf(next.over.root.indexed())
	next.Footers = nil
	size, kept := 0, true
	for _, s := range segments {
		if sealed := known[s.Key]; sealed != nil {
			next.Footers, size = append(next.Footers, footer{Key: s.Key, Sealed: sealed}), size+len(sealed)
		} else {
			kept = kept && next.Index != "" && inIndex[s.Key]
		}
	}
	if kept && size <= p.rootFooters {
		if len(next.Footers) == len(segments) {
			next.Index = ""
		}
		return nil
	}
	footers := next.Footers
	next.Footers, next.Index = nil, ""
	if len(segments) < 2 { // reading one segment's footer costs no more than reading an idx object
		return nil
	}
	for _, s := range segments {
		if known[s.Key] != nil {
			continue
		}
		reader, err := next.over.part(p, s).open(ctx)
		if err == nil { // if the segment is lost or the bucket fails, the commit continues without this footer
			footers = append(footers, footer{Key: s.Key, Sealed: reader.Footer()})
		}
	}
	slices.SortFunc(footers, byKey)
	next.Index = p.config.Prefix + "/idx/" + rand.Text()
	err := p.createObject(ctx, "index", next.Index, encodeFrame(indexMagic, footers))
	if err != nil { // it may have been written, and some callers do not discard the objects of a failed draft
		p.discard(ctx, []string{next.Index}, next.over.root)
		return err
	}
	next.made = append(next.made, next.Index)
	return nil
}

// createObject writes, under a new name, an object that a root names and that is not a segment.
func (p *Projection) createObject(ctx context.Context, what, key string, body []byte) error {
	if _, err := p.config.Bucket.Create(ctx, key, body); err != nil {
		return fmt.Errorf("write %s %s: %w", what, key, err)
	}
	written(what, len(body))
	return nil
}
