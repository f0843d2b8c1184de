package segment

import (
	"hash/crc32"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// One encoder and one decoder serve the process. They are made on first use, so that a process start does not pay for
// them. The encoder takes one block at a time: writers wait for the bucket most of the time.
var (
	encoder = sync.OnceValue(func() *zstd.Encoder {
		e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false),
			zstd.WithWindowSize(1<<20), zstd.WithLowerEncoderMem(true))
		if err != nil {
			panic(err) // the options are constant
		}
		return e
	})
	decoder = sync.OnceValue(func() *zstd.Decoder {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(maxBlock),
			zstd.WithDecodeAllCapLimit(true))
		if err != nil {
			panic(err) // the options are constant
		}
		return d
	})
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// Checksum is the CRC32C that the format uses everywhere.
func Checksum(parts ...[]byte) uint32 {
	var sum uint32
	for _, p := range parts {
		sum = crc32.Update(sum, castagnoli, p)
	}
	return sum
}
