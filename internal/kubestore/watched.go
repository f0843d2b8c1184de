package kubestore

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/internal/kubestore/fanout"
)

var _ fanout.Store = (*store)(nil)

// ObjectAfter implements fanout.Store.
func (s *store) ObjectAfter(ctx context.Context, e *fanout.Event) (runtime.Object, error) {
	return s.object(ctx, stored{rowKey: e.RowKey, revision: e.Revision, value: e.Body})
}

// ObjectBefore implements fanout.Store.
func (s *store) ObjectBefore(ctx context.Context, e *fanout.Event) (runtime.Object, error) {
	if e.Revision <= 1 {
		return nil, nil
	}
	v, err := s.Projection.AtLeast(ctx, e.Revision-1)
	if err != nil {
		return nil, err
	}
	row, found, err := v.Get(ctx, e.RowKey, e.Revision-1)
	if err != nil || !found || s.foreign(row.ContentType) {
		return nil, err
	}
	return s.object(ctx, storedRow(row))
}

// CachedBefore implements fanout.Store.
func (s *store) CachedBefore(e *fanout.Event) runtime.Object {
	return s.Objects.get(version{store: s.id, rowKey: e.RowKey, revision: e.Base, kind: s.kind(nil)})
}

// FieldValue implements fanout.Store.
func (s *store) FieldValue(field string, o runtime.Object) string { return s.Indexers[field](o) }

// indexFor returns an index for watches with the predicate, and the value that they select. There is no index if a
// transformer may ask a key service, because the feed does not wait for a key service.
func (s *store) indexFor(p *storage.SelectionPredicate) (fanout.Index, string) {
	if p.Field == nil || !s.plain {
		return fanout.Index{}, ""
	}
	for field := range s.Indexers {
		value, ok := p.Field.RequiresExactMatch(field)
		if ok {
			return fanout.Index{Store: s, Field: field}, value
		}
	}
	return fanout.Index{}, ""
}

// ErrDropped is the error of a codec of custom resources for an object in a version that its CRD no longer has.
var ErrDropped = errors.New("the object is stored in a version that was dropped")

// Local is a codec of custom resources. It can tell which values it decodes without a webhook, and which of these
// values it decodes quickly.
type Local interface {
	Local(data []byte) (local, soon bool)
}

// local says that a value can be decoded without a webhook. Soon says that this decoding is quick.
func (s *store) local(data []byte) (local, soon bool) {
	if !s.unstructured {
		return true, true
	}
	codec, ok := s.Codec.(Local)
	if !ok {
		return false, false
	}
	return codec.Local(data)
}

// Prompt implements fanout.Store. It returns false if a transformer may ask a key service, or if a custom resource may
// have to be converted.
func (s *store) Prompt(e *fanout.Event) bool {
	if !s.plain {
		return false
	}
	_, soon := s.local(e.Body)
	return soon
}

// object decodes a stored version. The object may be in the cache, so nobody may write to it.
func (s *store) object(ctx context.Context, v stored) (runtime.Object, error) {
	data, _, err := s.unseal(ctx, v)
	if err != nil {
		return nil, err
	}
	return s.shared(v, data, nil)
}
