package apiserver

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"

	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/util/cert"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"

	"github.com/logplane/logplane/internal/calls"
	"github.com/logplane/logplane/internal/reload"
)

// kubeletPort is the port of a kubelet whose Node does not name one.
const kubeletPort = 10250

// Kubelets says how kubelets are reached, for log, exec, attach, port-forward and proxy. With the zero value, no
// kubelet is reached.
type Kubelets struct {
	// CertFile and KeyFile hold the certificate that this server shows to kubelets. These files and CAFile are read
	// again when they change.
	CertFile, KeyFile string
	// CAFile holds the authorities of the kubelets' own certificates. Without CAFile, any certificate is accepted, as
	// in upstream.
	CAFile string
	// AddressTypes says which of a Node's addresses to call, the preferred type first.
	AddressTypes []string
}

// Configured reports whether this server reaches nodes at all.
func (k Kubelets) Configured() bool { return k.CertFile != "" }

// open reads the files. It returns nil if no files are configured.
func (k Kubelets) open(to *net.Dialer) (*reload.Value[kubeletTransports], error) {
	if !k.Configured() {
		return nil, nil
	}
	files := []string{k.CertFile, k.KeyFile}
	if k.CAFile != "" {
		files = append(files, k.CAFile)
	}
	transports, err := reload.New(func() (kubeletTransports, error) { return k.transports(to) }, files...)
	if err != nil {
		return nil, fmt.Errorf("read the credentials for kubelets: %w", err)
	}
	return transports, nil
}

// kubeletTransports are connections to kubelets. anyone accepts every certificate, for clients that ask for a log with
// insecureSkipTLSVerifyBackend.
type kubeletTransports struct {
	certificate      *tls.Certificate
	verified, anyone http.RoundTripper
}

func (k Kubelets) transports(to *net.Dialer) (kubeletTransports, error) {
	certificate, err := tls.LoadX509KeyPair(k.CertFile, k.KeyFile)
	if err != nil {
		return kubeletTransports{}, err
	}
	shown := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate}}
	anyone := shown.Clone()
	anyone.InsecureSkipVerify = true
	verified := anyone
	if k.CAFile != "" {
		verified = shown
		if verified.RootCAs, err = cert.NewPool(k.CAFile); err != nil {
			return kubeletTransports{}, err
		}
	}
	return kubeletTransports{certificate: &certificate, verified: kubeletTransport(verified, to), anyone: kubeletTransport(anyone, to)}, nil
}

func kubeletTransport(secured *tls.Config, to *net.Dialer) http.RoundTripper {
	return utilnet.SetTransportDefaults(&http.Transport{TLSClientConfig: secured, DialContext: calls.Upgrading(to.DialContext),
		MaxResponseHeaderBytes: calls.MostHeaders})
}

// kubelets finds the kubelets of nodes. Upstream's getter finds the addresses of kubelets. The getter's transports are
// replaced, because they need a goroutine that looks for new certificates.
type kubelets struct {
	addresses  kubeletclient.ConnectionInfoGetter
	transports *reload.Value[kubeletTransports]
}

// GetConnectionInfo implements kubeletclient.ConnectionInfoGetter.
func (k kubelets) GetConnectionInfo(ctx context.Context, node types.NodeName) (*kubeletclient.ConnectionInfo, error) {
	info, err := k.addresses.GetConnectionInfo(ctx, node)
	if err != nil {
		return nil, err
	}
	newest := k.transports.Get()
	info.Transport, info.InsecureSkipTLSVerifyTransport = newest.verified, newest.anyone
	return info, nil
}
