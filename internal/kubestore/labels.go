package kubestore

import (
	"bytes"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
)

// storedLabels are the labels of an object, read from its stored bytes. Most of what a selective list looks at does not
// match, and need not be decoded for that.
type storedLabels struct {
	pairs []labelPair // of which the last one of a key counts
}

type labelPair struct{ key, value []byte }

var _ labels.Labels = (*storedLabels)(nil)

// Has implements labels.Labels.
func (l *storedLabels) Has(label string) bool {
	_, found := l.Lookup(label)
	return found
}

// Get implements labels.Labels.
func (l *storedLabels) Get(label string) string {
	value, _ := l.Lookup(label)
	return value
}

// Lookup implements labels.Labels.
func (l *storedLabels) Lookup(label string) (value string, found bool) {
	for i := len(l.pairs) - 1; i >= 0; i-- {
		if string(l.pairs[i].key) == label {
			return string(l.pairs[i].value), true
		}
	}
	return "", false
}

// excludes says that a stored object does not match the labels that a list selects. If it cannot tell, the object must
// be decoded. A corrupt object whose labels can be read is judged by them, as if it could be decoded.
func (l *listing) excludes(data []byte) bool {
	selector := l.opts.Predicate.Label
	if selector == nil || selector.Empty() || l.store.DecodesLabels || unsafeDeletion() {
		return false
	}
	if l.store.unstructured {
		set, read := readCBOR(data, l.list.GetObjectKind().GroupVersionKind().GroupVersion().String())
		return read && !selector.Matches(set)
	}
	return l.labels.read(data) && !selector.Matches(&l.labels)
}

// readCBOR returns the labels of a custom resource that is stored in the version that is asked for. A conversion may
// change labels.
func readCBOR(data []byte, version string) (labels.Set, bool) {
	var object struct {
		APIVersion string `json:"apiVersion"`
		Metadata   struct {
			Labels labels.Set `json:"labels"`
		} `json:"metadata"`
	}
	err := direct.Unmarshal(data, &object)
	return object.Metadata.Labels, err == nil && object.APIVersion == version
}

// How Kubernetes' messages lead to an object's labels.
const (
	protobufMagic = "k8s\x00"
	fieldRaw      = 2  // of runtime.Unknown
	fieldEncoding = 3  // of runtime.Unknown
	fieldMetadata = 1  // of every object
	fieldLabels   = 11 // of metav1.ObjectMeta
	fieldKey      = 1  // of an entry of a map
	fieldValue    = 2  // of an entry of a map
)

// read reads the labels of an object in protobuf, and reports whether it could.
func (l *storedLabels) read(data []byte) bool {
	l.pairs = l.pairs[:0]
	if !bytes.HasPrefix(data, []byte(protobufMagic)) {
		return false
	}
	envelope := data[len(protobufMagic):]
	if encoding, _ := only(envelope, fieldEncoding); len(encoding) > 0 {
		return false
	}
	raw, ok := only(envelope, fieldRaw)
	if !ok {
		return false
	}
	metadata, ok := only(raw, fieldMetadata)
	return ok && eachField(metadata, func(number protowire.Number, value []byte) bool {
		return number != fieldLabels || l.add(value)
	})
}

// add adds an entry of the map of labels.
func (l *storedLabels) add(entry []byte) bool {
	var pair labelPair
	read := eachField(entry, func(number protowire.Number, value []byte) bool {
		switch number {
		case fieldKey:
			pair.key = value
		case fieldValue:
			pair.value = value
		}
		return true
	})
	l.pairs = append(l.pairs, pair)
	return read
}

// only returns the one field of a number. A message that comes in parts is not put together here.
func only(message []byte, wanted protowire.Number) (value []byte, ok bool) {
	read := eachField(message, func(number protowire.Number, v []byte) bool {
		if number == wanted {
			if ok {
				return false
			}
			value, ok = v, true
		}
		return true
	})
	return value, ok && read
}

// eachField calls yield with the fields that hold bytes, until it returns false. It reports whether it came to the end.
func eachField(message []byte, yield func(protowire.Number, []byte) bool) bool {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return false
		}
		message = message[n:]
		if kind != protowire.BytesType {
			n = protowire.ConsumeFieldValue(number, kind, message)
			if n < 0 {
				return false
			}
			message = message[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(message)
		if n < 0 || !yield(number, value) {
			return false
		}
		message = message[n:]
	}
	return true
}
