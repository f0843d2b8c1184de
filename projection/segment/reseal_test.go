package segment

import (
	"encoding/binary"
	"hash/crc32"
	"slices"
)

// reseal makes a damaged file look intact, for fuzzing: only bytes with a right checksum reach the code after the
// check. reseal writes magics, versions and checksums, as far as the structure can be followed. It knows the format
// only from docs/format.md.
func reseal(file []byte) []byte {
	if len(file) < 8+52 {
		return file
	}
	file = slices.Clone(file)
	end := file[len(file)-52:]
	copy(file, "LPsg\x01\x00")
	file[6], file[7] = end[0], 0
	copy(end[44:], "\x01\x00\x00\x00LPsg")
	index, bloom := binary.LittleEndian.Uint32(end[32:]), binary.LittleEndian.Uint32(end[36:])
	footer := int64(len(file)) - 52 - int64(index) - int64(bloom)
	if footer < 8 {
		return file
	}
	numbers := 2 // integers of a block in the index, after its size
	if end[2]&1 != 0 {
		numbers = 3
	}
	resealBlocks(file[8:footer], file[footer:footer+int64(index)], numbers)
	sum := checksum(file[:8], file[footer:len(file)-12])
	binary.LittleEndian.PutUint32(end[40:], sum)
	return file
}

// resealFooter is reseal for a footer alone.
func resealFooter(footer []byte) []byte {
	return reseal(append(make([]byte, 8), footer...))[8:]
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
