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
		for i := range uint64(bloomHashes) {
			at, bit := bloomBit(filter, h, i)
			filter[at] |= bit
		}
	}
	return filter
}

// inBloom reports whether a key with this hash may be in the segment.
func inBloom(filter []byte, hashes int, h uint64) bool {
	for i := range uint64(hashes) {
		if at, bit := bloomBit(filter, h, i); filter[at]&bit == 0 {
			return false
		}
	}
	return true
}

// bloomBit is bit i of a hash, by double hashing: the low half plus i times the high half, modulo the filter's bits.
func bloomBit(filter []byte, h, i uint64) (at uint64, bit byte) {
	n := (h&0xffffffff + i*(h>>32)) % (uint64(len(filter)) * 8)
	return n / 8, 1 << (n % 8)
}

// keyHash is XXH64 with seed 0. Its result is specified and never changes.
func keyHash(key string) uint64 { return xxhash.Sum64String(key) }
