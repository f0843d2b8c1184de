package customresources

import (
	"context"
	"net/http"
	"sync"

	apiextensionshelpers "k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource/tableconvertor"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured/unstructuredscheme"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/logplane/logplane/internal/apiserver/customresources/verbatim"
	"github.com/logplane/logplane/internal/apiserver/lines"
	"github.com/logplane/logplane/internal/kubestore"
)

// ListSerializer encodes lists and events of custom resources as upstream's handler does, whose own serializer is not
// exported. The objects that it gets already have the requested version.
var ListSerializer = sync.OnceValue(func() runtime.NegotiatedSerializer {
	creator, typer := unstructuredscheme.NewUnstructuredCreator(), unstructuredscheme.NewUnstructuredObjectTyper()
	return listSerializer{{
		MediaType: runtime.ContentTypeJSON, MediaTypeType: "application", MediaTypeSubType: "json", EncodesAsText: true,
		Serializer:       json.NewSerializerWithOptions(json.DefaultMetaFactory, creator, typer, json.SerializerOptions{}),
		PrettySerializer: json.NewSerializerWithOptions(json.DefaultMetaFactory, creator, typer, json.SerializerOptions{Pretty: true}),
		StreamSerializer: &runtime.StreamSerializerInfo{
			EncodesAsText: true,
			Serializer:    json.NewSerializerWithOptions(json.DefaultMetaFactory, creator, typer, json.SerializerOptions{}),
			Framer:        json.Framer,
		},
	}, {
		MediaType: runtime.ContentTypeYAML, MediaTypeType: "application", MediaTypeSubType: "yaml", EncodesAsText: true,
		Serializer: json.NewSerializerWithOptions(json.DefaultMetaFactory, creator, typer, json.SerializerOptions{Yaml: true}),
	}, {
		// Only metadata is served as protobuf, by another serializer. This entry has no serializer for objects, so such
		// requests are left to upstream's handler.
		MediaType: runtime.ContentTypeProtobuf, MediaTypeType: "application", MediaTypeSubType: "vnd.kubernetes.protobuf",
		StreamSerializer: &runtime.StreamSerializerInfo{},
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

// servedKey is the context key of the definitionHandler that serves a list or a watch.
type servedKey struct{}

// age is the only printer column of versions that define none, as in upstream.
var age = []apiextensionsv1.CustomResourceColumnDefinition{{Name: "Age", Type: "date", JSONPath: ".metadata.creationTimestamp"}}

// TableConvertor makes the Tables of a list that is being served, with the columns of the CRD that its handler has.
func TableConvertor(ctx context.Context) rest.TableConvertor {
	info, _ := apirequest.RequestInfoFrom(ctx)
	columns := age
	for _, v := range ctx.Value(servedKey{}).(*definitionHandler).crd.Load().Spec.Versions {
		if v.Name == info.APIVersion && len(v.AdditionalPrinterColumns) > 0 {
			columns = v.AdditionalPrinterColumns
		}
	}
	convertor, _ := tableconvertor.New(columns) // as in upstream, a Table ends with the column before one that is invalid
	return convertor
}

// Verbatim returns the encoder for stored objects of a list or a watch that is being served. It encodes only objects
// that their schema leaves as they are.
func Verbatim(ctx context.Context, mediaType string) kubestore.Append {
	encode := verbatim.AppendJSON
	switch mediaType {
	case runtime.ContentTypeJSON:
	case runtime.ContentTypeCBOR:
		encode = verbatim.AppendCBOR
	default:
		return nil
	}
	info, _ := apirequest.RequestInfoFrom(ctx)
	s := ctx.Value(servedKey{}).(*definitionHandler).schemaOf(info.APIGroup + "/" + info.APIVersion)
	if s == nil {
		return nil
	}
	return func(to, stored []byte, revision uint64) []byte {
		if _, leaves := s.Leaves(stored); !leaves {
			return nil
		}
		return encode(to, stored, revision)
	}
}

// form returns the form of a watch's events, nil if the watch asks for something other than objects. It is also nil for
// a version that is not served, since forms are kept by version and clients may invent versions.
func (h *definitionHandler) form(r *http.Request, info *apirequest.RequestInfo) *lines.Form {
	accepted, ok := lines.Wanted(r, ListSerializer())
	if !ok || !apiextensionshelpers.HasServedCRDVersion(h.crd.Load(), info.APIVersion) {
		return nil
	}
	resource := schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource}
	return h.forms.Of(resource, accepted.MediaType, func() *lines.Form {
		return lines.NewForm(resource, ListSerializer(), accepted, Verbatim)
	})
}
