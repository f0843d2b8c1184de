package hostile

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/test/product"
)

// outcome runs a command to its end, and returns its output.
func outcome(t *testing.T, args ...string) string {
	t.Helper()
	p := product.Run(t, args...)
	require.Eventually(t, func() bool {
		select {
		case <-p.Exited:
			return true
		default:
			return strings.Contains(p.Output(), "msg=serving")
		}
	}, requestTimeout, 10*time.Millisecond, "%v does not end", args)
	require.NotContains(t, p.Output(), "msg=serving", "%v", args)
	require.NotZero(t, p.Cmd.ProcessState.ExitCode(), "%v: %s", args, p.Output())
	return p.Output()
}

// TestTokensDoNotPassInClear: a process that listens beyond loopback without TLS needs a flag that allows it. So does a
// process that sends clients to a watcher without TLS. On e14eff4 both processes work without a flag.
func TestTokensDoNotPassInClear(t *testing.T) {
	c := newCell(t)
	for _, command := range []string{"api", "watcher"} {
		for _, address := range []string{"0.0.0.0:0", ":0", "[::]:0"} {
			printed := outcome(t, c.with(command, "--listen", address, "--token-auth-file", c.tokens)...)
			require.Contains(t, printed, "--insecure-plain-http")
			require.Contains(t, printed, "--tls-cert-file")
			require.Equal(t, 1, strings.Count(printed, "\n"), printed)
		}
		s := c.serve(command, "--listen", "0.0.0.0:0", "--insecure-plain-http")
		s.must(admin, "GET", "/api/v1/namespaces/default", "")
		require.Equal(t, 401, s.do(nobody, "GET", "/api/v1/namespaces/default", "", "").Code)
		require.Contains(t, outcome(t, c.with(command, "--listen", "0.0.0.0:0", "--insecure-plain-http")...), "--token-auth-file", "tokens there must be")
	}
	for url, says := range map[string]string{
		"http://watcher.example:80":          "--insecure-plain-http",
		"https://me:hush@watcher.example":    "has a user or a password",
		"https://me:hush#@watcher.example:1": "is not a URL",
		"watcher.example":                    "it must start with 'https://'",
	} {
		printed := outcome(t, c.with("api", "--listen", "127.0.0.1:0", "--token-auth-file", c.tokens, "--watcher-url", url)...)
		require.Contains(t, printed, says)
		require.NotContains(t, printed, "hush")
	}
	c.serve("api", "--watcher-url", "http://watcher.example:80", "--insecure-plain-http")
	c.serve("api", "--watcher-url", "http://127.0.0.1:80")
}

// TestALambdaListensNowhere: as a Lambda function, the process opens no listener, whatever its flags are, because the
// platform terminates TLS. This held on e14eff4 too.
func TestALambdaListensNowhere(t *testing.T) {
	c := newCell(t)
	t.Setenv("AWS_LAMBDA_RUNTIME_API", "127.0.0.1:1") // nothing listens there
	printed := outcome(t, c.with("api", "--listen", "0.0.0.0:80", "--token-auth-file", c.tokens)...)
	require.Contains(t, printed, "ask the runtime API for an invocation", "only the platform is missing")
	require.NotContains(t, printed, "--insecure-plain-http")
}
