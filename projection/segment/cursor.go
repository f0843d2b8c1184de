package segment

import (
	"context"
	"sort"

	"golang.org/x/sync/errgroup"
)

const (
	// firstRead is how many bytes the first read of a scan has: enough for a page of a list. Later reads grow up to
	// maxRead, so that a full scan makes few requests.
	firstRead = 512 << 10
	maxRead   = 8 << 20
	readGrows = 4
	// maxBatch is how many blocks are decoded concurrently, at most. maxDecoded bounds their bytes, unless a single
	// block has more. A scan begins with one block.
	maxBatch   = 8
	maxDecoded = 512 << 10
)

// Cursor walks over entries in order. It is not safe for concurrent use.
type Cursor struct {
	r          *Reader
	start, end string
	// block is the index of the next block to load.
	block int
	// entries are the remaining entries of the last block loaded.
	entries []Entry
	// ahead bounds the bytes of the next read, and most bounds ahead.
	ahead, most int
	// decoded are the decoded blocks; the index of the first one is 'block'. sealed are the next blocks, which were
	// read but not decoded yet.
	decoded []*Block
	sealed  [][]byte
	batch   int
	// Filter is nil if every block is read. It must be set before the first entry is asked for.
	Filter Filter
}

// Filter says which blocks of a segment a scan may skip.
type Filter interface {
	// Excludes says that nothing in the block is wanted, nor needed to hide older versions between its first and last
	// key.
	Excludes(block int, first, last string) bool
	// Learn gets each block that is read.
	Learn(block int, b *Block)
}

// Scan returns a cursor over the entries with start <= key < end; an empty end is unbounded.
func (r *Reader) Scan(start, end string) *Cursor {
	return &Cursor{r: r, start: start, end: end, block: r.seek(start), ahead: firstRead, most: maxRead, batch: 1}
}

// Continue lets the cursor read as far ahead as the previous cursor of the same scan.
func (c *Cursor) Continue(before *Cursor) {
	c.ahead, c.batch = before.ahead, before.batch
}

// Share is for cursors that are read together: in total they read no further ahead than one cursor alone would. bytes
// is the size of this cursor's data, ofAll the size of the data of all these cursors.
func (c *Cursor) Share(bytes, ofAll int64) {
	c.most = max(firstRead, int(maxRead*bytes/max(ofAll, 1)))
	c.ahead = min(c.ahead, c.most)
}

// Next returns the next entry; false after the last. After an error Next may be called again.
func (c *Cursor) Next(ctx context.Context) (Entry, bool, error) {
	if ok, err := c.fill(ctx); !ok {
		return Entry{}, false, err
	}
	e := c.entries[0]
	c.entries = c.entries[1:]
	return e, true, nil
}

// fill makes the next entry the first one in entries. It returns false after the last.
func (c *Cursor) fill(ctx context.Context) (bool, error) {
	for len(c.entries) == 0 {
		c.pass()
		if !c.wanted(c.block) {
			return false, nil
		}
		b, err := c.load(ctx)
		if err != nil {
			return false, err
		}
		if c.Filter != nil {
			c.Filter.Learn(c.block, b)
		}
		c.block++
		c.entries = b.Entries
		if b.Entries[0].Key < c.start {
			c.entries = b.Entries[sort.Search(len(b.Entries), func(i int) bool { return b.Entries[i].Key >= c.start }):]
		}
	}
	if c.end != "" && c.entries[0].Key >= c.end {
		c.entries, c.block = nil, len(c.r.footer.blocks)
		return false, nil
	}
	return true, nil
}

// Skip moves past the entries of all keys up to and including the given one. It decodes no block that has only such
// keys.
func (c *Cursor) Skip(key string) {
	after := func(i int) bool { return c.entries[i].Key > key }
	if n := len(c.entries); n > 0 && after(n-1) {
		if !after(0) {
			c.entries = c.entries[sort.Search(n, after):]
		}
		return
	}
	c.entries = nil
	blocks := c.r.footer.blocks[c.block:]
	n := sort.Search(len(blocks), func(i int) bool { return blocks[i].last > key })
	c.block += n
	if n < len(blocks) && blocks[n].first <= key {
		c.start = key + "\x00"
	}
	decoded := min(n, len(c.decoded))
	c.decoded, c.sealed = c.decoded[decoded:], c.sealed[min(n-decoded, len(c.sealed)):]
}

// pass skips blocks of which the filter wants nothing. Blocks that were read ahead are not skipped.
func (c *Cursor) pass() {
	for len(c.decoded)+len(c.sealed) == 0 && c.wanted(c.block) && c.excluded(c.block) {
		c.block++
	}
}

// excluded says that the filter wants nothing of the block. If the next block has older versions of the block's last
// key, the filter must want nothing of that block either, because these versions would become visible.
func (c *Cursor) excluded(block int) bool {
	if c.Filter == nil {
		return false
	}
	blocks := c.r.footer.blocks[block:]
	return c.Filter.Excludes(block, blocks[0].first, blocks[0].last) &&
		(len(blocks) == 1 || blocks[1].first != blocks[0].last || c.excluded(block+1))
}

// CountBlocks skips, without reading, the next blocks whose keys are all before the key that limit returns; "" is
// unbounded. It returns how many live keys the skipped blocks have. It skips no block that shares a key with another,
// and no block of a segment whose index has no counts. It skips nothing while entries of the previous block are left.
func (c *Cursor) CountBlocks(limit func() string) (live int) {
	if len(c.entries) > 0 || !c.r.footer.counted {
		return 0
	}
	blocks, n, upto := c.r.footer.blocks[c.block:], 0, limit()
	for ; n < len(blocks); n++ {
		b := &blocks[n]
		if b.first < c.start || upto != "" && b.last >= upto || c.end != "" && b.last >= c.end || n+1 < len(blocks) && blocks[n+1].first == b.last {
			break
		}
		live += b.live
	}
	if n > 0 {
		c.Skip(blocks[n-1].last)
	}
	return live
}

// wanted reports whether the block may have entries of the range.
func (c *Cursor) wanted(block int) bool {
	blocks := c.r.footer.blocks
	return block < len(blocks) && (c.end == "" || blocks[block].first < c.end)
}

func (c *Cursor) load(ctx context.Context) (*Block, error) {
	if len(c.decoded) == 0 && len(c.sealed) == 0 {
		if b, ok := c.cached(c.block); ok {
			return b, nil
		}
		if err := c.read(ctx); err != nil {
			return nil, err
		}
	}
	if len(c.decoded) == 0 {
		if err := c.decode(); err != nil {
			return nil, err
		}
	}
	b := c.decoded[0]
	c.decoded = c.decoded[1:]
	return b, nil
}

// decode opens the next blocks, each in its own goroutine, since decompression is most of a scan's time.
func (c *Cursor) decode() error {
	n, size := 1, len(c.sealed[0])
	for ; n < min(c.batch, len(c.sealed)) && size+len(c.sealed[n]) <= maxDecoded; n++ {
		size += len(c.sealed[n])
	}
	blocks := make([]*Block, n)
	var group errgroup.Group
	for i := range n {
		group.Go(func() (err error) {
			blocks[i], err = c.r.decode(c.sealed[i], c.block+i)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for i, b := range blocks {
		if c.r.cache != nil {
			c.r.cache.Keep(c.r.file, c.block+i, b)
		}
	}
	c.decoded, c.sealed = blocks, c.sealed[n:]
	c.batch = min(2*c.batch, maxBatch)
	return nil
}

func (c *Cursor) cached(block int) (*Block, bool) {
	if c.r.cache == nil {
		return nil, false
	}
	return c.r.cache.Block(c.r.file, block)
}

// read fetches adjacent blocks that are wanted and not in the cache, with one request. If the context has ended it
// reads nothing, not even from a local copy.
func (c *Cursor) read(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	blocks := c.r.footer.blocks
	first, size, n := blocks[c.block].offset, blocks[c.block].size, 1
	for ; c.wanted(c.block+n) && size+blocks[c.block+n].size <= c.ahead; n++ {
		if _, ok := c.cached(c.block + n); ok || c.excluded(c.block+n) {
			break
		}
		size += blocks[c.block+n].size
	}
	c.ahead = min(max(c.ahead, size)*readGrows, c.most)
	local, keeps := c.r.source.(Local)
	keeps = keeps && c.r.cache != nil
	if keeps {
		c.split(local.ReadLocal(first, int64(size)), n)
		c.sealed = c.sealed[:c.intact()]
		if len(c.sealed) > 0 {
			return nil
		}
	}
	body, err := c.r.source.ReadRange(ctx, first, int64(size))
	if err != nil {
		return err
	}
	if len(body) != size {
		return corrupt("block", "%d bytes at offset %d instead of %d", len(body), first, size).in(c.r.file)
	}
	c.split(body, n)
	if keeps && c.intact() == n {
		local.KeepLocal(first, body)
	}
	return nil
}

// split cuts the bytes of a run of n blocks into blocks. Empty bytes give none.
func (c *Cursor) split(body []byte, n int) {
	c.sealed = nil
	for i := 0; i < n && len(body) > 0; i++ {
		size := c.r.footer.blocks[c.block+i].size
		c.sealed = append(c.sealed, body[:size])
		body = body[size:]
	}
}

// intact is how many of the blocks that were read are undamaged, up to the first damaged one. A local copy is trusted
// that far.
func (c *Cursor) intact() int {
	for i, b := range c.sealed {
		if !intactBlock(b) {
			return i
		}
	}
	return len(c.sealed)
}
