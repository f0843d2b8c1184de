package eventlog_test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
)

const erased = "a password that was pasted by mistake"

// Events that were purged after a Fill are in no file of any server, even while the log has newer events and grows.
func TestFilledAndPurgedIsErased(t *testing.T) {
	for name, start := range map[string]func(t *testing.T) (*eventlog.Log, []*server.Server){
		"one server": func(t *testing.T) (*eventlog.Log, []*server.Server) {
			s := eventlogtest.Run(t, t.TempDir())
			return eventlogtest.Open(t, eventlog.Config{Conn: eventlogtest.Connect(t, s)}), []*server.Server{s}
		},
		"three servers": func(t *testing.T) (*eventlog.Log, []*server.Server) {
			c := eventlogtest.Cluster(t)
			return c.Log(0), c.Server[:]
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, servers := start(t)
			fill(t, l, 50)
			mustAppend(t, l, "pasted", added("a", erased))
			fill(t, l, 50)
			upto, err := l.Fill(bounded(t))
			if err != nil {
				t.Fatal(err)
			}
			stays := fill(t, l, 50)
			for _, s := range servers {
				if !holds(t, s, erased) {
					t.Fatal("the test does not see what the server has")
				}
			}
			if err := l.Purge(bounded(t), upto); err != nil {
				t.Fatal(err)
			}
			for _, s := range servers {
				eventlogtest.Eventually(t, "no file has what was purged", func() bool { return !holds(t, s, erased) })
			}
			if b := mustHead(t, l); b.First != upto+1 || b.Head < stays {
				t.Fatalf("the log has %d to %d, not %d to %d", b.First, b.Head, upto+1, stays)
			}
			if n := len(mustTail(t, l, upto, stays)); n != int(stays-upto) {
				t.Fatalf("the log has %d events after the purge, not %d", n, stays-upto)
			}
		})
	}
}

// holds reports whether some file of the server has the text.
func holds(t *testing.T, s *server.Server, text string) (found bool) {
	err := filepath.WalkDir(s.StoreDir(), func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return nil // the file is gone by now
		}
		content, err := os.ReadFile(path)
		found = found || err == nil && bytes.Contains(content, []byte(text))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// Readers of a barrier that outdates roots get Outdates. The padding of Fill is not returned as a body.
func TestBarriersOfForgetting(t *testing.T) {
	l := eventlogtest.Log(t)
	if _, err := l.Fill(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if err := l.Outdate(bounded(t)); err != nil {
		t.Fatal(err)
	}
	events := mustTail(t, l, 0, mustHead(t, l).Head)
	for i, e := range events {
		if e.Op != eventlog.Barrier || len(e.Body) > 0 || e.Outdates != (i == len(events)-1) {
			t.Fatalf("revision %d is %+v", e.Revision, e)
		}
	}
}
