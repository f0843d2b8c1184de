package projection

import (
	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection/cache"
	"github.com/logplane/logplane/projection/segment"
)

// blockCache keeps decoded blocks within the budget. Segments are immutable, so nothing is ever invalidated. It
// is safe for concurrent use.
type blockCache struct {
	blocks *cache.Cache[blockID, *segment.Block]
}

type blockID struct {
	file  string
	block int
}

func newBlockCache(of *cache.Budget) *blockCache {
	return &blockCache{cache.New[blockID, *segment.Block](of)}
}

// Block implements segment.Cache.
func (c *blockCache) Block(file string, block int) (*segment.Block, bool) {
	return c.blocks.Get(blockID{file, block})
}

// Keep implements segment.Cache.
func (c *blockCache) Keep(file string, block int, b *segment.Block) {
	c.blocks.Add(blockID{file, block}, ownerOf(b), b, int64(b.Bytes))
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
