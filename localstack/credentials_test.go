package localstack_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"github.com/logplane/logplane/localstack"
	"github.com/logplane/logplane/localstack/authority"
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
	require.ErrorContains(t, err, c.Authority+"' is missing, although '"+c.AuthorityKey+"' is there: bring it back, or remove '"+c.AuthorityKey+"'")
	for _, bad := range []string{"", "api.example", ":7373"} {
		_, err = localstack.EnsureCredentials(t.TempDir(), bad)
		require.ErrorContains(t, err, "it must be HOST:PORT")
	}
}

// TestCredentialsOfAKilledProcess: after a kill between any two files, the next process makes the others.
func TestCredentialsOfAKilledProcess(t *testing.T) {
	const address = "localhost:7373"
	c, err := localstack.EnsureCredentials(t.TempDir(), address)
	require.NoError(t, err)
	read := func(path string) []byte {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		return text
	}
	for _, pair := range [][]string{{c.Authority, c.AuthorityKey}, {c.Server, c.ServerKey}} {
		for written := range 3 { // the pending key, the certificate, the key
			folder := t.TempDir()
			write := func(name, from string) {
				require.NoError(t, os.WriteFile(filepath.Join(folder, name), read(from), 0o600))
			}
			if pair[0] == c.Server {
				write("ca.crt", c.Authority)
				write("ca.key", c.AuthorityKey)
			}
			for i, from := range append([]string{pair[1]}, pair...)[:written+1] {
				name := filepath.Base(from)
				if i == 0 {
					name = "." + name + ".pending"
				}
				write(name, from)
			}
			again, err := localstack.EnsureCredentials(folder, address)
			require.NoError(t, err, "%s: %d", pair[0], written)
			_, err = tls.LoadX509KeyPair(again.Authority, again.AuthorityKey)
			require.NoError(t, err)
			_, err = tls.LoadX509KeyPair(again.Server, again.ServerKey)
			require.NoError(t, err)
			entries, err := os.ReadDir(folder)
			require.NoError(t, err)
			require.Len(t, entries, 6, "nothing else is left there")
		}
	}
}

// TestCredentialsAreRenewed: the certificates of the server and of the administrator never end, while the clock of a
// process runs for three years. The keys stay, and so do certificates that another authority has signed.
func TestCredentialsAreRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		folder := filepath.Join(t.TempDir(), "credentials")
		const address = "api.example:7373"
		c, err := localstack.EnsureCredentials(folder, address)
		require.NoError(t, err)
		content := func(path string) string {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			return string(text)
		}
		kept := map[string]string{}
		for _, path := range []string{c.Authority, c.AuthorityKey, c.ServerKey, c.SigningKey} {
			kept[path] = content(path)
		}
		roots, err := cert.NewPool(c.Authority)
		require.NoError(t, err)
		admin := func() tls.Certificate {
			to, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
			require.NoError(t, err)
			require.Equal(t, "https://"+address, to.Host)
			pair, err := tls.X509KeyPair(to.CertData, to.KeyData)
			require.NoError(t, err)
			return pair
		}
		first := admin()
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go c.KeepValid(ctx)
		renewals := map[string]bool{}
		const month = 30 * 24 * time.Hour
		for range 20 { // certificates are valid for twelve
			time.Sleep(month)
			synctest.Wait()
			soon := time.Now().Add(3 * month)
			server, err := tls.LoadX509KeyPair(c.Server, c.ServerKey)
			require.NoError(t, err)
			_, err = server.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "api.example", CurrentTime: soon})
			require.NoError(t, err)
			user := admin()
			_, err = user.Leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, CurrentTime: soon})
			require.NoError(t, err)
			require.Equal(t, first.Leaf.Subject.String(), user.Leaf.Subject.String())
			require.Equal(t, first.PrivateKey, user.PrivateKey)
			renewals[content(c.Server)] = true
		}
		require.Len(t, renewals, 3, "not more often than needed")
		for path, before := range kept {
			require.Equal(t, before, content(path), path)
		}
		_, err = localstack.EnsureCredentials(folder, address) // at the next start
		require.NoError(t, err)
		entries, err := os.ReadDir(folder)
		require.NoError(t, err)
		require.Len(t, entries, 6, "nothing else is left there")

		other, _, _, err := authority.New("other")
		require.NoError(t, err)
		foreign, key, err := other.Sign(&x509.Certificate{DNSNames: []string{"api.example"}}, time.Hour)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(c.Server, foreign, 0o600))
		require.NoError(t, os.WriteFile(c.ServerKey, key, 0o600))
		require.NoError(t, c.Renew())
		require.Equal(t, string(foreign), content(c.Server))
	})
}

// TestOpenSSLBelievesCredentials: OpenSSL, which curl and Python use, is stricter than Go about the signer of a
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
	require.ErrorContains(t, err, "give --external-address localhost:7373, or remove the file")
}
