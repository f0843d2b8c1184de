// Package hostile attacks the built product over HTTP, as a client, a tenant, a subscriber and a neighbour on the
// network would, and checks whether other users notice. It has one test for each line of docs/security.md; 'make
// attack' measures the attacks under load. A phrase such as 'On e14eff4' tells what happened at that commit, before the
// fix.
package hostile

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/test/product"
)

// These are the attackers, and the users who are observed meanwhile. The token of a user is the user's name. Admin may
// do everything. Owner and tenant may do everything in the namespace of their name (asOwner). Stranger may do nothing.
// The user nobody has no token.
const (
	admin    = "admin"
	owner    = "owner"
	tenant   = "tenant"
	stranger = "stranger"
	nobody   = ""
)

const tokens = `admin,admin,1,"system:masters"
owner,owner,2
tenant,tenant,3
stranger,stranger,4
`

// requestTimeout bounds one request of a test, so that the test fails if the server does not answer.
const requestTimeout = 90 * time.Second

// cell is a log and a bucket, and the processes of the product that use them.
type cell struct {
	t      testing.TB
	where  []string // connection flags
	tokens string   // file
	log    *server.Server
}

// newCell makes a log on a server of its own and a bucket in a folder, with a projector.
func newCell(t testing.TB) *cell {
	t.Helper()
	c := &cell{t: t, tokens: filepath.Join(t.TempDir(), "tokens.csv")}
	require.NoError(t, os.WriteFile(c.tokens, []byte(tokens), 0o600))
	c.log = eventlogtest.Run(t, t.TempDir())
	c.where = product.Init(t, c.log.ClientURL(), filepath.Join(t.TempDir(), "bucket"))
	product.Run(t, c.with("projector")...)
	return c
}

func (c *cell) with(args ...string) []string { return slices.Concat(args, c.where) }

// serve runs 'api' or 'watcher' with the tokens of the users above.
func (c *cell) serve(command string, args ...string) *target {
	c.t.Helper()
	args = append([]string{command, "--listen", "127.0.0.1:0", "--token-auth-file", c.tokens}, args...)
	return &target{c.t, product.Serve(c.t, c.with(args...)...)}
}

// serve runs one process on a new cell.
func serve(t testing.TB, command string, args ...string) *target {
	t.Helper()
	return newCell(t).serve(command, args...)
}

// target is a process under attack.
type target struct {
	t testing.TB
	*product.Process
}

// answer is the answer to a request.
type answer struct {
	Code   int
	Header http.Header
	Body   []byte
}

// status decodes the body as a Status.
func (a answer) status(t testing.TB) metav1.Status {
	t.Helper()
	var s metav1.Status
	require.NoError(t, json.Unmarshal(a.Body, &s), string(a.Body))
	return s
}

// client is for users who do not need connections of their own.
var client = newClient()

// newClient returns a client with connections of its own. It trusts any certificate, since it talks to a child process
// on loopback.
func newClient() *http.Client {
	return &http.Client{
		Timeout:       requestTimeout,
		Transport:     &http.Transport{MaxIdleConnsPerHost: 1000, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// do sends one request as the user; an empty body is not sent.
func (s *target) do(user, method, path, contentType, body string) answer {
	s.t.Helper()
	r, err := http.NewRequest(method, s.URL()+path, bytes.NewReader([]byte(body)))
	require.NoError(s.t, err)
	if user != nobody {
		r.Header.Set("Authorization", "Bearer "+user)
	}
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	response, err := client.Do(r)
	require.NoError(s.t, err, "%s %s", method, path)
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	require.NoError(s.t, err, "%s %s", method, path)
	return answer{response.StatusCode, response.Header, content}
}

// must sends a request that has to succeed.
func (s *target) must(user, method, path, body string) answer {
	s.t.Helper()
	a := s.do(user, method, path, "application/json", body)
	require.Less(s.t, a.Code, 300, "%s %s: %s", method, path, a.Body)
	return a
}

// clientFor returns a client-go client for the user, without client-side rate limits.
func (s *target) clientFor(user string) *kubernetes.Clientset {
	s.t.Helper()
	c, err := kubernetes.NewForConfig(&rest.Config{Host: s.URL(), BearerToken: user, QPS: -1})
	require.NoError(s.t, err)
	return c
}

// asOwner makes a namespace with the user's name, in which the user may do everything.
func (s *target) asOwner(user string) {
	s.t.Helper()
	s.must(admin, http.MethodPost, "/api/v1/namespaces", `{"metadata":{"name":"`+user+`"}}`)
	s.must(admin, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/namespaces/"+user+"/rolebindings",
		`{"metadata":{"name":"owner"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"`+user+`"}],`+
			`"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"admin"}}`)
}

// memory is the resident memory of the process in bytes.
func (s *target) memory() uint64 {
	s.t.Helper()
	statm, err := os.ReadFile("/proc/" + pid(s) + "/statm")
	require.NoError(s.t, err)
	var total, resident uint64 // pages
	_, err = fmt.Sscan(string(statm), &total, &resident)
	require.NoError(s.t, err)
	return resident * uint64(os.Getpagesize())
}

func pid(s *target) string { return strconv.Itoa(s.Cmd.Process.Pid) }

// sum adds the values of all metrics with the given name. If the name ends with labels, the metrics must have those
// labels.
func (s *target) sum(metric string) (sum float64) {
	s.t.Helper()
	metrics := s.must(admin, http.MethodGet, "/metrics", "")
	lines := regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(metric)+`(?:\{.*\})? (\S+)$`).FindAllSubmatch(metrics.Body, -1)
	require.NotEmpty(s.t, lines, "%s in %s", metric, metrics.Body)
	for _, line := range lines {
		value, err := strconv.ParseFloat(string(line[1]), 64)
		require.NoError(s.t, err)
		sum += value
	}
	return sum
}

// allocated is how many bytes the process has allocated since its start.
func (s *target) allocated() float64 { return s.sum("go_memstats_alloc_bytes_total") }
