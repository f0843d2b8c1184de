package apiserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/internal/apiserver/access"
	"github.com/logplane/logplane/internal/apiserver/access/accesstest"
	"github.com/logplane/logplane/internal/kubestore/kubestoretest"
	"github.com/logplane/logplane/projection"
)

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return authority{cert, key}
}

func (a authority) client(t *testing.T, name string, groups ...string) *x509.Certificate {
	return a.until(t, time.Now().Add(time.Hour), name, groups...)
}

func (a authority) until(t *testing.T, expiry time.Time, name string, groups ...string) *x509.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name, Organization: groups}, NotAfter: expiry, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return cert
}

// A certificate that the authority signed identifies a client. A client with another certificate needs a valid token. A
// client whose credentials are all bad is refused, and does not become anonymous.
func TestClientCertificates(t *testing.T) {
	const anonymous = `{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthenticationConfiguration","anonymous":{"enabled":true}}`
	ours := newAuthority(t)
	folder := t.TempDir()
	roots, tokens := filepath.Join(folder, "ca.pem"), filepath.Join(folder, "tokens.csv")
	require.NoError(t, os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ours.cert.Raw}), 0o600))
	require.NoError(t, os.WriteFile(tokens, []byte("root-token,root,1,system:masters\n"), 0o600))
	s := newServer(t, func(c *Config) {
		c.Authentication = access.Authentication{ClientCAFile: roots, TokenFile: tokens, ConfigFile: accesstest.Write(t, anonymous)}
		c.Authorization = access.Authorization{Mode: "RBAC"}
	})
	code := func(token string, certs ...*x509.Certificate) int {
		r := httptest.NewRequest("GET", configMaps, nil)
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		r.TLS = &tls.ConnectionState{PeerCertificates: certs}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		return w.Code
	}
	foreign := newAuthority(t).client(t, "root", "system:masters")
	require.Equal(t, 200, code("", ours.client(t, "root", "system:masters")))
	require.Equal(t, 403, code("", ours.client(t, "ann")))
	require.Equal(t, 403, code("root-token", ours.client(t, "ann")), "the certificate comes first")
	require.Equal(t, 401, code("", foreign))
	require.Equal(t, 401, code("another", foreign))
	require.Equal(t, 200, code("root-token", foreign))
	require.Equal(t, 401, code("another"))
	require.Equal(t, 403, code(""), "anonymous")
}

func TestAuthenticationConfiguration(t *testing.T) {
	for _, a := range []access.Authentication{{TokenFile: "missing"}, {ClientCAFile: "missing"}, {ClientCAFile: os.DevNull}} {
		_, err := New(Config{Cell: kubestoretest.Cell(t, projection.Config{}), Authentication: a})
		require.Error(t, err)
	}
	_, err := New(Config{Cell: kubestoretest.Cell(t, projection.Config{}), Authorization: access.Authorization{Mode: "Wishful"}})
	require.ErrorContains(t, err, "Wishful")
}
