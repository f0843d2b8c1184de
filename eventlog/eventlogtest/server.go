// Package eventlogtest runs real embedded JetStream servers for tests.
package eventlogtest

import (
	"testing"

	"github.com/logplane/logplane/eventlog"
	"github.com/nats-io/nats.go"
)

// Start runs one embedded server on loopback with file storage and sync always in the test's own folder,
// and returns a connection to it. Both end with the test.
func Start(t testing.TB) *nats.Conn { panic("todo") }

// Log starts a server and opens a fresh log on it.
func Log(t testing.TB) *eventlog.Log { panic("todo") }
