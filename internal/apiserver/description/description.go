// Package description describes the served API to clients: discovery, plain and aggregated, and OpenAPI v2 and v3.
//
// Nouns. Generated documents (spec) describe the built-in groups and are served as they are. CRDs add groups, versions
// and documents of their own, which are made on request and cached by the state of the CRDs. So every process gives the
// same answer, with the same ETag, as soon as the CRD is written. Remote versions are served by other API servers.
// Those servers describe them, so a remote version's description is as new as its server's last answer.
//
// The path of a request through the package:
//
//  1. discovery.go and openapi.go read the set of CRDs, and which versions are remote, from the newest view.
//  2. made.go makes each answer once for all requests that wait for it, and keeps answers up to a total size.
//  3. documents.go makes OpenAPI v3 documents, and names each by an ETag before it is made.
//  4. v2.go splices what CRDs and remote servers add into the generated OpenAPI v2 document.
//  5. order.go puts groups and versions in upstream's order, remote ones too.
package description

import (
	"context"
	"log/slog"
	"net/http"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/logplane/logplane/internal/apiserver/aggregation"
	"github.com/logplane/logplane/internal/apiserver/customresources"
	"github.com/logplane/logplane/internal/kubestore"
)

// moments is for how many states of the CRDs one process keeps its answers: the newest state, and states that requests
// of the past have asked for.
const moments = 8

// Config of the handlers.
type Config struct {
	Definitions Definitions
	Remotes     Remotes
	// ExternalAddress with a port, for discovery.
	ExternalAddress string
	// Paths are the paths that '/' lists in addition to those of discovery and OpenAPI.
	Paths []string
	// NotServed answers a request that no other handler serves. Fail answers with an error as a Status.
	NotServed http.Handler
	Fail      func(http.ResponseWriter, *http.Request, error)
	Logger    *slog.Logger
}

// Definitions reads every CRD that may be served, at the time of the call, or as of the moment that the context's
// request reads.
type Definitions interface {
	AllFor(context.Context) (customresources.Set, error)
}

// served returns the CRDs and the remote APIServices as a request sees them. A request of the past sees no remote ones,
// since their servers keep no past.
func (c Config) served(ctx context.Context) (set customresources.Set, remotes []*apiregistrationv1.APIService, err error) {
	set, err = c.Definitions.AllFor(ctx)
	if err == nil && kubestore.PastFrom(ctx) == nil {
		remotes, err = c.Remotes.All()
	}
	return set, remotes, err
}

// Remotes finds out what remote API servers serve. It waits only seconds for them, and then returns what they answered
// last. It must be safe for concurrent use.
type Remotes interface {
	// All returns the APIServices of remote versions at the time of the call.
	All() ([]*apiregistrationv1.APIService, error)
	// Discover returns what each of the APIServices' servers serves.
	Discover(context.Context, []*apiregistrationv1.APIService) ([]apidiscoveryv2.APIVersionDiscovery, error)
	// OpenAPIV2 returns the OpenAPI v2 document of each APIService's server, nil if it is not known.
	OpenAPIV2(context.Context, []*apiregistrationv1.APIService) ([]*aggregation.Document, error)
	// OpenAPIV3 returns the locations of the APIServices' OpenAPI v3 documents, by path.
	OpenAPIV3(context.Context, []*apiregistrationv1.APIService) (map[string]string, error)
}

// notMade returns the error with which a description could not be made, or a timeout if the request has ended.
func notMade(r *http.Request, err error) error {
	if r.Context().Err() != nil {
		return apierrors.NewTimeoutError("the request ended before its answer was made", 1)
	}
	return err
}
