package customresources

import (
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured/unstructuredscheme"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
)

// ListSerializer encodes lists of custom resources as upstream's handler does, which keeps its own to itself. Here the
// objects have the version that is asked for. A media type without a serializer is one whose lists are left to
// upstream's.
var ListSerializer = sync.OnceValue(func() runtime.NegotiatedSerializer {
	creator, typer := unstructuredscheme.NewUnstructuredCreator(), unstructuredscheme.NewUnstructuredObjectTyper()
	return listSerializer{{
		MediaType: runtime.ContentTypeJSON, MediaTypeType: "application", MediaTypeSubType: "json", EncodesAsText: true,
		Serializer:       json.NewSerializerWithOptions(json.DefaultMetaFactory, creator, typer, json.SerializerOptions{}),
		PrettySerializer: json.NewSerializerWithOptions(json.DefaultMetaFactory, creator, typer, json.SerializerOptions{Pretty: true}),
	}, {
		// So that no list that upstream writes as YAML, or as metadata in protobuf, is taken for one in JSON.
		MediaType: runtime.ContentTypeYAML, MediaTypeType: "application", MediaTypeSubType: "yaml", EncodesAsText: true,
	}, {
		MediaType: runtime.ContentTypeProtobuf, MediaTypeType: "application", MediaTypeSubType: "vnd.kubernetes.protobuf",
	}, cbor.NewSerializerInfo(creator, typer)}
})

type listSerializer []runtime.SerializerInfo

// SupportedMediaTypes implements runtime.NegotiatedSerializer.
func (s listSerializer) SupportedMediaTypes() []runtime.SerializerInfo { return s }

// EncoderForVersion implements runtime.NegotiatedSerializer.
func (listSerializer) EncoderForVersion(encoder runtime.Encoder, _ runtime.GroupVersioner) runtime.Encoder {
	return encoder
}

// DecoderToVersion implements runtime.NegotiatedSerializer.
func (listSerializer) DecoderToVersion(decoder runtime.Decoder, _ runtime.GroupVersioner) runtime.Decoder {
	return decoder
}
