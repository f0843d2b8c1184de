package s3

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAuthorities: a server whose certificate the system does not know is trusted only with a CA file.
func TestAuthorities(t *testing.T) {
	s := httptest.NewTLSServer(http.NotFoundHandler())
	defer s.Close()
	file := filepath.Join(t.TempDir(), "ca.crt")
	require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600))
	get := func(authorities string) error {
		b, err := Open(t.Context(), Config{Endpoint: s.URL, Bucket: "b", AccessKey: "a", SecretKey: "s", PathStyle: true, CAFile: authorities})
		require.NoError(t, err)
		_, _, err = b.Get(t.Context(), "x")
		return err
	}
	require.ErrorContains(t, get(""), "certificate")
	require.NotContains(t, get(file).Error(), "certificate")
	_, err := Open(t.Context(), Config{Bucket: "b", CAFile: file + ".missing"})
	require.ErrorContains(t, err, "read its authorities")
}
