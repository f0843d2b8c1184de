package segment

import (
	"encoding/binary"
	"math"
)

// Version of the format. Readers know every released version for ever.
const Version = 1

const (
	headerSize  = 8
	trailerSize = 52
	magic       = 0x6773_504c // "LPsg", little endian
	maxFooter   = 256 << 20
)

// blockRef locates one block.
type blockRef struct {
	first, last string
	offset      int64
	// size in the file, checksum included.
	size int
	raw  int
	rows int
	// live is how many keys of the block have a newest version that is no tombstone, void ones left out. The block's
	// entries alone say so.
	live int
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
	// counted says that the index has the live keys of each block. Not all segments of version 1 have them.
	counted bool
}

// counted in the trailer.
const flagCounted = 1

// header is constant for a kind and version, so the footer's checksum covers it without reading it.
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

func appendKey(dst []byte, previous, key string) []byte {
	shared := sharedPrefix(previous, key)
	dst = binary.AppendUvarint(dst, uint64(shared))
	dst = binary.AppendUvarint(dst, uint64(len(key)-shared))
	return append(dst, key[shared:]...)
}

// appendFooter appends index, bloom filter and trailer.
func appendFooter(dst []byte, f *footer) []byte {
	start := len(dst)
	dst = f.appendIndex(dst)
	index := len(dst) - start
	dst = append(dst, f.bloom...)
	flags := byte(0)
	if f.counted {
		flags = flagCounted
	}
	dst = append(dst, byte(f.Kind), byte(f.hashes), flags, 0)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(f.blocks)))
	dst = binary.LittleEndian.AppendUint64(dst, f.Rows)
	dst = binary.LittleEndian.AppendUint64(dst, f.MinRevision)
	dst = binary.LittleEndian.AppendUint64(dst, f.MaxRevision)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(index))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(f.bloom)))
	dst = binary.LittleEndian.AppendUint32(dst, Checksum(header(f.Kind), dst[start:]))
	dst = binary.LittleEndian.AppendUint32(dst, Version)
	return binary.LittleEndian.AppendUint32(dst, magic)
}

// trailer is the fixed end of a file.
type trailer struct {
	kind         Kind
	hashes       int
	flags        uint16
	blocks       int
	rows         uint64
	min, max     uint64
	index, bloom int
	sum          uint32
}

func (t *trailer) footerSize() int64 { return int64(t.index) + int64(t.bloom) + trailerSize }

func parseTrailer(b []byte) (trailer, *FormatError) {
	if len(b) != trailerSize || binary.LittleEndian.Uint32(b[48:]) != magic {
		return trailer{}, corrupt("footer", "not a segment")
	}
	v := binary.LittleEndian.Uint32(b[44:])
	if v != Version {
		return trailer{}, newer("footer", "version %d is not known", v)
	}
	t := trailer{
		kind:   Kind(b[0]),
		hashes: int(b[1]),
		flags:  binary.LittleEndian.Uint16(b[2:]),
		rows:   binary.LittleEndian.Uint64(b[8:]),
		min:    binary.LittleEndian.Uint64(b[16:]),
		max:    binary.LittleEndian.Uint64(b[24:]),
		sum:    binary.LittleEndian.Uint32(b[40:]),
	}
	blocks, index, bloom := binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint32(b[32:]), binary.LittleEndian.Uint32(b[36:])
	if index > maxFooter || bloom > maxFooter || blocks > index {
		return trailer{}, corrupt("footer", "sizes are out of range")
	}
	t.blocks, t.index, t.bloom = int(blocks), int(index), int(bloom)
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
	if Checksum(header(t.kind), b[:len(b)-12]) != t.sum {
		return nil, corrupt("footer", "checksum does not match")
	}
	if t.kind != Keys && t.kind != Events {
		return nil, newer("footer", "kind %d is not known", t.kind)
	}
	if t.flags&^flagCounted != 0 {
		return nil, newer("footer", "flags %#x are not known", t.flags)
	}
	if t.bloom > 0 && t.hashes == 0 {
		return nil, corrupt("footer", "a bloom filter without hashes")
	}
	f := &footer{bloom: b[t.index : t.index+t.bloom], hashes: t.hashes, counted: t.flags&flagCounted != 0, Summary: Summary{
		Kind: t.kind, Rows: t.rows, MinRevision: t.min, MaxRevision: t.max, Size: size, Footer: int64(len(b))}}
	c = f.parseIndex(b[:t.index], t.blocks)
	if c != nil {
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
