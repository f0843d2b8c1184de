package e2e

import (
	"crypto/tls"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/test/product"
)

// TestSystemd: a process serves on the socket that systemd made, and tells systemd when it is ready, that it lives, and
// that it stops. Clients that come while no process runs wait in the socket, and the next process answers them.
func TestSystemd(t *testing.T) {
	t.Parallel()
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer socket.Close()
	passed, err := socket.(*net.TCPListener).File()
	require.NoError(t, err)
	defer passed.Close()
	address, folder := socket.Addr().String(), t.TempDir()
	told, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(folder, "notify"), Net: "unixgram"})
	require.NoError(t, err)
	defer told.Close()
	hears := func() string {
		require.NoError(t, told.SetReadDeadline(time.Now().Add(time.Minute)))
		message := make([]byte, 100)
		n, err := told.Read(message)
		require.NoError(t, err)
		return string(message[:n])
	}
	// The server is this test's own child, on loopback.
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, Timeout: time.Minute}
	defer client.CloseIdleConnections()
	ready := func() int {
		answer, err := client.Get("https://" + address + "/readyz")
		require.NoError(t, err)
		defer answer.Body.Close()
		return answer.StatusCode
	}
	for range 2 {
		early := make(chan error, 1)
		go func() { // before there is a process
			answer, err := client.Get("https://" + address + "/livez")
			if err == nil {
				err = answer.Body.Close()
			}
			early <- err
		}()
		cmd := exec.Command("/bin/sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`, product.Logplane(t), "serve", "--data", filepath.Join(folder, "cell"), "--drain", "0s")
		cmd.ExtraFiles = []*os.File{passed}
		cmd.Env = append(os.Environ(), "LISTEN_FDS=1", "NOTIFY_SOCKET="+told.LocalAddr().String(), "WATCHDOG_USEC=200000")
		process := product.ServeCommand(t, cmd)
		require.Equal(t, address, process.Address)
		require.Equal(t, "READY=1", hears())
		require.Equal(t, http.StatusOK, ready())
		require.NoError(t, <-early)
		require.Equal(t, "WATCHDOG=1", hears())
		client.CloseIdleConnections()
		require.NoError(t, process.Cmd.Process.Signal(syscall.SIGTERM))
		said := hears()
		for said == "WATCHDOG=1" {
			said = hears()
		}
		require.Equal(t, "STOPPING=1", said)
		process.Stop()
	}
}
