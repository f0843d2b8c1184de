package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"testing"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// links are the connections between containers. Each link can be slowed, silenced and cut.
type links struct {
	t      testing.TB
	server *toxiproxy.ApiServer // holds the settings that its proxies share; it does not listen
}

func newLinks(t testing.TB) *links {
	zerolog.SetGlobalLevel(zerolog.Disabled) // otherwise toxics print traces
	return &links{t: t, server: toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())}
}

// link returns a new link that forwards to an address, until the test ends.
func (l *links) link(name, to string) *link {
	l.t.Helper()
	proxy := toxiproxy.NewProxy(l.server, name, "127.0.0.1:0", to)
	require.NoError(l.t, proxy.Start())
	l.t.Cleanup(proxy.Stop)
	return &link{proxy: proxy}
}

// link is the connection to one address.
type link struct {
	proxy  *toxiproxy.Proxy
	toxics []string // names, in the order in which bytes pass them
}

// address is where the link listens. The address stays the same after cuts.
func (l *link) address() string { return l.proxy.Listen }

// toxic is a fault of a link in both directions, in the terms of toxiproxy's documentation.
type toxic struct {
	kind       string
	attributes map[string]int
}

// slow behaves like a bad line to another continent.
var slow = []toxic{{"latency", map[string]int{"latency": 150, "jitter": 100}}, {"bandwidth", map[string]int{"rate": 200}}} // ms, KB/s

// silent loses every byte, while the connections stay open. The connections break when silent ends.
var silent = []toxic{{"timeout", map[string]int{"timeout": 0}}}

func (l *link) poison(toxics []toxic) error {
	for _, each := range toxics {
		for _, stream := range []string{"upstream", "downstream"} {
			encoded, err := json.Marshal(map[string]any{"type": each.kind, "stream": stream, "attributes": each.attributes})
			if err != nil {
				return err
			}
			added, err := l.proxy.Toxics.AddToxicJson(bytes.NewReader(encoded))
			if err != nil {
				return err
			}
			l.toxics = append(l.toxics, added.Name)
		}
	}
	return nil
}

// heal removes all toxics, the last one first. The bytes that a toxic holds pass through the remaining toxics, and
// toxiproxy waits for these bytes: the wait would take minutes if a remaining toxic had a small bandwidth.
func (l *link) heal() error {
	for _, name := range slices.Backward(l.toxics) {
		if err := l.proxy.Toxics.RemoveToxic(context.Background(), name); err != nil {
			return err
		}
	}
	l.toxics = nil
	return nil
}

// cut breaks every connection, and refuses new connections until join.
func (l *link) cut() error {
	l.proxy.Stop()
	return nil
}

func (l *link) join() error { return l.proxy.Start() }
