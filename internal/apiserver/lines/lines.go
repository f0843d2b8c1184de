// Package lines sends events to the clients of watches without upstream's handler. Waking the handler's goroutine and
// the watch's own, and going through the handler's writers, costs more than writing an event to the connection. The
// events with which watches begin are encoded once for all watches.
package lines

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

// anyTransform allows what upstream allows, and also all transformations, so that Wanted recognises requests for them.
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

// line leads to the client of one watch.
type line struct {
	form   *Form
	stream *serving.Stream
}

// New returns the line to the client of a stream.
func New(f *Form, s *serving.Stream) kubestore.Line { return line{f, s} }

// Form implements kubestore.Line.
func (l line) Form() kubestore.Form { return l.form }

// Sends implements kubestore.Line.
func (l line) Sends() bool { return l.stream.Sends() }

// Send implements kubestore.Line. It counts as upstream's handler does, except that sizes include the frame.
func (l line) Send(chunk []byte) bool {
	if !l.stream.Send(chunk) {
		return false
	}
	l.form.events.Inc()
	l.form.sizes.Observe(float64(len(chunk)))
	return true
}

// SendAll implements kubestore.Line. It counts each event with the mean size of all.
func (l line) SendAll(frames []byte, events int) error {
	if err := l.stream.SendAll(frames); err != nil {
		return err
	}
	l.form.events.Add(float64(events))
	for range events {
		l.form.sizes.Observe(float64(len(frames) / events))
	}
	return nil
}

// Form is the encoding of a resource's events in one media type, as upstream's handler encodes them. It is safe for
// concurrent use.
type Form struct {
	name          string
	object, event runtime.Encoder
	framer        runtime.Framer
	events        compbasemetrics.CounterMetric
	sizes         compbasemetrics.ObserverMetric
	mediaType     string
	verbatim      func(ctx context.Context, mediaType string) kubestore.Append
}

// NewForm returns the form of the resource's events in the encoding 'accepted', which is one of the encodings of s.
// verbatim returns a function that encodes stored objects as a media type, for the context of a watch. verbatim may be
// nil, and may return nil.
func NewForm(resource schema.GroupVersionResource, s runtime.NegotiatedSerializer, accepted runtime.SerializerInfo,
	verbatim func(ctx context.Context, mediaType string) kubestore.Append,
) *Form {
	version := resource.GroupVersion()
	encoder := func(one runtime.Serializer) runtime.Encoder {
		return s.EncoderForVersion(runtime.UseNondeterministicEncoding(one), version)
	}
	return &Form{
		name:   fmt.Sprintf("events of %s as %s", version, accepted.MediaType),
		object: encoder(accepted.Serializer), event: encoder(accepted.StreamSerializer.Serializer), framer: accepted.StreamSerializer.Framer,
		events:    metrics.WatchEvents.WithLabelValues(resource.Group, resource.Version, resource.Resource),
		sizes:     metrics.WatchEventsSizes.WithLabelValues(resource.Group, resource.Version, resource.Resource),
		mediaType: accepted.MediaType, verbatim: verbatim,
	}
}

// Forms keeps the forms of some resources. Its zero value is ready, and it is safe for concurrent use.
type Forms struct {
	mu    sync.Mutex
	forms map[formOf]*Form // by mu
}

type formOf struct {
	resource  schema.GroupVersionResource
	mediaType string
}

// Of returns the form of a resource in a media type. It calls newForm if it has none yet; that form may be nil.
func (f *Forms) Of(resource schema.GroupVersionResource, mediaType string, newForm func() *Form) *Form {
	f.mu.Lock()
	defer f.mu.Unlock()
	of := formOf{resource, mediaType}
	form, ok := f.forms[of]
	if !ok {
		if f.forms == nil {
			f.forms = map[formOf]*Form{}
		}
		form = newForm()
		f.forms[of] = form
	}
	return form
}

// Name implements kubestore.Form.
func (f *Form) Name() string { return f.name }

// Chunk implements kubestore.Form.
func (f *Form) Chunk(t watch.EventType, object runtime.Object) ([]byte, error) {
	frame, err := f.Frame(t, object)
	return serving.Chunk(frame), err
}

// Frame implements kubestore.Form. It recovers a panic of upstream's encoders, since no request waits for it that would
// recover and answer.
func (f *Form) Frame(t watch.EventType, object runtime.Object) (_ []byte, err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("encode an event: %v", reason)
		}
	}()
	var raw, event, frame bytes.Buffer
	if err := f.object.Encode(object, &raw); err != nil {
		return nil, fmt.Errorf("encode the object of an event: %w", err)
	}
	if err := f.event.Encode(&metav1.WatchEvent{Type: string(t), Object: runtime.RawExtension{Raw: raw.Bytes()}}, &event); err != nil {
		return nil, fmt.Errorf("encode an event: %w", err)
	}
	if _, err := f.framer.NewFrameWriter(&frame).Write(event.Bytes()); err != nil {
		return nil, fmt.Errorf("frame an event: %w", err)
	}
	return frame.Bytes(), nil
}

// Verbatim implements kubestore.Form.
func (f *Form) Verbatim(ctx context.Context) kubestore.Append {
	if f.verbatim == nil || f.mediaType != runtime.ContentTypeJSON {
		return nil
	}
	add := f.verbatim(ctx, f.mediaType)
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
