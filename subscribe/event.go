package subscribe

import (
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/watch"
)

// Event is one change of one object.
type Event struct {
	// Type is watch.Added, watch.Modified or watch.Deleted; or watch.Bookmark if Config.Bookmarks asks for bookmarks.
	Type watch.EventType
	// Namespace is empty for an object without a namespace.
	Namespace, Name string
	// Revision is the object's resourceVersion; for a deletion, the revision of the deletion.
	Revision string
	// From is the position from which a run continues after this event (Config.From). It is empty for the state with
	// which a run begins, since a run cannot continue from the middle of the state.
	From string
	// ContentType of Body: 'application/json' if it comes from the API, the stored object's type if it comes from NATS.
	ContentType string
	// Body is the object; for a deletion, its last state. Decode reads the Body. Body is empty if only headers came.
	Body []byte
}

// Parse reads one message of '<prefix>.events.>', which has headers only, or of '<prefix>.bodies.>'. It is for programs
// that use the messages of NATS directly, without Run's guarantees.
func Parse(prefix string, m *nats.Msg) (Event, error) {
	t, ok := typeOfHeader[m.Header.Get(headerType)]
	if !ok {
		return Event{}, fmt.Errorf("parse the message on '%s': it changes no object", m.Subject)
	}
	rev, err := revision(m)
	if err != nil {
		return Event{}, fmt.Errorf("parse the message on '%s': %w", m.Subject, err)
	}
	namespace, name, err := object(prefix, m)
	if err != nil {
		return Event{}, fmt.Errorf("parse the message on '%s': %w", m.Subject, err)
	}
	at := strconv.FormatUint(rev, 10)
	return Event{
		Type: t, Namespace: namespace, Name: name, Revision: at, From: at, ContentType: m.Header.Get(headerContentType), Body: m.Data,
	}, nil
}

// Decode reads the event's object into a type that the scheme knows, and sets the object's resourceVersion:
//
//	configMap, err := subscribe.Decode[corev1.ConfigMap](event, scheme.Scheme)
//
// T must be the version that was requested of the API, or the stored version if the event comes from NATS. Unstructured
// takes any version that is not encoded as protobuf.
func Decode[T any, P interface {
	*T
	runtime.Object
}](e Event, scheme *runtime.Scheme) (P, error) {
	if len(e.Body) == 0 {
		return nil, fmt.Errorf("decode event %s of '%s': it carries no body, fetch it", e.Revision, e.Name)
	}
	s, err := serializerFor(e.ContentType, scheme)
	if err != nil {
		return nil, err
	}
	into := P(new(T))
	decoded, _, err := s.Decode(e.Body, nil, into)
	if err != nil {
		return nil, fmt.Errorf("decode event %s of '%s': %w", e.Revision, e.Name, err)
	}
	if decoded != runtime.Object(into) {
		return nil, fmt.Errorf("decode event %s of '%s': it is a %T, not a %T", e.Revision, e.Name, decoded, into)
	}
	object, err := meta.Accessor(into)
	if err != nil {
		return nil, fmt.Errorf("stamp event %s of '%s': %w", e.Revision, e.Name, err)
	}
	object.SetResourceVersion(e.Revision)
	return into, nil
}

func serializerFor(contentType string, scheme *runtime.Scheme) (runtime.Serializer, error) {
	switch contentType {
	case runtime.ContentTypeJSON:
		return json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{}), nil
	case runtime.ContentTypeCBOR:
		return cbor.NewSerializer(scheme, scheme), nil
	case runtime.ContentTypeProtobuf:
		return protobuf.NewSerializer(scheme, scheme), nil
	}
	return nil, fmt.Errorf("content type '%s' is not known", contentType)
}
