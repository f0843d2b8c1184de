package aggregation

import (
	"context"
	"crypto/sha512"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apidiscoveryv2beta1 "k8s.io/api/apidiscovery/v2beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	discoveryconversion "k8s.io/apiserver/pkg/apis/apidiscovery/v2"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/transport"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	openapiaggregator "k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/logplane/logplane/internal/apiserver/cost/shape"
	"github.com/logplane/logplane/internal/calls"
)

const (
	// mostDiscovery and mostOpenAPI bound a server's documents, in bytes.
	mostDiscovery = 4 << 20
	mostOpenAPI   = 8 << 20
)

// Upstream asks a server for its discovery and for its OpenAPI as these users.
var (
	discoverer = &user.DefaultInfo{Name: "system:kube-aggregator", Groups: []string{user.SystemPrivilegedGroup}}
	describer  = &user.DefaultInfo{Name: "system:aggregator"}
)

// answer is the answer of a server to one request.
type answer struct {
	code   int
	header http.Header
	body   []byte
}

// get asks a server for a document.
func (a *Aggregator) get(ctx context.Context, s *server, as user.Info, path string, header http.Header, most int64) (answer, error) {
	endpoint, err := a.locate(s)
	if err != nil {
		return answer{}, err
	}
	location := url.URL{Scheme: "https", Host: endpoint.Host, Path: path}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, location.String(), http.NoBody)
	if err != nil {
		return answer{}, err
	}
	r.Header = header
	transport.SetAuthProxyHeaders(r, as.GetName(), as.GetUID(), as.GetGroups(), as.GetExtra())
	response, err := calls.Measured(s.transport, most, measured).RoundTrip(r)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, body}, err
}

// measured returns an error for a document that must not be decoded. Decoders recurse as deep as a document nests,
// until the stack overflows.
func measured(document []byte) error {
	_, err := shape.JSON(document)
	return err
}

// unexpected returns the error for an answer with an unusable status.
func (n answer) unexpected(path string) error {
	return fmt.Errorf("bad status from %s: %d", path, n.code)
}

// discovered describes the versions that a server serves. versions is nil for a server without aggregated discovery.
type discovered struct {
	etag     string
	versions map[schema.GroupVersion]apidiscoveryv2.APIVersionDiscovery
}

var discoveryCodecs = sync.OnceValue(func() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	utilruntime.Must(apidiscoveryv2.AddToScheme(scheme))
	utilruntime.Must(apidiscoveryv2beta1.AddToScheme(scheme))
	utilruntime.Must(discoveryconversion.RegisterConversions(scheme))
	return serializer.NewCodecFactory(scheme)
})

// Discover returns the discovery of the version of each remote APIService, in the order of the APIServices. A version
// whose server does not answer in time is marked stale. Such a version has the resources that were last known, or no
// resources.
func (a *Aggregator) Discover(ctx context.Context, services []*apiregistrationv1.APIService) ([]apidiscoveryv2.APIVersionDiscovery, error) {
	ofServer := func(s *server, _ schema.GroupVersion) *kept[*discovered] { return &s.discovery }
	if _, err := answersOf(ctx, a, services, ofServer, a.discover); err != nil {
		return nil, err
	}
	// As in upstream, servers without aggregated discovery are asked for each version. A server that did not answer is
	// not asked again.
	ofVersion := func(s *server, version schema.GroupVersion) *kept[[]apidiscoveryv2.APIResourceDiscovery] {
		if known, err := s.discovery.last(); err != nil || known.versions != nil {
			return nil
		}
		return s.legacyOf(version)
	}
	if _, err := answersOf(ctx, a, services, ofVersion, a.discoverVersion); err != nil {
		return nil, err
	}
	all := make([]apidiscoveryv2.APIVersionDiscovery, len(services))
	for i, service := range services {
		all[i] = a.lastDiscovered(service)
	}
	return all, nil
}

func (a *Aggregator) lastDiscovered(service *apiregistrationv1.APIService) apidiscoveryv2.APIVersionDiscovery {
	version := versionOf(service)
	found := apidiscoveryv2.APIVersionDiscovery{Version: version.Version, Freshness: apidiscoveryv2.DiscoveryFreshnessStale}
	s, err := a.serverOf(service)
	if err != nil {
		return found
	}
	known, err := s.discovery.last()
	switch {
	case known == nil:
	case known.versions != nil:
		found.Resources = known.versions[version].Resources
	default:
		var failed error
		found.Resources, failed = s.legacyOf(version).last()
		err = errors.Join(err, failed)
	}
	if err == nil {
		found.Freshness = apidiscoveryv2.DiscoveryFreshnessCurrent
	}
	return found
}

// answersOf asks the server of each APIService with 'ask', unless 'of' returns nil or a fresh answer. It returns each
// server's last answer, in the order of the APIServices; the zero value stands for no answer.
func answersOf[T any](ctx context.Context, a *Aggregator, services []*apiregistrationv1.APIService,
	of func(*server, schema.GroupVersion) *kept[T], ask func(context.Context, *server, schema.GroupVersion, T) (T, error),
) ([]T, error) {
	answers := make([]*kept[T], len(services))
	var asks []func(context.Context)
	for i, service := range services {
		s, err := a.serverOf(service)
		if err != nil {
			a.config.Logger.WarnContext(ctx, "a remote API server cannot be asked what it serves", "apiService", service.Name, "error", err)
			continue
		}
		version := versionOf(service)
		k := of(s, version)
		if answers[i] = k; k == nil || k.isFresh() {
			continue
		}
		asks = append(asks, func(ctx context.Context) {
			k.ask(ctx, func(ctx context.Context, before T) (T, error) { return ask(ctx, s, version, before) })
		})
	}
	if err := askAll(ctx, asks); err != nil {
		return nil, err
	}
	all := make([]T, len(services))
	for i, k := range answers {
		if k != nil {
			all[i], _ = k.last()
		}
	}
	return all, nil
}

func (s *server) legacyOf(version schema.GroupVersion) *kept[[]apidiscoveryv2.APIResourceDiscovery] {
	k, _ := s.legacy.LoadOrStore(version, &kept[[]apidiscoveryv2.APIResourceDiscovery]{})
	return k.(*kept[[]apidiscoveryv2.APIResourceDiscovery])
}

// discover asks a server for aggregated discovery.
func (a *Aggregator) discover(ctx context.Context, s *server, _ schema.GroupVersion, before *discovered) (*discovered, error) {
	header := http.Header{"Accept": {discovery.AcceptV2}}
	if before != nil && before.etag != "" {
		header.Set("If-None-Match", before.etag)
	}
	got, err := a.get(ctx, s, discoverer, "/apis", header, mostDiscovery)
	if err != nil {
		return nil, err
	}
	if got.code == http.StatusNotModified && before != nil {
		return before, nil
	}
	if got.code == http.StatusServiceUnavailable {
		return nil, got.unexpected("/apis")
	}
	if got.code != http.StatusOK || !isAggregated(got.header.Get("Content-Type")) {
		return &discovered{}, nil
	}
	var list apidiscoveryv2.APIGroupDiscoveryList
	if err := runtime.DecodeInto(discoveryCodecs().UniversalDecoder(), got.body, &list); err != nil {
		return nil, fmt.Errorf("decode the discovery of Service %s/%s: %w", s.key.namespace, s.key.name, err)
	}
	found := &discovered{etag: got.header.Get("Etag"), versions: map[schema.GroupVersion]apidiscoveryv2.APIVersionDiscovery{}}
	for _, g := range list.Items {
		for _, v := range g.Versions {
			withKinds(v.Resources)
			found.versions[schema.GroupVersion{Group: g.Name, Version: v.Version}] = v
		}
	}
	return found, nil
}

func isAggregated(contentType string) bool {
	for _, version := range []string{"v2", "v2beta1"} {
		kind := schema.GroupVersionKind{Group: "apidiscovery.k8s.io", Version: version, Kind: "APIGroupDiscoveryList"}
		if ok, err := discovery.ContentTypeIsGVK(contentType, kind); ok && err == nil {
			return true
		}
	}
	return false
}

// withKinds fills in missing kinds, since some clients cannot read a list without kinds.
func withKinds(resources []apidiscoveryv2.APIResourceDiscovery) {
	for i := range resources {
		if resources[i].ResponseKind == nil {
			resources[i].ResponseKind = &metav1.GroupVersionKind{}
		}
		for j := range resources[i].Subresources {
			if resources[i].Subresources[j].ResponseKind == nil {
				resources[i].Subresources[j].ResponseKind = &metav1.GroupVersionKind{}
			}
		}
	}
}

// getJSON asks a server for a document and decodes it.
func (a *Aggregator) getJSON(ctx context.Context, s *server, as user.Info, path string, into any) error {
	got, err := a.get(ctx, s, as, path, http.Header{"Accept": {runtime.ContentTypeJSON}}, mostDiscovery)
	if err != nil {
		return err
	}
	if got.code != http.StatusOK {
		return got.unexpected(path)
	}
	if err := json.Unmarshal(got.body, into); err != nil {
		return fmt.Errorf("decode %s of Service %s/%s: %w", path, s.key.namespace, s.key.name, err)
	}
	return nil
}

// discoverVersion asks a server for the discovery of one version.
func (a *Aggregator) discoverVersion(ctx context.Context, s *server, version schema.GroupVersion,
	_ []apidiscoveryv2.APIResourceDiscovery,
) ([]apidiscoveryv2.APIResourceDiscovery, error) {
	var list metav1.APIResourceList
	if err := a.getJSON(ctx, s, discoverer, "/apis/"+version.String(), &list); err != nil {
		return nil, err
	}
	return endpoints.ConvertGroupVersionIntoToDiscovery(list.APIResources)
}

// OpenAPIV3 returns the locations of the OpenAPI v3 documents of remote group versions, by their paths below
// '/openapi/v3'. It leaves out versions whose server has never answered.
func (a *Aggregator) OpenAPIV3(ctx context.Context, services []*apiregistrationv1.APIService) (map[string]string, error) {
	ofServer := func(s *server, _ schema.GroupVersion) *kept[map[string]string] { return &s.openapi3 }
	answers, err := answersOf(ctx, a, services, ofServer, a.indexOf)
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for i, service := range services {
		path := "apis/" + versionOf(service).String()
		if location, ok := answers[i][path]; ok {
			all[path] = location
		}
	}
	return all, nil
}

func (a *Aggregator) indexOf(ctx context.Context, s *server, _ schema.GroupVersion, _ map[string]string) (map[string]string, error) {
	var index handler3.OpenAPIV3Discovery
	if err := a.getJSON(ctx, s, describer, "/openapi/v3", &index); err != nil {
		return nil, err
	}
	all := map[string]string{}
	for path, at := range index.Paths {
		all[path] = at.ServerRelativeURL
	}
	return all, nil
}

// Document is the OpenAPI v2 document of a remote server.
type Document struct {
	Etag    string
	Swagger *spec.Swagger
}

// OpenAPIV2 returns the OpenAPI v2 documents of the APIServices' servers, in the order of the APIServices. The document
// of a server that has never answered is nil. Documents must not be changed.
func (a *Aggregator) OpenAPIV2(ctx context.Context, services []*apiregistrationv1.APIService) ([]*Document, error) {
	ofServer := func(s *server, _ schema.GroupVersion) *kept[*Document] { return &s.openapi2 }
	return answersOf(ctx, a, services, ofServer, a.describe)
}

// Only returns the part of the document that is about one group version.
func (d *Document) Only(version schema.GroupVersion) *spec.Swagger {
	return openapiaggregator.FilterSpecByPathsWithoutSideEffects(d.Swagger, []string{"/apis/" + version.String() + "/"})
}

func (a *Aggregator) describe(ctx context.Context, s *server, _ schema.GroupVersion, before *Document) (*Document, error) {
	const path = "/openapi/v2"
	header := http.Header{"Accept": {runtime.ContentTypeJSON}}
	if before != nil {
		header.Set("If-None-Match", before.Etag)
	}
	got, err := a.get(ctx, s, describer, path, header, mostOpenAPI)
	if err != nil {
		return nil, err
	}
	if got.code == http.StatusNotModified && before != nil {
		return before, nil
	}
	if got.code != http.StatusOK {
		return nil, got.unexpected(path)
	}
	etag := got.header.Get("Etag")
	if etag == "" {
		etag = fmt.Sprintf("%q", fmt.Sprintf("%X", sha512.Sum512(got.body)))
	}
	if before != nil && before.Etag == etag {
		return before, nil
	}
	document := &Document{Etag: etag, Swagger: &spec.Swagger{}}
	if err := document.Swagger.UnmarshalJSON(got.body); err != nil {
		return nil, fmt.Errorf("decode %s of Service %s/%s: %w", path, s.key.namespace, s.key.name, err)
	}
	if document.Swagger.Paths == nil {
		return nil, errors.New(path + " has no paths")
	}
	return document, nil
}
