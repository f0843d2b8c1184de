// Package description describes the served API to clients: discovery, plain and aggregated, and OpenAPI v2 and v3.
//
// Nouns. Generated documents (spec) describe the built-in groups and are served as they are. CRDs add groups, versions
// and documents. These additions are made on request and cached by the state of the CRDs. So every process gives the
// same answer, with the same ETag, as soon as a CRD is written. Remote versions are served by other API servers. Those
// servers also describe the remote versions, so a remote version's description is as new as its server's last answer.
//
// The path of a request through the package:
//
//  1. discovery.go and openapi.go read the set of CRDs and the list of remote versions from the newest view.
//  2. made.go makes each answer once for all requests that wait for it, and keeps answers up to a total size.
//  3. documents.go makes OpenAPI v3 documents. It knows the ETag of each document before the document is made.
//  4. v2.go splices the additions of CRDs and remote servers into the generated OpenAPI v2 document.
//  5. order.go puts groups and versions, including remote versions, in upstream's order.
package description

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/logplane/logplane/internal/apiserver/aggregation"
	"github.com/logplane/logplane/internal/apiserver/customresources"
	"github.com/logplane/logplane/internal/apiserver/description/spec"
	"github.com/logplane/logplane/internal/kubestore"
)

// moments is the number of states of the CRDs for which one process keeps answers: the newest state, and states that
// requests of the past have asked for.
const moments = 8

// Config of the handlers.
type Config struct {
	Definitions Definitions
	Remotes     Remotes
	// Serves says whether the server serves a built-in group. OpenAPI v2, which is one document, describes all groups.
	Serves func(group string) bool
	// Root is the beginning of the paths at which clients find this API, empty for none.
	Root string
	// ExternalAddress with a port, for discovery.
	ExternalAddress string
	// Paths are the paths that '/' lists in addition to the paths of discovery and OpenAPI.
	Paths  []string
	Logger *slog.Logger
}

// Definitions reads every CRD that may be served: now, or at the moment that the context's request reads.
type Definitions interface {
	AllFor(context.Context) (customresources.Set, error)
	// Full returns the CRD of a summary, or a customresources.ChangedError if the CRD has changed since.
	Full(context.Context, customresources.Summary) (*apiextensionsv1.CustomResourceDefinition, error)
}

// served returns the CRDs and the remote APIServices as a request sees them. A request of the past sees no remote
// APIServices, since remote servers keep no past.
func (c Config) served(ctx context.Context) (set customresources.Set, remotes []*apiregistrationv1.APIService, err error) {
	set, err = c.Definitions.AllFor(ctx)
	if err == nil && kubestore.PastFrom(ctx) == nil {
		remotes, err = c.Remotes.All()
	}
	return set, remotes, err
}

// groups returns the built-in groups that the server serves.
func (c Config) groups() []spec.Group {
	return slices.DeleteFunc(slices.Clone(spec.Groups()), func(g spec.Group) bool { return !c.Serves(g.Name) })
}

// index returns the index of the documents of the groups that the server serves.
func (c Config) index() spec.Index {
	index := spec.Builtin()
	index.V3 = maps.Clone(index.V3)
	for _, g := range spec.Groups() {
		base := "apis/" + g.Name
		maps.DeleteFunc(index.V3, func(path, _ string) bool {
			return !c.Serves(g.Name) && (path == base || strings.HasPrefix(path, base+"/"))
		})
	}
	return index
}

// Remotes asks remote API servers for their descriptions. It waits only seconds for the servers, and then returns their
// last answers. It must be safe for concurrent use.
type Remotes interface {
	// All returns the APIServices of remote versions at the time of the call.
	All() ([]*apiregistrationv1.APIService, error)
	// Discover returns the discovery of each APIService's version.
	Discover(context.Context, []*apiregistrationv1.APIService) ([]apidiscoveryv2.APIVersionDiscovery, error)
	// OpenAPIV2 returns the OpenAPI v2 document of each APIService's server, nil if the document is not known.
	OpenAPIV2(context.Context, []*apiregistrationv1.APIService) ([]*aggregation.Document, error)
	// OpenAPIV3 returns the locations of the APIServices' OpenAPI v3 documents, by path.
	OpenAPIV3(context.Context, []*apiregistrationv1.APIService) (map[string]string, error)
}

// notMade returns the error for a description that could not be made: err, or a timeout if the request has ended.
func notMade(r *http.Request, err error) error {
	if r.Context().Err() != nil {
		return apierrors.NewTimeoutError("the request ended before its answer was made", 1)
	}
	return err
}
