package apiserver

import (
	"net/http"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/finalizer"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/logplane/logplane/internal/apiserver/customresources"
)

// newCustomResources serves the instances of CustomResourceDefinitions.
func newCustomResources(s *Server) (*customresources.Handler, error) {
	return customresources.NewHandler(customresources.Config{
		Cell:        s.config.Cell,
		Stores:      s.stores,
		Definitions: s.definitions,
		Registry: func() (rest.Watcher, error) {
			built, err := s.groups[customresources.Resource.Group].get()
			if err != nil {
				return nil, err
			}
			return built.info.VersionedResourcesStorageMap["v1"][customresources.Resource.Resource].(rest.Watcher), nil
		},
		Admission:           s.generic.AdmissionControl,
		Authorizer:          s.generic.Authorization.Authorizer,
		Loopback:            s.loopback,
		RequestTimeout:      s.generic.RequestTimeout,
		MinRequestTimeout:   s.minRequestTimeout(),
		MaxRequestBodyBytes: s.generic.MaxRequestBodyBytes,
		NotServed:           s.notServed(),
		Fail:                s.fail,
		Logger:              s.config.Logger,
	})
}

// Instances is the storage of a CRD's instances, in its storage version and whatever versions are served. The lifecycle
// deletes them there.
func (s *Server) Instances(crd *apiextensionsv1.CustomResourceDefinition) (finalizer.ListerCollectionDeleter, error) {
	return s.crds.Instances(crd)
}

// notServed answers a request for what nobody serves.
func (s *Server) notServed() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.fail(w, r, notServed(r)) })
}
