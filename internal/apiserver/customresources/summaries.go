package customresources

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/logplane/logplane/internal/apiserver/listers"
	"github.com/logplane/logplane/projection"
)

// Summary is a CRD without its large parts, which only the CRD's own instances and documents need: schemas, printer
// columns, the conversion, annotations and managed fields. A platform may have a thousand CRDs of 100 KiB, whose
// summaries take 2 KiB each.
type Summary struct {
	*apiextensionsv1.CustomResourceDefinition
}

// summaries keeps the summary of every CRD. Each call of now goes through the events since the last call, and reads
// only the CRDs that have changed. It does no work between calls, and is safe for concurrent use.
type summaries struct {
	rows *listers.Indexer // of CRDs, which are decoded without their large parts
	// lock is a mutex that callers wait for with a deadline. It guards the fields below, and is held while rows are
	// read.
	lock    chan struct{}
	changes listers.Changes
	byName  map[string]Summary
	stale   map[string]bool // names of CRDs that must be read again
	whole   bool            // all of them must be read again
	set     Set
}

func newSummaries(f *listers.Factory, p *projection.Projection, s listers.Source) *summaries {
	s.Decoder = summaryDecoder{s.Decoder}
	return &summaries{
		rows: f.NewIndexer(s), lock: make(chan struct{}, 1), changes: listers.NewChanges(p),
		byName: map[string]Summary{}, stale: map[string]bool{}, whole: true,
	}
}

// readTimeout bounds a read whose caller has no deadline.
const readTimeout = 10 * time.Second

// now returns the summaries of the newest view.
func (s *summaries) now(ctx context.Context) (Set, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	select {
	case s.lock <- struct{}{}:
		defer func() { <-s.lock }()
	case <-ctx.Done():
		return Set{}, fmt.Errorf("wait for CustomResourceDefinitions: %w", context.Cause(ctx))
	}
	v, err := s.changes.Forward(func(row string) {
		if name, ok := strings.CutPrefix(row, s.rows.Prefix()); ok {
			s.stale[name] = true
		}
	}, func() { s.whole = true })
	if err != nil {
		return Set{}, err
	}
	if !s.whole && len(s.stale) == 0 {
		return s.set, nil
	}
	if s.whole {
		byName, err := s.at(ctx, v)
		if err != nil {
			return Set{}, err
		}
		s.byName = byName
	} else {
		for name := range s.stale {
			row, found, err := v.Get(ctx, s.rows.Prefix()+name, v.Revision())
			if err == nil && found {
				err = s.put(ctx, s.byName, row)
			}
			if err != nil {
				return Set{}, err
			}
			if !found {
				delete(s.byName, name)
			}
		}
	}
	s.whole, s.stale = false, map[string]bool{}
	s.set = setOf(s.byName)
	return s.set, nil
}

// at reads the summaries of a view.
func (s *summaries) at(ctx context.Context, v *projection.View) (map[string]Summary, error) {
	all := map[string]Summary{}
	for row, err := range listers.Rows(ctx, v, s.rows.Prefix()) {
		if err == nil {
			err = s.put(ctx, all, row)
		}
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// put decodes a row's summary into the map. It leaves out what cannot be decoded.
func (s *summaries) put(ctx context.Context, into map[string]Summary, row projection.Row) error {
	name := strings.TrimPrefix(row.Key, s.rows.Prefix())
	object, err := s.rows.Parse(ctx, row)
	if listers.IsUndecodable(err) {
		s.rows.LeaveOut(ctx, row, err)
		delete(into, name)
		return nil
	}
	if err != nil {
		return err
	}
	into[name] = Summary{object.(*apiextensionsv1.CustomResourceDefinition)}
	return nil
}

// summaryDecoder decodes CRDs without their large parts.
type summaryDecoder struct{ runtime.Decoder }

// Decode implements runtime.Decoder.
func (d summaryDecoder) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if short, err := summaryParts.dropFrom(data); err == nil { // else the data is no protobuf, or damaged, which the decoder tells
		data = short
	}
	object, kind, err := d.Decoder.Decode(data, defaults, into)
	if crd, ok := object.(*apiextensionsv1.CustomResourceDefinition); ok {
		crd.Annotations, crd.ManagedFields, crd.Spec.Conversion = nil, nil, nil
		for i := range crd.Spec.Versions {
			v := &crd.Spec.Versions[i]
			v.Schema, v.AdditionalPrinterColumns, v.SelectableFields = nil, nil, nil
		}
	}
	return object, kind, err
}

// dropped names fields of a protobuf message that are dropped. Fields with an entry of their own are entered instead.
type dropped map[protowire.Number]dropped

var summaryParts = dropped{ // runtime.Unknown
	2: { // the CustomResourceDefinition
		1: {12: nil, 17: nil}, // of its metadata: annotations and managedFields
		2: { // its specification
			9: nil,                      // conversion
			7: {4: nil, 6: nil, 9: nil}, // of each version: schema, additionalPrinterColumns and selectableFields
		},
	},
}

// protobufMagic begins what Kubernetes stores as protobuf.
const protobufMagic = "k8s\x00"

var errNoProtobuf = errors.New("not the protobuf of Kubernetes")

// dropFrom returns the stored object without the fields. Dropping them from the encoded object costs a hundredth of
// decoding them.
func (d dropped) dropFrom(stored []byte) ([]byte, error) {
	message, ok := bytes.CutPrefix(stored, []byte(protobufMagic))
	if !ok {
		return nil, errNoProtobuf
	}
	return d.appendTo([]byte(protobufMagic), message)
}

func (d dropped) appendTo(out, message []byte) ([]byte, error) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		length := protowire.ConsumeFieldValue(number, kind, message[n:])
		if length < 0 {
			return nil, protowire.ParseError(length)
		}
		whole := message[:n+length]
		message = message[n+length:]
		inner, special := d[number]
		switch {
		case !special:
			out = append(out, whole...)
		case inner != nil && kind == protowire.BytesType:
			value, _ := protowire.ConsumeBytes(whole[n:])
			short, err := inner.appendTo(nil, value)
			if err != nil {
				return nil, err
			}
			out = protowire.AppendBytes(protowire.AppendTag(out, number, kind), short)
		}
	}
	return out, nil
}
