package product

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/util/cert"
)

// OwnAddress returns an address of this machine other than loopback, because a Node or an endpoint may not have a
// loopback address. If there is none, the test is skipped.
func OwnAddress(t testing.TB) string {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, address := range addresses {
		if ip, ok := address.(*net.IPNet); ok && ip.IP.To4() != nil && ip.IP.IsGlobalUnicast() {
			return ip.IP.String()
		}
	}
	t.Skip("this machine has no address but loopback")
	return ""
}

// ServeTLS serves the handler at the address of OwnAddress, with a certificate for a name and that address, until the
// test ends. It returns the address, and the authorities of the certificate.
func ServeTLS(t testing.TB, name string, clients tls.ClientAuthType, h http.Handler) (address string, authorities []byte) {
	t.Helper()
	own := OwnAddress(t)
	authorities, key, err := cert.GenerateSelfSignedCertKey(name, []net.IP{net.ParseIP(own)}, nil)
	require.NoError(t, err)
	pair, err := tls.X509KeyPair(authorities, key)
	require.NoError(t, err)
	listener, err := net.Listen("tcp", net.JoinHostPort(own, "0"))
	require.NoError(t, err)
	s := httptest.NewUnstartedServer(h)
	_ = s.Listener.Close()
	s.Listener, s.TLS = listener, &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: clients}
	s.StartTLS()
	t.Cleanup(s.Close)
	return listener.Addr().String(), authorities
}
