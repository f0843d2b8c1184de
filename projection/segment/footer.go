package segment

import (
	"encoding/binary"
	"math"
)

// Version of the format.
const Version = 1

const (
	headerSize  = 8
	trailerSize = 52
	sumOffset   = 40          // offset of the checksum in the trailer
	magic       = 0x6773_504c // "LPsg", little endian
	maxFooter   = 256 << 20
)

// blockRef locates one block.
type blockRef struct {
	first, last string
	offset      int64
	// size is the block's size in the file, checksum included.
	size int
	raw  int
	rows int
	live int // how many live keys the block has, see liveKeys
}

// Summary describes a whole segment.
type Summary struct {
	Kind                     Kind
	Rows                     uint64
	MinKey, MaxKey           string
	MinRevision, MaxRevision uint64
	// Size of the file and of its footer, in bytes.
	Size, Footer int64
}

type footer struct {
	Summary
	blocks []blockRef
	bloom  []byte
	hashes int
	// counted says that the index has the number of live keys of each block. Not all segments of version 1 have these
	// numbers.
	counted bool
}

// flagCounted is the flag for counted in the trailer.
const flagCounted = 1

// header depends only on kind and version, so the footer's checksum covers the header even if the header was not read
// from the file.
func header(kind Kind) []byte {
	h := binary.LittleEndian.AppendUint32(nil, magic)
	h = binary.LittleEndian.AppendUint16(h, Version)
	return append(h, byte(kind), 0)
}

func (f *footer) appendIndex(dst []byte) []byte {
	previous := ""
	for _, b := range f.blocks {
		dst = appendKey(dst, previous, b.first)
		dst = appendKey(dst, b.first, b.last)
		dst = binary.AppendUvarint(dst, uint64(b.size))
		dst = binary.AppendUvarint(dst, uint64(b.raw))
		dst = binary.AppendUvarint(dst, uint64(b.rows))
		if f.counted {
			dst = binary.AppendUvarint(dst, uint64(b.live))
		}
		previous = b.last
	}
	return dst
}

// appendFooter appends index, bloom filter and trailer.
func appendFooter(dst []byte, f *footer) []byte {
	start := len(dst)
	dst = f.appendIndex(dst)
	index := len(dst) - start
	dst = append(dst, f.bloom...)
	t := trailer{Kind: f.Kind, Hashes: uint8(f.hashes), Blocks: uint32(len(f.blocks)), Rows: f.Rows,
		MinRevision: f.MinRevision, MaxRevision: f.MaxRevision, Index: uint32(index), Bloom: uint32(len(f.bloom)),
		Version: Version, Magic: magic}
	if f.counted {
		t.Flags = flagCounted
	}
	sealed := len(dst) + sumOffset
	dst, err := binary.Append(dst, binary.LittleEndian, &t)
	if err != nil {
		panic(err) // a trailer has a fixed size
	}
	binary.LittleEndian.PutUint32(dst[sealed:], Checksum(header(f.Kind), dst[start:sealed]))
	return dst
}

// trailer is the fixed end of a file, in the file's layout.
type trailer struct {
	Kind                           Kind
	Hashes                         uint8
	Flags                          uint16
	Blocks                         uint32
	Rows, MinRevision, MaxRevision uint64
	Index, Bloom                   uint32 // sizes in bytes
	Sum                            uint32 // of the header, and of everything before it in the footer
	Version, Magic                 uint32
}

func (t *trailer) footerSize() int64 { return int64(t.Index) + int64(t.Bloom) + trailerSize }

func parseTrailer(b []byte) (trailer, *FormatError) {
	var t trailer
	if _, err := binary.Decode(b, binary.LittleEndian, &t); err != nil || t.Magic != magic {
		return trailer{}, corrupt("footer", "not a segment")
	}
	if t.Version != Version {
		return trailer{}, newer("footer", "version %d is not known", t.Version)
	}
	if t.Index > maxFooter || t.Bloom > maxFooter || t.Blocks > t.Index {
		return trailer{}, corrupt("footer", "sizes are out of range")
	}
	return t, nil
}

// parseFooter reads the last bytes of a file of the given size; b must be exactly the footer.
func parseFooter(b []byte, size int64) (*footer, *FormatError) {
	if len(b) < trailerSize {
		return nil, corrupt("footer", "cut short")
	}
	t, c := parseTrailer(b[len(b)-trailerSize:])
	if c != nil {
		return nil, c
	}
	if t.footerSize() != int64(len(b)) {
		return nil, corrupt("footer", "%d bytes instead of %d", len(b), t.footerSize())
	}
	if Checksum(header(t.Kind), b[:len(b)-trailerSize+sumOffset]) != t.Sum {
		return nil, corrupt("footer", "checksum does not match")
	}
	if t.Kind != Keys && t.Kind != Events {
		return nil, newer("footer", "kind %d is not known", t.Kind)
	}
	if t.Flags&^flagCounted != 0 {
		return nil, newer("footer", "flags %#x are not known", t.Flags)
	}
	if t.Bloom > 0 && t.Hashes == 0 {
		return nil, corrupt("footer", "a bloom filter without hashes")
	}
	f := &footer{bloom: b[t.Index : t.Index+t.Bloom], hashes: int(t.Hashes), counted: t.Flags&flagCounted != 0,
		Summary: Summary{Kind: t.Kind, Rows: t.Rows, MinRevision: t.MinRevision, MaxRevision: t.MaxRevision,
			Size: size, Footer: int64(len(b))}}
	if c := f.parseIndex(b[:t.Index], int(t.Blocks)); c != nil {
		return nil, c
	}
	return f, nil
}

func (f *footer) parseIndex(index []byte, blocks int) *FormatError {
	f.blocks = make([]blockRef, 0, min(blocks, len(index)/7))
	d := Decoder{Rest: index}
	offset, rows := int64(headerSize), uint64(0)
	var key []byte
	for i := range blocks {
		var b blockRef
		key = d.key(key)
		b.first = string(key)
		key = d.key(key)
		b.last = string(key)
		b.size, b.raw, b.rows = d.Length(math.MaxInt32), d.Length(maxBlock), d.Length(maxBlock)
		if f.counted {
			b.live = d.Length(b.rows)
		}
		if d.Failed {
			return corrupt("footer", "index entry %d cannot be parsed", i)
		}
		if b.last < b.first || i > 0 && b.first < f.blocks[i-1].last {
			return corrupt("footer", "index entry %d is out of order", i)
		}
		b.offset = offset
		offset += int64(b.size)
		rows += uint64(b.rows)
		f.blocks = append(f.blocks, b)
	}
	if len(d.Rest) != 0 || rows != f.Rows || offset+f.Footer != f.Size {
		return corrupt("footer", "the index does not describe the file")
	}
	if blocks > 0 {
		f.MinKey, f.MaxKey = f.blocks[0].first, f.blocks[blocks-1].last
	}
	return nil
}
