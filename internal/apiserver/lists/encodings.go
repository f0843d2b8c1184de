package lists

import (
	"bytes"
	"fmt"
	"io"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/logplane/logplane/internal/apiserver/customresources/verbatim"
)

// encoding is the encoding of a list. It can cut the encoded items out of a list, and splice encoded items into a list
// without items.
type encoding interface {
	// items returns the encoded items of an encoded list, given the same list without items.
	items(list, empty []byte) ([]byte, error)
	// split cuts a list without items at the place of the items. The caller writes count items of length bytes between
	// the two parts, with the separator between chunks.
	split(empty []byte, count, length int) (before, after []byte, err error)
	separator() []byte
	// sized says that the part before the items depends on their count or length.
	sized() bool
}

// encodingOf returns the encoding of a media type, nil for an unknown one. key is the name of the list's field with the
// items.
func encodingOf(mediaType string, pretty bool, key string) encoding {
	switch mediaType {
	case runtime.ContentTypeJSON:
		if pretty {
			return textEncoding{none: [...]string{`"` + key + `": []`, `"` + key + `": null`}, open: `"` + key + `": [`, end: "\n  ]", by: ","}
		}
		return textEncoding{none: [...]string{`"` + key + `":[]`, `"` + key + `":null`}, open: `"` + key + `":[`, end: "]", by: ","}
	case runtime.ContentTypeYAML:
		return textEncoding{none: [...]string{"\n" + key + ": []\n", "\n" + key + ": null\n"}, open: "\n" + key + ":\n"}
	case runtime.ContentTypeProtobuf:
		return protobufEncoding{}
	case runtime.ContentTypeCBOR:
		return cborEncoding{}
	}
	return nil
}

// textEncoding is an encoding that writes the items between two fixed texts. The bytes of an item depend neither on the
// number of items nor on the item's place.
type textEncoding struct {
	// none has the two texts that a list without items may have in place of the items. Such a list cannot contain these
	// texts elsewhere: not in its kind, version, revision and continue token, nor in the encoded columns of a Table.
	none [2]string
	// open stands before the items, end after the items, and by between two items.
	open, end, by string
}

func (e textEncoding) split(empty []byte, count, _ int) (before, after []byte, err error) {
	start, end, err := place(empty, e.none)
	if err != nil || count == 0 {
		return empty, nil, err
	}
	return slices.Concat(empty[:start], []byte(e.open)), slices.Concat([]byte(e.end), empty[end:]), nil
}

// place finds the text of 'none' that a list without items has.
func place(empty []byte, none [2]string) (start, end int, err error) {
	for _, way := range none {
		before, after, found := bytes.Cut(empty, []byte(way))
		if found && !bytes.Contains(after, []byte(way)) {
			return len(before), len(before) + len(way), nil
		}
	}
	return 0, 0, fmt.Errorf("a list without items is '%.200q'", empty)
}

func (e textEncoding) items(list, empty []byte) ([]byte, error) {
	before, after, err := e.split(empty, 1, 0)
	if err != nil {
		return nil, err
	}
	return within(list, before, after)
}

func (e textEncoding) separator() []byte { return []byte(e.by) }
func (textEncoding) sized() bool         { return false }

func within(list, before, after []byte) ([]byte, error) {
	items, begins := bytes.CutPrefix(list, before)
	items, ends := bytes.CutSuffix(items, after)
	if !begins || !ends {
		return nil, fmt.Errorf("a list begins with '%.100s', and without items it is '%s%s'", list, before, after)
	}
	return items, nil
}

// protobufEncoding is upstream's encoding: a prefix, and an envelope whose payload is the list's metadata and then its
// items.
type protobufEncoding struct{}

var protobufPrefix = []byte("k8s\x00")

func opened(list []byte) (*runtime.Unknown, error) {
	envelope, found := bytes.CutPrefix(list, protobufPrefix)
	u := &runtime.Unknown{}
	if err := u.Unmarshal(envelope); err != nil || !found {
		return nil, fmt.Errorf("a list begins with '%.100x': %w", list, err)
	}
	return u, nil
}

func (protobufEncoding) items(list, empty []byte) ([]byte, error) {
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

func (protobufEncoding) split(empty []byte, _, length int) (before, after []byte, err error) {
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

func (protobufEncoding) separator() []byte { return nil }
func (protobufEncoding) sized() bool       { return true }

// cborEncoding is RFC 8949. The order of keys has no meaning in CBOR, and upstream shuffles the keys. The order of the
// keys in a chunk's items is fixed, so it may differ from the order that upstream's handler would write.
type cborEncoding struct{}

// noCBORItems has the key 'items', which upstream writes as a byte string, followed by an empty array or by null.
var noCBORItems = [...]string{"\x45items\x80", "\x45items\xf6"}

const arrayOfCBOR = 4 // the major type

func (cborEncoding) items(list, empty []byte) ([]byte, error) {
	_, end, err := place(empty, noCBORItems)
	if err != nil {
		return nil, err
	}
	items, err := within(list, empty[:end-1], empty[end:])
	if err != nil || len(items) == 0 {
		return nil, err
	}
	head := 1 // RFC 8949, section 3: a count of 24 or more follows in 1, 2, 4 or 8 bytes
	if size := items[0] & 31; size >= 24 {
		head += 1 << (size - 24)
	}
	return items[min(head, len(items)):], nil
}

func (cborEncoding) split(empty []byte, count, _ int) (before, after []byte, err error) {
	_, end, err := place(empty, noCBORItems)
	if err != nil || count == 0 {
		return empty, nil, err
	}
	return verbatim.AppendHead(bytes.Clone(empty[:end-1]), arrayOfCBOR, uint64(count)), empty[end:], nil
}

func (cborEncoding) separator() []byte { return nil }
func (cborEncoding) sized() bool       { return true }
