package resources

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

// WithoutProtobuf returns codecs for types of our own, which have no protobuf, as custom resources have none.
func WithoutProtobuf(all serializer.CodecFactory) runtime.NegotiatedSerializer {
	return withoutProtobuf{all}
}

type withoutProtobuf struct{ serializer.CodecFactory }

// SupportedMediaTypes implements runtime.NegotiatedSerializer.
func (c withoutProtobuf) SupportedMediaTypes() []runtime.SerializerInfo {
	return slices.DeleteFunc(slices.Clone(c.CodecFactory.SupportedMediaTypes()), func(i runtime.SerializerInfo) bool {
		return i.MediaType == runtime.ContentTypeProtobuf
	})
}
