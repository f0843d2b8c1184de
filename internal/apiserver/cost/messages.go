package cost

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	extensionsscheme "k8s.io/apiextensions-apiserver/pkg/apiserver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/logplane/logplane/internal/apiserver/cost/shape"
)

// protobufPrefix begins every body of upstream's protobuf.
var protobufPrefix = []byte("k8s\x00")

// rawMessages are the messages that hold JSON or CBOR.
var rawMessages = map[reflect.Type]bool{
	reflect.TypeFor[metav1.FieldsV1]():      true,
	reflect.TypeFor[runtime.RawExtension](): true,
	reflect.TypeFor[apiextensionsv1.JSON](): true,
}

// messages caches the description of each kind that was sent as protobuf: *shape.Message by schema.GroupVersionKind. It
// has at most one entry for each built-in kind.
var messages sync.Map

func mustDescribe(t reflect.Type) *shape.Message {
	m, err := shape.Describe(t, rawMessages)
	if err != nil {
		panic(err) // cannot happen: a test describes all of upstream's types
	}
	return m
}

// messageOf describes a kind. It returns nil for a kind that is not built in, which no decoder accepts.
func messageOf(kind schema.GroupVersionKind) *shape.Message {
	if m, ok := messages.Load(kind); ok {
		return m.(*shape.Message)
	}
	for _, scheme := range []*runtime.Scheme{legacyscheme.Scheme, extensionsscheme.Scheme, aggregatorscheme.Scheme} {
		if t, ok := scheme.AllKnownTypes()[kind]; ok && kind.Version != runtime.APIVersionInternal {
			m, _ := messages.LoadOrStore(kind, mustDescribe(t))
			return m.(*shape.Message)
		}
	}
	return nil
}

// measureProtobuf measures a body as the kind that the body names. It opens the envelope as upstream's decoder does;
// that decoder refuses a body without the prefix.
func measureProtobuf(body []byte) (shape.Shape, error) {
	sealed, ok := bytes.CutPrefix(body, protobufPrefix)
	if !ok {
		return shape.Shape{}, nil
	}
	var envelope runtime.Unknown
	if err := envelope.Unmarshal(sealed); err != nil {
		return shape.Shape{}, fmt.Errorf("it is not protobuf: %w", err)
	}
	kind := envelope.GroupVersionKind()
	if kind.Version == "" || kind.Kind == "" { // the decoder would take the path's version and kind
		return shape.Shape{}, errors.New("the envelope of a protobuf body must have `typeMeta.apiVersion` and `typeMeta.kind`")
	}
	message := messageOf(kind)
	if message == nil {
		return shape.Shape{}, nil
	}
	return message.Protobuf(envelope.Raw)
}
