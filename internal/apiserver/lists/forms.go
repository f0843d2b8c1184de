package lists

import (
	"bytes"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/runtime"
)

// form is an encoding of lists. A list without items, with others spliced in, is the list with these.
type form interface {
	// items are those of an encoded list, as they stand there, given the same list without any.
	items(list, empty []byte) ([]byte, error)
	// split cuts a list without items where they belong. Items of that many bytes follow the first part, with the
	// separator between pieces.
	split(empty []byte, length int) (before, after []byte, err error)
	separator() []byte
	// sized says that a list begins with its length.
	sized() bool
}

// forms by media type.
var forms = map[string]form{
	runtime.ContentTypeJSON:     jsonForm{},
	runtime.ContentTypeProtobuf: protobufForm{},
}

type jsonForm struct{}

// noItems has no other meaning in a list without items: its kind, version, revision and continue token hold no quotes.
var noItems = []byte(`"items":[]`)

func (jsonForm) split(empty []byte, _ int) (before, after []byte, err error) {
	before, after, found := bytes.Cut(empty, noItems)
	if !found || bytes.Contains(after, noItems) {
		return nil, nil, fmt.Errorf("a list without items is '%s'", empty)
	}
	end := len(before) + len(noItems) - 1
	return empty[:end], empty[end:], nil
}

func (f jsonForm) items(list, empty []byte) ([]byte, error) {
	before, after, err := f.split(empty, 0)
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

func (protobufForm) split(empty []byte, length int) (before, after []byte, err error) {
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
