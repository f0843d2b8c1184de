package e2e

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/test/product"
)

const rolesTimeout = 60 * time.Second

// violations is a logger for nats-server that keeps the messages about permissions, with the user's name.
type violations struct {
	mu   sync.Mutex
	said []string // guarded by mu
}

func (v *violations) keep(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	if !strings.Contains(line, "iolation") {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.said = append(v.said, line)
}

func (v *violations) all() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.said)
}

func (v *violations) Noticef(format string, args ...any) { v.keep(format, args...) }
func (v *violations) Warnf(format string, args ...any)   { v.keep(format, args...) }
func (v *violations) Fatalf(format string, args ...any)  { v.keep(format, args...) }
func (v *violations) Errorf(format string, args ...any)  { v.keep(format, args...) }
func (v *violations) Debugf(string, ...any)              {}
func (v *violations) Tracef(string, ...any)              {}

// roleServer is a nats-server with exactly the configuration that 'logplane permissions --roles' prints.
type roleServer struct {
	server  *server.Server
	refused *violations
}

func runRoles(t *testing.T) *roleServer {
	t.Helper()
	for _, user := range append(roles(), "subscriber") {
		t.Setenv(strings.ToUpper(user)+"_PASSWORD", passwordOf(user))
	}
	printed := product.Run(t, "permissions", "--roles", "--namespace", "default")
	<-printed.Exited
	require.Zero(t, printed.Cmd.ProcessState.ExitCode(), printed.Output())
	folder := t.TempDir()
	configuration := filepath.Join(folder, "authorization.conf")
	require.NoError(t, os.WriteFile(configuration, []byte(printed.Output()), 0o600))
	configured, err := server.ProcessConfigFile(configuration)
	require.NoError(t, err)
	s := &roleServer{refused: &violations{}}
	s.server = eventlogtest.Run(t, filepath.Join(folder, "store"), func(o *server.Options) { o.Users = configured.Users })
	s.server.SetLoggerV2(s.refused, false, false, false)
	return s
}

func roles() (names []string) {
	for _, role := range eventlog.Roles("", "") {
		names = append(names, role.Name)
	}
	return names
}

func passwordOf(user string) string { return user + "-secret" }

// as returns the URL of the server for a user.
func (s *roleServer) as(user string) string {
	u := url.URL{Scheme: "nats", User: url.UserPassword(user, passwordOf(user)), Host: s.server.Addr().String()}
	return u.String()
}

// TestRoles runs a cell with a NATS user for each role, as printed. Everything in the cell works, and the server
// refuses nothing.
func TestRoles(t *testing.T) { // not parallel: nats-server reads passwords from the environment
	if testing.Short() {
		t.Skip("many processes")
	}
	s := runRoles(t)
	bucket := "file://" + t.TempDir()
	flags := func(user string) []string { return []string{"--nats", s.as(user), "--bucket", bucket} }
	ends := func(user string, args ...string) string {
		t.Helper()
		p := product.Run(t, slices.Concat(args, flags(user))...)
		<-p.Exited
		require.Zero(t, p.Cmd.ProcessState.ExitCode(), "%v: %s", args, p.Output())
		return p.Output()
	}
	ends("operator", "init", "--events-bodies", "configmaps")
	ends("operator", "init", "--events-bodies", "configmaps,pods")
	ends("operator", "init", "--events-bodies", "")

	serving := []string{"--listen", "127.0.0.1:0", "--authorization-mode", "AlwaysAllow"}
	watcher := product.Serve(t, slices.Concat([]string{"watcher"}, serving, flags("watcher"))...)
	api := product.Serve(t, slices.Concat([]string{"api", "--watcher-url", watcher.URL()}, serving, flags("api"))...)
	projector := product.Run(t, slices.Concat([]string{"projector", "--cadence", "10ms"}, flags("projector"))...)
	lifecycle := product.Run(t, slices.Concat([]string{"lifecycle", "--settle", "1ms"}, flags("lifecycle"))...)
	events := product.Run(t, slices.Concat([]string{"events", "--output", "json"}, flags("operator"))...)

	client := kubernetes.NewForConfigOrDie(&rest.Config{Host: api.URL(), QPS: -1})
	watching := kubernetes.NewForConfigOrDie(&rest.Config{Host: watcher.URL(), QPS: -1})
	_, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	list, err := client.CoreV1().ConfigMaps("team").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	watch, err := watching.CoreV1().ConfigMaps("team").Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	require.NoError(t, err)
	defer watch.Stop()
	made, err := client.CoreV1().ConfigMaps("team").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	seen := <-watch.ResultChan()
	require.Equal(t, made.ResourceVersion, seen.Object.(*corev1.ConfigMap).ResourceVersion)
	read, err := watching.CoreV1().ConfigMaps("team").Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, made.ResourceVersion, read.ResourceVersion)

	require.NoError(t, client.CoreV1().Namespaces().Delete(t.Context(), "team", metav1.DeleteOptions{}))
	require.Eventually(t, func() bool {
		_, err := client.CoreV1().Namespaces().Get(t.Context(), "team", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}, rolesTimeout, 50*time.Millisecond, lifecycle.Output)
	require.Eventually(t, func() bool { return strings.Contains(events.Output(), `"name":"team"`) }, rolesTimeout, 20*time.Millisecond)

	doctored := ends("operator", "doctor")
	require.NotContains(t, doctored, "cannot be measured")
	ends("operator", "inspect", "head")
	ends("operator", "inspect", "history", "/configmaps/team/a")
	ends("lifecycle", "expiry")
	for _, p := range []*product.Process{api, projector, lifecycle} {
		p.Stop()
	}
	events.Kill()

	require.Empty(t, s.refused.all())

	// A watcher serves writes too, but its role may not append. The client is told, and nothing is written.
	_, err = watching.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "refused"}}, metav1.CreateOptions{})
	require.Error(t, err)
	_, err = watching.CoreV1().ConfigMaps("default").Get(t.Context(), "refused", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	watcher.Stop()
	refused := s.refused.all()
	require.NotEmpty(t, refused)

	// The shortest retention that a projector accepts is minutes, too long to wait for. So the test purges in the
	// projector's place.
	ends("projector", "projector", "--once")
	log := s.open(t, "projector")
	bounds, err := log.Head(t.Context())
	require.NoError(t, err)
	require.NoError(t, log.Purge(t.Context(), bounds.Head))
	left, err := log.Head(t.Context())
	require.NoError(t, err)
	require.Equal(t, bounds.Head, left.First, "the head is never purged")
	ends("operator", "inspect", "head")
	p := product.Run(t, slices.Concat([]string{"fence", "--yes"}, flags("operator"))...)
	<-p.Exited
	require.Zero(t, p.Cmd.ProcessState.ExitCode(), p.Output())
	require.Equal(t, refused, s.refused.all())
}

// open opens the log as a user.
func (s *roleServer) open(t *testing.T, user string) *eventlog.Log {
	t.Helper()
	conn, err := eventlog.Connect(eventlog.Servers{URL: s.as(user)})
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	log, err := eventlog.Open(t.Context(), eventlog.Config{Conn: conn})
	require.NoError(t, err)
	return log
}

// TestRolesAreRefused: for each role, the server refuses requests that the role's processes never send.
func TestRolesAreRefused(t *testing.T) { // not parallel: nats-server reads passwords from the environment
	if testing.Short() {
		t.Skip("a process")
	}
	s := runRoles(t)
	forged := "logplane.log.main.%core.configmaps.default.forged"
	purge, bodies := "$JS.API.STREAM.PURGE.logplane", "logplane.bodies.main.%core.configmaps.default.forged"
	for _, user := range append(roles(), "subscriber") {
		refused := make(chan error, 1)
		conn, err := nats.Connect(s.as(user), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
		require.NoError(t, err)
		defer conn.Close()
		publishes := []string{
			"$JS.API.STREAM.DELETE.logplane", "$JS.API.STREAM.UPDATE.logplane", "$JS.API.STREAM.MSG.DELETE.logplane", "$JS.API.STREAM.SNAPSHOT.logplane",
			"$JS.API.STREAM.RESTORE.logplane", "$JS.API.STREAM.CREATE.other", "$JS.API.STREAM.LEADER.STEPDOWN.logplane", "$JS.API.CONSUMER.DELETE.other.c",
			"$JS.API.CONSUMER.DURABLE.CREATE.logplane.c", "$JS.API.CONSUMER.CREATE.other", "$JS.API.DIRECT.GET.other", "$JS.API.STREAM.NAMES",
			"logplane.events.main.%core.configmaps.default.forged", bodies, "$SYS.REQ.SERVER.PING", "_INBOX.api.someone", "_INBOX.someone", "other",
		}
		if user != "projector" && user != "operator" {
			publishes = append(publishes, purge)
		}
		if user != "operator" {
			publishes = append(publishes, "$JS.API.STREAM.CREATE.logplane", "$JS.API.STREAM.CREATE.logplane-bodies", "$JS.API.STREAM.DELETE.logplane-bodies")
		}
		if user == "watcher" || user == "projector" || user == "subscriber" {
			publishes = append(publishes, forged, "logplane.log.main", "logplane.log.%barrier.more")
		}
		if user == "subscriber" {
			publishes = append(publishes, "logplane.log.%barrier", "$JS.API.STREAM.INFO.logplane", "$JS.API.DIRECT.GET.logplane", "$JS.API.CONSUMER.CREATE.logplane")
		}
		for _, subject := range publishes {
			t.Run(user+" does not publish to "+subject, func(t *testing.T) {
				require.NoError(t, conn.Publish(subject, []byte("{}")))
				require.ErrorIs(t, flushed(t, conn, refused), nats.ErrPermissionViolation)
			})
		}
		subscribes := []string{"_INBOX.>", "_INBOX.*.>", "_INBOX.someone", "logplane.log.>", "logplane.bodies.>", "logplane.events.>", "$JS.>", "$SYS.>", ">"}
		for _, other := range roles() {
			if other != user {
				subscribes = append(subscribes, "_INBOX."+other+".>")
			}
		}
		for _, subject := range subscribes {
			t.Run(user+" does not subscribe to "+subject, func(t *testing.T) {
				_, err := conn.SubscribeSync(subject)
				require.NoError(t, err)
				require.ErrorIs(t, flushed(t, conn, refused), nats.ErrPermissionViolation)
			})
		}
	}
}

// flushed waits until the server has handled all messages that were sent. It returns the error with which the server
// refused a message, or nil. The server answers in order, but the client reports errors from a goroutine of its own.
func flushed(t *testing.T, conn *nats.Conn, refused <-chan error) error {
	t.Helper()
	require.NoError(t, conn.Flush())
	select {
	case err := <-refused:
		return err
	case <-time.After(rolesTimeout):
		return nil
	}
}

// TestRolesAreNoWall: nats-server sends the answer to a request even to the log's own subjects, and does not ask
// whether the requesting user may publish to them. So a user who may read the log can make the server append a message
// to the log: permissions only prevent mistakes (docs/security.md). If this test fails, nats-server has changed, and
// the documents can promise more. Before 2.15.3 and 2.14.10, nats-server also sent answers to JetStream's own subjects,
// so that such a user could purge.
func TestRolesAreNoWall(t *testing.T) { // not parallel: nats-server reads passwords from the environment
	if testing.Short() {
		t.Skip("a process")
	}
	s := runRoles(t)
	operator, err := eventlog.Connect(eventlog.Servers{URL: s.as("operator")})
	require.NoError(t, err)
	t.Cleanup(operator.Close)
	require.NoError(t, eventlog.Create(t.Context(), eventlog.Config{Conn: operator}))
	log := s.open(t, "api")
	key := eventlog.Key{Cluster: "main", Resource: "pods", Prefix: "/pods", Namespace: "default", Name: "a"}
	head, err := log.Append(t.Context(), eventlog.Basis{}, "request", eventlog.Write{Key: key, Op: eventlog.Added, ContentType: "application/cbor"})
	require.NoError(t, err)

	watcher, err := eventlog.Connect(eventlog.Servers{URL: s.as("watcher")})
	require.NoError(t, err)
	t.Cleanup(watcher.Close)
	require.NoError(t, watcher.PublishRequest("$JS.API.DIRECT.GET.logplane", "logplane.log.forged", fmt.Appendf(nil, `{"seq":%d}`, head)))
	eventlogtest.Eventually(t, "something is appended", func() bool {
		b, err := log.Head(t.Context())
		return err == nil && b.Head > head
	})
}
