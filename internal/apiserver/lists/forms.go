package lists

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
)

// form is an encoding of lists. Encoded items can be cut out of a list in it, and spliced into a list without items.
type form interface {
	// items returns the encoded items of an encoded list, given the same list without items.
	items(list, empty []byte) ([]byte, error)
	// split cuts a list without items at the place of the items. The caller writes count items of length bytes between
	// the two parts, with the separator between pieces.
	split(empty []byte, count, length int) (before, after []byte, err error)
	separator() []byte
	// sized says that the part before the items depends on their count or length.
	sized() bool
}

// formOf returns the form of a media type, nil if it has none. key is the name of the list's field with the items.
func formOf(mediaType string, pretty bool, key string) form {
	switch mediaType {
	case runtime.ContentTypeJSON:
		if pretty {
			return textForm{none: [...]string{`"` + key + `": []`, `"` + key + `": null`}, open: `"` + key + `": [`, end: "\n  ]", by: ","}
		}
		return textForm{none: [...]string{`"` + key + `":[]`, `"` + key + `":null`}, open: `"` + key + `":[`, end: "]", by: ","}
	case runtime.ContentTypeYAML:
		return textForm{none: [...]string{"\n" + key + ": []\n", "\n" + key + ": null\n"}, open: "\n" + key + ":\n"}
	case runtime.ContentTypeProtobuf:
		return protobufForm{}
	case runtime.ContentTypeCBOR:
		return cborForm{}
	}
	return nil
}

// textForm is an encoding in which the items stand between two marks, and are encoded alike whatever their number or
// place.
type textForm struct {
	// none has the two texts that a list without items may have in their place. Such a list cannot contain them
	// elsewhere: not in its kind, version, revision and continue token, nor in the encoded columns of a Table.
	none [2]string
	// open and end stand around the items, and by between them.
	open, end, by string
}

func (f textForm) split(empty []byte, count, _ int) (before, after []byte, err error) {
	start, end, err := place(empty, f.none)
	if err != nil || count == 0 {
		return empty, nil, err
	}
	return slices.Concat(empty[:start], []byte(f.open)), slices.Concat([]byte(f.end), empty[end:]), nil
}

// place finds the text of none that a list without items has.
func place(empty []byte, none [2]string) (start, end int, err error) {
	for _, way := range none {
		before, after, found := bytes.Cut(empty, []byte(way))
		if found && !bytes.Contains(after, []byte(way)) {
			return len(before), len(before) + len(way), nil
		}
	}
	return 0, 0, fmt.Errorf("a list without items is '%.200q'", empty)
}

func (f textForm) items(list, empty []byte) ([]byte, error) {
	before, after, err := f.split(empty, 1, 0)
	if err != nil {
		return nil, err
	}
	return within(list, before, after)
}

func (f textForm) separator() []byte { return []byte(f.by) }
func (textForm) sized() bool         { return false }

func within(list, before, after []byte) ([]byte, error) {
	items, begins := bytes.CutPrefix(list, before)
	items, ends := bytes.CutSuffix(items, after)
	if !begins || !ends {
		return nil, fmt.Errorf("a list begins with '%.100s', and without items it is '%s%s'", list, before, after)
	}
	return items, nil
}

// protobufForm is upstream's encoding: a prefix, and an envelope whose payload is the list's metadata and then its
// items.
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

// cborForm is RFC 8949. The order of keys has no meaning in it, and upstream shuffles them. So the keys of a piece's
// items, whose order is fixed, may come in another order than upstream's handler would write.
type cborForm struct{}

// noCBORItems is the key 'items', which upstream writes as a byte string, and an empty array or null.
var noCBORItems = [...]string{"\x45items\x80", "\x45items\xf6"}

const arrayOfCBOR = 4 << 5

func (cborForm) items(list, empty []byte) ([]byte, error) {
	_, end, err := place(empty, noCBORItems)
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
	_, end, err := place(empty, noCBORItems)
	if err != nil || count == 0 {
		return empty, nil, err
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
