// Package watchwriter sends the events with which watches begin. They are encoded once for all watches, and sent many
// at a time, while upstream's handler would send each event by itself.
package watchwriter

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	compbasemetrics "k8s.io/component-base/metrics"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/internal/serving"
)

// Wanted returns the encoding in which a watch asks for objects. It returns false for a watch that asks for something
// else, such as a Table.
func Wanted(r *http.Request, s runtime.NegotiatedSerializer) (runtime.SerializerInfo, bool) {
	if httpstream.IsUpgradeRequest(r) {
		return runtime.SerializerInfo{}, false
	}
	wanted, ok := negotiation.NegotiateMediaTypeOptions(r.Header.Get("Accept"), s.SupportedMediaTypes(), anyTransform{})
	if !ok || wanted.Convert != nil || wanted.Accepted.StreamSerializer == nil || wanted.Accepted.StreamSerializer.Serializer == nil {
		return runtime.SerializerInfo{}, false
	}
	return wanted.Accepted, true
}

// anyTransform allows the same as upstream, and also all transformations, so that Wanted recognises requests for
// transformed objects.
type anyTransform struct{}

// AllowsMediaTypeTransform implements negotiation.EndpointRestrictions.
func (anyTransform) AllowsMediaTypeTransform(string, string, *schema.GroupVersionKind) bool {
	return true
}

// AllowsServerVersion implements negotiation.EndpointRestrictions.
func (anyTransform) AllowsServerVersion(version string) bool {
	return version == metav1.SchemeGroupVersion.Version
}

// AllowsStreamSchema implements negotiation.EndpointRestrictions.
func (anyTransform) AllowsStreamSchema(schema string) bool { return schema == "watch" }

// writer sends the state with which one watch begins.
type writer struct {
	*Encoding
	stream *serving.Stream
}

// New returns the writer of a stream.
func New(e *Encoding, s *serving.Stream) kubestore.WatchWriter { return writer{e, s} }

// SendAll implements kubestore.WatchWriter. It counts events and their sizes as upstream's handler does, but gives each
// event the mean size of all events, and includes the frame in the size.
func (w writer) SendAll(frames []byte, events int) error {
	if err := w.stream.SendAll(frames); err != nil {
		return err
	}
	w.events.Add(float64(events))
	for range events {
		w.sizes.Observe(float64(len(frames) / events))
	}
	return nil
}

// Encoding is the encoding of a resource's events in one media type, as upstream's handler encodes them. It is safe for
// concurrent use.
type Encoding struct {
	name          string
	object, event runtime.Encoder
	framer        runtime.Framer
	events        compbasemetrics.CounterMetric
	sizes         compbasemetrics.ObserverMetric
	mediaType     string
	verbatim      func(ctx context.Context, mediaType string) kubestore.Append
}

// NewEncoding returns the encoding of the resource's events for 'accepted', one of the serializers of s. 'verbatim'
// gets the context of a watch, and returns a function that encodes stored objects as a media type. 'verbatim' may be
// nil, and may return nil.
func NewEncoding(resource schema.GroupVersionResource, s runtime.NegotiatedSerializer, accepted runtime.SerializerInfo,
	verbatim func(ctx context.Context, mediaType string) kubestore.Append,
) *Encoding {
	version := resource.GroupVersion()
	encoder := func(one runtime.Serializer) runtime.Encoder {
		return s.EncoderForVersion(runtime.UseNondeterministicEncoding(one), version)
	}
	return &Encoding{
		name:   fmt.Sprintf("events of %s as %s", version, accepted.MediaType),
		object: encoder(accepted.Serializer), event: encoder(accepted.StreamSerializer.Serializer), framer: accepted.StreamSerializer.Framer,
		events:    metrics.WatchEvents.WithLabelValues(resource.Group, resource.Version, resource.Resource),
		sizes:     metrics.WatchEventsSizes.WithLabelValues(resource.Group, resource.Version, resource.Resource),
		mediaType: accepted.MediaType, verbatim: verbatim,
	}
}

// Encodings keeps the encodings of some resources. Its zero value is ready, and it is safe for concurrent use.
type Encodings struct {
	encodings sync.Map // *Encoding by encodingOf
}

type encodingOf struct {
	resource  schema.GroupVersionResource
	mediaType string
}

// Of returns the encoding of a resource in a media type. If there is no such encoding yet, Of calls newEncoding, which
// may return nil. Concurrent calls of Of may call newEncoding several times, and return the result of one call.
func (e *Encodings) Of(resource schema.GroupVersionResource, mediaType string, newEncoding func() *Encoding) *Encoding {
	of := encodingOf{resource, mediaType}
	encoding, ok := e.encodings.Load(of)
	if !ok {
		encoding, _ = e.encodings.LoadOrStore(of, newEncoding())
	}
	return encoding.(*Encoding)
}

// Name implements kubestore.WatchWriter.
func (e *Encoding) Name() string { return e.name }

// Frame implements kubestore.WatchWriter. It recovers a panic of upstream's encoders, since no waiting request would
// recover the panic and answer.
func (e *Encoding) Frame(object runtime.Object) (_ []byte, err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("encode an event: %v", reason)
		}
	}()
	var raw, event, frame bytes.Buffer
	if err := e.object.Encode(object, &raw); err != nil {
		return nil, fmt.Errorf("encode the object of an event: %w", err)
	}
	if err := e.event.Encode(&metav1.WatchEvent{Type: string(watch.Added), Object: runtime.RawExtension{Raw: raw.Bytes()}}, &event); err != nil {
		return nil, fmt.Errorf("encode an event: %w", err)
	}
	if _, err := e.framer.NewFrameWriter(&frame).Write(event.Bytes()); err != nil {
		return nil, fmt.Errorf("frame an event: %w", err)
	}
	return frame.Bytes(), nil
}

// Verbatim implements kubestore.WatchWriter.
func (e *Encoding) Verbatim(ctx context.Context) kubestore.Append {
	if e.verbatim == nil || e.mediaType != runtime.ContentTypeJSON {
		return nil
	}
	add := e.verbatim(ctx, e.mediaType)
	if add == nil {
		return nil
	}
	return func(to, stored []byte, revision uint64) []byte {
		to = add(append(to, `{"type":"ADDED","object":`...), stored, revision)
		if to == nil {
			return nil
		}
		return append(to, "}\n"...)
	}
}
