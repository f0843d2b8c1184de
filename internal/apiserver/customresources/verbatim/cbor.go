package verbatim

import (
	"bytes"
	"encoding/binary"
	"math"
	"unicode/utf8"

	"github.com/fxamacker/cbor/v2"
)

// The major types of CBOR (RFC 8949, section 3.1).
const (
	ofPositive = iota
	ofNegative
	ofBytes // upstream writes text as byte strings
	ofText
	ofList
	ofMap
	ofTag
	ofSimple
)

const simpleFalse, simpleTrue, simpleNull = 20, 21, 22

// maxDepth bounds the recursion. Objects that nest deeper are decoded. Managed fields that did not come in a request
// may nest so deep.
const maxDepth = 128

// reader reads a value as upstream's encoder writes it: without indefinite lengths or inner tags, with the members of
// maps in the order of their encoded names. Each method returns whether it could read its value.
type reader struct {
	rest   []byte
	depth  int
	values int // that were read
}

// untagged returns a stored value without the tag for CBOR, nil if the value has no such tag.
func untagged(stored []byte) []byte {
	value, tagged := bytes.CutPrefix(stored, []byte("\xd9\xd9\xf7"))
	if !tagged {
		return nil
	}
	return value
}

// peek returns the head of the next value and the head's length, which is 0 if upstream would not write such a head.
func (r *reader) peek() (major byte, argument uint64, size int) {
	if len(r.rest) == 0 {
		return ofTag, 0, 0
	}
	major = r.rest[0] >> 5
	low := r.rest[0] & 31
	if low < 24 {
		return major, uint64(low), 1
	}
	if size = 1 + 1<<(low-24); low > 27 || len(r.rest) < size {
		return ofTag, 0, 0
	}
	switch b := r.rest[1:]; low {
	case 24:
		argument = uint64(b[0])
	case 25:
		argument = uint64(binary.BigEndian.Uint16(b))
	case 26:
		argument = uint64(binary.BigEndian.Uint32(b))
	case 27:
		argument = binary.BigEndian.Uint64(b)
	}
	return major, argument, size
}

// text reads a string.
func (r *reader) text() ([]byte, bool) {
	major, length, size := r.peek()
	if size == 0 || major != ofBytes && major != ofText || length > uint64(len(r.rest)-size) {
		return nil, false
	}
	s := r.rest[size : size+int(length)]
	r.rest = r.rest[size+int(length):]
	return s, utf8.Valid(s)
}

// name reads the name of a member. The head must give the name's length in the shortest form.
func (r *reader) name() ([]byte, bool) {
	major, length, size := r.peek()
	if major != ofBytes || size != len(AppendHead(make([]byte, 0, 5), ofBytes, length)) {
		return nil, false
	}
	return r.text()
}

func (r *reader) is(wanted string) bool {
	s, ok := r.text()
	return ok && string(s) == wanted
}

// null reads the next value if that value is a null.
func (r *reader) null() bool {
	if major, which, size := r.peek(); major != ofSimple || size != 1 || which != simpleNull {
		return false
	}
	r.rest = r.rest[1:]
	return true
}

// enter reads the head of a map or a list, and returns how many members or elements follow. The caller must call leave
// after the last of them.
func (r *reader) enter(wanted byte) (count uint64, ok bool) {
	major, count, size := r.peek()
	if size == 0 || major != wanted || r.depth >= maxDepth {
		return 0, false
	}
	r.depth++
	r.rest = r.rest[size:]
	r.values += int(min(count, uint64(len(r.rest))))
	return count, true
}

func (r *reader) leave() { r.depth-- }

// members reads a map. For every member it calls 'each', which must read the member's value or nothing. Names must be
// in strictly increasing order, so none repeats.
func (r *reader) members(each func(name []byte, value *reader) bool) bool {
	count, ok := r.enter(ofMap)
	if !ok {
		return false
	}
	defer r.leave()
	var last []byte
	for range count {
		before := r.rest
		name, ok := r.name()
		encoded := before[:len(before)-len(r.rest)]
		if !ok || bytes.Compare(last, encoded) >= 0 {
			return false
		}
		last = encoded
		unread := len(r.rest)
		if !each(name, r) || len(r.rest) == unread && !r.skip() {
			return false
		}
	}
	return true
}

// elements reads a list.
func (r *reader) elements(each func(value *reader) bool) bool {
	count, ok := r.enter(ofList)
	if !ok {
		return false
	}
	defer r.leave()
	for range count {
		if !each(r) {
			return false
		}
	}
	return true
}

// skip reads a value.
func (r *reader) skip() bool {
	switch major, argument, size := r.peek(); {
	case size == 0:
		return false
	case major == ofBytes || major == ofText:
		_, ok := r.text()
		return ok
	case major == ofMap:
		return r.members(func([]byte, *reader) bool { return true })
	case major == ofList:
		return r.elements((*reader).skip)
	case major == ofPositive || major == ofNegative:
		r.rest = r.rest[size:]
		return argument <= math.MaxInt64
	case major == ofSimple && size == 1:
		r.rest = r.rest[1:]
		return argument == simpleFalse || argument == simpleTrue || argument == simpleNull
	case major == ofSimple && size > 2:
		_, ok := r.float()
		return ok
	}
	return false
}

// float reads a number with a fraction or an exponent.
func (r *reader) float() (f float64, ok bool) {
	_, _, size := r.peek()
	err := cbor.Unmarshal(r.rest[:size], &f)
	r.rest = r.rest[size:]
	return f, err == nil && !math.IsNaN(f) && !math.IsInf(f, 0)
}
