package localstack_test

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/localstack"
)

func TestMain(m *testing.M) {
	unix.Umask(0o022) // else others may write the folders of tests, so their files would not be trusted
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})))
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	os.Exit(m.Run())
}

type cell struct {
	*localstack.Dev
	kubernetes.Interface
}

func start(t *testing.T, c localstack.Config) cell {
	t.Helper()
	c.Listen, c.LogRetention, c.Retention = "127.0.0.1:0", 10*time.Minute, time.Hour
	dev, err := localstack.Start(t.Context(), c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Stop()) })
	client, err := kubernetes.NewForConfig(dev.RESTConfig())
	require.NoError(t, err)
	return cell{dev, client}
}

func (c cell) createNamespace(t *testing.T, name string) {
	t.Helper()
	_, err := c.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	require.NoError(t, err)
}

// deleteNamespace deletes a namespace and waits until it is gone, for less than a request's deadline.
func (c cell) deleteNamespace(t *testing.T, name string) {
	t.Helper()
	require.NoError(t, c.CoreV1().Namespaces().Delete(t.Context(), name, metav1.DeleteOptions{}))
	eventlogtest.Eventually(t, "namespace "+name+" is gone", func() bool {
		_, err := c.CoreV1().Namespaces().Get(t.Context(), name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

// stalled is a request of which only the head was sent. The server has begun to read its body.
type stalled struct {
	net.Conn
	answers *bufio.Reader
}

func (c cell) stall(t *testing.T, head string) stalled {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(c.URL(), "http://"))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	_, err = fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n", head)
	require.NoError(t, err)
	s := stalled{conn, bufio.NewReader(conn)}
	line, err := s.answers.ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, "100 Continue")
	_, err = s.answers.ReadString('\n')
	require.NoError(t, err)
	return s
}

func (s stalled) send(t *testing.T, chunk string) {
	t.Helper()
	_, err := fmt.Fprintf(s, "%x\r\n%s\r\n", len(chunk), chunk)
	require.NoError(t, err)
}

func (s stalled) finish(t *testing.T) *http.Response {
	t.Helper()
	_, err := io.WriteString(s, "0\r\n\r\n")
	require.NoError(t, err)
	answer, err := http.ReadResponse(s.answers, nil)
	require.NoError(t, err)
	return answer
}

// TestStalledClients: a client that does not send its body, or does not read its answer, delays no deletion. When the
// body comes, the request sees the present: a namespace that was deleted meanwhile is gone.
func TestStalledClients(t *testing.T) {
	c := start(t, localstack.Config{Folder: t.TempDir(), InMemory: true})
	c.createNamespace(t, "stays")
	c.createNamespace(t, "goes")
	const body = `{"metadata":{"name":"late"}}`
	kept, lost := c.stall(t, "POST /api/v1/namespaces/stays/configmaps"), c.stall(t, "POST /api/v1/namespaces/goes/configmaps")
	emptied := c.stall(t, "DELETE /api/v1/namespaces/stays/secrets")
	kept.send(t, body[:10])
	lost.send(t, body[:10])
	c.deleteNamespace(t, "goes")

	kept.send(t, body[10:])
	lost.send(t, body[10:])
	require.Equal(t, http.StatusCreated, kept.finish(t).StatusCode)
	require.Equal(t, http.StatusNotFound, lost.finish(t).StatusCode)
	require.Equal(t, http.StatusOK, emptied.finish(t).StatusCode)

	// These objects have more bytes than the buffers between client and server hold.
	c.createNamespace(t, "goes")
	for i := range 12 {
		_, err := c.CoreV1().ConfigMaps("stays").Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("large-", i)}, Data: map[string]string{"x": strings.Repeat("x", 900_000)},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(c.URL(), "http://"))
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.(*net.TCPConn).SetReadBuffer(4096))
	_, err = io.WriteString(conn, "DELETE /api/v1/namespaces/stays/configmaps HTTP/1.1\r\nHost: localhost\r\n\r\n")
	require.NoError(t, err)
	answers := bufio.NewReader(conn)
	line, err := answers.ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, "200 OK")
	c.deleteNamespace(t, "goes")
}
