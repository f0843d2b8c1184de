package eventlog_test

import (
	"errors"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
)

const (
	streamInfo = "$JS.API.STREAM.INFO.logplane"
	messageGet = "$JS.API.STREAM.MSG.GET.logplane"
	// unavailable is a server's answer if it knows no leader.
	unavailable = `{"error":{"code":503,"err_code":10008,"description":"JetStream system temporarily unavailable"}}`
)

// A server that refuses a request for now is asked again, and its second answer counts.
func TestUnavailableOnce(t *testing.T) {
	server := eventlogtest.Run(t, t.TempDir())
	conn := eventlogtest.Connect(t, server)
	l := eventlogtest.Open(t, eventlog.Config{Conn: conn})
	head := fill(t, l, 3)
	inPlaceOf(t, server, conn, streamInfo, func(m *nats.Msg) {
		if server.GlobalAccount().RemoveMapping(streamInfo) {
			_ = m.Respond([]byte(unavailable))
		}
	})
	if b := mustHead(t, l); b.Head != head {
		t.Errorf("got %+v, want %d", b, head)
	}
}

// A server that was cut off still answers, for seconds after the cut ends, that there is no leader. Here such a server
// passes a request on only after that answer. So the leader's own answer always comes second, and is still used.
func TestTheLeadersAnswerComesSecond(t *testing.T) {
	t.Parallel()
	c := eventlogtest.Cluster(t)
	c.Log(0)
	leader := c.Leader()
	head := fill(t, c.Log(leader), 3)
	i := follower(leader)
	near, conn, far := c.Log(i), c.Conn[i], c.Conn[leader]
	for subject, ask := range map[string]func() (eventlog.Revision, error){
		messageGet: func() (eventlog.Revision, error) { e, err := near.EventAt(bounded(t), head); return e.Revision, err },
		streamInfo: func() (eventlog.Revision, error) { b, err := near.Info(bounded(t)); return b.Head, err },
	} {
		inPlaceOf(t, c.Server[i], conn, subject, func(m *nats.Msg) {
			if errors.Join(m.Respond([]byte(unavailable)), conn.Flush()) == nil { // it fails when the test is over
				_ = far.PublishRequest(subject, m.Reply, m.Data)
			}
		})
		if got, err := ask(); err != nil || got != head {
			t.Errorf("%s: got %d, %v; want %d", subject, got, err, head)
		}
	}
}

// inPlaceOf makes the handler, instead of the usual receivers, receive the messages that the server's clients publish
// on a subject.
func inPlaceOf(t *testing.T, s *natsserver.Server, conn *nats.Conn, subject string, handler nats.MsgHandler) {
	t.Helper()
	instead := "instead." + subject
	subscribed, err := conn.Subscribe(instead, handler)
	if err == nil {
		err = errors.Join(conn.Flush(), s.GlobalAccount().AddMapping(subject, instead))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = subscribed.Unsubscribe() })
}

// A request whose connection breaks is never answered. It is sent again as soon as there is another connection, even if
// its timeout is long: a process that thaws after a freeze has only a second to answer.
func TestTheConnectionBreaks(t *testing.T) {
	server := eventlogtest.Run(t, t.TempDir())
	conn, link := eventlogtest.ConnectThrough(t, server)
	l := eventlogtest.Open(t, eventlog.Config{Conn: conn, Timeout: time.Hour})
	head := fill(t, l, 3)
	key, err := pod("amid").Subject("logplane")
	if err != nil {
		t.Fatal(err)
	}
	breakAt := func(subject string) {
		inPlaceOf(t, server, eventlogtest.Connect(t, server), subject, func(*nats.Msg) {
			server.GlobalAccount().RemoveMapping(subject)
			link.Cut()
			link.Resume()
		})
	}
	breakAt(streamInfo)
	if b := mustHead(t, l); b.Head != head {
		t.Errorf("the head is %d, want %d", b.Head, head)
	}
	breakAt(key)
	if rev := mustAppend(t, l, "amid", added("amid", "x")); rev != head+1 {
		t.Errorf("the event is %d, want %d", rev, head+1)
	}
}
