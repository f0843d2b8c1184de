package segment

import (
	"context"
	"sort"
)

const (
	// firstRead is how many bytes a scan reads at first, maxRead how many at last: a page of a list
	// touches little, a full scan few requests.
	firstRead = 256 << 10
	maxRead   = 8 << 20
)

// Cursor walks over entries in order. It is not safe for concurrent use.
type Cursor struct {
	r          *Reader
	start, end string
	// block is the next one to load.
	block int
	// entries are what is left of the block loaded last.
	entries []Entry
	// ahead is how many bytes the next read may have.
	ahead int
	// sealed are blocks that were read but not decoded yet, from block on.
	sealed [][]byte
}

// Scan returns a cursor over the entries with start <= key < end; an empty end is unbounded.
func (r *Reader) Scan(start, end string) *Cursor {
	return &Cursor{r: r, start: start, end: end, block: r.seek(start), ahead: firstRead}
}

// Next returns the next entry, false after the last. After an error the cursor may be asked again.
func (c *Cursor) Next(ctx context.Context) (Entry, bool, error) {
	for len(c.entries) == 0 {
		if !c.wanted(c.block) {
			return Entry{}, false, nil
		}
		b, err := c.load(ctx)
		if err != nil {
			return Entry{}, false, err
		}
		c.block++
		c.entries = b.Entries
		if b.Entries[0].Key < c.start {
			c.entries = b.Entries[sort.Search(len(b.Entries), func(i int) bool { return b.Entries[i].Key >= c.start }):]
		}
	}
	e := c.entries[0]
	if c.end != "" && e.Key >= c.end {
		c.entries, c.block = nil, len(c.r.footer.blocks)
		return Entry{}, false, nil
	}
	c.entries = c.entries[1:]
	return e, true, nil
}

// wanted reports whether the block may have entries of the range.
func (c *Cursor) wanted(block int) bool {
	blocks := c.r.footer.blocks
	return block < len(blocks) && (c.end == "" || blocks[block].first < c.end)
}

func (c *Cursor) load(ctx context.Context) (*Block, error) {
	if len(c.sealed) == 0 {
		if b, ok := c.cached(c.block); ok {
			return b, nil
		}
		if err := c.read(ctx); err != nil {
			return nil, err
		}
	}
	b, err := c.r.decode(c.sealed[0], c.block)
	if err != nil {
		return nil, err
	}
	c.sealed = c.sealed[1:]
	if c.r.cache != nil {
		c.r.cache.Keep(c.r.file, c.block, b)
	}
	return b, nil
}

func (c *Cursor) cached(block int) (*Block, bool) {
	if c.r.cache == nil {
		return nil, false
	}
	return c.r.cache.Block(c.r.file, block)
}

// read fetches a run of blocks that are wanted and not in the cache, with one request.
func (c *Cursor) read(ctx context.Context) error {
	blocks := c.r.footer.blocks
	first, size, n := blocks[c.block].offset, blocks[c.block].size, 1
	for ; c.wanted(c.block+n) && size+blocks[c.block+n].size <= c.ahead; n++ {
		if _, ok := c.cached(c.block + n); ok {
			break
		}
		size += blocks[c.block+n].size
	}
	body, err := c.r.source.ReadRange(ctx, first, int64(size))
	if err != nil {
		return err
	}
	if len(body) != size {
		return corrupt("block", "%d bytes at offset %d instead of %d", len(body), first, size).in(c.r.file)
	}
	for i := range n {
		c.sealed = append(c.sealed, body[:blocks[c.block+i].size])
		body = body[blocks[c.block+i].size:]
	}
	c.ahead = min(c.ahead*2, maxRead)
	return nil
}
