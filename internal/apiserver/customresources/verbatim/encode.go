package verbatim

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"slices"
	"strconv"
)

const resourceVersion = "resourceVersion"

// AppendJSON appends a stored object as encoding/json would write it, with its resourceVersion. Leaves must be true of
// the object.
func AppendJSON(to, stored []byte, revision uint64) []byte {
	e := encoder{reader: reader{rest: untagged(stored)}, out: to}
	e.object(func(name []byte) {
		if string(name) != "metadata" {
			e.value()
			return
		}
		e.object(func([]byte) { e.value() }, revision)
	}, 0)
	return e.out
}

// encoder reads values and writes them as JSON.
type encoder struct {
	reader
	out     []byte
	open    []member // members of the objects that are being written
	scratch []byte
}

// member is the place of one member of an object in the encoder's out. The place includes the comma after the member.
type member struct {
	name       []byte
	start, end int
}

func byName(a, b member) int { return bytes.Compare(a.name, b.name) }

// object writes a map with its members in the order of their names; in CBOR shorter names come first. A revision other
// than 0 becomes the member resourceVersion.
func (e *encoder) object(value func(name []byte), revision uint64) {
	e.out = append(e.out, '{')
	base, from := len(e.open), len(e.out)
	add := func(name []byte, start int) {
		e.out = append(e.out, ',')
		e.open = append(e.open, member{name, start, len(e.out)})
	}
	if revision > 0 {
		e.out = append(e.out, `"`+resourceVersion+`":"`...)
		e.out = append(strconv.AppendUint(e.out, revision, 10), '"')
		add([]byte(resourceVersion), from)
	}
	e.members(func(name []byte, _ *reader) bool {
		start := len(e.out)
		e.string(name)
		e.out = append(e.out, ':')
		value(name)
		add(name, start)
		return true
	})
	members := e.open[base:]
	e.open = e.open[:base]
	if !slices.IsSortedFunc(members, byName) {
		slices.SortFunc(members, byName)
		e.scratch = append(e.scratch[:0], e.out[from:]...)
		e.out = e.out[:from]
		for _, m := range members {
			e.out = append(e.out, e.scratch[m.start-from:m.end-from]...)
		}
	}
	if len(members) > 0 {
		e.out = e.out[:len(e.out)-1]
	}
	e.out = append(e.out, '}')
}

func (e *encoder) value() {
	switch major, argument, size := e.peek(); major {
	case ofPositive:
		e.rest = e.rest[size:]
		e.out = strconv.AppendUint(e.out, argument, 10)
	case ofNegative:
		e.rest = e.rest[size:]
		e.out = strconv.AppendInt(e.out, -1-int64(argument), 10)
	case ofBytes, ofText:
		s, _ := e.text()
		e.string(s)
	case ofList:
		e.out = append(e.out, '[')
		e.elements(func(*reader) bool {
			e.value()
			e.out = append(e.out, ',')
			return true
		})
		if last := len(e.out) - 1; e.out[last] == ',' {
			e.out = e.out[:last]
		}
		e.out = append(e.out, ']')
	case ofMap:
		e.object(func([]byte) { e.value() }, 0)
	case ofSimple:
		if size > 1 {
			f, _ := e.float()
			e.json(f)
			return
		}
		e.rest = e.rest[size:]
		e.out = append(e.out, simple[argument]...)
	}
}

var simple = map[uint64]string{simpleFalse: "false", simpleTrue: "true", simpleNull: "null"}

// string writes a string. Most strings need only quotes.
func (e *encoder) string(s []byte) {
	for _, c := range s {
		if c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			e.json(string(s))
			return
		}
	}
	e.out = append(append(append(e.out, '"'), s...), '"')
}

// json writes a string, or a number that is finite, as encoding/json does.
func (e *encoder) json(value any) {
	encoded, _ := json.Marshal(value)
	e.out = append(e.out, encoded...)
}

// AppendCBOR appends an object as it is stored, with its resourceVersion as the last member of its metadata. Leaves
// must be true of the object. The order of members has no meaning, and upstream shuffles the members.
func AppendCBOR(to, stored []byte, revision uint64) []byte {
	whole := untagged(stored)
	r := reader{rest: whole}
	var start, end int
	ok := r.members(func(name []byte, value *reader) bool {
		if string(name) != "metadata" {
			return true
		}
		start = len(whole) - len(value.rest)
		read := value.skip()
		end = len(whole) - len(value.rest)
		return read
	})
	if !ok || end == 0 {
		return nil
	}
	metadata := reader{rest: whole[start:end]}
	_, count, size := metadata.peek()
	to = append(to, whole[:start]...)
	to = AppendHead(to, ofMap, count+1)
	to = append(to, metadata.rest[size:]...)
	version := strconv.AppendUint(make([]byte, 0, 20), revision, 10)
	to = append(AppendHead(to, ofBytes, uint64(len(resourceVersion))), resourceVersion...)
	to = append(AppendHead(to, ofBytes, uint64(len(version))), version...)
	return append(to, whole[end:]...)
}

// AppendHead appends the head of a value of CBOR: its major type, and a number below 2^32, in the shortest form.
func AppendHead(to []byte, major byte, argument uint64) []byte {
	switch major <<= 5; {
	case argument < 24:
		return append(to, major|byte(argument))
	case argument <= math.MaxUint8:
		return append(to, major|24, byte(argument))
	case argument <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(to, major|25), uint16(argument))
	}
	return binary.BigEndian.AppendUint32(append(to, major|26), uint32(argument))
}
