package lists

import (
	"context"
	"net/http"

	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/apis/meta/v1beta1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
)

// Upstream's handler turns a list into a Table or a list of metadata, with functions that are not exported. The
// functions below do this work for the items of one chunk.

func metadataOf(list runtime.Object, version schema.GroupVersion) (runtime.Object, error) {
	items := make([]metav1.PartialObjectMetadata, 0, meta.LenList(list))
	err := meta.EachListItem(list, func(object runtime.Object) error {
		m, err := metadata(object, version)
		if err == nil {
			items = append(items, *m)
		}
		return err
	})
	if version == metav1beta1.SchemeGroupVersion {
		return &metav1beta1.PartialObjectMetadataList{Items: items}, err
	}
	return &metav1.PartialObjectMetadataList{Items: items}, err
}

func metadata(object runtime.Object, version schema.GroupVersion) (*metav1.PartialObjectMetadata, error) {
	m, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	partial := meta.AsPartialObjectMetadata(m)
	partial.SetGroupVersionKind(version.WithKind("PartialObjectMetadata"))
	return partial, nil
}

// tables returns a function that makes a Table of a list, nil if the answer to the request is not a Table. The Table
// has no headers, since the handler's answer has the headers.
func (k Kind) tables(r *http.Request, version schema.GroupVersion) func(context.Context, runtime.Object) (runtime.Object, error) {
	options := &metav1.TableOptions{}
	err := metainternalversionscheme.ParameterCodec.DecodeParameters(r.URL.Query(), metav1.SchemeGroupVersion, options)
	if err != nil || len(validation.ValidateTableOptions(options)) > 0 || k.Tables == nil {
		return nil
	}
	options.NoHeaders = true
	var convertor rest.TableConvertor
	return func(ctx context.Context, list runtime.Object) (runtime.Object, error) {
		if convertor == nil {
			convertor = k.Tables(ctx)
		}
		table, err := convertor.ConvertToTable(ctx, list, options)
		for i := 0; err == nil && i < len(table.Rows); i++ {
			err = k.include(&table.Rows[i].Object, options.IncludeObject, version)
		}
		return table, err
	}
}

// include replaces a row's object by the part of the object that the client wants.
func (k Kind) include(of *runtime.RawExtension, policy metav1.IncludeObjectPolicy, version schema.GroupVersion) error {
	marked, err := storage.HasInitialEventsEndBookmarkAnnotation(of.Object)
	switch {
	case err != nil:
	case policy == metav1.IncludeObject && k.Convertor != nil:
		of.Object, err = k.Convertor.ConvertToVersion(of.Object, k.Version)
	case policy == metav1.IncludeObject:
	case policy == metav1.IncludeNone && !marked:
		of.Object = nil
	default:
		of.Object, err = metadata(of.Object, version)
	}
	return err
}
