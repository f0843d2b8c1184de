package eventlog_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
)

// A server whose disk is full has written half of a batch, and shows that half. Head never returns a revision inside
// the batch. When the server is started again, it writes the rest of the batch.
func TestHalfABatchIsNoHead(t *testing.T) {
	disk := eventlogtest.MountDisk(t, 48<<20)
	s, l, before, size := writeHalf(t, disk)
	other, err := eventlog.Open(bounded(t), eventlog.Config{Conn: eventlogtest.Connect(t, s)})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range []*eventlog.Log{l, other} {
		if b := mustHead(t, l); b.Head != before {
			t.Errorf("the head is %d, and half a batch comes after %d", b.Head, before)
		}
	}
	disk.Free(t)
	s.Shutdown()
	s.WaitForShutdown()
	index, err := filepath.Glob(filepath.Join(disk.Folder, "jetstream/*/streams/logplane/msgs/index.db"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range index { // docs/run/log.md
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	l, err = eventlog.Open(bounded(t), eventlog.Config{Conn: eventlogtest.Start(t, func(o *server.Options) { o.StoreDir = disk.Folder })})
	if err != nil {
		t.Fatal(err)
	}
	if b := mustHead(t, l); b.Head != before+size {
		t.Errorf("the head is %d, and the batch has %d events after %d", b.Head, size, before)
	}
	if n := len(mustTail(t, l, before, before+size)); n != int(size) {
		t.Errorf("got %d events", n)
	}
}

// writeHalf fills the disk while a batch of that size is written after the revision 'before'.
func writeHalf(t *testing.T, disk eventlogtest.Disk) (s *server.Server, l *eventlog.Log, before, size eventlog.Revision) {
	t.Helper()
	s = eventlogtest.Run(t, disk.Folder)
	l = eventlogtest.Open(t, eventlog.Config{Conn: eventlogtest.Connect(t, s), Timeout: time.Second})
	size = 500
	for n := range 40 { // JetStream stages the batch on the disk before it writes it
		b := mustHead(t, l)
		var writes []eventlog.Write
		for i := range size {
			writes = append(writes, added(fmt.Sprintf("n%d-%d", n, i), strings.Repeat("x", 2000)))
		}
		disk.Fill(t)
		disk.Leave(t, int64(n)<<17)
		_, err := l.Append(bounded(t), eventlog.Basis{}, fmt.Sprint("batch-", n), writes...)
		shown, infoErr := l.Info(bounded(t))
		if infoErr != nil {
			t.Fatal(infoErr)
		}
		if shown.Head > b.Head && shown.Head < b.Head+size {
			if err == nil {
				t.Error("half a batch is acknowledged")
			}
			return s, l, b.Head, size
		}
		disk.Free(t)
	}
	t.Fatal("no batch was written in part")
	return nil, nil, 0, 0
}
