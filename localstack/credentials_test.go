package localstack_test

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"github.com/logplane/logplane/localstack"
)

// TestCredentialsAreMadeOnce: only their owner can read the files, the files belong together, and none is ever
// replaced.
func TestCredentialsAreMadeOnce(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "credentials")
	const address = "api.example:7373"
	c, err := localstack.EnsureCredentials(folder, address)
	require.NoError(t, err)
	all := map[string]string{}
	for _, path := range []string{c.Authority, c.AuthorityKey, c.Server, c.ServerKey, c.SigningKey, c.Kubeconfig} {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		all[path] = string(text)
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Zero(t, info.Mode().Perm()&0o077, path)
	}
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Len(t, entries, len(all), "nothing else is left there")

	roots, err := cert.NewPool(c.Authority)
	require.NoError(t, err)
	pair, err := tls.LoadX509KeyPair(c.Server, c.ServerKey)
	require.NoError(t, err)
	_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "api.example"})
	require.NoError(t, err)
	require.NotEqual(t, pair.Leaf.Subject.String(), pair.Leaf.Issuer.String())
	require.NotEmpty(t, pair.Leaf.SubjectKeyId)
	require.NotEmpty(t, pair.Leaf.AuthorityKeyId)
	_, err = keyutil.PrivateKeyFromFile(c.SigningKey)
	require.NoError(t, err)
	to, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	require.NoError(t, err)
	require.Equal(t, "https://"+address, to.Host)
	pair, err = tls.X509KeyPair(to.CertData, to.KeyData)
	require.NoError(t, err)
	_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	require.NoError(t, err)
	require.Equal(t, []string{"system:masters"}, pair.Leaf.Subject.Organization)

	require.NoError(t, os.Remove(c.SigningKey))
	_, err = localstack.EnsureCredentials(folder, address)
	require.NoError(t, err)
	for path, before := range all {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, path != c.SigningKey, before == string(text), path)
	}
	require.NoError(t, os.Remove(c.Authority))
	_, err = localstack.EnsureCredentials(folder, address)
	require.ErrorContains(t, err, c.Authority+"' is missing")
	for _, bad := range []string{"", "api.example", ":7373"} {
		_, err = localstack.EnsureCredentials(t.TempDir(), bad)
		require.ErrorContains(t, err, "it must be HOST:PORT")
	}
}

// TestOpenSSLBelievesCredentials: OpenSSL, which curl and Python use, is stricter than Go about who signed a
// certificate.
func TestOpenSSLBelievesCredentials(t *testing.T) {
	openssl, err := exec.LookPath("openssl")
	if err != nil {
		t.Skip("openssl is not on PATH")
	}
	c, err := localstack.EnsureCredentials(t.TempDir(), "localhost:7373")
	require.NoError(t, err)
	said, err := exec.Command(openssl, "verify", "-x509_strict", "-CAfile", c.Authority, c.Server).CombinedOutput()
	require.NoError(t, err, string(said))
}

// TestCredentialsNameEachAddressOnce: an address that every certificate has is not repeated.
func TestCredentialsNameEachAddressOnce(t *testing.T) {
	for _, address := range []string{"localhost:1", "127.0.0.1:1", "[::1]:1"} {
		c, err := localstack.EnsureCredentials(t.TempDir(), address)
		require.NoError(t, err)
		pair, err := tls.LoadX509KeyPair(c.Server, c.ServerKey)
		require.NoError(t, err)
		require.Equal(t, []string{"localhost"}, pair.Leaf.DNSNames)
		require.Len(t, pair.Leaf.IPAddresses, 2)
	}
}

// TestCredentialsOfAnotherAddress: existing files for another address are an error, which otherwise only clients would
// meet.
func TestCredentialsOfAnotherAddress(t *testing.T) {
	folder := t.TempDir()
	c, err := localstack.EnsureCredentials(folder, "localhost:7373")
	require.NoError(t, err)
	_, err = localstack.EnsureCredentials(folder, "other.example:443")
	require.ErrorContains(t, err, c.Server+"' is not for 'other.example': remove it and '"+c.ServerKey+"'")
	_, err = localstack.EnsureCredentials(folder, "localhost:443")
	require.ErrorContains(t, err, c.Kubeconfig+"' leads to 'https://localhost:7373'")
}
