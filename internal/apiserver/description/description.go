// Package description tells clients what is served: discovery, plain and aggregated, and OpenAPI v2 and v3.
//
// Nouns. Generated documents (spec) describe the built-in groups and are served as they are. CRDs add groups, versions
// and documents of their own, which are made on request and kept under the state of the CRDs. So every process gives
// the same answer, with the same ETag, as soon as the CRD is written.
//
// The path of a request through the package:
//
//  1. discovery.go and openapi.go read the set of CRDs from the newest view.
//  2. made.go makes each answer once for all requests that wait for it, and keeps answers up to a total size.
//  3. documents.go makes OpenAPI v3 documents, and names each by an ETag before it is made.
//  4. v2.go splices what CRDs add into the generated OpenAPI v2 document.
package description

import (
	"log/slog"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/logplane/logplane/internal/apiserver/customresources"
)

// Config of the handlers.
type Config struct {
	Definitions Definitions
	// ExternalAddress with a port, for discovery.
	ExternalAddress string
	// Paths are what '/' lists in addition to the paths of discovery and OpenAPI.
	Paths []string
	// NotServed answers a request that nothing else serves. Fail answers with an error as a Status.
	NotServed http.Handler
	Fail      func(http.ResponseWriter, *http.Request, error)
	Logger    *slog.Logger
}

// Definitions reads every CRD that may be served, at the time of the call.
type Definitions interface {
	All() (customresources.Set, error)
}

// notMade says why a description could not be made, or that the request ended before it was.
func notMade(r *http.Request, err error) error {
	if r.Context().Err() != nil {
		return apierrors.NewTimeoutError("the request ended before its answer was made", 1)
	}
	return apierrors.NewInternalError(err)
}
