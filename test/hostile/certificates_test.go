package hostile

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/test/product"
)

// signed is a certificate with its key.
type signed struct {
	*x509.Certificate
	key *ecdsa.PrivateKey
}

// sign makes a certificate from the template. If by is nil, the certificate is an authority that signs itself.
func sign(t *testing.T, template *x509.Certificate, by *signed) *signed {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	if by == nil {
		by = &signed{template, key}
		template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	}
	template.SerialNumber, template.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, by.Certificate, key.Public(), by.key)
	require.NoError(t, err)
	certificate, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &signed{certificate, key}
}

func newAuthority(t *testing.T, name string) *signed {
	return sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: name}}, nil)
}

func (a *signed) server(t *testing.T, name string) *signed {
	return sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, a)
}

func (a *signed) client(t *testing.T, user string, groups ...string) *tls.Certificate {
	s := sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: user, Organization: groups}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, a)
	return &tls.Certificate{Certificate: [][]byte{s.Raw}, PrivateKey: s.key}
}

func (a *signed) certificatePEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Raw})
}

func (a *signed) keyPEM(t *testing.T) []byte {
	der, err := x509.MarshalPKCS8PrivateKey(a.key)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// mount is a folder that changes like a mounted Kubernetes Secret: the rename of one link replaces all files at once.
type mount struct {
	t      *testing.T
	folder string
	turn   int
}

func (m *mount) path(name string) string { return filepath.Join(m.folder, name) }

func (m *mount) swap(files map[string][]byte) {
	m.t.Helper()
	m.turn++
	turn := string(rune('a' + m.turn))
	require.NoError(m.t, os.Mkdir(m.path(turn), 0o700))
	for name, content := range files {
		require.NoError(m.t, os.WriteFile(filepath.Join(m.path(turn), name), content, 0o600))
		if _, err := os.Lstat(m.path(name)); err != nil {
			require.NoError(m.t, os.Symlink(filepath.Join("..data", name), m.path(name)))
		}
	}
	require.NoError(m.t, os.Symlink(turn, m.path("..new")))
	require.NoError(m.t, os.Rename(m.path("..new"), m.path("..data")))
}

// once sends one request over a connection of its own. It returns the answer's code and the name in the server's
// certificate.
func once(t *testing.T, s *product.Process, token string, certificate *tls.Certificate) (code int, server string) {
	t.Helper()
	config := &tls.Config{InsecureSkipVerify: true} // the caller checks the server's name
	if certificate != nil {
		config.Certificates = []tls.Certificate{*certificate}
	}
	transport := &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL()+"/api/v1/namespaces/default", nil)
	require.NoError(t, err)
	if token != nobody {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := (&http.Client{Transport: transport, Timeout: requestTimeout}).Do(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	return answer.StatusCode, answer.TLS.PeerCertificates[0].Subject.CommonName
}

// withinAMinute is how soon a replaced file must be used.
const withinAMinute = time.Minute

// TestReplacedFilesAreUsed: the server's certificate and key, the authorities of clients, and tokens are replaced like
// a mounted Secret. The new files are used within a minute, and invalid files change nothing. On e14eff4 the process
// uses the first files until its end.
func TestReplacedFilesAreUsed(t *testing.T) {
	c := newCell(t)
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	first, second := ours.server(t, "first"), ours.server(t, "second")
	files := &mount{t: t, folder: t.TempDir()}
	put := func(server, authority *signed, tokens string) {
		files.swap(map[string][]byte{
			"tls.crt": server.certificatePEM(), "tls.key": server.keyPEM(t), "ca.crt": authority.certificatePEM(), "tokens": []byte(tokens),
		})
	}
	put(first, ours, tokens)
	s := product.Serve(t, c.with("api", "--listen", "127.0.0.1:0", "--tls-cert-file", files.path("tls.crt"), "--tls-private-key-file", files.path("tls.key"),
		"--client-ca-file", files.path("ca.crt"), "--token-auth-file", files.path("tokens"))...)
	before, after := ours.client(t, "someone", "system:masters"), theirs.client(t, "someone", "system:masters")
	check := func(server, token string, certificate *tls.Certificate) {
		t.Helper()
		require.Eventually(t, func() bool {
			code, name := once(t, s, token, nil)
			byCertificate, _ := once(t, s, nobody, certificate)
			return code == http.StatusOK && name == server && byCertificate == http.StatusOK
		}, withinAMinute, 50*time.Millisecond, "%s", s.Output())
	}
	refused := func(token string, certificate *tls.Certificate) {
		t.Helper()
		code, _ := once(t, s, token, nil)
		require.Equal(t, http.StatusUnauthorized, code)
		code, _ = once(t, s, nobody, certificate)
		require.Equal(t, http.StatusUnauthorized, code)
	}
	check("first", admin, before)
	refused("new", after)

	put(second, theirs, `new,admin,1,"system:masters"`+"\n")
	check("second", "new", after)
	refused(admin, before)

	// In these files the key does not match the certificate, the authority's file holds no certificate, and the token's
	// line lacks fields.
	files.swap(map[string][]byte{"tls.crt": first.certificatePEM(), "tls.key": second.keyPEM(t), "ca.crt": []byte("none"), "tokens": []byte(admin + "\n")})
	require.Eventually(t, func() bool {
		check("second", "new", after)
		return strings.Count(s.Output(), "files were changed and cannot be used") == 3
	}, withinAMinute, 50*time.Millisecond, "%s", s.Output())
	refused(admin, before)

	put(first, ours, tokens)
	check("first", admin, before)
	refused("new", after)
	require.Equal(t, 3, strings.Count(s.Output(), "files were changed and cannot be used"), "each is logged once: %s", s.Output())
	require.NotContains(t, s.Output(), "PRIVATE KEY")
}

// TestAReplacedTokenIsRefusedOnAnOpenConnection: a revoked token is refused even on connections that were open before.
func TestAReplacedTokenIsRefusedOnAnOpenConnection(t *testing.T) {
	c := newCell(t)
	s := c.serve("api")
	s.must(tenant, http.MethodGet, "/version", "")
	require.NoError(t, os.WriteFile(c.tokens, []byte(strings.ReplaceAll(tokens, "tenant,tenant,3\n", "")), 0o600))
	require.Eventually(t, func() bool { return s.do(tenant, http.MethodGet, "/version", "", "").Code == http.StatusUnauthorized },
		withinAMinute, 50*time.Millisecond)
	s.must(admin, http.MethodGet, "/version", "")
}
