package operate

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// TestCertainEventsAreNotReadAgain: an event whose precondition the log itself has enforced is printed at once. The
// projection is not asked, because the projection would read the event once more.
func TestCertainEventsAreNotReadAgain(t *testing.T) {
	log := eventlogtest.Log(t)
	p, err := projection.Open(projection.Config{Log: log, Bucket: memory.Strict(t)})
	require.NoError(t, err)
	write := func(op eventlog.Op, base eventlog.Revision) eventlog.Revision {
		rev, err := log.Append(t.Context(), eventlog.Basis{}, fmt.Sprint("after-", base), eventlog.Write{
			Key: eventlog.Key{Cluster: "main", Resource: "pods", Prefix: "/pods", Namespace: "default", Name: "a"},
			Op:  op, Base: base, Precondition: base, ContentType: "application/cbor",
		})
		require.NoError(t, err)
		return rev
	}
	first := write(eventlog.Added, 0)
	last := first

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	reader, writer := io.Pipe()
	defer reader.Close()
	printing := make(chan error, 1)
	go func() {
		printer := &eventPrinter{to: writer, filter: eventFilter{cluster: "main"}}
		printing <- printEvents(ctx, kubestore.Cell{Log: log, Projection: p}, first, printer)
	}()
	lines := bufio.NewScanner(reader)
	printed := func(n int) {
		for range n {
			last = write(eventlog.Modified, last)
		}
		for range n {
			require.True(t, lines.Scan())
		}
		require.Contains(t, lines.Text(), fmt.Sprint(last, " "))
	}
	printed(1) // perhaps from the past
	asked := p.Current().Revision()
	printed(10)
	require.Equal(t, asked, p.Current().Revision())
	stop()
	require.ErrorIs(t, <-printing, context.Canceled)
}
