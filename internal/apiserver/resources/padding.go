package resources

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/bits"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
)

// Subscribers learn the size of each event (docs/subscribers.md). The size of a Secret would reveal how long a password
// is. So the value of a Secret is stored in an envelope whose length many other Secrets share (docs/format.md).

// paddedResource is the resource whose values are padded.
var paddedResource = schema.GroupResource{Resource: "secrets"}

var paddedMagic = []byte("LPpd")

const (
	// shortestPadded is the least length of an envelope.
	shortestPadded = 1 << 10
	// longestPadded is the greatest length of a padded envelope. The API does not accept Secrets that would be longer.
	longestPadded = 4 << 20
)

// padded puts each value into an envelope, which the transformer then encrypts.
type padded struct{ value.Transformer }

func newPadded(t value.Transformer) value.Transformer {
	if t == nil {
		t = identity.NewEncryptCheckTransformer()
	}
	return padded{t}
}

// TransformToStorage implements value.Transformer. It encrypts the envelope.
func (p padded) TransformToStorage(ctx context.Context, data []byte, bound value.Context) ([]byte, error) {
	return p.Transformer.TransformToStorage(ctx, pad(data), bound)
}

// TransformFromStorage implements value.Transformer. A value without an envelope was stored before there was padding;
// the next update rewrites it.
func (p padded) TransformFromStorage(ctx context.Context, data []byte, bound value.Context) ([]byte, bool, error) {
	data, stale, err := p.Transformer.TransformFromStorage(ctx, data, bound)
	if err != nil {
		return nil, false, err
	}
	return Unpadded(data), stale || !bytes.HasPrefix(data, paddedMagic), nil
}

// pad returns the envelope of data. Its length is the next power of two.
func pad(data []byte) []byte {
	envelope := binary.AppendUvarint(paddedMagic[:len(paddedMagic):len(paddedMagic)], uint64(len(data)))
	envelope = append(envelope, data...)
	length := max(shortestPadded, 1<<bits.Len(uint(len(envelope)-1)))
	if length > longestPadded {
		return envelope
	}
	return append(envelope, make([]byte, length-len(envelope))...)
}

// Unpadded returns the content of an envelope. It returns other data unchanged.
func Unpadded(data []byte) []byte {
	rest, ok := bytes.CutPrefix(data, paddedMagic)
	if !ok {
		return data
	}
	length, n := binary.Uvarint(rest)
	if n <= 0 || length > uint64(len(rest)-n) {
		return data // not an envelope of this package; decoding the data will fail
	}
	return rest[n:][:length]
}
