package access

import (
	"context"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/registry/generic"
	restregistry "k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	authenticationrest "k8s.io/kubernetes/pkg/registry/authentication/rest"
	"k8s.io/kubernetes/pkg/registry/authentication/tokenreview"

	"github.com/logplane/logplane/internal/apiserver/listers"
)

// NewStorage makes upstream's registries, except for the registry of TokenReviews.
func (a *Access) NewStorage(enabled serverstorage.APIResourceConfigSource, stores generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	info, err := authenticationrest.RESTStorageProvider{Authenticator: a.Credentials, APIAudiences: a.audiences}.NewRESTStorage(enabled, stores)
	for _, storage := range info.VersionedResourcesStorageMap {
		if upstream, ok := storage["tokenreviews"].(*tokenreview.REST); ok {
			storage["tokenreviews"] = &tokenReviews{upstream, a.Credentials, a.audiences}
		}
	}
	return info, err
}

// tokenReviews authenticates the token of a TokenReview within the request that creates the review. Upstream's registry
// authenticates the token outside of that request: without the request's deadline, and while the request holds its
// seat.
type tokenReviews struct {
	*tokenreview.REST
	credentials authenticator.Request
	audiences   authenticator.Audiences
}

// Create implements rest.Creater.
func (t *tokenReviews) Create(ctx context.Context, review runtime.Object, validate restregistry.ValidateObjectFunc, options *metav1.CreateOptions) (_ runtime.Object, err error) {
	defer listers.Catch(ctx, &err)
	within := authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		if audiences, ok := authenticator.AudiencesFrom(r.Context()); ok {
			ctx = authenticator.WithAudiences(ctx, audiences)
		}
		return t.credentials.AuthenticateRequest(r.WithContext(ctx))
	})
	return tokenreview.NewREST(within, t.audiences).Create(ctx, review, validate, options)
}
