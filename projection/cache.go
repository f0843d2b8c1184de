package projection

import (
	"bytes"
	"slices"
	"unsafe"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/cache"
	"github.com/logplane/logplane/projection/segment"
)

// blockCache keeps decoded blocks within the budget, and outlines of those that lists have read. Segments are
// immutable, so nothing is ever invalidated. It is safe for concurrent use.
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

// through is how blocks are read.
type through int

const (
	// cached is by the cache of blocks.
	cached through = iota
	// outlines is for who needs no values (View.Outline). It gives the outline of a block if that is kept, and makes it
	// of each block that is read. The block itself is treated as by once, so that it pushes out no outline.
	outlines
	// once is for who needs values a single time (View.ScanOnce). What is read is kept where there is room for it. To
	// read it again does not make it worth more: what was made of it is kept.
	once
	// past is past all caches, for who reads everything once.
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

// outlineOf is the block without bodies, and without what of a row is long and in no list: who asked for it, and how.
func outlineOf(b *segment.Block) *segment.Block {
	o := &segment.Block{Entries: slices.Clone(b.Entries)}
	var decoder recordDecoder
	var values []byte
	ends := make([]int, len(o.Entries))
	keys := 0
	for i, e := range o.Entries {
		keys += len(e.Key)
		if r, err := decoder.brief(e); err == nil { // else who reads it meets the error
			o.Entries[i].Omitted = len(r.Body)
			r.RequestID, r.Author = "", eventlog.Author{}
			values = appendRecord(values, r, nil)
		} else {
			values = append(values, e.Value...)
		}
		ends[i] = len(values)
	}
	values = bytes.Clone(values) // what it has grown to in vain is in no budget
	start := 0
	for i, end := range ends {
		o.Entries[i].Value = values[start:end:end]
		start = end
	}
	o.Bytes = len(values) + keys + len(o.Entries)*int(unsafe.Sizeof(segment.Entry{}))
	return o
}

// ownerOf is the cluster and namespace of a block's first row; its neighbours mostly have the same. For a block of
// events, which mixes all, it is empty.
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
