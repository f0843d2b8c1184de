package projection

import (
	"bytes"
	"slices"
	"unsafe"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/cache"
	"github.com/logplane/logplane/projection/segment"
)

// blockCache keeps decoded blocks within the budget. It also keeps summaries of the blocks that lists have read.
// Segments are immutable, so no entry is ever invalidated. A blockCache is safe for concurrent use.
type blockCache struct {
	blocks, summaries *cache.Cache[blockID, *segment.Block]
	how               through
}

type blockID struct {
	file  string
	block int
}

func newBlockCache(of *cache.Budget) blockCache {
	return blockCache{blocks: cache.New[blockID, *segment.Block](of), summaries: cache.New[blockID, *segment.Block](of)}
}

// through says how a reader uses the caches of blocks.
type through int

const (
	// cached reads through the cache of blocks.
	cached through = iota
	// summaries is for readers that need no values (View.ScanKeys). The summary of a block is made when the block is
	// read. The cache treats the block itself as with once, so that the block pushes out no summary.
	summaries
	// once is for readers that keep their own form of the values (View.ScanOnce). A block that was read is kept if
	// there is room for it. Reading it again does not raise its rank in the cache.
	once
	// past bypasses all caches. It is for readers that read everything once.
	past
)

// Block implements segment.Cache.
func (c blockCache) Block(file string, block int) (*segment.Block, bool) {
	id := blockID{file, block}
	if c.how == cached {
		return c.blocks.Get(id)
	}
	if c.how == summaries {
		if o, ok := c.summaries.Get(id); ok {
			return o, true
		}
	}
	b, ok := c.blocks.Peek(id)
	if ok && c.how == summaries {
		c.keepSummary(id, b)
	}
	return b, ok
}

// Keep implements segment.Cache.
func (c blockCache) Keep(file string, block int, b *segment.Block) {
	id := blockID{file, block}
	if c.how == cached {
		c.blocks.Add(id, ownerOf(b), b, int64(b.Bytes))
		return
	}
	c.blocks.Offer(id, ownerOf(b), b, int64(b.Bytes))
	if c.how == summaries {
		c.keepSummary(id, b)
	}
}

func (c blockCache) keepSummary(id blockID, b *segment.Block) {
	o := summaryOf(b)
	c.summaries.Add(id, ownerOf(b), o, int64(o.Bytes))
}

// summaryOf returns the block without bodies, and without the long fields that no list shows: request id and author.
func summaryOf(b *segment.Block) *segment.Block {
	o := &segment.Block{Entries: slices.Clone(b.Entries)}
	var decoder recordDecoder
	var values []byte
	ends := make([]int, len(o.Entries))
	keys := 0
	for i, e := range o.Entries {
		keys += len(e.Key)
		if r, err := decoder.brief(e); err == nil { // else the reader of the entry gets the error
			o.Entries[i].Omitted = len(r.Body)
			r.RequestID, r.Author = "", eventlog.Author{}
			values = appendRecord(values, r, nil)
		} else {
			values = append(values, e.Value...)
		}
		ends[i] = len(values)
	}
	values = bytes.Clone(values) // no budget would count the unused capacity
	start := 0
	for i, end := range ends {
		o.Entries[i].Value = values[start:end:end]
		start = end
	}
	o.Bytes = len(values) + keys + len(o.Entries)*int(unsafe.Sizeof(segment.Entry{}))
	return o
}

// ownerOf is the cluster and namespace of a block's first row; most of the block's other rows have the same owner.
// ownerOf is empty for a block of events, which mixes namespaces.
func ownerOf(b *segment.Block) string {
	if len(b.Entries) == 0 {
		return ""
	}
	e := b.Entries[0]
	d := segment.Decoder{Rest: e.Value}
	d.Byte() // the operation
	cluster, prefix, namespace := d.Uvarint(), d.Uvarint(), d.Uvarint()
	var k eventlog.Key
	if d.Failed || !splitKey(&k, e.Key, cluster, prefix, namespace) {
		return ""
	}
	return k.Cluster + "/" + k.Namespace
}
