package cells

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

const secretARN = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:logplane/files-AbCdEf"

// secrets stands in for Secrets Manager: it answers every request with the status and the body.
func secrets(t *testing.T, status int, body string) (asked *http.Request, said *string) {
	t.Helper()
	asked, said = new(http.Request), new(string)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent, _ := io.ReadAll(r.Body)
		*asked, *said = *r, string(sent)
		w.Header().Set("Content-Type", "application/x-amz-json-1.1")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(s.Close)
	t.Setenv("AWS_ENDPOINT_URL_SECRETS_MANAGER", s.URL)
	t.Setenv("AWS_ACCESS_KEY_ID", "the-key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "the-secret")
	t.Setenv("TMPDIR", t.TempDir())
	return asked, said
}

// holding is the answer of Secrets Manager for a secret with this value.
func holding(value string) string {
	answer, _ := json.Marshal(map[string]string{"ARN": secretARN, "SecretString": value})
	return string(answer)
}

func fetch(ctx context.Context, name string) error {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	registerFiles(flags)
	_ = flags.Set("files-secret", name)
	return FetchFiles(ctx, flags)
}

// TestFetchFiles: the files of the secret are in the folder, and only this user may read them. A second start replaces
// them. Without the flag, nobody is asked.
func TestFetchFiles(t *testing.T) {
	asked, said := secrets(t, http.StatusOK, holding(`{"tokens.csv":"t,admin,admin\n","key":"k"}`))
	require.NoError(t, fetch(t.Context(), ""))
	require.Empty(t, asked.Method)
	require.NoError(t, fetch(t.Context(), secretARN))
	require.Equal(t, "secretsmanager.GetSecretValue", asked.Header.Get("X-Amz-Target"))
	require.JSONEq(t, `{"SecretId":"`+secretARN+`"}`, *said)
	require.Contains(t, asked.Header.Get("Authorization"), "/eu-central-1/secretsmanager/aws4_request", "the region is the secret's")
	folder := filepath.Join(os.TempDir(), "logplane")
	holds := func(name, content string) {
		t.Helper()
		file, err := os.ReadFile(filepath.Join(folder, name))
		require.NoError(t, err)
		require.Equal(t, content, string(file))
		info, err := os.Stat(filepath.Join(folder, name))
		require.NoError(t, err)
		require.EqualValues(t, 0o600, info.Mode())
	}
	holds("tokens.csv", "t,admin,admin\n")
	holds("key", "k")
	info, err := os.Stat(folder)
	require.NoError(t, err)
	require.EqualValues(t, 0o700, info.Mode().Perm())

	again, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.NoError(t, writeFiles(folder, map[string]string{"key": "other"}))
	holds("key", "other")
	after, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Len(t, after, len(again), "nothing is left over")
}

// TestFetchFilesRefused: each error names the flag and says what to do, and none of them has a part of the secret.
func TestFetchFilesRefused(t *testing.T) {
	for name, c := range map[string]struct {
		arn, body string
		status    int
		says      string
	}{
		"no ARN":          {"logplane/files", "", 200, "it must be the ARN of a secret"},
		"another service": {"arn:aws:s3:::hush", "", 200, "it must be the ARN of a secret"},
		"no right":        {secretARN, `{"__type":"AccessDeniedException","Message":"no"}`, 400, "allow this process's role 'secretsmanager:GetSecretValue'"},
		"no key":          {secretARN, `{"__type":"DecryptionFailure","Message":"no"}`, 400, "'kms:Decrypt' on its key"},
		"no secret":       {secretARN, `{"__type":"ResourceNotFoundException","Message":"no"}`, 400, "make it with infra/aws/files.sh"},
		"no JSON":         {secretARN, holding("hush"), 200, "must be a JSON object of file names and contents"},
		"no text":         {secretARN, holding(`{"hush":{"hush":1}}`), 200, "must be a JSON object of file names and contents"},
		"no files":        {secretARN, holding(`{}`), 200, "must be a JSON object of file names and contents"},
		"binary":          {secretARN, `{"SecretBinary":"aHVzaA=="}`, 200, "must be a JSON object of file names and contents"},
		"another folder":  {secretARN, holding(`{"../x":"hush"}`), 200, "it has a file '../x': a name must have no '/'"},
		"hidden":          {secretARN, holding(`{".new-1":"hush"}`), 200, "must not begin with '.'"},
		"too large":       {secretARN, holding(strings.Repeat("hush", mostSecret/4)), 200, "the answer is too large"},
	} {
		t.Run(name, func(t *testing.T) {
			secrets(t, c.status, c.body)
			err := fetch(t.Context(), c.arn)
			require.ErrorContains(t, err, "--files-secret is '"+c.arn+"': ")
			require.ErrorContains(t, err, c.says)
			require.NotContains(t, strings.TrimPrefix(err.Error(), "--files-secret is '"+c.arn), "hush")
			require.NoDirExists(t, filepath.Join(os.TempDir(), "logplane"))
		})
	}
}

// TestFetchFilesInTime: the wait for Secrets Manager ends.
func TestFetchFilesInTime(t *testing.T) {
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then does the server notice that the client has gone
		<-r.Context().Done()
	}))
	defer silent.Close()
	secrets(t, http.StatusOK, "")
	t.Setenv("AWS_ENDPOINT_URL_SECRETS_MANAGER", silent.URL)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	require.ErrorContains(t, fetch(ctx, secretARN), "needs an endpoint for 'secretsmanager'")
}
