package apiserver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The log and the bucket hold ciphertext, and all reads still work, including those of listers.
func TestEncryption(t *testing.T) {
	path := filepath.Join(t.TempDir(), "encryption.yaml")
	require.NoError(t, os.WriteFile(path, []byte(`
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets, namespaces, clusterroles.rbac.authorization.k8s.io]
  providers:
  - secretbox: {keys: [{name: a, secret: MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=}]}
`), 0o600))
	s := newServer(t, func(c *Config) { c.EncryptionConfigFile = path })
	secrets := "/api/v1/namespaces/default/secrets"
	s.must(t, 201, request{method: "POST", path: secrets, body: `{"metadata":{"name":"x"},"stringData":{"a":"hidden"}}`})
	require.Equal(t, "aGlkZGVu", fieldOf(s.must(t, 200, request{method: "GET", path: secrets + "/x"}).object(t), "data.a"))
	view, err := s.config.Cell.Projection.Latest(t.Context())
	require.NoError(t, err)
	row, ok, err := view.Get(t.Context(), "main/secrets/default/x", view.Revision())
	require.NoError(t, err)
	require.True(t, ok)
	require.True(t, strings.HasPrefix(string(row.Value), "k8s:enc:secretbox:v1:a:"), "%q", row.Value[:20])

	_, err = New(Config{Cell: s.config.Cell, EncryptionConfigFile: path + ".missing"})
	require.Error(t, err)
}
