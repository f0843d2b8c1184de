package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog/eventlogtest"
)

// TestFilesOfASecret: a command reads the password of the log from a file of --files-secret. As a function it tells the
// platform why it cannot read the secret.
func TestFilesOfASecret(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	t.Setenv("AWS_ACCESS_KEY_ID", "the-key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "the-secret")
	status, body := http.StatusOK, `{"SecretString":"{\"password\":\"hush\\n\"}"}`
	failures := make(chan string, 1)
	aws := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/init/error") {
			said, _ := io.ReadAll(r.Body)
			failures <- string(said)
			w.WriteHeader(http.StatusAccepted)
			return
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	defer aws.Close()
	t.Setenv("AWS_ENDPOINT_URL_SECRETS_MANAGER", aws.URL)
	t.Setenv("LOGPLANE_FILES_SECRET", "arn:aws:secretsmanager:eu-central-1:123456789012:secret:files")
	file := filepath.Join(os.TempDir(), "logplane", "password")
	s := eventlogtest.Run(t, t.TempDir(), func(o *server.Options) { o.Users = []*server.User{{Username: "me", Password: "hush"}} })
	initAs := func(user string) []string {
		return []string{"init", "--nats", "nats://" + user + s.Addr().String(), "--nats-password-file", file, "--bucket", "file://" + t.TempDir()}
	}
	require.Zero(t, run(t.Context(), initAs("me@"), io.Discard, io.Discard))
	for _, user := range []string{"", "me:other@"} {
		require.Contains(t, said(t, initAs(user)...), "beside --nats-password-file it must name a user without a password, as in 'tls://USER@HOST:4222'")
	}
	require.Contains(t, said(t, append(initAs("me@"), "--nats-password-file", file+"s")...), "read --nats-password-file: open "+file+"s: no such file")

	status, body = http.StatusBadRequest, `{"__type":"AccessDeniedException","Message":"no"}`
	t.Setenv("AWS_LAMBDA_RUNTIME_API", strings.TrimPrefix(aws.URL, "http://"))
	t.Setenv("_HANDLER", "api")
	require.NotZero(t, run(t.Context(), nil, io.Discard, io.Discard))
	require.Contains(t, <-failures, "allow this process's role 'secretsmanager:GetSecretValue' on it")
}
