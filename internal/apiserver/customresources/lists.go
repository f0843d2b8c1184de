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
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/logplane/logplane/internal/apiserver/customresources/verbatim"
	"github.com/logplane/logplane/internal/apiserver/watchwriter"
	"github.com/logplane/logplane/internal/kubestore"
)

// ListSerializer encodes lists and events of custom resources as upstream's handler does. The handler's own serializer
// is not exported. The objects to encode already have the requested version.
var ListSerializer = sync.OnceValue(func() runtime.NegotiatedSerializer {
	objects := unstructuredscheme.NewUnstructuredNegotiatedSerializer().SupportedMediaTypes()
	return listSerializer(append(objects, runtime.SerializerInfo{
		// Only metadata is served as protobuf, by another serializer. This entry has no serializer for objects, so
		// requests for protobuf are left to upstream's handler.
		MediaType: runtime.ContentTypeProtobuf, MediaTypeType: "application", MediaTypeSubType: "vnd.kubernetes.protobuf",
		StreamSerializer: &runtime.StreamSerializerInfo{},
	}, cbor.NewSerializerInfo(unstructuredscheme.NewUnstructuredCreator(), unstructuredscheme.NewUnstructuredObjectTyper())))
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

// age is the only printer column of versions that define no columns, as in upstream.
var age = []apiextensionsv1.CustomResourceColumnDefinition{{Name: "Age", Type: "date", JSONPath: ".metadata.creationTimestamp"}}

// TableConvertor makes the Tables of the list that the context's request asks for. The columns are the columns of the
// CRD in the request's handler.
func TableConvertor(ctx context.Context) rest.TableConvertor {
	info, _ := apirequest.RequestInfoFrom(ctx)
	columns := age
	for _, v := range ctx.Value(servedKey{}).(*definitionHandler).crd.Load().Spec.Versions {
		if v.Name == info.APIVersion && len(v.AdditionalPrinterColumns) > 0 {
			columns = v.AdditionalPrinterColumns
		}
	}
	convertor, _ := tableconvertor.New(columns) // as in upstream, a Table ends before the first invalid column
	return convertor
}

// Verbatim returns the encoder for stored objects of a list or a watch that is being served. The encoder encodes only
// objects that their schema leaves as they are.
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

// watchEncoding returns the encoding of a watch's events, nil if the watch asks for something other than objects. It is
// also nil for a version that is not served, since encodings are kept by version and clients may invent versions.
func (h *definitionHandler) watchEncoding(r *http.Request, info *apirequest.RequestInfo) *watchwriter.Encoding {
	accepted, ok := watchwriter.Wanted(r, ListSerializer())
	if !ok || !apiextensionshelpers.HasServedCRDVersion(h.crd.Load(), info.APIVersion) {
		return nil
	}
	resource := schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource}
	return h.watchEncodings.Of(resource, accepted.MediaType, func() *watchwriter.Encoding {
		return watchwriter.NewEncoding(resource, ListSerializer(), accepted, Verbatim)
	})
}
