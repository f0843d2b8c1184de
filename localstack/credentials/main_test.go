package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
)

// TestLogUsers: each role's password is the one that the log's servers know, in a file that only the owner can read. A
// second run keeps existing files, but refuses to use them for other servers.
func TestLogUsers(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "state")
	three := []string{"nats", "nats-2", "nats-3"}
	require.NoError(t, write(folder, "https://127.0.0.1:7380", three))
	known := readSecret(t, filepath.Join(folder, "nats.env"))
	for _, role := range eventlog.Roles("", "") {
		_, after, found := strings.Cut(known, strings.ToUpper(role.Name)+"_PASSWORD=")
		require.True(t, found)
		password, _, _ := strings.Cut(after, "\n")
		require.Greater(t, len(password), 20)
		var urls []string
		for _, server := range three {
			urls = append(urls, fmt.Sprintf("tls://%s:%s@%s:4222", role.Name, password, server))
		}
		of := readSecret(t, filepath.Join(folder, role.Name+".env"))
		require.Contains(t, of, "LOGPLANE_NATS="+strings.Join(urls, ",")+"\n")
		for _, other := range eventlog.Roles("", "") {
			if other.Name != role.Name {
				require.NotContains(t, readSecret(t, filepath.Join(folder, other.Name+".env")), password)
			}
		}
	}
	require.NoError(t, write(folder, "https://127.0.0.1:7380", three))
	require.Equal(t, known, readSecret(t, filepath.Join(folder, "nats.env")))
	require.ErrorContains(t, write(folder, "https://127.0.0.1:7380", three[:1]), "NATS_SERVERS=3")
	kubeconfig := filepath.Join(folder, "kubeconfig")
	before := readSecret(t, kubeconfig)
	require.NoError(t, write(folder, "https://127.0.0.1:7390", three))
	require.Equal(t, strings.Replace(before, ":7380", ":7390", 1), readSecret(t, kubeconfig), "it leads to where the front is now")
}

func readSecret(t *testing.T, path string) string {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.EqualValues(t, 0o600, info.Mode().Perm())
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

// TestOnlyTheLogsServersAreClients: the log's servers authenticate to each other by certificates, and nobody else has a
// client certificate.
func TestOnlyTheLogsServersAreClients(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "state")
	require.NoError(t, write(folder, "https://127.0.0.1:7380", []string{"nats"}))
	ca, err := os.ReadFile(filepath.Join(folder, "nats", "ca.crt"))
	require.NoError(t, err)
	authorities := x509.NewCertPool()
	require.True(t, authorities.AppendCertsFromPEM(ca))
	verify := func(of, server string, usage x509.ExtKeyUsage) error {
		pair, err := tls.LoadX509KeyPair(filepath.Join(folder, of+".crt"), filepath.Join(folder, of+".key"))
		require.NoError(t, err)
		_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: authorities, DNSName: server, KeyUsages: []x509.ExtKeyUsage{usage}})
		return err
	}
	require.NoError(t, verify("nats/tls", "nats-3", x509.ExtKeyUsageServerAuth))
	require.NoError(t, verify("nats/tls", "", x509.ExtKeyUsageClientAuth))
	require.NoError(t, verify("cell/tls", "lambda", x509.ExtKeyUsageServerAuth))
	require.Error(t, verify("cell/tls", "nats", x509.ExtKeyUsageServerAuth))
	require.Error(t, verify("cell/tls", "", x509.ExtKeyUsageClientAuth))
}
