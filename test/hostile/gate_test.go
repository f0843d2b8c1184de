package hostile

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/logplane/logplane/eventlog/eventlogtest"
)

// meanwhile is how often other users write and read during an attack.
const meanwhile = 25

// TestOthersAreServed: an attack by 'owner' does not make the server refuse anything to a tenant or to the
// administrator.
//
//   - Bodies that do not come: on e14eff4 each such request holds one of 200 seats for as long as its client likes.
//   - Revisions that never come, or come late: on e14eff4 each request for such a revision holds one of 400 seats
//     for 3 s.
//
// On e14eff4 other users get 429 during each of these attacks.
func TestOthersAreServed(t *testing.T) {
	for _, name := range []string{
		"bodies that do not come", "bodies that do not come, HTTP/2", "revisions that never come", "revisions that come late",
	} {
		t.Run(name, func(t *testing.T) {
			attackNamed(name).whileServing(t, func(s *target) {
				for i := range meanwhile {
					for user, path := range map[string]string{admin: "/api/v1/namespaces/default/configmaps", tenant: "/api/v1/namespaces/tenant/configmaps"} {
						s.must(user, http.MethodPost, path, fmt.Sprintf(`{"metadata":{"name":"c-%d"}}`, i))
						s.must(user, http.MethodGet, path+"?limit=1", "")
					}
				}
			})
		})
	}
}

// whileServing attacks a process while 'others' runs.
func (a attack) whileServing(t *testing.T, others func(s *target)) {
	s := a.target(t)
	ctx, end := context.WithCancel(t.Context())
	var attacking sync.WaitGroup
	defer attacking.Wait()
	defer end()
	attacking.Go(func() {
		// more workers than seats, so that seats run out even if some workers are slow
		a.run(ctx, s, a.workers+a.workers/4, func(code int) {
			if code == 0 {
				pause(ctx, 10*time.Millisecond)
			}
		})
	})
	others(s)
}

func attackNamed(name string) attack {
	return attacks[slices.IndexFunc(attacks, func(a attack) bool { return a.name == name })]
}

// TestBodiesThatComeInPart: the bytes of unfinished bodies are bounded for each user. On e14eff4 only the number of
// requests is bounded.
func TestBodiesThatComeInPart(t *testing.T) {
	s := serve(t, "api")
	s.asOwner(owner)
	s.asOwner(tenant)
	const large = 2 << 20
	codes := make(chan int, 40)
	for range 40 {
		conn, err := net.Dial("tcp", s.Address)
		require.NoError(t, err)
		defer conn.Close()
		require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
		go func() {
			_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", ownConfigMaps, owner, large+1, strings.Repeat(" ", large))
			var code int // 0 stands for no answer
			_, _ = fmt.Fscanf(conn, "HTTP/1.1 %d", &code)
			codes <- code
		}()
	}
	require.Equal(t, http.StatusTooManyRequests, <-codes)
	s.must(tenant, http.MethodPost, "/api/v1/namespaces/tenant/configmaps", `{"metadata":{"name":"a","annotations":{"a":"`+strings.Repeat("a", 100<<10)+`"}}}`)
	s.must(admin, http.MethodPost, ownConfigMaps, `{"metadata":{"name":"a"}}`)
}

// TestWatchesStartInTurn: if many watches of one user begin with all objects, these watches wait for each other. Other
// users do not wait. On e14eff4 no watch waits, and the watches use the whole machine.
func TestWatchesStartInTurn(t *testing.T) {
	attackNamed("watches from resourceVersion=0").whileServing(t, func(s *target) {
		eventlogtest.Eventually(t, "watches wait", func() bool {
			s.must(tenant, http.MethodGet, "/api/v1/namespaces/tenant/configmaps", "")
			return s.sum(`logplane_requests_waiting{kind="watch"}`) > 0
		})
	})
}

// TestWatchesOfAUser: a user may have 2,000 open watches in a process, and other users may still open watches. On
// e14eff4 one user may open all watches that the process serves.
func TestWatchesOfAUser(t *testing.T) {
	s := serve(t, "watcher")
	s.asOwner(owner)
	s.asOwner(tenant)
	const limit = 2000
	watch := func(user string) (*http.Response, error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL()+"/api/v1/namespaces/"+user+"/configmaps?watch=1&fieldSelector=metadata.name%3Dnone", nil)
		if err != nil {
			return nil, err
		}
		r.Header.Set("Authorization", "Bearer "+user)
		return attacker.Do(r)
	}
	var open errgroup.Group
	open.SetLimit(100)
	for range limit {
		open.Go(func() error {
			response, err := watch(owner)
			if err != nil {
				return err
			}
			t.Cleanup(func() { _ = response.Body.Close() })
			if response.StatusCode != http.StatusOK {
				return fmt.Errorf("a watch is answered %d", response.StatusCode)
			}
			return nil
		})
	}
	require.NoError(t, open.Wait())
	for user, code := range map[string]int{owner: http.StatusTooManyRequests, tenant: http.StatusOK} {
		response, err := watch(user)
		require.NoError(t, err)
		defer response.Body.Close()
		require.Equal(t, code, response.StatusCode, user)
	}
}

// TestStrangersAreToldAtOnce: a client without credentials gets 401 at once, whatever body the client announced, and
// even if the log cannot be read. On e14eff4 the server waits for the body (without a deadline) and for the log, and
// the answer is 503.
func TestStrangersAreToldAtOnce(t *testing.T) {
	c := newCell(t)
	s := c.serve("api")
	conn, err := net.Dial("tcp", s.Address)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(requestTimeout)))
	_, err = fmt.Fprintf(conn, "POST /api/v1/namespaces HTTP/1.1\r\nHost: %s\r\nContent-Length: 100\r\n\r\n{", s.Address)
	require.NoError(t, err)
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusUnauthorized, response.StatusCode)
	_, err = io.Copy(io.Discard, conn)
	require.NoError(t, err, "the connection is closed")

	c.log.Shutdown()
	require.Equal(t, http.StatusUnauthorized, s.do(nobody, http.MethodGet, "/api/v1/namespaces", "", "").Code)
	require.Equal(t, http.StatusServiceUnavailable, s.do(admin, http.MethodGet, "/api/v1/namespaces", "", "").Code)
}

// TestStrangersFillNoLog: the process's log lines shorten long texts of clients. On e14eff4 a log line holds the whole
// of a selector that cannot be parsed, even if its client has no credentials.
func TestStrangersFillNoLog(t *testing.T) {
	s := serve(t, "api")
	const asked = 20
	before := len(s.Output())
	for range asked {
		for _, selector := range []string{"fieldSelector", "labelSelector"} {
			path := "/api/v1/pods?" + selector + "=" + strings.Repeat("b", 30_000)
			require.Equal(t, http.StatusUnauthorized, s.do(nobody, http.MethodGet, path, "", "").Code)
		}
	}
	require.Less(t, len(s.Output())-before, 2*asked*2_000)
}
