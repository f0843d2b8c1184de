package shape

import (
	"bytes"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// Message describes the messages of one Go type, from the tags of its fields. It is immutable.
//
// Generated decoders accept more than encoders write. A map's entry may reach beyond its own end, to the end of the
// message around the map, so that 150 KB decode to a gigabyte. Generated decoders do not check wire types in an entry.
// They do not check that strings are UTF-8, which encoders of other formats require. Here, bytes that a decoder could
// nest differently are malformed.
type Message struct {
	fields []field // by number
	// raw: the message holds JSON or CBOR.
	raw bool
	// counted says which of the shape's counts a message adds to.
	counted counted
	// quantity: the message's only field is the text of a quantity.
	quantity bool
}

// field describes a field of a message, if it is more than a number.
type field struct {
	message *Message
	// text: the field is a string, or the map's values are strings.
	text bool
	// isMap: the field is a map; keys and value are the wire types of its entries.
	isMap       bool
	keys, value protowire.Type
}

// maxFieldNumber is above all field numbers in use, and keeps the table by number small.
const maxFieldNumber = 1 << 10

// ParsedAnnotations begins the names of annotations that upstream parses as parts of an autoscaling/v1 object. They
// contain quantities.
const ParsedAnnotations = "autoscaling.alpha.kubernetes.io/"

// Describe describes a message by its Go type, including all messages in it. Raw types hold JSON or CBOR.
func Describe(t reflect.Type, raw map[reflect.Type]bool) (*Message, error) {
	return describe(t, raw, map[reflect.Type]*Message{})
}

// describe remembers the types that it has described in known, since a type may contain itself.
func describe(t reflect.Type, raw map[reflect.Type]bool, known map[reflect.Type]*Message) (*Message, error) {
	if m, ok := known[t]; ok {
		return m, nil
	}
	m := &Message{raw: raw[t], counted: countedTypes[t.Name()], quantity: t.Name() == "Quantity"}
	known[t] = m
	for i := range t.NumField() {
		f := t.Field(i)
		number, ok, err := fieldNumber(f)
		if err != nil {
			return nil, fmt.Errorf("describe %s: %w", t, err)
		}
		if !ok {
			continue
		}
		described, err := describeField(f.Type, raw, known)
		if err != nil {
			return nil, err
		}
		for len(m.fields) <= number {
			m.fields = append(m.fields, field{})
		}
		m.fields[number] = described
	}
	return m, nil
}

// fieldNumber reads a tag such as `protobuf:"bytes,2,opt,name=spec"`.
func fieldNumber(f reflect.StructField) (number int, ok bool, err error) {
	tag, ok := f.Tag.Lookup("protobuf")
	if !ok || tag == "-" {
		return 0, false, nil
	}
	parts := strings.Split(tag, ",")
	if len(parts) < 2 {
		return 0, false, fmt.Errorf("field %s has the tag %q", f.Name, tag)
	}
	number, err = strconv.Atoi(parts[1])
	if err != nil || number < 1 || number > maxFieldNumber {
		return 0, false, fmt.Errorf("field %s has the tag %q", f.Name, tag)
	}
	return number, true, nil
}

func describeField(t reflect.Type, raw map[reflect.Type]bool, known map[reflect.Type]*Message) (f field, err error) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() == reflect.Map {
		f.isMap, f.keys = true, wireType(t.Key())
		t = t.Elem()
		f.value = wireType(t)
	}
	f.text = t.Kind() == reflect.String
	if t.Kind() == reflect.Struct {
		f.message, err = describe(t, raw, known)
	}
	return f, err
}

func wireType(t reflect.Type) protowire.Type {
	switch t.Kind() {
	case reflect.Bool, reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint32, reflect.Uint64:
		return protowire.VarintType
	case reflect.Float64:
		return protowire.Fixed64Type
	case reflect.Float32:
		return protowire.Fixed32Type
	}
	return protowire.BytesType
}

// Protobuf measures a message of the type.
func (m *Message) Protobuf(b []byte) (Shape, error) {
	var s Shape
	err := s.message(m, b, 1)
	if err == nil {
		err = s.check()
	}
	return s, err
}

func malformed(format string, args ...any) error {
	return &Error{Malformed: true, message: "it is not protobuf: " + fmt.Sprintf(format, args...)}
}

// message measures a message at a depth.
func (s *Shape) message(m *Message, b []byte, depth int) error {
	if err := s.enter(depth); err != nil {
		return err
	}
	s.count(m.counted, 1)
	here := level{}
	for rest := b; len(rest) > 0; {
		number, kind, content, size, err := nextField(rest)
		if err != nil {
			return err
		}
		rest = rest[size:]
		here.members++
		var f field
		if int(number) < len(m.fields) {
			f = m.fields[number]
		}
		switch {
		case m.raw:
			err = s.raw(content, depth)
		case m.quantity && !IsQuantity(content):
			err = ErrQuantity
		case f.message == nil && !f.isMap:
			err = f.checkText(content)
		case kind != protowire.BytesType:
			err = malformed("field %d has wire type %d", number, kind)
		case f.isMap:
			err = s.entry(&f, content, depth)
		default:
			err = s.message(f.message, content, depth+1)
		}
		if err != nil {
			return err
		}
	}
	s.leave(&here, len(b))
	return s.check()
}

// entry measures an entry of a map. The map is a field of a message at the given depth. An entry without a value counts
// as an entry with an empty value.
func (s *Shape) entry(f *field, b []byte, depth int) error {
	if f.message != nil {
		s.Depth = max(s.Depth, depth+1)
	}
	if f.text && bytes.Contains(b, []byte(ParsedAnnotations)) && HasLongNumber(b) {
		return ErrQuantity
	}
	for rest := b; len(rest) > 0; {
		number, kind, content, size, err := nextField(rest)
		if err != nil {
			return err
		}
		rest = rest[size:]
		switch {
		case number == 1 && kind == f.keys:
			if !utf8.Valid(content) { // if the key is a number, content is empty
				return errNotUTF8
			}
		case number != 2 || kind != f.value:
			return malformed("field %d of a map's entry has wire type %d", number, kind)
		case f.message != nil:
			if err := s.message(f.message, content, depth+1); err != nil {
				return err
			}
		default:
			if err := f.checkText(content); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkText refuses a string that is not UTF-8.
func (f *field) checkText(content []byte) error {
	if f.text && !utf8.Valid(content) {
		return errNotUTF8
	}
	return nil
}

// raw measures JSON or CBOR in a message.
func (s *Shape) raw(content []byte, depth int) error {
	if strings.HasPrefix(string(content), selfDescribed) {
		return s.cbor(content, depth)
	}
	return s.json(content, depth)
}

// nextField reads a field. Only a length-delimited field has content.
func nextField(b []byte) (number protowire.Number, kind protowire.Type, content []byte, size int, err error) {
	number, kind, head := protowire.ConsumeTag(b)
	if head < 0 {
		return 0, 0, nil, 0, malformed("%v", protowire.ParseError(head))
	}
	switch kind {
	case protowire.BytesType:
		content, size = protowire.ConsumeBytes(b[head:])
	case protowire.StartGroupType, protowire.EndGroupType:
		return 0, 0, nil, 0, malformed("it has a group")
	default:
		size = protowire.ConsumeFieldValue(number, kind, b[head:])
	}
	if size < 0 {
		return 0, 0, nil, 0, malformed("%v", protowire.ParseError(size))
	}
	return number, kind, content, head + size, nil
}
