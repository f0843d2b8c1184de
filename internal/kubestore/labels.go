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

// storedLabels are the labels of an object, read from its stored bytes. Most objects that a selective list reads do not
// match. With storedLabels these objects need not be decoded.
type storedLabels struct {
	pairs []labelPair // if a key is repeated, the last pair counts
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

// storedField is a field requirement that stored bytes can decide.
type storedField struct {
	path []int32
	fields.Requirement
}

// judge decides from stored bytes whether objects match a list's or a watch's selection. It is not safe for concurrent
// use.
type judge struct {
	store *store
	// version is the version to which custom resources are converted.
	version string
	// selector is nil if stored labels cannot decide.
	selector labels.Selector
	fields   []storedField
	// labels are the labels of the object that is being judged.
	labels storedLabels
}

// judge returns nil if all stored objects must be decoded.
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
	if j.selector == nil && len(j.fields) == 0 {
		return nil
	}
	return j
}

// excludes says that the object's message does not fulfil the requirement.
func (f storedField) excludes(object []byte) bool {
	value, read := text(object, f.path)
	return read && (value == f.Value) == (f.Operator == selection.NotEquals)
}

// excludes says that a stored object does not match the selection. It returns false if it cannot tell; then the object
// must be decoded. If excludes can read the needed parts of a corrupt object, it judges the object like any other
// object.
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

// text returns the text at a path of fields, or the empty text if a field is missing.
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

// readCBOR returns the labels of a custom resource. It fails if the stored version is not the given version, since a
// conversion may change labels.
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

// The protobuf fields that lead to an object's labels.
const (
	protobufMagic = "k8s\x00"
	fieldRaw      = 2  // of runtime.Unknown
	fieldEncoding = 3  // of runtime.Unknown
	fieldMetadata = 1  // of every object
	fieldLabels   = 11 // of metav1.ObjectMeta
	fieldKey      = 1  // of an entry of a map
	fieldValue    = 2  // of an entry of a map
)

// rawObject returns the protobuf message inside a stored object's envelope.
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

// read reads the labels from an object's message, and returns whether it could.
func (l *storedLabels) read(object []byte) bool {
	l.pairs = l.pairs[:0]
	metadata, ok := at(object, fieldMetadata)
	return ok && eachField(metadata, func(number protowire.Number, value []byte) bool {
		return number != fieldLabels || l.add(value)
	})
}

// add adds one entry of the labels' map.
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

// at returns the field with the number, or nil if there is no such field. It fails if the field is repeated: it does
// not merge the parts of a message.
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

// eachField calls yield with each field that holds bytes, until yield returns false. It returns whether it reached the
// end.
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
