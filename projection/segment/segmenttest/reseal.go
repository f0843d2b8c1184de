// Package segmenttest makes damaged segments look intact, for fuzzing: only bytes with a right checksum reach the code
// behind it. The package knows the format only from docs/format.md.
package segmenttest

import (
	"encoding/binary"
	"hash/crc32"
	"slices"
)

const (
	header  = 8
	trailer = 52
)

// Reseal returns the file with correct magics, versions and checksums, as far as its structure can be followed.
func Reseal(file []byte) []byte {
	if len(file) < header+trailer {
		return file
	}
	file = slices.Clone(file)
	end := file[len(file)-trailer:]
	copy(file, "LPsg\x01\x00")
	file[6], file[7] = end[0], 0
	copy(end[44:], "\x01\x00\x00\x00LPsg")
	index, bloom := binary.LittleEndian.Uint32(end[32:]), binary.LittleEndian.Uint32(end[36:])
	footer := int64(len(file)) - trailer - int64(index) - int64(bloom)
	if footer < header {
		return file
	}
	numbers := 2 // integers of a block in the index, after its size
	if end[2]&1 != 0 {
		numbers = 3
	}
	resealBlocks(file[header:footer], file[footer:footer+int64(index)], numbers)
	sum := checksum(file[:header], file[footer:len(file)-12])
	binary.LittleEndian.PutUint32(end[40:], sum)
	return file
}

// ResealFooter is Reseal for a footer alone.
func ResealFooter(footer []byte) []byte {
	sealed := Reseal(append(make([]byte, header), footer...))
	return sealed[header:]
}

func resealBlocks(blocks, index []byte, numbers int) {
	for len(index) > 0 {
		for range 2 { // first and last key
			index = skip(index, 1)
			n, rest := uvarint(index)
			index = rest[min(n, uint64(len(rest))):]
		}
		size, rest := uvarint(index)
		if size < 4 || size > uint64(len(blocks)) {
			return
		}
		binary.LittleEndian.PutUint32(blocks[size-4:], checksum(blocks[:size-4]))
		blocks, index = blocks[size:], skip(rest, numbers)
	}
}

func skip(b []byte, integers int) []byte {
	for range integers {
		_, b = uvarint(b)
	}
	return b
}

// uvarint returns 0 and nil if there is no integer.
func uvarint(b []byte) (uint64, []byte) {
	v, n := binary.Uvarint(b)
	if n <= 0 {
		return 0, nil
	}
	return v, b[n:]
}

func checksum(parts ...[]byte) (sum uint32) {
	for _, p := range parts {
		sum = crc32.Update(sum, crc32.MakeTable(crc32.Castagnoli), p)
	}
	return sum
}
