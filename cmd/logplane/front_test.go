package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFrontFlags: a front that could serve nothing, or would expose tokens on the network, is refused, and the error
// says what to give instead.
func TestFrontFlags(t *testing.T) {
	for line, why := range map[string]string{
		"--watcher https://w":                                         "--api is missing: give for example 'https://HOST:7373'",
		"--api https://a":                                             "--watcher is missing: ",
		"--api https://a/x --watcher https://w":                       "--api is 'https://a/x': it must be 'https://' or 'http://', a host, ",
		"--api https://u:p@a --watcher https://w":                     "--api has a user or a password",
		"--api http://10.0.0.1:1 --watcher https://w":                 "--api is 'http://10.0.0.1:1': clients' tokens would travel there in clear",
		"--api https://a --watcher http://w":                          "--watcher is 'http://w': clients' tokens would travel there in clear",
		"--api https://a --watcher https://w --listen :1":             "--listen is ':1': beyond loopback, tokens would pass in clear",
		"--api https://a --watcher https://w --slow-client 0":         "--slow-client is 0s: it must be at least 1ms",
		"--api https://a --watcher https://w --tls-cert-file x":       "--tls-cert-file and --tls-private-key-file must be given together",
		"--api https://a --watcher https://w --api-ca-file /nowhere":  "read --api-ca-file: open /nowhere",
		"--api https://a --watcher https://w --api-ca-file /dev/null": "--api-ca-file is '/dev/null': it has no certificate",
	} {
		require.Contains(t, said(t, append([]string{"front"}, strings.Fields(line)...)...), why, line)
	}
}
