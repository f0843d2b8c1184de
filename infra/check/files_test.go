package check

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestFiles: files.sh makes the files that servers and clients need, and a second run changes nothing.
func TestFiles(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "files")
	script := func() {
		out, err := exec.Command("../aws/files.sh", "make", folder, "DNS:*.log", "DNS:cell.example.com,DNS:api").CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Empty(t, string(out))
	}
	all := func() map[string]string {
		entries, err := os.ReadDir(folder)
		require.NoError(t, err)
		content := map[string]string{}
		for _, e := range entries {
			text, err := os.ReadFile(filepath.Join(folder, e.Name()))
			require.NoError(t, err)
			content[e.Name()] = string(text)
			info, err := e.Info()
			require.NoError(t, err)
			assert.Zero(t, info.Mode().Perm()&0o077, "%s can be read by others", e.Name())
		}
		return content
	}
	script()
	made := all()
	authorities := x509.NewCertPool()
	require.True(t, authorities.AppendCertsFromPEM([]byte(made["nats-ca.crt"])))
	for name, host := range map[string]string{"nats": "log-0.log", "tls": "api"} {
		pair, err := tls.X509KeyPair([]byte(made[name+".crt"]), []byte(made[name+".key"]))
		require.NoError(t, err)
		_, err = pair.Leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: authorities, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}})
		require.NoError(t, err)
	}
	assert.Regexp(t, "^[0-9a-f]{48},admin,admin,system:masters\n$", made["tokens.csv"])
	assert.Regexp(t, "^[0-9a-f]{48}$", made["logplane-password"])
	assert.NotEqual(t, made["logplane-password"], made["subscriber-password"])
	script()
	assert.Equal(t, made, all())
}
