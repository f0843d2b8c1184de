package customresources

import (
	"math/rand"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	crdfuzzer "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/fuzzer"
)

var definitionDecoder = crdserver.Codecs.UniversalDecoder(apiextensionsv1.SchemeGroupVersion)

// storedAs returns the CRD in the encoding of a media type.
func storedAs(t testing.TB, crd *apiextensionsv1.CustomResourceDefinition, media string) []byte {
	info, found := runtime.SerializerInfoForMediaType(crdserver.Codecs.SupportedMediaTypes(), media)
	require.True(t, found)
	data, err := runtime.Encode(crdserver.Codecs.EncoderForVersion(info.Serializer, apiextensionsv1.SchemeGroupVersion), crd)
	require.NoError(t, err)
	return data
}

// TestSummaryIsTheRestOfACRD: a summary is the CRD without its large parts, which are not decoded at all if the CRD is
// stored as protobuf.
func TestSummaryIsTheRestOfACRD(t *testing.T) {
	fill := fuzzer.FuzzerFor(fuzzer.MergeFuzzerFuncs(metafuzzer.Funcs, crdfuzzer.Funcs), rand.NewSource(1), crdserver.Codecs)
	for range 200 {
		filled := &apiextensions.CustomResourceDefinition{} // upstream bounds only how deep this type is filled
		fill.Fill(filled)
		crd := &apiextensionsv1.CustomResourceDefinition{}
		require.NoError(t, crdserver.Scheme.Convert(filled, crd, nil))
		crd.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "me", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{}}`)}}
		for i := range crd.Spec.Versions {
			crd.Spec.Versions[i].Schema = &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}}
		}
		for _, media := range []string{runtime.ContentTypeProtobuf, runtime.ContentTypeJSON} {
			data := storedAs(t, crd, media)
			whole, _, err := definitionDecoder.Decode(data, nil, nil)
			require.NoError(t, err)
			want := whole.(*apiextensionsv1.CustomResourceDefinition)
			want.Annotations, want.ManagedFields, want.Spec.Conversion = nil, nil, nil
			for i := range want.Spec.Versions {
				v := &want.Spec.Versions[i]
				v.Schema, v.AdditionalPrinterColumns, v.SelectableFields = nil, nil, nil
			}
			got, _, err := summaryDecoder{definitionDecoder}.Decode(data, nil, nil)
			require.NoError(t, err)
			require.Equal(t, want, got)
			if media == runtime.ContentTypeProtobuf {
				short := summaryParts.dropFrom(data)
				require.Equal(t, short, summaryParts.dropFrom(short))
				require.Less(t, len(short), len(data))
			}
		}
	}
}

// FuzzSummary: no stored bytes make the decoder panic.
func FuzzSummary(f *testing.F) {
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "a.b", Annotations: map[string]string{"a": "b"}}}
	crd.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}}}}
	f.Add(storedAs(f, crd, runtime.ContentTypeProtobuf))
	f.Fuzz(func(_ *testing.T, data []byte) {
		_, _, _ = summaryDecoder{definitionDecoder}.Decode(data, nil, nil)
	})
}
