package kubestore

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/kubestore/fanout"
)

// client reads a watch as upstream's handler does, in steps. Its log has the labels of the objects that it was sent.
type client struct {
	watch.Interface
	t         *testing.T
	decorates bool
	held      *watch.Event // received, and not encoded yet
	refuses   bool
	pace      int // steps between two changes
	log       []string
	called    int // how many events were sent by the watch writer
}

func (c *client) Encoding() Encoding { return asLabel{} }
func (c *client) Sends() bool        { return true }

func (c *client) SendAll(frames []byte, events int) error {
	c.log = append(c.log, fmt.Sprintf("%s: %d", frames, events))
	return nil
}

func (c *client) Send(frame []byte) bool {
	require.Nil(c.t, c.held, "the handler has begun an event")
	if c.refuses {
		return false
	}
	c.log = append(c.log, string(frame))
	c.called++
	return true
}

func (c *client) take() {
	if c.held != nil {
		return
	}
	select {
	case e := <-c.ResultChan():
		c.held = &e
	default:
	}
}

func (c *client) encode() {
	if c.held == nil {
		return
	}
	e := *c.held
	c.held = nil
	if shared, ok := e.Object.(fanout.Shared); ok && c.decorates {
		require.NoError(c.t, shared.Decorate(func(runtime.Object) error { return nil }))
	}
	encode := func(o runtime.Object, to io.Writer) error {
		frame, err := asLabel{}.Frame(e.Type, o)
		require.NoError(c.t, err)
		_, err = to.Write(frame)
		return err
	}
	if cacheable, ok := e.Object.(runtime.CacheableObject); ok {
		require.NoError(c.t, cacheable.CacheEncode("id", encode, c))
		return
	}
	require.NoError(c.t, encode(e.Object, c))
}

// Write implements io.Writer.
func (c *client) Write(p []byte) (int, error) {
	c.log = append(c.log, string(p))
	return len(p), nil
}

// asLabel encodes an event as the value of the object's label.
type asLabel struct{}

func (asLabel) Verbatim(context.Context) Append { return nil }

func (asLabel) Name() string { return "label" }

func (a asLabel) Encode(t watch.EventType, o runtime.Object) ([]byte, error) { return a.Frame(t, o) }

func (asLabel) Frame(_ watch.EventType, o runtime.Object) ([]byte, error) {
	return []byte(o.(*example.Pod).Labels["n"]), nil
}

// TestWatchWriter: whatever a client's handler and socket are doing, the client is sent each change once and in order.
// The less the handler has to do, the more changes go by the watch writer. If the handler decorates objects, no changes
// go by the watch writer.
func TestWatchWriter(t *testing.T) {
	s, p, deliver := startStepped(t)
	const changes = 800
	var clients []*client
	for n := range 4 {
		c := &client{t: t, decorates: n == 3}
		ctx := withWatchWriter(withEnd(t.Context(), make(chan struct{})), c)
		w, err := s.Watch(ctx, "/pods", storage.ListOptions{ResourceVersion: p.ResourceVersion, Recursive: true, Predicate: storage.Everything})
		require.NoError(t, err)
		t.Cleanup(w.Stop)
		c.Interface = w
		clients = append(clients, c)
	}
	waitForMembers(t, s, len(clients))
	rng := rand.New(rand.NewPCG(1, 2))
	var want []string
	for i := range changes {
		want = append(want, strconv.Itoa(i))
		_, err := relabel(t.Context(), s, keyOf(p), "n", want[i])
		require.NoError(t, err)
		deliver()
		for _, c := range clients {
			c.refuses = rng.IntN(10) == 0
			if i%40 == 0 {
				c.pace = rng.IntN(8)
			}
			for range c.pace {
				c.take()
				if rng.IntN(2) == 0 {
					c.encode()
				}
			}
		}
	}
	drain := func(c *client, until int) {
		t.Helper()
		eventlogtest.Eventually(t, "the client has everything", func() bool {
			c.take()
			c.encode()
			return len(c.log) >= until
		})
	}
	for n, c := range clients {
		drain(c, changes)
		require.Equal(t, want, c.log)
		if c.decorates {
			require.Zero(t, c.called)
		} else {
			require.Positive(t, c.called, "client %d", n)
		}
	}

	// Changes that come together are left to the handlers, and the handlers send these changes together.
	c := clients[0]
	change := func(label string) {
		t.Helper()
		want = append(want, label)
		_, err := relabel(t.Context(), s, keyOf(p), "n", label)
		require.NoError(t, err)
	}
	c.refuses = false
	for called := c.called; c.called == called; drain(c, len(want)) { // the first change may pass through the handler
		change(fmt.Sprint("alone ", len(want)))
		deliver()
	}
	called := c.called
	for i := range 10 {
		change(fmt.Sprint("together ", i))
	}
	deliver()
	require.Equal(t, called, c.called)
	drain(c, len(want))
	require.Equal(t, want, c.log)
}
