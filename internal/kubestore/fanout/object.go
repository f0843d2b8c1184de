package fanout

import (
	"sync"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// object is an object of a change. It is decoded, asked for its attributes and encoded at most once. Nobody writes to
// it.
type object struct {
	mu      sync.Mutex // guards the fields below
	loaded  bool
	decoded runtime.Object // nil if there was no object

	attributed bool
	labels     labels.Set
	fields     fields.Set
	attrsErr   error

	encoded *encodedOnce
}

// load returns the object, or nil if there is no object. It does not keep an error, because the bucket or the key
// service may answer the next watch.
func (o *object) load(load func() (runtime.Object, error)) (runtime.Object, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.loaded {
		return o.decoded, nil
	}
	decoded, err := load()
	if err != nil {
		return nil, err
	}
	o.loaded, o.decoded = true, decoded
	return decoded, nil
}

// matches is Predicate.Matches for the loaded object. A nil predicate matches everything. All watches of a store share
// one call of the registry's GetAttrs: the call costs far more than the comparison.
func (o *object) matches(p *storage.SelectionPredicate) bool {
	if p == nil {
		return true
	}
	if p.ShardSelector != nil && !p.ShardSelector.Empty() { // shards depend on more than the attributes
		matched, err := p.Matches(o.decoded)
		return err == nil && matched
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.attributed {
		o.labels, o.fields, o.attrsErr = p.GetAttrs(o.decoded)
		o.attributed = true
	}
	return o.attrsErr == nil && p.MatchesObjectAttributes(o.labels, o.fields)
}

// sendable returns the loaded object: a copy for one watch, or for many watches the object that is encoded once.
func (o *object) sendable(many bool) runtime.Object {
	if !many {
		return o.decoded.DeepCopyObject()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.encoded == nil {
		o.encoded = newEncodedOnce(o.decoded)
	}
	if o.encoded == nil {
		return o.decoded.DeepCopyObject()
	}
	return o.encoded
}
