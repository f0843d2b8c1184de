package lists

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/runtime"
)

// form is an encoding of lists. A list without items, with others spliced in, is the list with these.
type form interface {
	// items are those of an encoded list, as they stand there, given the same list without any.
	items(list, empty []byte) ([]byte, error)
	// split cuts a list without items where they belong. So many items of so many bytes follow the first part, with the
	// separator between pieces.
	split(empty []byte, count, length int) (before, after []byte, err error)
	separator() []byte
	// sized says that what comes before the items depends on their count or length.
	sized() bool
}

// forms by media type.
var forms = map[string]form{
	runtime.ContentTypeJSON:     jsonForm{},
	runtime.ContentTypeProtobuf: protobufForm{},
	runtime.ContentTypeCBOR:     cborForm{},
}

type jsonForm struct{}

// noItems has no other meaning in a list without items: its kind, version, revision and continue token hold no quotes.
var noItems = []byte(`"items":[]`)

func (jsonForm) split(empty []byte, _, _ int) (before, after []byte, err error) {
	end, err := endOf(noItems, empty)
	return empty[:max(0, end-1)], empty[max(0, end-1):], err
}

// endOf is where the one occurrence of none in a list without items ends.
func endOf(none, empty []byte) (int, error) {
	before, after, found := bytes.Cut(empty, none)
	if !found || bytes.Contains(after, none) {
		return 0, fmt.Errorf("a list without items is '%.200q'", empty)
	}
	return len(before) + len(none), nil
}

func (f jsonForm) items(list, empty []byte) ([]byte, error) {
	before, after, err := f.split(empty, 0, 0)
	if err != nil {
		return nil, err
	}
	return within(list, before, after)
}

func (jsonForm) separator() []byte { return []byte(",") }
func (jsonForm) sized() bool       { return false }

func within(list, before, after []byte) ([]byte, error) {
	items, begins := bytes.CutPrefix(list, before)
	items, ends := bytes.CutSuffix(items, after)
	if !begins || !ends {
		return nil, fmt.Errorf("a list begins with '%.100s', and without items it is '%s%s'", list, before, after)
	}
	return items, nil
}

// protobufForm is upstream's: a prefix, and an envelope whose payload is the list's metadata and then its items.
type protobufForm struct{}

var protobufPrefix = []byte("k8s\x00")

func opened(list []byte) (*runtime.Unknown, error) {
	envelope, found := bytes.CutPrefix(list, protobufPrefix)
	u := &runtime.Unknown{}
	if err := u.Unmarshal(envelope); err != nil || !found {
		return nil, fmt.Errorf("a list begins with '%.100x': %w", list, err)
	}
	return u, nil
}

func (protobufForm) items(list, empty []byte) ([]byte, error) {
	whole, err := opened(list)
	if err != nil {
		return nil, err
	}
	without, err := opened(empty)
	if err != nil {
		return nil, err
	}
	return within(whole.Raw, without.Raw, nil)
}

func (protobufForm) split(empty []byte, _, length int) (before, after []byte, err error) {
	u, err := opened(empty)
	if err != nil {
		return nil, nil, err
	}
	var out bytes.Buffer
	out.Write(protobufPrefix)
	end := 0
	_, err = u.MarshalToWriter(&out, len(u.Raw)+length, func(w io.Writer) (int, error) {
		n, err := w.Write(u.Raw)
		end = out.Len()
		return n + length, err
	})
	return out.Bytes()[:end], out.Bytes()[end:], err
}

func (protobufForm) separator() []byte { return nil }
func (protobufForm) sized() bool       { return true }

// cborForm is RFC 8949. The order of keys is not part of it, and upstream shuffles them. So the items of a piece, which
// are encoded in a fixed order, may differ in that from those that upstream's handler encodes.
type cborForm struct{}

// noCBORItems is the key 'items', which upstream writes as a byte string, and an empty array.
var noCBORItems = []byte("\x45items\x80")

const arrayOfCBOR = 4 << 5

func (cborForm) items(list, empty []byte) ([]byte, error) {
	end, err := endOf(noCBORItems, empty)
	if err != nil {
		return nil, err
	}
	items, err := within(list, empty[:end-1], empty[end:])
	if err != nil || len(items) == 0 {
		return nil, err
	}
	head := 1 // RFC 8949, section 3: the count follows in 1, 2, 4 or 8 bytes from 24 on
	if size := items[0] & 31; size >= 24 {
		head += 1 << (size - 24)
	}
	return items[min(head, len(items)):], nil
}

func (cborForm) split(empty []byte, count, _ int) (before, after []byte, err error) {
	end, err := endOf(noCBORItems, empty)
	if err != nil {
		return nil, nil, err
	}
	before = bytes.Clone(empty[:end-1])
	switch {
	case count < 24:
		before = append(before, arrayOfCBOR|byte(count))
	case count < 1<<8:
		before = append(before, arrayOfCBOR|24, byte(count))
	case count < 1<<16:
		before = binary.BigEndian.AppendUint16(append(before, arrayOfCBOR|25), uint16(count))
	default:
		before = binary.BigEndian.AppendUint32(append(before, arrayOfCBOR|26), uint32(count))
	}
	return before, empty[end:], nil
}

func (cborForm) separator() []byte { return nil }
func (cborForm) sized() bool       { return true }
