package serve

import (
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/cmd/logplane/cells"
	"github.com/logplane/logplane/internal/apiserver"
)

// TestBeyondLoopback: objects may name addresses of this machine only if all clients of the process are on this
// machine.
func TestBeyondLoopback(t *testing.T) {
	c := apiserver.Config{}
	(&cells.Connection{}).Configure(&c, &cells.Cell{})
	require.True(t, c.BeyondLoopback, "a process that serves nobody")
	for listen, beyond := range map[string]bool{"127.0.0.1:1": false, "[::1]:1": false, "localhost:1": false, "0.0.0.0:1": true, ":1": true, "10.0.0.1:1": true} {
		for _, lambda := range []bool{false, true} {
			s := &serving{lambda: lambda, flags: pflag.NewFlagSet("", pflag.ContinueOnError)}
			s.listen = listen
			s.complete()
			require.Equal(t, beyond || lambda, s.BeyondLoopback, listen)
		}
	}
}
