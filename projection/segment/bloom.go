package segment

import "github.com/cespare/xxhash/v2"

const (
	bloomBitsPerKey = 10
	bloomHashes     = 7 // under 1 % false positives at 10 bits a key
)

// newBloom returns the filter of the hashes of all keys.
func newBloom(hashes []uint64) []byte {
	bits := max(64, len(hashes)*bloomBitsPerKey)
	filter := make([]byte, (bits+7)/8)
	for _, h := range hashes {
		eachBit(filter, bloomHashes, h, func(i uint64) bool {
			filter[i/8] |= 1 << (i % 8)
			return true
		})
	}
	return filter
}

// inBloom reports whether a key with this hash may be in the segment.
func inBloom(filter []byte, hashes int, h uint64) bool {
	return eachBit(filter, hashes, h, func(i uint64) bool { return filter[i/8]&(1<<(i%8)) != 0 })
}

// eachBit calls f with the bits of a hash by double hashing: the low half plus i times the high half, modulo the bits
// of the filter.
func eachBit(filter []byte, hashes int, h uint64, f func(bit uint64) bool) bool {
	bits := uint64(len(filter)) * 8
	low, high := h&0xffffffff, h>>32
	for i := range uint64(hashes) {
		if !f((low + i*high) % bits) {
			return false
		}
	}
	return true
}

// keyHash is XXH64 with seed 0, whose bytes are specified and never change.
func keyHash(key string) uint64 { return xxhash.Sum64String(key) }
