package eventlog_test

import (
	"bytes"
	"crypto/rand"
	"reflect"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
)

func TestEventsSubject(t *testing.T) {
	pattern := eventlog.Key{Cluster: "main", Group: "example.com", Resource: "*", Namespace: "a_b", Name: "*"}
	if got, err := eventlog.Pattern("p.events", pattern); err != nil || got != "p.events.main.example_com.*.a%5Fb.*" {
		t.Errorf("got %q, %v", got, err)
	}
	if got, err := eventlog.Pattern("p.bodies", eventlog.Key{Cluster: "main", Resource: "nodes", Name: "n"}); err != nil || got != "p.bodies.main.%core.nodes.%cluster.n" {
		t.Errorf("got %q, %v", got, err)
	}
}

// The headers of every event are republished, including its author. Bodies are republished only for resources on the
// list. Both messages have the log's revision. The list can be changed at any time. The list survives a restart, after
// which nothing is republished again. The log's own stream does not change.
func TestRepublished(t *testing.T) {
	folder := t.TempDir()
	server := eventlogtest.Run(t, folder)
	conn := eventlogtest.Connect(t, server)
	log := eventlogtest.Open(t, eventlog.Config{Conn: conn})
	config := eventlog.Config{Conn: conn}
	before, err := streams(t, conn).Stream(bounded(t), "logplane")
	if err != nil {
		t.Fatal(err)
	}
	headers, bodies := listen(t, conn, "logplane.events.>"), listen(t, conn, "logplane.bodies.>")
	other := eventlog.Key{Cluster: "main", Resource: "configmaps", Prefix: "/configmaps", Namespace: "default", Name: "other"}
	write := func(key eventlog.Key, body string) eventlog.Event {
		w := eventlog.Write{Key: key, Op: eventlog.Added, ContentType: "application/cbor", Body: []byte(body), Author: eventlog.Author{User: "ann", Agent: "test/1"}}
		rev, err := log.Append(bounded(t), log.Basis(), rand.Text(), w)
		if err != nil {
			t.Fatal(err)
		}
		return eventlog.Event{Write: w, Revision: rev}
	}
	expect := func(s *nats.Subscription, want eventlog.Event) {
		t.Helper()
		m, err := s.NextMsgWithContext(bounded(t))
		if err != nil {
			t.Fatal(err)
		}
		got, err := eventlog.DecodeRepublished("logplane", m)
		if err != nil || got.Revision != want.Revision || !reflect.DeepEqual(got.Write, want.Write) {
			t.Errorf("got %+v, %v; want %+v", got, err, want)
		}
	}
	headersOf := func(e eventlog.Event) eventlog.Event { e.Body = []byte{}; return e }

	early := write(pod("before"), "before the list")
	list := []eventlog.Resource{{Resource: "pods"}, {Group: "apps.example.com", Resource: "deployments"}}
	if err := eventlog.SetBodies(bounded(t), config, list); err != nil {
		t.Fatal(err)
	}
	if got, err := eventlog.Bodies(bounded(t), config); err != nil || !reflect.DeepEqual(got, list) {
		t.Errorf("got %v, %v", got, err)
	}
	expect(headers, headersOf(early))
	first := write(pod("a"), "one")
	expect(headers, headersOf(first))
	expect(bodies, first)
	secret := write(other, "not on the list")
	expect(headers, headersOf(secret))
	second := write(pod("b"), "two")
	expect(headers, headersOf(second))
	expect(bodies, second)

	if err := eventlog.SetBodies(bounded(t), config, []eventlog.Resource{{Resource: "configmaps"}}); err != nil {
		t.Fatal(err)
	}
	write(pod("c"), "not on the list any more")
	other.Name = "another"
	third := write(other, "three")
	expect(bodies, third)
	after, err := streams(t, conn).Stream(bounded(t), "logplane")
	if err != nil || !reflect.DeepEqual(before.CachedInfo().Config, after.CachedInfo().Config) {
		t.Errorf("the log's stream has changed: %v", err)
	}

	conn.Close()
	server.Shutdown()
	server.WaitForShutdown()
	conn = eventlogtest.Connect(t, eventlogtest.Run(t, folder))
	config.Conn = conn
	log = eventlogtest.Open(t, config)
	bodies = listen(t, conn, "logplane.bodies.>")
	other.Name = "last"
	expect(bodies, write(other, "after a restart"))
	if err := eventlog.SetBodies(bounded(t), config, nil); err != nil {
		t.Fatal(err)
	}
	if err := eventlog.SetBodies(bounded(t), config, nil); err != nil {
		t.Errorf("once more: %v", err)
	}
	if got, err := eventlog.Bodies(bounded(t), config); err != nil || got != nil {
		t.Errorf("got %v, %v", got, err)
	}
}

func listen(t *testing.T, conn *nats.Conn, subject string) *nats.Subscription {
	t.Helper()
	s, err := conn.SubscribeSync(subject)
	if err == nil {
		err = conn.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A republished message alone tells a subscriber the revision of the subject's previous message, as long as the log
// holds that previous message.
func TestLastSequence(t *testing.T) {
	conn := eventlogtest.Start(t)
	log := eventlogtest.Open(t, eventlog.Config{Conn: conn})
	headers := listen(t, conn, "logplane.events.main.%core.pods.default.a")
	write := func(name string, op eventlog.Op, base, precondition eventlog.Revision) eventlog.Revision {
		w := eventlog.Write{Key: pod(name), Op: op, Base: base, Precondition: precondition, ContentType: "application/cbor"}
		rev, err := log.Append(bounded(t), log.Basis(), rand.Text(), w)
		if err != nil {
			t.Fatal(err)
		}
		return rev
	}
	first := write("a", eventlog.Added, 0, 0)
	second := write("a", eventlog.Modified, first, first)
	write("b", eventlog.Added, 0, 0)
	if err := log.Purge(bounded(t), second); err != nil {
		t.Fatal(err)
	}
	write("a", eventlog.Modified, second, 0)
	for _, want := range []string{"0", "1", "0"} {
		m, err := headers.NextMsgWithContext(bounded(t))
		if err != nil || m.Header.Get("Nats-Last-Sequence") != want {
			t.Errorf("got %v, %v; want %s", m, err, want)
		}
	}
}

// The list is replicated like the log: bodies are still republished under another leader.
func TestBodiesOnThreeServers(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts a cluster")
	}
	c := eventlogtest.Cluster(t)
	log := c.Log(0)
	if err := eventlog.SetBodies(bounded(t), eventlog.Config{Conn: c.Conn[0]}, []eventlog.Resource{{Resource: "pods"}}); err != nil {
		t.Fatal(err)
	}
	bodies := listen(t, c.Conn[1], "logplane.bodies.>")
	for i := range 3 {
		rev, err := log.Append(bounded(t), log.Basis(), rand.Text(), eventlog.Write{
			Key: pod(rand.Text()), Op: eventlog.Added, ContentType: "application/cbor", Body: []byte{byte(i)},
		})
		if err != nil {
			t.Fatal(err)
		}
		m, err := bodies.NextMsgWithContext(bounded(t))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := eventlog.DecodeRepublished("logplane", m); err != nil || got.Revision != rev || !bytes.Equal(got.Body, []byte{byte(i)}) {
			t.Errorf("got %+v, %v; want revision %d", got, err, rev)
		}
		if err := c.Server[c.Leader()].JetStreamStepdownStream("$G", "logplane"); err != nil {
			t.Fatal(err)
		}
		c.Leader()
	}
}

// Bodies that may be Secrets cannot be on the list.
func TestBodiesRefused(t *testing.T) {
	conn := eventlogtest.Start(t)
	eventlogtest.Open(t, eventlog.Config{Conn: conn})
	for _, r := range []eventlog.Resource{{Resource: "secrets"}, {Resource: "*"}, {Group: "*", Resource: "pods"}, {}} {
		err := eventlog.SetBodies(bounded(t), eventlog.Config{Conn: conn}, []eventlog.Resource{{Resource: "pods"}, r})
		if err == nil {
			t.Errorf("%+v was accepted", r)
		}
	}
	if _, err := streams(t, conn).Stream(bounded(t), "logplane-bodies"); err == nil {
		t.Error("a stream was made")
	}
}
