// Package aggregation forwards requests to other API servers, and knows which versions those servers serve.
//
// Nouns. An APIService names the server of one version of a group. A local APIService stands for this server. A remote
// APIService names the Service of another server, which is called a remote server. Upstream's aggregator follows
// APIServices with informers, and asks remote servers in the background. Here a request that needs an answer reads the
// APIServices and asks the remote servers itself.
//
// The path of a request through the package:
//
//  1. Remote finds the APIService of the request's group version in the newest view.
//  2. servers.go has the connections to the server that the APIService names. An address that could not be reached is
//     not tried for some seconds.
//  3. forward.go sends the request to that server, as the proxy that may name the user, and passes the answer on.
//  4. documents.go asks servers for their discovery and OpenAPI, all at the same time and for a few seconds at most,
//     and keeps the answers for some seconds.
//  5. storage.go stores APIServices. local.go makes the local APIServices, and check.go finds out which remote servers
//     can be reached. Bootstrap and the lifecycle write the results.
//  6. trust.go publishes the certificates by which remote servers recognize this server.
package aggregation

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/util/webhook"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"

	"github.com/logplane/logplane/internal/apiserver/customresources"
	"github.com/logplane/logplane/internal/apiserver/listers"
	"github.com/logplane/logplane/internal/reload"
)

// Resource is the resource of APIServices.
var Resource = apiregistrationv1.Resource("apiservices")

// Prefix is upstream's storage prefix of APIServices.
const Prefix = "apiregistration.k8s.io/apiservices"

// Config of an Aggregator.
type Config struct {
	Listers *listers.Factory
	// Services finds an endpoint of a Service. The Aggregator calls no other addresses.
	Services webhook.ServiceResolver
	// Dialer connects to such an endpoint.
	Dialer *net.Dialer
	// CertFile and KeyFile hold the certificate by which remote servers recognize this server. They are empty if there
	// is no certificate.
	CertFile, KeyFile string
	// Timeout is how long a remote server may take to begin its answer.
	Timeout time.Duration
	Logger  *slog.Logger
}

// Aggregator forwards requests. It is safe for concurrent use.
type Aggregator struct {
	config Config
	rows   *listers.Indexer
	// certificate is nil if the configuration names no certificate.
	certificate *reload.Value[tls.Certificate]
	// down has the addresses that could not be reached.
	down *lru.Cache[string, failure]

	mu      sync.Mutex
	servers *lru.Cache[serverKey, *server] // by mu
}

// New makes an Aggregator. It reads the certificate, and calls no server.
func New(c Config) (*Aggregator, error) {
	a := &Aggregator{config: c, rows: c.Listers.NewIndexer(listers.Source{
		Object: &apiregistrationv1.APIService{}, Resource: Resource, Prefix: Prefix,
		Decoder: aggregatorscheme.Codecs.UniversalDecoder(apiregistrationv1.SchemeGroupVersion), Lenient: true,
	})}
	if c.CertFile != "" {
		var err error
		a.certificate, err = reload.New(func() (tls.Certificate, error) { return tls.LoadX509KeyPair(c.CertFile, c.KeyFile) }, c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("load --proxy-client-cert-file: %w", err)
		}
	}
	a.down, _ = lru.New[string, failure](keptFailures) // fails only for a size below one; so does the next call
	a.servers, _ = lru.NewWithEvict(keptServers, func(_ serverKey, s *server) { s.transport.CloseIdleConnections() })
	return a, nil
}

// Certificate returns the certificate by which remote servers recognize this server, nil if there is none.
func (a *Aggregator) Certificate() *tls.Certificate {
	if a.certificate == nil {
		return nil
	}
	newest := a.certificate.Get()
	return &newest
}

// Remote returns the APIService of a group version that a remote server serves, nil for any other version. A built-in
// version is never remote. The object is shared.
func (a *Aggregator) Remote(version schema.GroupVersion) (*apiregistrationv1.APIService, error) {
	object, found, err := a.rows.Read(nameOf(version))
	if listers.IsUndecodable(err) {
		return nil, nil // All leaves such an APIService out, too
	}
	if err != nil {
		return nil, fmt.Errorf("read APIService %s: %w", nameOf(version), err)
	}
	if !found {
		return nil, nil
	}
	service := object.(*apiregistrationv1.APIService)
	if isRemote(service) && versionOf(service) == version { // 'v1.a' of group 'b' has the name of 'v1' of group 'a.b'
		return service, nil
	}
	return nil, nil
}

// All returns the APIServices of remote servers, by name. The objects are shared.
func (a *Aggregator) All() ([]*apiregistrationv1.APIService, error) {
	objects, err := a.rows.All()
	if err != nil {
		return nil, fmt.Errorf("list APIServices: %w", err)
	}
	var remote []*apiregistrationv1.APIService
	for _, object := range objects {
		service := object.(*apiregistrationv1.APIService)
		if isRemote(service) {
			remote = append(remote, service)
		}
	}
	return remote, nil
}

// isRemote reports whether another server serves the version of an APIService. It is false for a built-in version,
// whose APIService may be older than the check that refuses remote APIServices of built-in versions.
func isRemote(service *apiregistrationv1.APIService) bool {
	return service.Spec.Service != nil && !customresources.IsBuiltin(service.Spec.Group, service.Spec.Version)
}

func nameOf(version schema.GroupVersion) string { return version.Version + "." + version.Group }

func versionOf(service *apiregistrationv1.APIService) schema.GroupVersion {
	return schema.GroupVersion{Group: service.Spec.Group, Version: service.Spec.Version}
}

// Shrink forgets the answers of servers, and closes idle connections.
func (a *Aggregator) Shrink() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.servers.Purge()
}
