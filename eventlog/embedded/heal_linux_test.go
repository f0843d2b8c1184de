package embedded_test

import (
	"fmt"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/embedded"
	"github.com/logplane/logplane/eventlog/eventlogtest"
)

// bed is a server on a small disk, with its log.
type bed struct {
	*embedded.Server
	disk eventlogtest.Disk
	conn *nats.Conn
	log  *eventlog.Log
	sent int
}

func newBed(t *testing.T) *bed {
	t.Helper()
	b := &bed{disk: eventlogtest.MountDisk(t, 48<<20)}
	b.open(t)
	return b
}

func (b *bed) open(t *testing.T) {
	t.Helper()
	var err error
	b.Server, err = embedded.Start(embedded.Config{Folder: filepath.Join(b.disk.Folder, "log"), Prefix: "logplane", Listen: "127.0.0.1:0"})
	require.NoError(t, err)
	t.Cleanup(b.Stop)
	b.conn, err = b.Connect()
	require.NoError(t, err)
	t.Cleanup(b.conn.Close)
	config := eventlog.Config{Conn: b.conn, Local: b.Bounds, Timeout: time.Second}
	require.NoError(t, eventlog.Create(t.Context(), config))
	b.log, err = eventlog.Open(t.Context(), config)
	require.NoError(t, err)
}

func (b *bed) write(t *testing.T, size int) (eventlog.Revision, error) {
	b.sent++
	key := eventlog.Key{Cluster: "main", Resource: "configmaps", Prefix: "/configmaps", Namespace: "default", Name: fmt.Sprint(b.sent)}
	return b.log.Append(t.Context(), eventlog.Basis{}, fmt.Sprint("request-", b.sent), eventlog.Write{Key: key, Op: eventlog.Added, ContentType: "application/cbor", Body: make([]byte, size)})
}

// fillBlock writes as many large events as fit into JetStream's first file, so that the next event begins another file.
// Then it fills the disk, and tries to write that next event, which fails.
func (b *bed) fillBlock(t *testing.T) (head eventlog.Revision) {
	t.Helper()
	for range 9 {
		var err error
		head, err = b.write(t, 900_000)
		require.NoError(t, err)
	}
	b.disk.Fill(t)
	_, err := b.write(t, 900_000)
	require.Error(t, err)
	return head
}

// requireWhole requires that every event up to the head is there, and that the log can be written.
func (b *bed) requireWhole(t *testing.T, head eventlog.Revision) {
	t.Helper()
	next, err := b.write(t, 10)
	require.NoError(t, err)
	require.Equal(t, head+1, next)
	count := 0
	require.NoError(t, b.log.Tail(t.Context(), 0, next, func(eventlog.Event) error { count++; return nil }))
	require.EqualValues(t, next, count)
}

// If JetStream fails to write the first event of a file, it still shows that event, and would leave a hole in the
// event's place.
func TestHealAtANewFile(t *testing.T) {
	b := newBed(t)
	head := b.fillBlock(t)
	shown, err := b.Bounds("logplane")
	require.NoError(t, err)
	require.Equal(t, head+1, shown.Head, "JetStream mends this: so can the code that minds it")
	b.disk.Free(t)
	require.ErrorContains(t, b.Heal(), "event 10 was shown to readers and never written, nor acknowledged: start again")
	b.Stop()
	b.open(t)
	b.requireWhole(t, head)
}

// Nobody sees any part of a batch that was written in part. JetStream must not discard the rest of the batch, so the
// server does not start while there is no space for the rest.
func TestStartWithHalfABatch(t *testing.T) {
	b := newBed(t)
	const size = 500
	var before eventlog.Revision
	for n := 8; ; n++ { // JetStream stages the batch on the disk before it writes it
		require.Less(t, n, 40, "no batch was written in part")
		head, err := b.log.Head(t.Context())
		require.NoError(t, err)
		before = head.Head
		var writes []eventlog.Write
		for i := range size {
			key := eventlog.Key{Cluster: "main", Resource: "configmaps", Prefix: "/configmaps", Namespace: "default", Name: fmt.Sprintf("n%d-%d", n, i)}
			writes = append(writes, eventlog.Write{Key: key, Op: eventlog.Added, ContentType: "application/cbor", Body: make([]byte, 2000)})
		}
		b.disk.Fill(t)
		b.disk.Leave(t, int64(n)<<17)
		_, err = b.log.Append(t.Context(), eventlog.Basis{}, fmt.Sprint("batch-", n), writes...)
		shown, boundsErr := b.Bounds("logplane")
		require.NoError(t, boundsErr)
		if before < shown.Head && shown.Head < before+size {
			require.Error(t, err)
			break
		}
		b.disk.Free(t)
	}
	head, err := b.log.Head(t.Context())
	require.NoError(t, err)
	require.Equal(t, before, head.Head)
	b.Stop()
	_, err = embedded.Start(embedded.Config{Folder: filepath.Join(b.disk.Folder, "log"), Prefix: "logplane", Listen: "127.0.0.1:0"})
	require.ErrorContains(t, err, "the log may have half of a batch: make 32 MiB of space")
	b.disk.Free(t)
	b.open(t)
	b.requireWhole(t, before+size)
}

// A process that ends while the disk is full leaves no hole in the log.
func TestStopOnAFullDisk(t *testing.T) {
	b := newBed(t)
	head := b.fillBlock(t)
	b.disk.Free(t)
	b.Stop()
	b.open(t)
	b.requireWhole(t, head)
}

// A log whose disk was full continues where it was, and its subscribers reconnect.
func TestHeal(t *testing.T) {
	ctx := t.Context()
	b := newBed(t)
	outside, err := nats.Connect(b.URL(), nats.ReconnectWait(20*time.Millisecond))
	require.NoError(t, err)
	t.Cleanup(outside.Close)
	republished, err := outside.SubscribeSync("logplane.events.>")
	require.NoError(t, err)
	require.NoError(t, outside.Flush())

	followed := make(chan eventlog.Event, 1000)
	go func() {
		_ = b.log.Follow(ctx, eventlog.Position{}, func(batch eventlog.Batch) error { followed <- batch[0]; return nil })
	}()
	require.NoError(t, b.Heal(), "nothing is wrong")
	var acknowledged []eventlog.Revision
	rev, err := b.write(t, 10_000)
	require.NoError(t, err)
	acknowledged = append(acknowledged, rev)
	for range 3 {
		b.disk.Fill(t)
		for err = nil; err == nil; {
			var rev eventlog.Revision
			if rev, err = b.write(t, 10_000); err == nil {
				acknowledged = append(acknowledged, rev)
			}
			require.Less(t, len(acknowledged), 900, "the disk is full")
		}
		require.NoError(t, b.Writable(), "nobody has looked")
		require.NoError(t, b.Heal())
		require.ErrorIs(t, b.Writable(), syscall.ENOSPC)
		require.NoError(t, b.Heal())
		b.disk.Free(t)
		require.NoError(t, b.Heal())
		require.NoError(t, b.Writable())
		eventlogtest.Eventually(t, "the connection is back", b.conn.IsConnected)
		rev, err := b.write(t, 10_000)
		require.NoError(t, err)
		acknowledged = append(acknowledged, rev)
	}
	next := eventlog.Revision(1)
	for _, rev := range acknowledged {
		for ; next <= rev; next++ {
			select {
			case e := <-followed:
				require.Equal(t, next, e.Revision)
			case <-time.After(20 * time.Second):
				t.Fatalf("revision %d does not come", next)
			}
		}
	}
	eventlogtest.Eventually(t, "the subscriber is back", func() bool { return outside.IsConnected() && outside.Flush() == nil })
	last, err := b.write(t, 10)
	require.NoError(t, err)
	for {
		m, err := republished.NextMsg(20 * time.Second)
		require.NoError(t, err, "revision %d is not republished", last)
		if m.Header.Get("Nats-Sequence") == fmt.Sprint(last) {
			break
		}
	}
}
