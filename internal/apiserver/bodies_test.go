package apiserver

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/internal/apiserver/cost"
	"github.com/logplane/logplane/internal/apiserver/gate"
)

// TestBodyThatDoesNotArrive: a request is answered 408 if its body does not arrive in time, and never takes a seat.
// Other requests on the same HTTP/2 connection go on.
func TestBodyThatDoesNotArrive(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits")
	}
	s := newServer(t, func(c *Config) { c.Requests = gate.RequestLimits{Mutating: 1, Timeout: 2 * time.Second} })
	for _, multiplexed := range []bool{false, true} {
		t.Run(fmt.Sprintf("multiplexed=%v", multiplexed), func(t *testing.T) {
			listener := httptest.NewUnstartedServer(s)
			listener.EnableHTTP2 = multiplexed
			listener.StartTLS()
			t.Cleanup(listener.Close)
			post := func(body io.Reader) (*http.Response, error) {
				r, err := http.NewRequestWithContext(t.Context(), "POST", listener.URL+configMaps, body)
				require.NoError(t, err)
				r.Header.Set("Content-Type", "application/json")
				return listener.Client().Do(r)
			}
			reader, writer := io.Pipe()
			defer writer.Close()
			go func() { _, _ = writer.Write([]byte("{")) }()
			answered := make(chan *http.Response, 1)
			go func() {
				defer close(answered)
				if response, err := post(reader); err == nil {
					answered <- response
				}
			}()
			for i := range 10 {
				response, err := post(strings.NewReader(fmt.Sprintf(`{"metadata":{"name":"x-%v-%d"}}`, multiplexed, i)))
				require.NoError(t, err)
				require.Equal(t, 201, response.StatusCode)
				require.NoError(t, response.Body.Close())
			}
			late := <-answered
			require.NotNil(t, late)
			defer late.Body.Close()
			require.Equal(t, multiplexed, late.ProtoMajor == 2)
			require.Equal(t, 408, late.StatusCode)
			text, err := io.ReadAll(late.Body)
			require.NoError(t, err)
			require.Contains(t, string(text), "the body of the request did not arrive in time: nothing was done")
		})
	}
}

// A request that keeps a processor busy for long waits for other such requests of its user. Requests of other users do
// not wait.
func TestWritesTakeHeavySeats(t *testing.T) {
	s := newServer(t, withTokens(t), func(c *Config) { c.Requests = gate.RequestLimits{Timeout: time.Second} })
	takeHeavySeats(t, s, "ann")
	large := request{method: "POST", path: configMaps, body: `{"metadata":{"generateName":"x-"},"data":{"a":"` + strings.Repeat("a", cost.HeavyBody) + `"}}`}
	copying := request{method: "PATCH", path: configMaps + "/x", contentType: "application/json-patch+json", body: `[{"op":"copy","from":"/data","path":"/data"}]`}
	moving := request{method: "PATCH", path: configMaps + "/x", contentType: "application/json-patch+json", body: `[{"op":"move","from":"/data","path":"/data"}]`}
	for user, code := range map[string]int{"ann": 429, "bob": 201, "root": 201} {
		s.must(t, code, large.as(user))
	}
	s.must(t, 429, copying.as("ann"))
	s.must(t, 404, moving.as("ann"))
	s.must(t, 404, copying.as("bob"))
}

// TestHeavySeatsOfRequestsThatEnded: a transaction whose deadline passes before it gets a heavy seat does not get one
// afterwards.
func TestHeavySeatsOfRequestsThatEnded(t *testing.T) {
	s := newServer(t, withTokens(t))
	var all []string
	for i := range 900 {
		all = append(all, creating(configMap(fmt.Sprint("x-", i), "1")))
	}
	late := transaction(all...)
	for n := range 10 {
		late.path = fmt.Sprintf("%s?timeout=%dms", transactionsPath, n+1)
		late.as("ann").do(t, s)
	}
	require.Eventually(t, func() bool { return unused(s.gate.Heavy, "ann") }, 30*time.Second, time.Millisecond)
}

func TestListsTakeHeavySeats(t *testing.T) {
	s := newServer(t, withTokens(t), func(c *Config) { c.Requests = gate.RequestLimits{Timeout: time.Second} })
	for range 4 {
		s.must(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"generateName":"x-"},"data":{"a":"` + strings.Repeat("a", 100<<10) + `"}}`}.as("ann"))
	}
	takeHeavySeats(t, s, "ann")
	whole, page := request{method: "GET", path: configMaps}, request{method: "GET", path: configMaps + "?limit=1"}
	for user, code := range map[string]int{"ann": 429, "bob": 200, "root": 200} {
		s.must(t, code, whole.as(user))
		s.must(t, 200, page.as(user))
	}
	s.must(t, 429, request{method: "DELETE", path: configMaps}.as("ann"))
}

// takeHeavySeats takes, until the test ends, every heavy seat that the user may have.
func takeHeavySeats(t *testing.T, s *Server, user string) {
	require.Positive(t, takeAll(t, s.gate.Heavy, user))
}

// takeAll takes, until the test ends, every seat of a kind that a user may have, and returns the number of these seats.
func takeAll(t *testing.T, kind *gate.Seats, user string) (n int) {
	impatient, cancel := context.WithCancel(t.Context())
	cancel()
	for {
		taken, err := kind.Take(impatient, user)
		if err != nil {
			return n
		}
		n++
		t.Cleanup(taken)
	}
}

// unused says that a user neither has a seat of the kind nor waits for one.
func unused(kind *gate.Seats, user string) bool {
	held, waiting, away := kind.Of(user)
	return held+waiting+away == 0
}

// TestExempt: members of system:masters are served even if no seat is free. If everybody is a member, nobody is
// exempt.
func TestExempt(t *testing.T) {
	for _, known := range []bool{true, false} {
		s := newServer(t, func(c *Config) {
			c.Requests = gate.RequestLimits{InFlight: 1, Mutating: 1, Timeout: time.Second}
			if known {
				withTokens(t)(c)
			}
		})
		for _, kind := range []*gate.Seats{s.gate.Reads, s.gate.Writes} {
			taken, err := kind.Take(t.Context(), "bob")
			require.NoError(t, err)
			defer taken()
		}
		code := map[bool]int{true: 200, false: 429}[known]
		s.must(t, code, request{method: "GET", path: configMaps}.as("root"))
		s.must(t, 429, request{method: "GET", path: configMaps}.as("ann"))
		s.must(t, 429, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"x"}}`}.as("ann"))
		impersonated := request{method: "GET", path: configMaps}.as("ann")
		impersonated.header.Set("Impersonate-User", "root")
		impersonated.header.Set("Impersonate-Group", "system:masters")
		s.must(t, 429, impersonated)
		s.must(t, 200, request{method: "GET", path: "/readyz"})
	}
}
