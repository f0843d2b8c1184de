package e2e

import (
	"encoding/json"
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
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/test/product"
)

const rolesTimeout = 60 * time.Second

// violations is a log of nats-server that keeps what it says of permissions, with the user.
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

// roleServer runs nats-server with exactly what 'logplane permissions --roles' prints.
type roleServer struct {
	servers []*server.Server
	refused *violations
}

// runRoles starts one server, or a cluster of three.
func runRoles(t *testing.T, count int) *roleServer {
	t.Helper()
	for _, user := range append(roles(), "subscriber") {
		t.Setenv(strings.ToUpper(user)+"_PASSWORD", passwordOf(user))
	}
	printed := product.Run(t, "permissions", "--roles", "--namespace", "default")
	<-printed.Exited
	require.Zero(t, printed.Cmd.ProcessState.ExitCode(), printed.Output())
	folder := t.TempDir()
	configuration := filepath.Join(folder, "nats.conf")
	require.NoError(t, os.WriteFile(filepath.Join(folder, "authorization.conf"), []byte(printed.Output()), 0o600))
	require.NoError(t, os.WriteFile(configuration, []byte("listen: \"127.0.0.1:-1\"\nmax_payload: 8MB\ninclude \"authorization.conf\"\n"), 0o600))
	s := &roleServer{refused: &violations{}}
	for i := range count {
		options, err := server.ProcessConfigFile(configuration)
		require.NoError(t, err)
		options.NoSigs, options.JetStream, options.SyncAlways = true, true, true
		options.StoreDir = filepath.Join(folder, fmt.Sprint("store-", i))
		if count > 1 {
			options.ServerName = fmt.Sprint("log-", i)
			options.Cluster = server.ClusterOpts{Name: "roles", Host: "127.0.0.1", Port: -1}
			if i > 0 {
				options.Routes = server.RoutesFromStr("nats://" + s.servers[0].ClusterAddr().String())
			}
		}
		running, err := server.NewServer(options)
		require.NoError(t, err)
		running.SetLoggerV2(s.refused, false, false, false)
		running.Start()
		t.Cleanup(func() {
			running.Shutdown()
			running.WaitForShutdown()
		})
		require.True(t, running.ReadyForConnections(rolesTimeout))
		s.servers = append(s.servers, running)
	}
	require.Eventually(t, func() bool { return count == 1 || s.servers[count-1].JetStreamIsCurrent() && led(s.servers) }, rolesTimeout, 20*time.Millisecond)
	return s
}

func led(servers []*server.Server) bool {
	return slices.ContainsFunc(servers, func(s *server.Server) bool { return s.JetStreamIsLeader() && len(s.JetStreamClusterPeers()) == len(servers) })
}

func roles() (names []string) {
	for _, role := range eventlog.Roles("", "") {
		names = append(names, role.Name)
	}
	return names
}

func passwordOf(user string) string { return user + "-secret" }

// as is the URL of the servers for a user.
func (s *roleServer) as(user string) string {
	var urls []string
	for _, running := range s.servers {
		u := url.URL{Scheme: "nats", User: url.UserPassword(user, passwordOf(user)), Host: running.Addr().String()}
		urls = append(urls, u.String())
	}
	return strings.Join(urls, ",")
}

// TestRoles runs a cell with a NATS user for each role, as printed: all that a cell does works, and the servers refuse
// nothing. With three servers heads are proven by barriers, and the leader is asked in other words.
func TestRoles(t *testing.T) { // not parallel: nats-server reads passwords from the environment
	if testing.Short() {
		t.Skip("many processes")
	}
	for _, servers := range []int{1, 3} {
		t.Run(fmt.Sprint(servers), func(t *testing.T) { runCellOfRoles(t, runRoles(t, servers), servers) })
	}
}

func runCellOfRoles(t *testing.T, s *roleServer, servers int) {
	bucket := "file://" + t.TempDir()
	flags := func(user string) []string { return []string{"--nats", s.as(user), "--bucket", bucket} }
	ends := func(user string, args ...string) string {
		t.Helper()
		p := product.Run(t, slices.Concat(args, flags(user))...)
		<-p.Exited
		require.Zero(t, p.Cmd.ProcessState.ExitCode(), "%v: %s", args, p.Output())
		return p.Output()
	}
	ends("operator", "init", "--replicas", fmt.Sprint(servers), "--events-bodies", "configmaps")
	ends("operator", "init", "--replicas", fmt.Sprint(servers), "--events-bodies", "configmaps,pods")
	ends("operator", "init", "--replicas", fmt.Sprint(servers), "--events-bodies", "")

	serving := []string{"--listen", "127.0.0.1:0", "--authorization-mode", "AlwaysAllow"}
	watcher := product.Serve(t, slices.Concat([]string{"watcher"}, serving, flags("watcher"))...)
	api := product.Serve(t, slices.Concat([]string{"api", "--watcher-url", watcher.URL()}, serving, flags("api"))...)
	// What is old enough leaves the log with the next commit.
	projector := product.Run(t, slices.Concat([]string{"projector", "--cadence", "10ms", "--log-retention", "1m", "--retention", "2m"}, flags("projector"))...)
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

	ends("operator", "doctor")
	ends("operator", "inspect", "head")
	ends("operator", "inspect", "history", "/configmaps/team/a")
	ends("lifecycle", "expiry")
	for _, p := range []*product.Process{watcher, api, projector, lifecycle} {
		p.Stop()
	}
	events.Kill()

	// Retention: log time that short is over with the next commit.
	before := firstOf(t, ends("operator", "inspect", "head"))
	ends("projector", "projector", "--once", "--log-retention", "1ms", "--retention", "1ms")
	require.Equal(t, before, firstOf(t, ends("operator", "inspect", "head")), "there is nothing to commit")
	require.Empty(t, s.refused.all())
}

func firstOf(t *testing.T, head string) string {
	t.Helper()
	line, _, _ := strings.Cut(head, "\n")
	require.Contains(t, line, "first ")
	return strings.Fields(line)[1]
}

var _ = json.Marshal
var _ = nats.Connect
var _ = jetstream.New
