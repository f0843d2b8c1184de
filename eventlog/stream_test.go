package eventlog_test

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/test/servers"
)

// streams is JetStream without this package, for operations that the package never does.
func streams(t *testing.T, conn *nats.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func sound() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: "logplane", Subjects: []string{"logplane.log.>"}, DenyDelete: true, AllowDirect: true, AllowAtomicPublish: true,
	}
}

func TestCreateIsIdempotent(t *testing.T) {
	conn := eventlogtest.Start(t)
	var creating sync.WaitGroup
	for range 8 {
		creating.Go(func() {
			if err := eventlog.Create(bounded(t), eventlog.Config{Conn: conn}); err != nil {
				t.Error(err)
			}
		})
	}
	creating.Wait()
	if _, err := eventlog.Open(bounded(t), eventlog.Config{Conn: conn}); err != nil {
		t.Error(err)
	}
}

// Open and Create refuse a stream that would lose events, get holes or leak bodies, and name the settings to change.
func TestUnsoundStreams(t *testing.T) {
	for setting, change := range map[string]func(*jetstream.StreamConfig){
		"":                     func(c *jetstream.StreamConfig) {},
		"max_age":              func(c *jetstream.StreamConfig) { c.MaxAge = 1e12 },
		"max_msgs":             func(c *jetstream.StreamConfig) { c.MaxMsgs = 10 },
		"max_msgs_per_subject": func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 1 },
		"discard":              func(c *jetstream.StreamConfig) { c.MaxBytes = 1 << 20 },
		"max_msg_size":         func(c *jetstream.StreamConfig) { c.MaxMsgSize = 1 << 20 },
		"subjects":             func(c *jetstream.StreamConfig) { c.Subjects = []string{"logplane.log.main.>"} },
		"storage":              func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage },
		"retention":            func(c *jetstream.StreamConfig) { c.Retention = jetstream.InterestPolicy },
		"no_ack":               func(c *jetstream.StreamConfig) { c.NoAck = true; c.AllowAtomicPublish = false },
		"deny_delete":          func(c *jetstream.StreamConfig) { c.DenyDelete = false },
		"deny_purge":           func(c *jetstream.StreamConfig) { c.DenyPurge = true },
		"allow_rollup_hdrs":    func(c *jetstream.StreamConfig) { c.AllowRollup = true },
		"allow_msg_ttl":        func(c *jetstream.StreamConfig) { c.AllowMsgTTL = true },
		"allow_msg_schedules":  func(c *jetstream.StreamConfig) { c.AllowMsgSchedules = true },
		"allow_direct":         func(c *jetstream.StreamConfig) { c.AllowDirect = false },
		"allow_atomic":         func(c *jetstream.StreamConfig) { c.AllowAtomicPublish = false },
		"subject_transform": func(c *jetstream.StreamConfig) {
			c.SubjectTransform = &jetstream.SubjectTransformConfig{Source: "logplane.log.a.>", Destination: "logplane.log.b.>"}
		},
		"republish.headers_only": func(c *jetstream.StreamConfig) {
			c.RePublish = &jetstream.RePublish{Source: "logplane.log.>", Destination: "x.>"}
		},
	} {
		t.Run(setting, func(t *testing.T) {
			conn := eventlogtest.Start(t)
			config := sound()
			change(&config)
			if _, err := streams(t, conn).CreateStream(bounded(t), config); err != nil {
				t.Fatal(err)
			}
			_, opening := eventlog.Open(bounded(t), eventlog.Config{Conn: conn})
			for _, err := range []error{opening, eventlog.Create(bounded(t), eventlog.Config{Conn: conn})} {
				if setting == "" && err != nil || setting != "" && (err == nil || !strings.Contains(err.Error(), "`"+setting+"`")) {
					t.Errorf("got %v", err)
				}
			}
		})
	}
}

// The server refuses every request that would make a hole.
func TestStreamRefusesHoles(t *testing.T) {
	conn := eventlogtest.Start(t)
	l := eventlogtest.Open(t, eventlog.Config{Conn: conn})
	fill(t, l, 3)
	s, err := streams(t, conn).Stream(bounded(t), "logplane")
	if err != nil {
		t.Fatal(err)
	}
	if s.DeleteMsg(bounded(t), 2) == nil || s.SecureDeleteMsg(bounded(t), 2) == nil {
		t.Error("an event was deleted")
	}
	for _, header := range []nats.Header{{"Nats-Rollup": {"all"}}, {"Nats-TTL": {"1s"}}} {
		answer, err := conn.RequestMsg(&nats.Msg{Subject: "logplane.log.x", Header: header}, eventlogtestPatience)
		if err != nil || !strings.Contains(string(answer.Data), `"error"`) {
			t.Errorf("%v: %s, %v", header, answer.Data, err)
		}
	}
	if n := len(mustTail(t, l, 0, 3)); n != 3 {
		t.Errorf("%d events are left", n)
	}
}

// A hole in the log stops readers. Readers neither skip the hole nor take it for a purge.
func TestHoleIsDiverged(t *testing.T) {
	conn := eventlogtest.Start(t)
	config := sound()
	config.DenyDelete = false
	s, err := streams(t, conn).CreateStream(bounded(t), config)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		if _, err := conn.Request("logplane.log.x"+fmt.Sprint(i), nil, eventlogtestPatience); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.DeleteMsg(bounded(t), 3); err != nil {
		t.Fatal(err)
	}
	if _, err := streams(t, conn).UpdateStream(bounded(t), sound()); err != nil {
		t.Fatal(err)
	}
	l, err := eventlog.Open(bounded(t), eventlog.Config{Conn: conn})
	if err != nil {
		t.Fatal(err)
	}
	unread := func(e eventlog.Event) error {
		return fmt.Errorf("revision %d was delivered across the hole", e.Revision)
	}
	if err := l.Tail(bounded(t), 2, 5, unread); !errors.Is(err, eventlog.ErrDiverged) {
		t.Errorf("tail: %v", err)
	}
	if err := l.Follow(bounded(t), eventlog.Position{Revision: 2}, each(unread)); !errors.Is(err, eventlog.ErrDiverged) {
		t.Errorf("follow: %v", err)
	}
}

// A message that is not an event changes nothing for any reader: it must not stop readers for good.
func TestForeignMessage(t *testing.T) {
	conn := eventlogtest.Start(t)
	l := eventlogtest.Open(t, eventlog.Config{Conn: conn})
	fill(t, l, 2)
	if _, err := conn.Request("logplane.log.foreign", []byte("x"), eventlogtestPatience); err != nil {
		t.Fatal(err)
	}
	forged := &nats.Msg{Subject: "logplane.log.main.%core.pods.default.a", Header: nats.Header{"Nats-Sequence": {"1"}, "Nats-Subject": {"x"}, "ce-id": {"id"}}}
	if _, err := conn.RequestMsg(forged, eventlogtestPatience); err != nil {
		t.Fatal(err)
	}
	for _, place := range []string{"1/1000", "x", "2/1"} {
		claims := &nats.Msg{Subject: "logplane.log.claims", Header: nats.Header{"Logplane-Batch": {place}}}
		if _, err := conn.RequestMsg(claims, eventlogtestPatience); err != nil {
			t.Fatal(err)
		}
		if b, err := l.Info(bounded(t)); err != nil || mustHead(t, l) != b {
			t.Errorf("%s: the head is not %+v, %v", place, b, err)
		}
	}
	fill(t, l, 1)
	if b := mustHead(t, l); b.Head != 8 {
		t.Errorf("got %+v", b)
	}
	check := func(e eventlog.Event) {
		if (e.Op == eventlog.Barrier) != (e.Revision >= 3 && e.Revision < 8) || e.Time.IsZero() || e.Op == eventlog.Barrier && len(e.Body) > 0 {
			t.Errorf("got %+v", e)
		}
	}
	for _, e := range mustTail(t, l, 0, 8) {
		check(e)
	}
	at, err := l.EventAt(bounded(t), 3)
	if err != nil {
		t.Error(err)
	}
	check(at)
	end := errors.New("the end")
	err = l.Follow(bounded(t), eventlog.Position{}, each(func(e eventlog.Event) error {
		check(e)
		if e.Revision == 8 {
			return end
		}
		return nil
	}))
	if !errors.Is(err, end) {
		t.Error(err)
	}
}

// Subscribers of the republished subjects get headers, including the revision, and no body.
func TestRepublishedEvents(t *testing.T) {
	conn := eventlogtest.Start(t)
	l := eventlogtest.Open(t, eventlog.Config{Conn: conn})
	sub, err := conn.SubscribeSync("logplane.events.main.%core.secrets.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	fill(t, l, 1)
	key := eventlog.Key{Cluster: "main", Resource: "secrets", Prefix: "/secrets", Namespace: "default", Name: "a.b"}
	rev := mustAppend(t, l, "id", eventlog.Write{Key: key, Op: eventlog.Added, ContentType: "application/cbor", Body: []byte("secret")})
	msg, err := sub.NextMsgWithContext(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(msg.Data) != 0 || msg.Subject != "logplane.events.main.%core.secrets.default.a_b" {
		t.Errorf("got %q on %s", msg.Data, msg.Subject)
	}
	for name, want := range map[string]string{
		"Nats-Sequence": fmt.Sprint(rev), "ce-specversion": "1.0", "ce-id": "id", "ce-type": "dev.logplane.object.added",
		"ce-source": "/clusters/main", "ce-subject": "/secrets/default/a.b", "content-type": "application/cbor",
	} {
		if got := msg.Header.Get(name); got != want {
			t.Errorf("%s is %q, not %q", name, got, want)
		}
	}
}

func TestInMemory(t *testing.T) {
	config := eventlog.Config{Conn: eventlogtest.Start(t), InMemory: true}
	l := eventlogtest.Open(t, config)
	if rev := mustAppend(t, l, "b", added("a", "1"), added("b", "1")); rev != 2 {
		t.Errorf("got %d", rev)
	}
	config.InMemory = false
	if _, err := eventlog.Open(bounded(t), config); err == nil {
		t.Error("a stream in memory was opened as a durable log")
	}
}

// After a purge, memory storage would need seconds to count the messages that a batch leaves pending, and would block
// everybody.
func TestTailInMemoryAsksForNoBatch(t *testing.T) {
	conn := eventlogtest.Start(t)
	l := eventlogtest.Open(t, eventlog.Config{Conn: conn, InMemory: true})
	head := mustAppend(t, l, "1", batch(1, 30)...)
	if err := l.Purge(bounded(t), 4); err != nil {
		t.Fatal(err)
	}
	asked, err := conn.SubscribeSync("$JS.API.DIRECT.GET.logplane")
	if err != nil {
		t.Fatal(err)
	}
	if got := mustTail(t, l, 4, head); len(got) != 26 || got[0].Revision != 5 || got[25].Revision != head {
		t.Errorf("got %d events", len(got))
	}
	for next := eventlog.Revision(5); next <= head; next++ {
		if msg, err := asked.NextMsgWithContext(bounded(t)); err != nil || !strings.HasPrefix(string(msg.Data), fmt.Sprintf(`{"seq":%d,"batch":0,`, next)) {
			t.Fatalf("revision %d: got %v, %v", next, msg, err)
		}
	}
	if err := l.Tail(bounded(t), 3, head, func(eventlog.Event) error { return nil }); !errors.Is(err, eventlog.ErrPurged) {
		t.Errorf("got %v", err)
	}
}

// Preconditions are on the object's own subject, never on a wildcard. Nothing relies on deduplication.
func TestPublishedHeaders(t *testing.T) {
	conn := eventlogtest.Start(t)
	l := eventlogtest.Open(t, eventlog.Config{Conn: conn})
	base := mustAppend(t, l, "1", added("a", "1"))
	rev := mustAppend(t, l, "2", modified("a", "2", base))
	s, err := streams(t, conn).Stream(bounded(t), "logplane")
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.GetMsg(bounded(t), uint64(rev))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"Nats-Expected-Last-Subject-Sequence": "1", "Nats-Expected-Last-Subject-Sequence-Subject": "", "Nats-Msg-Id": "",
		"Logplane-Base": "1", "Logplane-Precondition": "1", "Logplane-Epoch": "00", "Logplane-Prefix": "/pods", "ce-id": "2",
	} {
		if got := m.Header.Get(name); got != want {
			t.Errorf("%s is %q, not %q", name, got, want)
		}
	}
}

// A server whose max_payload is too small for the largest event is refused. The error names the setting to change.
func TestSmallMaxPayload(t *testing.T) {
	conn := eventlogtest.Start(t, func(o *server.Options) { o.MaxPayload = 1 << 20 })
	for _, err := range []error{
		eventlog.Create(bounded(t), eventlog.Config{Conn: conn}),
		func() error { _, err := eventlog.Open(bounded(t), eventlog.Config{Conn: conn}); return err }(),
	} {
		if err == nil || !strings.Contains(err.Error(), "'max_payload'") {
			t.Errorf("got %v", err)
		}
	}
}

// A purge removes 10,000 events a step, since publishers wait for each step.
func TestPurgeSteps(t *testing.T) {
	if testing.Short() {
		t.Skip("thousands of appends")
	}
	l := eventlogtest.Log(t)
	var head eventlog.Revision
	for i := range 25 {
		head = mustAppend(t, l, fmt.Sprint(i), batch(i, 1000)...)
	}
	before := eventlog.RoundTrips("purge")
	if err := l.Purge(bounded(t), head-500); err != nil {
		t.Fatal(err)
	}
	if n := eventlog.RoundTrips("purge") - before; n != 3 {
		t.Errorf("%v steps", n)
	}
	if b := mustHead(t, l); b.First != head-499 || b.Head != head {
		t.Errorf("got %+v", b)
	}
}

// Every version that syncs all acknowledged events may keep the log, and no other version may.
func TestVersionsOfServers(t *testing.T) {
	for version, safe := range map[string]bool{
		"2.14.8": true, "2.14.10": true, "2.15.1": true, "2.15.3": true, "2.16.0": true, "2.16.0-RC.1": true, "3.0.0": true,
		"2.9.25": false, "2.12.15": false, "2.13.9": false, "2.14.7": false, "2.14.8-RC.1": false, "2.15.0": false, "2.15.1-RC.2": false,
		"1.15.3": false, "": false, "2.16": false, "main": false,
	} {
		if err := eventlog.CheckVersion(version); (err == nil) != safe {
			t.Errorf("%q: %v", version, err)
		}
	}
}

// No log is created on a server that may lose acknowledged events. A process that starts on such a server is warned,
// and so is a process that connects to such a server later. Examine, for the doctor, reports all such servers.
func TestUnsafeServers(t *testing.T) {
	c := eventlogtest.Cluster(t)
	c.Log(0)
	old := servers.Older(t, c.Server[1], "2.12.9")
	var said logs
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&said, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	conn, err := nats.Connect(c.Server[0].ClientURL()+","+old, nats.DontRandomize(), nats.IgnoreDiscoveredServers(), nats.ReconnectBufSize(-1), nats.ReconnectWait(time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	config := eventlog.Config{Conn: conn, Replicas: 3}
	if err := eventlog.Create(bounded(t), config); err == nil || !strings.Contains(err.Error(), `server 's1': nats-server "2.12.9" may lose what it has acknowledged`) {
		t.Errorf("create: %v", err)
	}
	if _, err := eventlog.Open(bounded(t), config); err != nil || said.String() != "" {
		t.Errorf("open: %v, %s", err, said.String())
	}
	e, err := eventlog.Examine(bounded(t), config)
	if err != nil || e.Unsafe == nil || !strings.Contains(e.Unsafe.Error(), "server 's1'") || !slices.Equal(e.Unasked, []string{"s2"}) {
		t.Errorf("examined: %+v, %v", e, err)
	}
	if err := conn.ForceReconnect(); err != nil {
		t.Fatal(err)
	}
	eventlogtest.Eventually(t, "it warns of the server that it came to", func() bool { return strings.Contains(said.String(), "server=s1") })
}

// logs collects log records. Its methods are safe for concurrent use.
type logs struct {
	mu  sync.Mutex
	all strings.Builder
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}
