package segment

import (
	"encoding/binary"
	"strings"
	"unsafe"
)

const (
	// blockSize is how many raw bytes a block has before it is cut.
	blockSize = 64 << 10
	// maxBlock bounds the raw bytes of a block: a single entry may be much larger than blockSize.
	maxBlock = 64 << 20
	// maxKey bounds a key: a subject has at most 3,900 bytes, escapes included.
	maxKey = 16 << 10
	// checksumSize follows every block.
	checksumSize = 4
)

// Block is a decoded block. It is immutable.
type Block struct {
	Entries []Entry
	// Bytes is the memory that the block holds, for a cache's budget.
	Bytes int
}

// appendEntry encodes an entry: the length of the prefix shared with the block's previous key, the rest of the key,
// revision, flags, value.
func appendEntry(dst []byte, previous string, e *Entry) []byte {
	dst = appendKey(dst, previous, e.Key)
	dst = binary.AppendUvarint(dst, e.Revision)
	dst = append(dst, byte(e.Flags))
	dst = binary.AppendUvarint(dst, uint64(len(e.Value)))
	return append(dst, e.Value...)
}

func appendKey(dst []byte, previous, key string) []byte {
	shared := 0
	for shared < min(len(previous), len(key)) && previous[shared] == key[shared] {
		shared++
	}
	dst = binary.AppendUvarint(dst, uint64(shared))
	dst = binary.AppendUvarint(dst, uint64(len(key)-shared))
	return append(dst, key[shared:]...)
}

// sealBlock appends the compressed block and its checksum.
func sealBlock(dst, raw []byte) []byte {
	start := len(dst)
	dst = encoder().EncodeAll(raw, dst)
	return binary.LittleEndian.AppendUint32(dst, Checksum(dst[start:]))
}

// intactBlock reports whether the checksum of a sealed block matches.
func intactBlock(sealed []byte) bool {
	n := len(sealed) - checksumSize
	return n >= 0 && Checksum(sealed[:n]) == binary.LittleEndian.Uint32(sealed[n:])
}

// openBlock is the inverse of sealBlock. rawSize is the raw size according to the index.
func openBlock(sealed []byte, rawSize int) ([]byte, *FormatError) {
	if len(sealed) < checksumSize {
		return nil, corrupt("block", "cut short")
	}
	if !intactBlock(sealed) {
		return nil, corrupt("block", "checksum does not match")
	}
	body := sealed[:len(sealed)-checksumSize]
	raw, err := decoder().DecodeAll(body, make([]byte, 0, rawSize))
	if err != nil {
		return nil, corrupt("block", "decompress: %v", err)
	}
	if len(raw) != rawSize {
		return nil, corrupt("block", "%d raw bytes instead of %d", len(raw), rawSize)
	}
	return raw, nil
}

// decodeBlock parses the entries of a raw block and checks their order. The values alias raw.
func decodeBlock(kind Kind, raw []byte, rows int) (*Block, *FormatError) {
	if rows < 1 || rows > len(raw)/4 {
		return nil, corrupt("block", "%d entries cannot be in %d bytes", rows, len(raw))
	}
	b := &Block{Entries: make([]Entry, rows), Bytes: len(raw) + rows*int(unsafe.Sizeof(Entry{}))}
	d := Decoder{Rest: raw}
	// All keys of a block share one string: one allocation instead of one each.
	var keys strings.Builder
	ends := make([]int, rows)
	var key []byte
	for i := range b.Entries {
		key = d.key(key)
		e := &b.Entries[i]
		e.Revision = d.Uvarint()
		e.Flags = Flags(d.Byte())
		e.Value = d.Sized()
		if d.Failed {
			return nil, corrupt("block", "entry %d cannot be parsed", i)
		}
		if e.Flags&^knownFlags != 0 {
			return nil, newer("block", "entry %d has flags %#x, which are not known", i, e.Flags)
		}
		keys.Write(key)
		ends[i] = keys.Len()
	}
	if len(d.Rest) != 0 {
		return nil, corrupt("block", "%d bytes after the last entry", len(d.Rest))
	}
	all, start := keys.String(), 0
	for i := range b.Entries {
		b.Entries[i].Key = all[start:ends[i]]
		start = ends[i]
		if i > 0 && !before(&b.Entries[i-1], &b.Entries[i]) {
			return nil, corrupt("block", "entry %d is out of order", i)
		}
		if kind == Events && b.Entries[i].Key != EventKey(b.Entries[i].Revision) {
			return nil, corrupt("block", "the key of entry %d is not its revision", i)
		}
	}
	b.Bytes += len(all)
	return b, nil
}
