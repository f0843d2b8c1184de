package segment

import (
	"bytes"
	"context"
	"fmt"
	"sort"
)

// Source reads length bytes of one immutable file from an offset. Its errors are returned unchanged.
type Source interface {
	ReadRange(ctx context.Context, offset, length int64) ([]byte, error)
}

// Local is a Source with a local copy that may have holes or be damaged: its bytes are checked before they are trusted.
// Its methods are used only for files that are read through a cache.
type Local interface {
	// ReadLocal returns length bytes from an offset; nil if it does not have them.
	ReadLocal(offset, length int64) []byte
	// KeepLocal keeps bytes that were read.
	KeepLocal(offset int64, b []byte)
}

// Cache keeps decoded blocks of many files. It must be safe for concurrent use and may forget anything.
type Cache interface {
	Block(file string, block int) (*Block, bool)
	Keep(file string, block int, b *Block)
}

// Reader reads one segment. It is immutable and safe for concurrent use.
type Reader struct {
	file   string
	source Source
	cache  Cache
	footer *footer
	// sealed is the footer as it is in the file.
	sealed []byte
}

// Open reads the footer of a file. The cache and errors identify the file by name.
func Open(ctx context.Context, name string, source Source, cache Cache, size, footerSize int64) (*Reader, error) {
	if footerSize > size {
		return nil, corrupt("footer", "%d bytes in a file of %d", footerSize, size).in(name)
	}
	local, keeps := source.(Local)
	keeps = keeps && cache != nil
	if keeps {
		if r, err := OpenFooter(name, source, cache, size, local.ReadLocal(size-footerSize, footerSize)); err == nil {
			return r, nil
		}
	}
	b, err := source.ReadRange(ctx, size-footerSize, footerSize)
	if err != nil {
		return nil, err
	}
	r, err := OpenFooter(name, source, cache, size, b)
	if err == nil && keeps {
		local.KeepLocal(size-footerSize, b)
	}
	return r, err
}

// OpenFooter is Open with a footer that was kept elsewhere. It reads nothing.
func OpenFooter(name string, source Source, cache Cache, size int64, sealed []byte) (*Reader, error) {
	f, c := parseFooter(sealed, size)
	if c != nil {
		return nil, c.in(name)
	}
	return &Reader{file: name, source: source, cache: cache, footer: f, sealed: sealed}, nil
}

// Footer is the segment's footer, to be kept for OpenFooter. It must not be changed.
func (r *Reader) Footer() []byte { return r.sealed }

// Through returns a reader of the same segment through another cache. A nil cache is for readers that read all of the
// segment once.
func (r *Reader) Through(c Cache) *Reader {
	through := *r
	through.cache = c
	return &through
}

// OpenBytes is Open for a file in memory.
func OpenBytes(name string, file []byte) (*Reader, error) {
	t, c := parseTrailer(file[max(0, len(file)-trailerSize):])
	if c != nil {
		return nil, c.in(name)
	}
	return Open(context.Background(), name, memory(file), nil, int64(len(file)), t.footerSize())
}

type memory []byte

func (m memory) ReadRange(_ context.Context, offset, length int64) ([]byte, error) {
	start := min(max(offset, 0), int64(len(m)))
	return m[start:min(start+length, int64(len(m)))], nil
}

func (e *FormatError) in(file string) *FormatError {
	e.File = file
	return e
}

// Summary describes the segment.
func (r *Reader) Summary() Summary { return r.footer.Summary }

// Blocks is how many blocks the segment has.
func (r *Reader) Blocks() int { return len(r.footer.blocks) }

// Bytes is how many bytes of the file a scan from start to end reads, and their decompressed size.
func (r *Reader) Bytes(start, end string) (bytes, raw int64) {
	for c := r.Scan(start, end); c.wanted(c.block); c.block++ {
		b := &r.footer.blocks[c.block]
		bytes, raw = bytes+int64(b.size), raw+int64(b.raw)
	}
	return bytes, raw
}

// mayHold reports whether the segment may have the key. If it returns false, the segment certainly does not.
func (r *Reader) mayHold(key string) bool {
	f := r.footer
	if len(f.blocks) == 0 || key < f.MinKey || key > f.MaxKey {
		return false
	}
	return len(f.bloom) == 0 || inBloom(f.bloom, f.hashes, keyHash(key))
}

// Find returns the newest entry of the key at or below the revision that has none of the flags in skip.
func (r *Reader) Find(ctx context.Context, key string, revision uint64, skip Flags) (Entry, bool, error) {
	if !r.mayHold(key) {
		return Entry{}, false, nil
	}
	c := r.Scan(key, key+"\x00")
	c.ahead = 1 // one block is nearly always enough
	for {
		e, ok, err := c.Next(ctx)
		if err != nil || !ok || e.Revision <= revision && e.Flags&skip == 0 {
			return e, ok, err
		}
	}
}

// Between returns the blocks that may have keys from first to last: from (inclusive) to upto (exclusive).
func (r *Reader) Between(first, last string) (from, upto int) {
	blocks := r.footer.blocks
	return r.seek(first), sort.Search(len(blocks), func(i int) bool { return blocks[i].first > last })
}

// Verify reads the whole file and checks every byte and the order of all entries.
func (r *Reader) Verify(ctx context.Context) error {
	b, err := r.source.ReadRange(ctx, 0, headerSize)
	if err != nil {
		return err
	}
	if !bytes.Equal(b, header(r.footer.Kind)) {
		return corrupt("header", "not the footer's kind and version").in(r.file)
	}
	c := r.Through(nil).Scan("", "")
	var last Entry
	for rows := uint64(0); ; rows++ {
		e, ok, err := c.Next(ctx)
		if err != nil {
			return err
		}
		if !ok {
			return nil
		}
		if rows > 0 && !before(&last, &e) {
			return corrupt("footer", "entries of two blocks are out of order").in(r.file)
		}
		if r.footer.Kind == Keys && !r.mayHold(e.Key) {
			return corrupt("footer", "the bloom filter does not hold %q", e.Key).in(r.file)
		}
		if e.Revision < r.footer.MinRevision || e.Revision > r.footer.MaxRevision {
			return corrupt("footer", "revision %d is out of its range", e.Revision).in(r.file)
		}
		last = e
	}
}

// decode opens the sealed bytes of a block.
func (r *Reader) decode(sealed []byte, block int) (*Block, error) {
	ref := &r.footer.blocks[block]
	raw, c := openBlock(sealed, ref.raw)
	var b *Block
	if c == nil {
		b, c = decodeBlock(r.footer.Kind, raw, ref.rows)
	}
	if c == nil && (b.Entries[0].Key != ref.first || b.Entries[ref.rows-1].Key != ref.last) {
		c = corrupt("block", "not the block that the index describes")
	}
	if c == nil && r.footer.counted && liveKeysOf(b.Entries) != ref.live {
		c = corrupt("block", "not as many live keys as the index says")
	}
	if c != nil {
		c.Part = fmt.Sprintf("block %d at offset %d", block, ref.offset)
		return nil, c.in(r.file)
	}
	return b, nil
}

// liveKeys counts a block's keys whose newest version is not a tombstone; void versions do not count.
type liveKeys struct {
	n   int
	key string
	// decided says that a non-void version of the key was seen.
	decided bool
}

// add takes the block's next entry.
func (l *liveKeys) add(e *Entry) {
	if l.key != e.Key {
		l.key, l.decided = e.Key, false
	}
	if l.decided || e.Flags&Void != 0 {
		return
	}
	l.decided = true
	if e.Flags&Tombstone == 0 {
		l.n++
	}
}

func liveKeysOf(entries []Entry) int {
	var live liveKeys
	for i := range entries {
		live.add(&entries[i])
	}
	return live.n
}

// seek is the index of the first block that may have the key.
func (r *Reader) seek(key string) int {
	return sort.Search(len(r.footer.blocks), func(i int) bool { return r.footer.blocks[i].last >= key })
}
