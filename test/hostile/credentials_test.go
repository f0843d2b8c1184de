package hostile

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/test/product"
)

// TestAStrangersWatch: a client without credentials does not learn where watches are served. On e14eff4 such a client
// gets a redirect to the watcher (307).
func TestAStrangersWatch(t *testing.T) {
	s := serve(t, "api", "--watcher-url", "https://watcher.example:1234")
	for _, path := range []string{"/api/v1/namespaces?watch=1", "/api/v1/watch/namespaces"} {
		for _, user := range []string{nobody, "another"} {
			a := s.do(user, http.MethodGet, path, "", "")
			require.Equal(t, http.StatusUnauthorized, a.Code, string(a.Body))
			require.Empty(t, a.Header.Get("Location"))
		}
		a := s.do(stranger, http.MethodGet, path, "", "")
		require.Equal(t, http.StatusTemporaryRedirect, a.Code, string(a.Body))
		require.Equal(t, "https://watcher.example:1234"+path, a.Header.Get("Location"))
	}
}

// TestACertificateOfOthers: many clients have a certificate for another purpose. The server identifies such a client by
// its token; without a valid token the client is refused. On e14eff4 every such client gets 401.
func TestACertificateOfOthers(t *testing.T) {
	c := newCell(t)
	roots := filepath.Join(t.TempDir(), "ca.pem")
	authority := newAuthority(t, "ours")
	require.NoError(t, os.WriteFile(roots, authority.certificatePEM(), 0o600))
	s := c.serve("api", append(c.certificate(), "--client-ca-file", roots)...)
	code := func(user string, shown *tls.Certificate) int {
		config := &tls.Config{InsecureSkipVerify: true}
		if shown != nil {
			config.Certificates = []tls.Certificate{*shown}
		}
		transport := &http.Transport{TLSClientConfig: config}
		defer transport.CloseIdleConnections()
		return s.send(t.Context(), &http.Client{Transport: transport}, user, http.MethodGet, "/api/v1/namespaces", "", "")
	}
	ours := authority.client(t, "root", "system:masters")
	theirs := newAuthority(t, "theirs").client(t, "root", "system:masters")
	require.Equal(t, http.StatusOK, code(admin, nil))
	require.Equal(t, http.StatusOK, code(nobody, ours))
	require.Equal(t, http.StatusOK, code(admin, theirs))
	require.Equal(t, http.StatusForbidden, code(stranger, theirs))
	require.Equal(t, http.StatusUnauthorized, code(nobody, theirs))
	require.Equal(t, http.StatusUnauthorized, code("another", theirs))
	require.Equal(t, http.StatusUnauthorized, code("another", nil))
}

// TestOthersKeysAreNotBelieved: a file that another user of the machine owns or may write is not accepted as a key, an
// authority or a block cache. Neither is a file in or below a folder that another user owns or may write. The message
// names the path, and says what to do.
func TestOthersKeysAreNotBelieved(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.Chmod(root, 0o755))
	c := newCell(t)
	data, keys, blocks := filepath.Join(root, "data"), filepath.Join(root, "keys"), filepath.Join(root, "blocks")
	dev := []string{"dev", "--secure", "--data", data, "--listen", "127.0.0.1:0"}
	product.Serve(t, dev...).Stop()
	initialize := c.with("init", "--credentials", keys)
	refused := func(says string, args []string) {
		t.Helper()
		printed := outcome(t, args...)
		require.Contains(t, printed, says)
		require.Regexp(t, "chmod go-w|chown", printed)
	}
	made := product.Run(t, initialize...)
	<-made.Exited
	require.Zero(t, made.Cmd.ProcessState.ExitCode(), made.Output())
	require.NoError(t, os.Mkdir(blocks, 0o700))
	for _, place := range []struct {
		path string
		args [][]string
	}{
		{filepath.Join(data, "ca.key"), [][]string{dev}}, {filepath.Join(data, "ca.crt"), [][]string{dev}}, {filepath.Join(data, "service-account.key"), [][]string{dev}},
		{data, [][]string{dev}}, {filepath.Join(data, "bucket"), [][]string{dev}},
		{filepath.Join(keys, "ca.key"), [][]string{initialize}}, {filepath.Join(keys, "tls.crt"), [][]string{initialize}}, {filepath.Join(keys, "service-account.key"), [][]string{initialize}},
		{filepath.Join(keys, "admin.kubeconfig"), [][]string{initialize}}, {keys, [][]string{initialize}},
		{blocks, [][]string{c.with("projector", "--block-cache-folder", blocks)}},
		{root, [][]string{dev, initialize, c.with("projector", "--block-cache-folder", blocks)}},
	} {
		info, err := os.Stat(place.path)
		require.NoError(t, err)
		for _, args := range place.args {
			for _, mode := range []os.FileMode{0o002, 0o020} {
				require.NoError(t, os.Chmod(place.path, info.Mode()|mode))
				refused(fmt.Sprintf("other users may write '%s'", place.path), args)
			}
			require.NoError(t, os.Chmod(place.path, info.Mode()))
			if os.Geteuid() == 0 { // only root may give a file to another user
				require.NoError(t, os.Chown(place.path, 12345, 12345))
				refused(fmt.Sprintf("'%s' belongs to another user (uid 12345)", place.path), args)
				require.NoError(t, os.Chown(place.path, 0, 0))
			}
		}
	}
	require.NoError(t, os.Chmod(root, 0o777|os.ModeSticky)) // like /tmp
	product.Serve(t, dev...).Stop()
	again := product.Run(t, initialize...)
	<-again.Exited
	require.Zero(t, again.Cmd.ProcessState.ExitCode(), again.Output())
}
