package apiserver

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/loopback"
	"github.com/logplane/logplane/internal/kubestore"
)

// lastEvent is the newest event of the log.
func (s *Server) lastEvent(t testing.TB) (last eventlog.Event) {
	t.Helper()
	bounds, err := s.config.Cell.Log.Head(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.config.Cell.Log.Tail(t.Context(), bounds.Head-1, bounds.Head, func(e eventlog.Event) error {
		last = e
		return nil
	}))
	return last
}

// TestEventsNameWhoWroteThem: an event has the user and the program of its request, the user whom that user acted as,
// and the Audit-Id of the answer. If a client uses an Audit-Id twice, the two requests still have different ids.
func TestEventsNameWhoWroteThem(t *testing.T) {
	s := newGuarded(t)
	create := func(name string) request {
		return request{method: "POST", path: configMaps, body: `{"metadata":{"name":"` + name + `"}}`}.with("User-Agent", "kubectl/v1.36.3")
	}
	audited := func(a answer) string { return a.header.Get("Audit-Id") }

	made := s.must(t, 201, create("a").as("root"))
	e := s.lastEvent(t)
	require.Equal(t, eventlog.Author{User: "root", Agent: "kubectl/v1.36.3"}, e.Author)
	require.Equal(t, audited(made), e.RequestID)

	s.must(t, 201, create("b").as("root").with("Impersonate-User", "system:admin").with("Impersonate-Group", "system:masters"))
	require.Equal(t, eventlog.Author{User: "root", As: "system:admin", Agent: "kubectl/v1.36.3"}, s.lastEvent(t).Author)

	ids := map[string]bool{}
	for _, name := range []string{"c", "d"} {
		made = s.must(t, 201, create(name).as("root").with("Audit-Id", "mine"))
		require.Equal(t, "mine", audited(made))
		id := s.lastEvent(t).RequestID
		require.True(t, strings.HasPrefix(id, "mine/"), id)
		ids[id] = true
	}
	require.Len(t, ids, 2)
}

// TestLoopbackWritesInTheCallersName: if a request writes through the loopback, the author is the request's author. If
// a part of Logplane writes through the loopback, the author is that part. Each request has its own Audit-Id.
func TestLoopbackWritesInTheCallersName(t *testing.T) {
	s := newGuarded(t)
	write := func(ctx context.Context, name string) {
		r, err := http.NewRequestWithContext(ctx, "POST", "http://loopback"+configMaps, strings.NewReader(`{"metadata":{"name":"`+name+`"}}`))
		require.NoError(t, err)
		r.Header.Set("Content-Type", "application/json")
		answer, err := loopback.As(s, loopback.Itself).RoundTrip(r)
		require.NoError(t, err)
		require.Equal(t, 201, answer.StatusCode)
	}
	write(t.Context(), "a")
	require.Equal(t, "system:apiserver", s.lastEvent(t).Author.User)
	write(kubestore.WithAuthor(t.Context(), kubestore.PartOf("lifecycle")), "b")
	require.Equal(t, eventlog.Author{User: "system:logplane:lifecycle"}, s.lastEvent(t).Author)
}
