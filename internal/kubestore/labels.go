package kubestore

import (
	"bytes"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/storage"
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

// storedField is a requirement of a list that can be judged by stored bytes.
type storedField struct {
	path []int32
	fields.Requirement
}

// judge judges stored objects by what a list or a watch selects. It is not safe for concurrent use.
type judge struct {
	store *store
	// version to which custom resources are converted.
	version string
	// selector is nil if labels decide nothing.
	selector labels.Selector
	fields   []storedField
	// labels are those of the object that is looked at.
	labels storedLabels
}

// judge returns nil if stored objects must all be decoded. While corrupt objects may be deleted, a list names them all.
func (s *store) judge(p *storage.SelectionPredicate, version string) *judge {
	j := &judge{store: s, version: version}
	if p.Label != nil && !p.Label.Empty() && !s.DecodesLabels {
		j.selector = p.Label
	}
	if p.Field != nil && len(s.StoredFields) > 0 {
		for _, r := range p.Field.Requirements() {
			if path := s.StoredFields[r.Field]; path != nil {
				j.fields = append(j.fields, storedField{path, r})
			}
		}
	}
	if j.selector == nil && len(j.fields) == 0 || unsafeDeletion() {
		return nil
	}
	return j
}

// excludes says that the message of an object does not fulfil the requirement.
func (f storedField) excludes(object []byte) bool {
	value, read := text(object, f.path)
	return read && (value == f.Value) == (f.Operator == selection.NotEquals)
}

// excludes says that a stored object does not match what is selected. If it cannot tell, the object must be decoded.
// A corrupt object that can be read so far is judged by that, as if it could be decoded.
func (j *judge) excludes(data []byte) bool {
	if j == nil {
		return false
	}
	if j.store.unstructured {
		set, read := readCBOR(data, j.version)
		return j.selector != nil && read && !j.selector.Matches(set)
	}
	object, ok := rawObject(data)
	if !ok {
		return false
	}
	if j.selector != nil && j.labels.read(object) && !j.selector.Matches(&j.labels) {
		return true
	}
	return slices.ContainsFunc(j.fields, func(f storedField) bool { return f.excludes(object) })
}

// text returns the text at a path of fields, which is empty if it is not there.
func text(message []byte, path []int32) (string, bool) {
	for _, number := range path {
		value, ok := at(message, protowire.Number(number))
		if !ok {
			return "", false
		}
		message = value
	}
	return string(message), true
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

// rawObject returns the message of an object in protobuf.
func rawObject(data []byte) ([]byte, bool) {
	if !bytes.HasPrefix(data, []byte(protobufMagic)) {
		return nil, false
	}
	envelope := data[len(protobufMagic):]
	encoding, ok := at(envelope, fieldEncoding)
	if !ok || len(encoding) > 0 {
		return nil, false
	}
	return at(envelope, fieldRaw)
}

// read reads the labels of an object's message, and reports whether it could.
func (l *storedLabels) read(object []byte) bool {
	l.pairs = l.pairs[:0]
	metadata, ok := at(object, fieldMetadata)
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

// at returns the field of a number, nil if there is none. A message that comes in parts is not put together here.
func at(message []byte, wanted protowire.Number) (value []byte, ok bool) {
	found := 0
	read := eachField(message, func(number protowire.Number, v []byte) bool {
		if number == wanted {
			value = v
			found++
		}
		return found < 2
	})
	return value, read
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
