package apiserver

import (
	"bytes"
	"fmt"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	compbasemetrics "k8s.io/component-base/metrics"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/internal/serving"
)

// line is the way of events to the client of a watch past upstream's handler. To wake that handler's goroutine and the
// watch's own, and to go through its writers, costs more than to write an event to the connection. And the events with
// which watches begin are encoded once for all.
type line struct {
	*form
	stream *serving.Stream
}

var _ kubestore.Line = line{}

// Form implements kubestore.Line.
func (l line) Form() kubestore.Form { return l.form }

// Sends implements kubestore.Line.
func (l line) Sends() bool { return l.stream.Sends() }

// Send implements kubestore.Line. It counts as upstream's handler does, except that sizes include the frame.
func (l line) Send(chunk []byte) bool {
	if !l.stream.Send(chunk) {
		return false
	}
	l.events.Inc()
	l.sizes.Observe(float64(len(chunk)))
	return true
}

// SendAll implements kubestore.Line. It counts each event with the mean size of all.
func (l line) SendAll(frames []byte, events int) error {
	if err := l.stream.SendAll(frames); err != nil {
		return err
	}
	l.events.Add(float64(events))
	for range events {
		l.sizes.Observe(float64(len(frames) / events))
	}
	return nil
}

// form is the encoding of a resource's events in one media type, as upstream's handler encodes them. It is safe for
// concurrent use.
type form struct {
	name          string
	object, event runtime.Encoder
	framer        runtime.Framer
	events        compbasemetrics.CounterMetric
	sizes         compbasemetrics.ObserverMetric
}

// formOf names a form of a group.
type formOf struct{ version, resource, mediaType string }

// Name implements kubestore.Form.
func (f *form) Name() string { return f.name }

// Chunk implements kubestore.Form.
func (f *form) Chunk(t watch.EventType, object runtime.Object) ([]byte, error) {
	frame, err := f.Frame(t, object)
	return serving.Chunk(frame), err
}

// Frame implements kubestore.Form. No request waits for it, which would answer for a panic of upstream's.
func (f *form) Frame(t watch.EventType, object runtime.Object) (_ []byte, err error) {
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

// withLine gives a watch its line. One that wants something else than objects as they are stored, a Table for one or
// Services, has none.
func (g *group) withLine(r *http.Request, info *apirequest.RequestInfo) *http.Request {
	open, ok := openWatchOf(r.Context())
	built, err := g.get()
	if !ok || err != nil || httpstream.IsUpgradeRequest(r) {
		return r
	}
	wanted, ok := negotiation.NegotiateMediaTypeOptions(r.Header.Get("Accept"), built.info.NegotiatedSerializer.SupportedMediaTypes(), anyTransform{})
	if !ok || wanted.Convert != nil || wanted.Accepted.StreamSerializer == nil {
		return r
	}
	f := built.form(info, wanted.Accepted)
	if f == nil {
		return r
	}
	return r.WithContext(kubestore.WithLine(r.Context(), line{f, open.stream}))
}

// anyTransform is what upstream allows, except that it allows all transformations: what wants one is recognised.
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

// form returns nil if objects are not shown as they are stored.
func (b *builtGroup) form(info *apirequest.RequestInfo, accepted runtime.SerializerInfo) *form {
	registry, served := b.info.VersionedResourcesStorageMap[info.APIVersion][info.Resource]
	if !served { // nothing is kept for every name that somebody thinks of
		return nil
	}
	of := formOf{info.APIVersion, info.Resource, accepted.MediaType}
	b.mu.Lock()
	defer b.mu.Unlock()
	f, ok := b.forms[of]
	if !ok {
		f = b.newForm(registry, schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}, info.Resource, accepted)
		b.forms[of] = f
	}
	return f
}

func (b *builtGroup) newForm(registry rest.Storage, version schema.GroupVersion, resource string, accepted runtime.SerializerInfo) *form {
	shown := shownBy(registry)
	if !shown.known || shown.decorator != nil {
		return nil
	}
	encoder := func(s runtime.Serializer) runtime.Encoder {
		return b.info.NegotiatedSerializer.EncoderForVersion(runtime.UseNondeterministicEncoding(s), version)
	}
	return &form{
		name:   fmt.Sprintf("events of %s as %s", version, accepted.MediaType),
		object: encoder(accepted.Serializer), event: encoder(accepted.StreamSerializer.Serializer), framer: accepted.StreamSerializer.Framer,
		events: metrics.WatchEvents.WithLabelValues(version.Group, version.Version, resource),
		sizes:  metrics.WatchEventsSizes.WithLabelValues(version.Group, version.Version, resource),
	}
}
