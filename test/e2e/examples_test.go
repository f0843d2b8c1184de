package e2e

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/test/product"
)

// TestExamplesAreDocumented: the Go code in docs/subscribers.md is the code of the examples, which tests compile and
// run.
func TestExamplesAreDocumented(t *testing.T) {
	shown := 0
	for info, blocks := range product.Snippets(t, "docs/subscribers.md") {
		folder, ok := strings.CutPrefix(info, "go examples/")
		if !ok {
			continue
		}
		source, err := os.ReadFile(filepath.Join("../../examples", folder, "main.go"))
		require.NoError(t, err)
		for _, block := range blocks {
			shown++
			lines := regexp.MustCompile(`(?m)^(.+)$`).ReplaceAllString(strings.TrimRight(block, "\n"), "\t$1")
			require.Contains(t, string(source), lines, "docs/subscribers.md shows something else than examples/%s", folder)
		}
	}
	require.NotZero(t, shown)
}

// TestExamples builds each example as its reader would, and runs it against 'logplane dev'. The resuming example is
// stopped while objects change, and then continues where it stopped.
func TestExamples(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles the examples")
	}
	t.Parallel()
	folder, position := t.TempDir(), filepath.Join(t.TempDir(), "position")
	server := product.Dev(t, folder, "--in-memory", "--events-listen", "127.0.0.1:0", "--events-bodies", "configmaps")
	environment := append(os.Environ(), "NATS_URL="+regexp.MustCompile(`nats://[0-9.:]+`).FindString(server.Output()),
		"KUBECONFIG="+kubeconfig(folder), "POSITION="+position)
	alone, events := runExample(t, "nats", environment), runExample(t, "cloudevents", environment)
	require.Equal(t, "listening", alone.next())
	require.Equal(t, "listening", events.next())
	_, typed, _ := clientsFor(t, server.URL())
	_, err := typed.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "tour"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	maps := typed.CoreV1().ConfigMaps("tour")
	seen, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "seen"}, Data: map[string]string{"n": "1"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Equal(t, "dev.logplane.object.added /configmaps/tour/seen revision "+seen.ResourceVersion, alone.next())
	const event = "dev.logplane.object.added /clusters/main /configmaps/tour/seen application/vnd.kubernetes.protobuf "
	both := []string{events.next(), events.next()}
	slices.Sort(both) // the body takes another path, so the order varies
	require.Equal(t, event+"0 bytes", both[0])
	require.Regexp(t, "^"+event+"[0-9]+ bytes$", both[1])
	require.NotEqual(t, both[0], both[1])

	resumed := runExample(t, "resume", environment)
	line := func(kind string, o *corev1.ConfigMap) string {
		return fmt.Sprintln(kind, o.Name, "revision", o.ResourceVersion, o.Data)
	}
	require.Equal(t, line("ADDED", seen), resumed.next()+"\n")
	away, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "first"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Equal(t, line("ADDED", away), resumed.next()+"\n")
	eventlogtest.Eventually(t, "its position is stored", func() bool {
		from, _ := os.ReadFile(position)
		return len(from) >= len(away.ResourceVersion) && string(from) >= away.ResourceVersion
	})
	resumed.interrupt()
	seen.Data["n"] = "2"
	seen, err = maps.Update(t.Context(), seen, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.NoError(t, maps.Delete(t.Context(), "first", metav1.DeleteOptions{}))
	resumed = runExample(t, "resume", environment)
	require.Equal(t, line("MODIFIED", seen), resumed.next()+"\n")
	require.Regexp(t, "^DELETED first ", resumed.next())
}

// example is a running example.
type example struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines chan string
}

// runExample builds an example with the product's settings, so that nothing is compiled twice, and starts it.
func runExample(t *testing.T, name string, environment []string) *example {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	build := exec.Command("go", "build", "-o", path, ".")
	build.Dir = filepath.Join("../../examples", name)
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -tags=grpcnotrace")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	e := &example{t: t, cmd: exec.Command(path), lines: make(chan string, 100)}
	e.cmd.Env, e.cmd.Stderr = environment, os.Stderr
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdout, err := e.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, e.cmd.Start())
	go func() {
		defer close(e.lines)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			e.lines <- lines.Text()
		}
	}()
	t.Cleanup(func() {
		_ = e.cmd.Process.Kill()
		_ = e.cmd.Wait()
	})
	return e
}

func (e *example) next() string {
	e.t.Helper()
	line, ok := <-e.lines
	require.True(e.t, ok, "%s has ended", e.cmd.Path)
	return line
}

// interrupt stops the example as a user would.
func (e *example) interrupt() {
	e.t.Helper()
	require.NoError(e.t, e.cmd.Process.Signal(os.Interrupt))
	for range e.lines { // until the output is closed, at the example's end
	}
	require.NoError(e.t, e.cmd.Wait())
}

// TestDevSubscribers: a client of --events-listen can neither write to the log nor send JetStream requests.
func TestDevSubscribers(t *testing.T) {
	t.Parallel()
	server := product.Dev(t, t.TempDir(), "--in-memory", "--events-listen", "127.0.0.1:0")
	refused := make(chan error, 2)
	conn, err := nats.Connect(regexp.MustCompile(`nats://[0-9.:]+`).FindString(server.Output()),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.Publish("logplane.log.main.%core.configmaps.tour.forged", nil))
	require.ErrorIs(t, <-refused, nats.ErrPermissionViolation)
	require.NoError(t, conn.Publish("$JS.API.STREAM.INFO.logplane", nil))
	require.ErrorIs(t, <-refused, nats.ErrPermissionViolation)
}
