package aggregation

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/transport"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/controllers/status/remote"

	"github.com/logplane/logplane/internal/apiserver/listers"
	"github.com/logplane/logplane/internal/calls"
)

const (
	// keptServers is the number of remote servers to which a process keeps connections.
	keptServers = 64
	// keptFailures is how many unreachable addresses are remembered.
	keptFailures = 1024
	// dialTimeout bounds the time to connect to a remote server. It bounds the time of the handshake separately.
	dialTimeout = 2 * time.Second
	// downFor is how long an address that could not be reached is not tried again.
	downFor = 5 * time.Second
	// choices is how many endpoints of a Service are tried to find an endpoint that is not down.
	choices = 8
)

// serverKey identifies a remote server. Several APIServices may name the same server.
type serverKey struct {
	namespace, name string
	port            int32
	insecure        bool
	authorities     [sha256.Size]byte
}

// server is a remote server. It is safe for concurrent use.
type server struct {
	key       serverKey
	transport *http.Transport

	discovery kept[*discovered]
	openapi2  kept[*Document]
	openapi3  kept[map[string]string]
	legacy    sync.Map // *kept[[]apidiscoveryv2.APIResourceDiscovery] by schema.GroupVersion; for a server without aggregated discovery
}

// serverOf returns the server that an APIService names.
func (a *Aggregator) serverOf(service *apiregistrationv1.APIService) (*server, error) {
	key := serverKey{
		namespace: service.Spec.Service.Namespace, name: service.Spec.Service.Name, port: portOf(service),
		insecure: service.Spec.InsecureSkipTLSVerify, authorities: sha256.Sum256(service.Spec.CABundle),
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if s, ok := a.servers.Get(key); ok {
		return s, nil
	}
	secured, err := transport.TLSConfigFor(remote.BuildTransportConfig(nil, nil, nil, service))
	if err != nil {
		return nil, fmt.Errorf("use `spec.caBundle` of APIService %s: %w", service.Name, err)
	}
	if a.certificate != nil {
		secured.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return a.Certificate(), nil }
	}
	s := &server{key: key, transport: utilnet.SetTransportDefaults(&http.Transport{
		TLSClientConfig: secured, DialContext: calls.Upgrading(a.dial), TLSHandshakeTimeout: dialTimeout, ResponseHeaderTimeout: a.config.Timeout,
		MaxResponseHeaderBytes: calls.MostHeaders,
	})}
	a.servers.Add(key, s)
	return s, nil
}

// portOf returns an APIService's port. An APIService that was stored without a port has upstream's default.
func portOf(service *apiregistrationv1.APIService) int32 {
	if service.Spec.Service.Port == nil {
		return 443
	}
	return *service.Spec.Service.Port
}

// failure is why and when an address could not be reached.
type failure struct {
	err error
	at  time.Time
}

// isDown returns the last error of an address that is not to be tried now, nil if the address may be tried.
func (a *Aggregator) isDown(address string) error {
	if f, ok := a.down.Get(address); ok && time.Since(f.at) < downFor {
		return f.err
	}
	return nil
}

// dial connects to a server. While the server is down, most requests fail at once, and only one request every few
// seconds tries to connect.
func (a *Aggregator) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if err := a.isDown(address); err != nil {
		return nil, err
	}
	dialer := *a.config.Dialer
	dialer.Timeout = dialTimeout
	conn, err := dialer.DialContext(ctx, network, address)
	switch {
	case err == nil:
		a.down.Remove(address)
	case ctx.Err() == nil: // otherwise the client has given up
		a.down.Add(address, failure{err, time.Now()})
	}
	return conn, err
}

// locate finds an endpoint of the server, preferably one that is not down. The error is a 503, or listers.Unreadable.
func (a *Aggregator) locate(s *server) (*url.URL, error) {
	var found *url.URL
	for range choices {
		var err error
		found, err = a.config.Services.ResolveEndpoint(s.key.namespace, s.key.name, s.key.port)
		if listers.IsUnreadable(err) {
			return nil, err
		}
		if err != nil {
			return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoint of Service %s/%s can be called: %v", s.key.namespace, s.key.name, err))
		}
		if a.isDown(found.Host) == nil {
			break
		}
	}
	return found, nil
}
