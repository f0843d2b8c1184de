package customresources

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/logplane/logplane/internal/apiserver/listers"
	"github.com/logplane/logplane/projection"
)

// Summary is a CRD without the large parts that a reader of all CRDs does not need: schemas, printer columns, the
// conversion, annotations and managed fields. A platform may have a thousand CRDs of 100 KiB, whose summaries take
// 2 KiB each.
type Summary struct {
	*apiextensionsv1.CustomResourceDefinition
}

// summaries keeps the summary of every CRD. Each call of now goes through the events since the last call, and reads
// only the CRDs that have changed. It does no work between calls, and is safe for concurrent use.
type summaries struct {
	// rows decodes CRDs without their large parts. Only its method Parse is used: the others would share the cache of
	// whole CRDs.
	rows *listers.Indexer
	// lock guards the fields below, also while rows are read. It is a channel because callers wait with a deadline.
	lock    chan struct{}
	changes listers.Changes
	byName  map[string]Summary
	stale   map[string]bool // names of CRDs that must be read again
	unknown bool            // it is not known which CRDs have changed
	set     Set
}

func newSummaries(f *listers.Factory, p *projection.Projection, s listers.Source) *summaries {
	s.Decoder = summaryDecoder{s.Decoder}
	return &summaries{
		rows: f.NewIndexer(s), lock: make(chan struct{}, 1), changes: listers.NewChanges(p),
		byName: map[string]Summary{}, stale: map[string]bool{}, unknown: true,
	}
}

// readTimeout bounds the wait for the lock, and the read after it.
const readTimeout = 10 * time.Second

// now returns the summaries of the newest view.
func (s *summaries) now(ctx context.Context) (Set, error) {
	select {
	case s.lock <- struct{}{}:
		defer func() { <-s.lock }()
	case <-ctx.Done():
		return Set{}, fmt.Errorf("wait for CustomResourceDefinitions: %w", context.Cause(ctx))
	case <-time.After(readTimeout):
		return Set{}, errBusy
	}
	// A read goes on when its client has gone, since the next caller needs it too.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
	defer cancel()
	v, err := s.changes.Forward(func(row string) {
		if name, ok := strings.CutPrefix(row, s.rows.Prefix()); ok {
			s.stale[name] = true
		}
	}, func() { s.unknown = true })
	if err == nil && s.unknown {
		err = s.find(ctx, v)
	}
	if err != nil {
		return Set{}, err
	}
	if len(s.stale) > 0 {
		if err := s.read(ctx, v); err != nil {
			return Set{}, err
		}
		s.set = setOf(s.byName)
	}
	return s.set, nil
}

// errBusy is an answer to clients: other requests have been reading all CRDs for long.
var errBusy = apierrors.NewTooManyRequests("the CustomResourceDefinitions are still being read", 1)

// find compares the revisions of all rows with the revisions of the known CRDs, and reads no values. It marks each
// changed CRD as stale. If no CRD is known yet, find reads all CRDs.
func (s *summaries) find(ctx context.Context, v *projection.View) (err error) {
	if len(s.byName) == 0 {
		if s.byName, err = s.at(ctx, v); err != nil {
			return err
		}
		s.unknown, s.stale, s.set = false, map[string]bool{}, setOf(s.byName)
		return nil
	}
	seen := map[string]bool{}
	start := s.rows.Prefix()
	for row, err := range v.ScanKeys(ctx, start, listers.After(start), v.Revision()) {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(row.Key, start)
		seen[name] = true
		if known, ok := s.byName[name]; !ok || known.revision() != uint64(row.Revision) {
			s.stale[name] = true
		}
	}
	for name := range s.byName {
		if !seen[name] {
			s.stale[name] = true
		}
	}
	s.unknown = false
	return nil
}

// read reads the stale CRDs.
func (s *summaries) read(ctx context.Context, v *projection.View) error {
	for name := range s.stale {
		row, found, err := v.Get(ctx, s.rows.Prefix()+name, v.Revision())
		if err == nil && found {
			err = s.put(ctx, s.byName, row)
		}
		if err != nil {
			return err
		}
		if !found {
			delete(s.byName, name)
		}
		delete(s.stale, name)
	}
	return nil
}

// at reads the summaries of a view.
func (s *summaries) at(ctx context.Context, v *projection.View) (map[string]Summary, error) {
	all := map[string]Summary{}
	for row, err := range v.ScanOnce(ctx, s.rows.Prefix(), listers.After(s.rows.Prefix()), v.Revision()) {
		if err == nil {
			err = s.put(ctx, all, row)
		}
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// put puts a row's summary into the map. The summary of a row that cannot be decoded has only a revision.
func (s *summaries) put(ctx context.Context, into map[string]Summary, row projection.Row) error {
	name := strings.TrimPrefix(row.Key, s.rows.Prefix())
	object, err := s.rows.Parse(ctx, row)
	if listers.IsUndecodable(err) {
		s.rows.LeaveOut(ctx, row, err)
		into[name] = Summary{&apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{ResourceVersion: fmt.Sprint(row.Revision)}}}
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
	object, kind, err := d.Decoder.Decode(summaryParts.dropFrom(data), defaults, into)
	if crd, ok := object.(*apiextensionsv1.CustomResourceDefinition); ok { // JSON is not shortened, and defaulting sets the conversion again
		crd.Annotations, crd.ManagedFields, crd.Spec.Conversion = nil, nil, nil
		for i := range crd.Spec.Versions {
			v := &crd.Spec.Versions[i]
			v.Schema, v.AdditionalPrinterColumns, v.SelectableFields = nil, nil, nil
		}
	}
	return object, kind, err
}

// dropped names fields of a protobuf message. A field with a nil entry is dropped. Any other entry names the fields to
// drop from the message that its field holds.
type dropped map[protowire.Number]dropped

var summaryParts = dropped{ // of runtime.Unknown
	2: { // the CustomResourceDefinition
		1: {12: nil, 17: nil}, // of its metadata: annotations and managedFields
		2: { // of its specification
			9: nil,                      // conversion
			7: {4: nil, 6: nil, 9: nil}, // of each version: schema, additionalPrinterColumns and selectableFields
		},
	},
}

// protobufMagic begins each object that Kubernetes stores as protobuf.
var protobufMagic = []byte("k8s\x00")

// dropFrom returns the stored object without the fields. It returns invalid protobuf unchanged, so that the decoder
// reports the error. Dropping a schema from the encoded object costs a hundredth of decoding the schema.
func (d dropped) dropFrom(stored []byte) []byte {
	message, ok := bytes.CutPrefix(stored, protobufMagic)
	if !ok {
		return stored
	}
	short, ok := d.appendTo(bytes.Clone(protobufMagic), message)
	if !ok {
		return stored
	}
	return short
}

func (d dropped) appendTo(out, message []byte) (_ []byte, ok bool) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil, false
		}
		length := protowire.ConsumeFieldValue(number, kind, message[n:])
		if length < 0 {
			return nil, false
		}
		field := message[:n+length]
		message = message[n+length:]
		inner, special := d[number]
		switch {
		case !special:
			out = append(out, field...)
		case inner == nil: // dropped
		case kind != protowire.BytesType:
			return nil, false
		default:
			value, _ := protowire.ConsumeBytes(field[n:])
			short, ok := inner.appendTo(nil, value)
			if !ok {
				return nil, false
			}
			out = protowire.AppendBytes(protowire.AppendTag(out, number, kind), short)
		}
	}
	return out, true
}
