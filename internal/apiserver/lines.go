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
	compbasemetrics "k8s.io/component-base/metrics"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/internal/kubestore/fanout"
	"github.com/logplane/logplane/internal/serving"
)

// line is the way of events to the client of a watch past upstream's handler. To wake that handler's goroutine and the
// watch's own, and to go through its writers, costs more than to write an event to the connection.
type line struct {
	*form
	stream *serving.Stream
}

var _ kubestore.Line = line{}

// Form implements kubestore.Line.
func (l line) Form() fanout.Form { return l.form }

// Send implements kubestore.Line. It counts as upstream's handler does.
func (l line) Send(chunk []byte) bool {
	if !l.stream.Send(chunk) {
		return false
	}
	l.events.Inc()
	l.sizes.Observe(float64(len(chunk)))
	return true
}

// form is the encoding of a resource's events in one media type, as upstream's handler encodes them. It is safe for
// concurrent use.
type form struct {
	object, event runtime.Encoder
	framer        runtime.Framer
	events        compbasemetrics.CounterMetric
	sizes         compbasemetrics.ObserverMetric
}

// formOf names a form of a group.
type formOf struct{ version, resource, mediaType string }

// Frame implements fanout.Form.
func (f *form) Frame(t watch.EventType, object runtime.Object) ([]byte, error) {
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
	return serving.Chunk(frame.Bytes()), nil
}

// withLine gives a watch its line. One that wants something else than objects, a Table for one, has none.
func (g *group) withLine(r *http.Request, info *apirequest.RequestInfo) *http.Request {
	open, ok := openWatchOf(r.Context())
	built, err := g.get()
	if !ok || err != nil || !open.stream.Sends() || httpstream.IsUpgradeRequest(r) {
		return r
	}
	wanted, ok := negotiation.NegotiateMediaTypeOptions(r.Header.Get("Accept"), built.info.NegotiatedSerializer.SupportedMediaTypes(), anything{})
	if !ok || wanted.Convert != nil || wanted.Accepted.StreamSerializer == nil {
		return r
	}
	return r.WithContext(kubestore.WithLine(r.Context(), line{built.form(info, wanted.Accepted), open.stream}))
}

// anything allows what a request wants, so that what wants more than plain objects is recognised.
type anything struct {
	negotiation.EndpointRestrictions
}

// AllowsMediaTypeTransform implements negotiation.EndpointRestrictions.
func (anything) AllowsMediaTypeTransform(string, string, *schema.GroupVersionKind) bool { return true }

// AllowsServerVersion implements negotiation.EndpointRestrictions.
func (anything) AllowsServerVersion(string) bool { return true }

// AllowsStreamSchema implements negotiation.EndpointRestrictions.
func (anything) AllowsStreamSchema(string) bool { return true }

func (b *builtGroup) form(info *apirequest.RequestInfo, accepted runtime.SerializerInfo) *form {
	of := formOf{info.APIVersion, info.Resource, accepted.MediaType}
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.forms[of]
	if f == nil {
		version := schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
		encoder := func(s runtime.Serializer) runtime.Encoder {
			return b.info.NegotiatedSerializer.EncoderForVersion(runtime.UseNondeterministicEncoding(s), version)
		}
		f = &form{
			object: encoder(accepted.Serializer), event: encoder(accepted.StreamSerializer.Serializer), framer: accepted.StreamSerializer.Framer,
			events: metrics.WatchEvents.WithLabelValues(version.Group, version.Version, info.Resource),
			sizes:  metrics.WatchEventsSizes.WithLabelValues(version.Group, version.Version, info.Resource),
		}
		b.forms[of] = f
	}
	return f
}
