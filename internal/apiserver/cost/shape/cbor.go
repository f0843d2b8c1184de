package shape

import (
	"encoding/binary"
	"unicode/utf8"
)

// selfDescribed is the tag at the start of the CBOR that upstream writes. It only marks the data as CBOR.
const selfDescribed = "\xd9\xd9\xf7"

// The major types of CBOR that are not numbers.
const (
	cborBytes  = 2
	cborText   = 3
	cborList   = 4
	cborMap    = 5
	cborTag    = 6
	cborSimple = 7
)

// indefinite is the length of an item that ends with a break.
const indefinite = -1

// CBOR measures a data item. A tag counts as a container, as it does for the decoder.
func CBOR(item []byte) (Shape, error) {
	s := Shape{Bytes: len(item)}
	err := s.cbor(item, 0)
	return s, err
}

// cborLevel is a container that is being read. Meanwhile level.members counts items; a map has two items for each
// member.
type cborLevel struct {
	level
	// left is the number of items still to come, or indefinite if a break ends the container.
	left  int64
	isMap bool
	// data: the container is a tag around bytes that are not text.
	data bool
}

// Upstream writes bytes as byte strings in one of these tags, and text as byte strings outside of these tags. Tagged
// bytes become base64url, base64 or base16 in JSON.
const firstDataTag, lastDataTag = 21, 23

// cbor measures an item; base is the number of containers around the item. cbor stops where the item is not
// well-formed: the decoder checks the form of the whole item before it decodes anything.
func (s *Shape) cbor(item []byte, base int) error {
	rest := item
	if len(rest) >= len(selfDescribed) && string(rest[:len(selfDescribed)]) == selfDescribed {
		rest = rest[len(selfDescribed):]
	}
	var open [maxDepth + 1]cborLevel
	next := ordinary // how the members of the next list are counted
	for depth := 0; ; {
		major, argument, size, ok := cborHead(rest)
		if !ok {
			return s.check()
		}
		rest = rest[size:]
		switch {
		case major == cborSimple && argument == indefinite: // a break
			if depth == 0 || open[depth].left >= 0 {
				return s.check()
			}
			open[depth].left = 0
		case major == cborBytes || major == cborText:
			var content []byte
			switch {
			case argument == indefinite:
				content, rest, ok = cborChunks(rest)
				if !ok {
					return s.check()
				}
			case uint64(argument) > uint64(len(rest)):
				return s.check()
			default:
				content, rest = rest[:argument], rest[argument:]
			}
			if !open[depth].data && !utf8.Valid(content) {
				return errNotUTF8
			}
			next = countedLists[string(content)]
			open[depth].took()
		case major == cborList || major == cborMap || major == cborTag:
			open[depth].took()
			depth++
			if err := s.enter(base + depth); err != nil {
				return err
			}
			left := argument
			switch {
			case major == cborTag:
				left = 1
			case argument > maxValues || argument < indefinite: // above the limit, or beyond int64
				s.Values = maxValues + 1
				return s.check()
			case major == cborMap && argument > 0:
				left = 2 * argument
			}
			isList := major == cborList
			isData := major == cborTag && firstDataTag <= argument && argument <= lastDataTag
			here := level{start: len(item) - len(rest), list: isList}
			if isList {
				here.counted = next
			}
			open[depth] = cborLevel{here, left, major == cborMap, isData}
			if major != cborTag {
				next = ordinary
			}
		default:
			open[depth].took()
			next = ordinary
		}
		for depth > 0 && open[depth].left == 0 {
			if open[depth].isMap {
				open[depth].members /= 2
			}
			s.leave(&open[depth].level, len(item)-len(rest))
			depth--
		}
		if depth == 0 {
			return s.check() // the decoder refuses bytes that follow
		}
		if s.Values > maxValues {
			return errValues
		}
	}
}

// took counts an item of the container.
func (l *cborLevel) took() {
	l.members++
	if l.left > 0 {
		l.left--
	}
}

// cborHead reads the head of an item. It ignores the argument of a float or a simple value.
func cborHead(b []byte) (major byte, argument int64, size int, ok bool) {
	if len(b) == 0 {
		return 0, 0, 0, false
	}
	major = b[0] >> 5
	switch low := b[0] & 31; {
	case low < 24:
		return major, int64(low), 1, true
	case low == 24 && len(b) > 1:
		return major, int64(b[1]), 2, true
	case low == 25 && len(b) > 2:
		return major, int64(binary.BigEndian.Uint16(b[1:])), 3, true
	case low == 26 && len(b) > 4:
		return major, int64(binary.BigEndian.Uint32(b[1:])), 5, true
	case low == 27 && len(b) > 8:
		argument = int64(binary.BigEndian.Uint64(b[1:]))
		if argument < 0 {
			argument = indefinite - 1 // beyond int64
		}
		if major == cborSimple || major < cborBytes {
			argument = 0
		}
		return major, argument, 9, true
	case low == 31 && major >= cborBytes && major != cborTag:
		return major, indefinite, 1, true
	}
	return 0, 0, 0, false
}

// cborChunks joins the chunks of a string of indefinite length, and returns the bytes after the string.
func cborChunks(rest []byte) (content, after []byte, ok bool) {
	for {
		major, argument, size, ok := cborHead(rest)
		if !ok {
			return nil, nil, false
		}
		rest = rest[size:]
		switch {
		case major == cborSimple && argument == indefinite:
			return content, rest, true
		case major != cborBytes && major != cborText || argument < 0 || argument > int64(len(rest)):
			return nil, nil, false
		}
		content, rest = append(content, rest[:argument]...), rest[argument:]
	}
}
