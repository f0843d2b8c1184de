package s3

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMissingKeys: if there are no keys, the error names the variables and the file that were looked at, and no request
// is sent. Keys that the server refuses are not called missing.
func TestMissingKeys(t *testing.T) {
	asked := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		w.WriteHeader(http.StatusForbidden)
	}))
	defer s.Close()
	file := filepath.Join(t.TempDir(), "credentials")
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_SHARED_CREDENTIALS_FILE": file, "AWS_CONFIG_FILE": file + ".config",
		"AWS_PROFILE": "", "AWS_EC2_METADATA_DISABLED": "true", "AWS_CONTAINER_CREDENTIALS_FULL_URI": "",
		"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "", "AWS_WEB_IDENTITY_TOKEN_FILE": "",
	} {
		t.Setenv(name, value)
	}
	ensure := func() error {
		b, err := Open(t.Context(), Config{Endpoint: s.URL, Bucket: "b", PathStyle: true})
		require.NoError(t, err)
		_, err = b.Ensure(t.Context(), true)
		return err
	}
	missing := ensure()
	require.ErrorContains(t, missing, "there are no keys for S3: not set in the environment: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; "+
		"no keys of the profile 'default' in '"+file+"'; none from a role: ")
	t.Setenv("AWS_ACCESS_KEY_ID", "a")
	require.ErrorContains(t, ensure(), "not set in the environment: AWS_SECRET_ACCESS_KEY; ")
	require.Zero(t, asked)

	require.NoError(t, os.WriteFile(file, []byte("[default]\naws_access_key_id = a\naws_secret_access_key = s\n"), 0o600))
	require.ErrorContains(t, ensure(), "find bucket 'b': the server refuses the keys, or they may not list this bucket: ")
	require.Equal(t, 1, asked)
}
