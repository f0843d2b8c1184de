package eventlog_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/test/servers"
)

// deliveries are all ways to read the events after one revision up to another.
func deliveries(t *testing.T, l *eventlog.Log, after, upto eventlog.Revision) map[string]func(func(eventlog.Event) error) error {
	t.Helper()
	end := errors.New("the end")
	return map[string]func(func(eventlog.Event) error) error{
		"tail": func(yield func(eventlog.Event) error) error { return l.Tail(bounded(t), after, upto, yield) },
		"at": func(yield func(eventlog.Event) error) error {
			for rev := after + 1; rev <= upto; rev++ {
				e, err := l.EventAt(bounded(t), rev)
				if err == nil {
					err = yield(e)
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
		"follow": func(yield func(eventlog.Event) error) error {
			err := l.Follow(bounded(t), eventlog.Position{Revision: after}, each(func(e eventlog.Event) error {
				if err := yield(e); err != nil {
					return err
				}
				if e.Revision == upto {
					return end
				}
				return nil
			}))
			if errors.Is(err, end) {
				return nil
			}
			return err
		},
	}
}

// One server of three has flipped bits in its file: some flips that the server notices, and some that it cannot notice.
// Whether that server leads or not, every acknowledged event can be read unchanged through that server.
func TestFlippedBitsOfAMinority(t *testing.T) {
	if testing.Short() {
		t.Skip("it restarts a server")
	}
	t.Parallel()
	c := eventlogtest.Cluster(t)
	writer := c.Log(0)
	head := fill(t, writer, 20)
	want := mustTail(t, writer, 0, head)
	spoilt := follower(c.Leader())
	c.Restart(spoilt, func(folder string) {
		servers.Flip(t, folder, 5, false)
		servers.Flip(t, folder, 10, true)
		servers.Flip(t, folder, 11, false)
		servers.Flip(t, folder, head, false)
	})
	for _, leads := range []bool{false, true} {
		if leads {
			lead(t, c, spoilt)
		}
		l, err := eventlog.Open(bounded(t), eventlog.Config{Conn: connectFirst(t, c, spoilt)})
		if err != nil {
			t.Fatal(err)
		}
		for name, deliver := range deliveries(t, l, 0, head) {
			eventlogtest.Eventually(t, "the damaged copies are met", func() bool {
				before, n := eventlog.Damaged(), 0
				err := deliver(func(e eventlog.Event) error {
					if w := want[n]; e.Revision != w.Revision || e.Op != w.Op || e.RequestID != w.RequestID || string(e.Body) != string(w.Body) {
						return fmt.Errorf("got %+v in place of %+v", e, w)
					}
					n++
					return nil
				})
				if err != nil || n != len(want) {
					t.Fatalf("leads %v, %s: %d of %d events, %v", leads, name, n, len(want), err)
				}
				return !leads || eventlog.Damaged() >= before+3
			})
		}
	}
}

// Two servers of three lack an event, and the third, which has it, is down. An error may say that the log went back
// only if all servers were asked.
func TestAnEventThatTheServersAtHandLack(t *testing.T) {
	if testing.Short() {
		t.Skip("it restarts servers")
	}
	t.Parallel()
	c := eventlogtest.Cluster(t)
	fill(t, c.Log(0), 20)
	down := follower(c.Leader())
	for i := range c.Server {
		if i != down {
			c.Restart(i, func(folder string) { servers.Flip(t, folder, 5, false) })
		}
	}
	conn := connectFirst(t, c, follower(down))
	var l *eventlog.Log
	eventlogtest.Eventually(t, "the restarted servers answer", func() (opened bool) {
		var err error
		l, err = eventlog.Open(bounded(t), eventlog.Config{Conn: conn})
		return err == nil
	})
	c.Server[down].Shutdown()
	eventlogtest.Eventually(t, "it is said what to do", func() bool { // one of the two must lead first
		_, err := l.EventAt(bounded(t), 5)
		if err == nil || errors.Is(err, eventlog.ErrDiverged) {
			t.Fatalf("two servers of three were asked: %v", err)
		}
		return strings.Contains(err.Error(), "start those that are down")
	})
}

// lead makes server i the log's leader.
func lead(t *testing.T, c *eventlogtest.Servers, i int) {
	t.Helper()
	ask := fmt.Appendf(nil, `{"placement":{"preferred":%q}}`, c.Server[i].Name())
	eventlogtest.Eventually(t, "the server leads the log", func() bool {
		if c.Leads(i) {
			return true
		}
		_, _ = c.Conn[i].Request("$JS.API.STREAM.LEADER.STEPDOWN.logplane", ask, time.Second)
		return false
	})
}

// connectFirst returns a connection to server i that also knows the other servers. The connection ends with the test.
func connectFirst(t *testing.T, c *eventlogtest.Servers, i int) *nats.Conn {
	t.Helper()
	var urls []string
	for j := range c.Server {
		urls = append(urls, c.Server[(i+j)%len(c.Server)].ClientURL())
	}
	conn, err := nats.Connect(strings.Join(urls, ","), nats.DontRandomize(), nats.ReconnectBufSize(-1), nats.MaxReconnects(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

// The only copy of an event is damaged in a way that the server does not notice. Every reader stops at the event and
// reports the damage: an acknowledged event must not be treated as a message that never was an event.
func TestFlippedBitsOfTheOnlyCopy(t *testing.T) {
	folder := t.TempDir()
	s := eventlogtest.Run(t, folder)
	head := fill(t, eventlogtest.Open(t, eventlog.Config{Conn: eventlogtest.Connect(t, s)}), 5)
	s.Shutdown()
	s.WaitForShutdown()
	servers.Flip(t, folder, 3, true)
	l := eventlogtest.Open(t, eventlog.Config{Conn: eventlogtest.Connect(t, eventlogtest.Run(t, folder))})
	for name, deliver := range deliveries(t, l, 0, head) {
		n := 0
		err := deliver(func(eventlog.Event) error { n++; return nil })
		if n != 2 || err == nil || errors.Is(err, eventlog.ErrDiverged) || !strings.Contains(err.Error(), "no server has the event at revision 3 whole, neither the leader nor of []: start") {
			t.Errorf("%s: %d events, %v", name, n, err)
		}
	}
}

// Whichever bit of an event is flipped, and wherever its headers seem to end, the result is not taken for another
// event, nor for a message that never was an event.
func TestEveryBitCounts(t *testing.T) {
	const prefix = "p"
	modified := added("a", "body")
	modified.Op, modified.Base, modified.Inherits, modified.TTL, modified.Author = eventlog.Modified, 7, 4, 60, eventlog.Author{User: "user", As: "as", Agent: "agent", Cause: eventlog.Cause{Revision: 5, User: "first", As: "other"}}
	for _, last := range []string{"Logplane-Checksum", "Logplane-Cause", "Logplane-Inherits", "Logplane-Agent", "Logplane-Epoch", "ce-id"} {
		everyBit(t, prefix, modified, last)
	}
}

func everyBit(t *testing.T, prefix string, w eventlog.Write, last string) {
	subject, raw, body := eventlog.Sealed(t, prefix, w, last)
	want, err := eventlog.Whole(prefix, subject, raw, body)
	if err != nil {
		t.Fatal(err)
	}
	for i := range len(subject) + len(raw) + len(body) {
		for bit := range 8 {
			all := []byte(subject + string(raw) + string(body))
			all[i] ^= 1 << bit
			checkBits(t, fmt.Sprintf("bit %d of byte %d", bit, i), prefix, string(all[:len(subject)]), all[len(subject):len(all)-len(body)], all[len(all)-len(body):], want)
		}
	}
	both := []byte(string(raw) + string(body))
	for end := range len(both) {
		if end != len(raw) {
			checkBits(t, fmt.Sprintf("headers end at %d", end), prefix, subject, both[:end], both[end:], want)
		}
	}
}

func checkBits(t *testing.T, what, prefix, subject string, raw, body []byte, want eventlog.Event) {
	t.Helper()
	e, err := eventlog.Whole(prefix, subject, raw, body)
	if errors.Is(err, eventlog.ErrForeign) {
		t.Errorf("%s: it is taken for a message that never was an event: %v", what, err)
	}
	if err == nil && !reflect.DeepEqual(e, want) {
		t.Errorf("%s: it is taken for %+v", what, e)
	}
}
