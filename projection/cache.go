package projection

import (
	"bytes"
	"slices"
	"unsafe"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/cache"
	"github.com/logplane/logplane/projection/segment"
)

// blockCache keeps decoded blocks within the budget. It also keeps outlines of the blocks that lists have read.
// Segments are immutable, so no entry is ever invalidated. It is safe for concurrent use.
type blockCache struct {
	blocks, outlines *cache.Cache[blockID, *segment.Block]
	how              through
}

type blockID struct {
	file  string
	block int
}

func newBlockCache(of *cache.Budget) blockCache {
	return blockCache{blocks: cache.New[blockID, *segment.Block](of), outlines: cache.New[blockID, *segment.Block](of)}
}

// through says how a reader uses the caches of blocks.
type through int

const (
	// cached reads through the cache of blocks.
	cached through = iota
	// outlines is for readers that need no values (View.Outline). A block's outline is served if it is kept; otherwise
	// it is made of the block that was read. The block itself is treated as by once, so that it pushes out no outline.
	outlines
	// once is for readers that need values a single time (View.ScanOnce). A block that was read is kept if there is
	// room. Reading it again does not raise its rank in the cache, because the caller keeps what it made of the block.
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
	if c.how == outlines {
		if o, ok := c.outlines.Get(id); ok {
			return o, true
		}
	}
	b, ok := c.blocks.Peek(id)
	if ok && c.how == outlines {
		c.keepOutline(id, b)
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
	if c.how == outlines {
		c.keepOutline(id, b)
	}
}

func (c blockCache) keepOutline(id blockID, b *segment.Block) {
	o := outlineOf(b)
	c.outlines.Add(id, ownerOf(b), o, int64(o.Bytes))
}

// outlineOf returns the block without bodies, and without the long fields that no list shows: request id and author.
func outlineOf(b *segment.Block) *segment.Block {
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
	values = bytes.Clone(values) // the unused capacity would be in no budget
	start := 0
	for i, end := range ends {
		o.Entries[i].Value = values[start:end:end]
		start = end
	}
	o.Bytes = len(values) + keys + len(o.Entries)*int(unsafe.Sizeof(segment.Entry{}))
	return o
}

// ownerOf is the cluster and namespace of a block's first row; most of the block's other rows have the same. It is
// empty for a block of events, which mixes namespaces.
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
