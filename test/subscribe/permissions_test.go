package subscribe

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/subscribe"
	"github.com/logplane/logplane/test/product"
)

// startTimeout is generous: the race build starts in about a second, but takes several on a busy machine.
const startTimeout = 60 * time.Second

// TestSubscriberPermissions runs a cell on a server that is configured with the output of 'logplane permissions', as
// the document says. The subscriber receives the events of its namespace, with bodies for resources on the list. The
// subscriber resumes without help, and can do nothing else.
func TestSubscriberPermissions(t *testing.T) { // not parallel: nats-server reads passwords from the environment
	if testing.Short() {
		t.Skip("many processes")
	}
	t.Setenv("LOGPLANE_PASSWORD", "cell-secret")
	t.Setenv("SUBSCRIBER_PASSWORD", "reader-secret")
	authorization, s := runPermitted(t)
	address := s.Addr().String()
	where := product.Init(t, "nats://logplane:cell-secret@"+address, t.TempDir(), "--events-bodies", "configmaps")
	api := product.Serve(t, append([]string{"watcher", "--listen", "127.0.0.1:0", "--authorization-mode", "AlwaysAllow"}, where...)...)
	client := kubernetes.NewForConfigOrDie(&rest.Config{Host: api.URL()})

	refused := make(chan error, 100)
	conn, err := nats.Connect("nats://reader:reader-secret@"+address, nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
	require.NoError(t, err)
	defer conn.Close()
	received := make(chan *nats.Msg, 10)
	for _, subject := range []string{"logplane.events.main.*.*.ours.*", "logplane.bodies.main.%core.configmaps.ours.*"} {
		_, err = conn.ChanSubscribe(subject, received)
		require.NoError(t, err)
	}
	require.NoError(t, conn.Flush())

	for _, namespace := range []string{"theirs", "ours"} {
		_, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
		require.NoError(t, err)
		_, err = client.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	var got []string // a new namespace has a ServiceAccount
	for range 3 {
		e, err := subscribe.Parse("logplane", <-received)
		require.NoError(t, err)
		got = append(got, fmt.Sprintf("%s/%s %t", e.Namespace, e.Name, len(e.Body) > 0))
	}
	require.ElementsMatch(t, []string{"ours/default false", "ours/a false", "ours/a true"}, got, "bodies of what is on the list only")

	t.Run("resumes", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
		defer cancel()
		var seen []string
		config := subscribe.Config{Conn: conn, REST: &rest.Config{Host: api.URL()}, Resource: corev1.SchemeGroupVersion.WithResource("configmaps"), Namespace: "ours", Check: time.Hour}
		err := subscribe.Run(ctx, config, func(_ context.Context, e subscribe.Event) error {
			seen = append(seen, fmt.Sprint(e.Type, " ", e.Name))
			if len(seen) == 2 {
				return errSeen
			}
			go func() { // the object is announced, because it is written after the state was read
				_, _ = client.CoreV1().ConfigMaps("ours").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "b"}}, metav1.CreateOptions{})
			}()
			return nil
		})
		require.ErrorIs(t, err, errSeen)
		require.Equal(t, []string{"ADDED a", "ADDED b"}, seen)
		config.Namespace = "theirs"
		require.ErrorIs(t, subscribe.Run(ctx, config, nil), nats.ErrPermissionViolation)
	})

	for range 2 { // headers and body of b: the body takes the longer way, and may come after the watch's event
		<-received
	}
	drain(refused)
	for _, subject := range []string{
		"logplane.events.main.*.*.theirs.*", "logplane.events.main.*.*.*.*", "logplane.events.>", "logplane.events.main.%core.nodes.%cluster.*",
		"logplane.bodies.main.%core.configmaps.theirs.*", "logplane.log.>", ">", "*.>", "$JS.>", "$SYS.>", "_INBOX.>", "_INBOX.someone",
	} {
		t.Run("does not subscribe to "+subject, func(t *testing.T) {
			s, err := conn.ChanSubscribe(subject, received)
			require.NoError(t, err)
			require.ErrorIs(t, <-refused, nats.ErrPermissionViolation)
			_ = s.Unsubscribe()
		})
	}
	for _, subject := range []string{
		"logplane.log.main.%core.configmaps.ours.forged", "logplane.events.main.%core.configmaps.ours.forged", "logplane.bodies.main.%core.configmaps.ours.forged",
		"$JS.API.STREAM.INFO.logplane", "$JS.API.STREAM.PURGE.logplane", "$JS.API.DIRECT.GET.logplane", "$JS.API.CONSUMER.CREATE.logplane", "$JS.ACK.logplane.c.1.1.1.1.1", "$SYS.REQ.SERVER.PING", "_INBOX.someone",
	} {
		t.Run("does not publish to "+subject, func(t *testing.T) {
			require.NoError(t, conn.Publish(subject, []byte("{}")))
			require.ErrorIs(t, <-refused, nats.ErrPermissionViolation)
		})
	}
	require.Empty(t, received, "what was refused brought nothing")

	t.Run("loses its rights", func(t *testing.T) {
		config := subscribe.Config{Conn: conn, REST: &rest.Config{Host: api.URL()}, Resource: corev1.SchemeGroupVersion.WithResource("configmaps"), Namespace: "ours", Check: 10 * time.Millisecond}
		began := make(chan struct{}, 10)
		ended := make(chan error, 1)
		go func() {
			ended <- subscribe.Run(t.Context(), config, func(context.Context, subscribe.Event) error {
				began <- struct{}{}
				return nil
			})
		}()
		<-began
		printed, err := os.ReadFile(authorization)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(authorization, []byte(strings.ReplaceAll(string(printed), ".ours.", ".others.")), 0o600))
		require.NoError(t, s.Reload())
		require.ErrorIs(t, <-ended, nats.ErrPermissionViolation)
	})
}

// runPermitted carries out the steps of docs/subscribers.md, and returns the printed file and the server.
func runPermitted(t *testing.T) (authorization string, s *natsserver.Server) {
	t.Helper()
	blocks, folder := product.Snippets(t, "docs/subscribers.md"), t.TempDir()
	printing := exec.Command("bash", "-euc", blocks["sh permissions"][0])
	printing.Dir = folder
	printing.Env = append(os.Environ(), "PATH="+filepath.Dir(product.Logplane(t))+":"+os.Getenv("PATH"))
	out, err := printing.CombinedOutput()
	require.NoError(t, err, "%s", out)
	main := "listen: \"127.0.0.1:-1\"\n" + strings.ReplaceAll(blocks["conf nats"][0], "/data", folder)
	require.NoError(t, os.WriteFile(filepath.Join(folder, "nats.conf"), []byte(main), 0o600))
	options, err := natsserver.ProcessConfigFile(filepath.Join(folder, "nats.conf"))
	require.NoError(t, err)
	options.NoLog, options.NoSigs = true, true
	s, err = natsserver.NewServer(options)
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	require.True(t, s.ReadyForConnections(startTimeout))
	return filepath.Join(folder, "authorization.conf"), s
}

// TestBodiesThatAreSecret: resources that may be secret, or are encrypted at rest, cannot be on the list. Resources on
// the list cannot be encrypted later.
func TestBodiesThatAreSecret(t *testing.T) {
	if testing.Short() {
		t.Skip("many processes")
	}
	t.Parallel()
	where := []string{"--nats", eventlogtest.Start(t).ConnectedUrl(), "--bucket", "file://" + t.TempDir()}
	encryption := filepath.Join(t.TempDir(), "encryption.yaml")
	require.NoError(t, os.WriteFile(encryption, []byte(`
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [configmaps]
  providers:
  - secretbox: {keys: [{name: a, secret: MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=}]}
- resources: [pods]
  providers: [{identity: {}}]
`), 0o600))
	initialize := func(args ...string) *product.Process {
		p := product.Run(t, slices.Concat([]string{"init"}, args, where)...)
		<-p.Exited
		return p
	}
	for _, refused := range []string{"secrets", "pods,secrets", "*", "*.apps", "pods,*"} {
		p := initialize("--events-bodies", refused)
		require.NotZero(t, p.Cmd.ProcessState.ExitCode(), refused)
		require.Contains(t, p.Output(), "--events-bodies has '", refused)
	}
	encrypted := initialize("--events-bodies", "pods,configmaps", "--encryption-provider-config", encryption)
	require.Contains(t, encrypted.Output(), "--events-bodies has 'configmaps', which --encryption-provider-config encrypts")
	for _, args := range [][]string{
		{"--events-bodies", "pods", "--encryption-provider-config", encryption},
		{"--encryption-provider-config", encryption},
		{"--events-bodies", "configmaps"},
	} {
		p := initialize(args...)
		require.Zero(t, p.Cmd.ProcessState.ExitCode(), p.Output())
	}
	late := initialize("--encryption-provider-config", encryption)
	require.NotZero(t, late.Cmd.ProcessState.ExitCode())
	require.Contains(t, late.Output(), "'configmaps'")
	require.Zero(t, initialize("--events-bodies", "none", "--encryption-provider-config", encryption).Cmd.ProcessState.ExitCode())
}

func drain[T any](c chan T) {
	for len(c) > 0 {
		<-c
	}
}

var errSeen = fmt.Errorf("all was seen")
