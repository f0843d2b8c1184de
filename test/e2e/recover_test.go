package e2e

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/bucket/s3/miniotest"
	"github.com/logplane/logplane/test/product"
)

// TestRecover: a root is damaged or lost. Every command says what to do, and 'recover' changes nothing without --yes.
// With --yes the cell continues with all acknowledged writes, at the next revision. Recovery also works in the folder
// of a 'dev'.
func TestRecover(t *testing.T) {
	for _, how := range []string{"damaged", "lost"} {
		t.Run(how, func(t *testing.T) {
			folder := filepath.Join(t.TempDir(), "bucket")
			where := product.Init(t, eventlogtest.Run(t, t.TempDir()).ClientURL(), folder)
			api := func() *product.Process {
				return product.Serve(t, append([]string{"api", "--listen", "127.0.0.1:0", "--authorization-mode", "AlwaysAllow"}, where...)...)
			}
			serving := api()
			_, client, _ := clientsFor(t, serving.URL())
			kept, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}}, metav1.CreateOptions{})
			require.NoError(t, err)
			said, code := logplane(t, append([]string{"projector", "--once"}, where...)...)
			require.Zero(t, code, said)
			said, code = logplane(t, append([]string{"recover", "--yes"}, where...)...)
			require.Zero(t, code, said)
			require.Contains(t, said, "there is nothing to recover")
			kept.Data = map[string]string{"a": "b"}
			// only the log has this update
			kept, err = client.CoreV1().ConfigMaps("default").Update(t.Context(), kept, metav1.UpdateOptions{})
			require.NoError(t, err)
			serving.Stop()

			root := filepath.Join(folder, "logplane", "root")
			harm(t, root, how)
			for _, command := range [][]string{{"projector", "--once"}, {"lifecycle", "--once"}, {"inspect", "root"}, {"inspect", "fsck"}, {"doctor"}, {"fence"}, {"init"}} {
				said, code = logplane(t, append(command, where...)...)
				require.NotZero(t, code, said)
				require.Contains(t, said, "'logplane recover'", command)
			}
			said, code = logplane(t, "restore", "--to", "0s", "--from", "file://"+folder, "--into", "file://"+t.TempDir())
			require.NotZero(t, code, said)
			require.Contains(t, said, "'logplane recover'")
			before, _ := os.ReadFile(root)
			said, code = logplane(t, append([]string{"recover"}, where...)...)
			require.NotZero(t, code, said)
			require.Contains(t, said, "nothing is lost")
			require.Contains(t, said, "nothing was changed, because --yes is missing: stop every process of the cell, then give it")
			after, _ := os.ReadFile(root)
			require.Equal(t, before, after)

			said, code = logplane(t, append([]string{"recover", "--yes"}, where...)...)
			require.Zero(t, code, said)
			said, code = logplane(t, append([]string{"inspect", "fsck"}, where...)...)
			require.Zero(t, code, said)
			_, client, _ = clientsFor(t, api().URL())
			found, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), "c", metav1.GetOptions{})
			require.NoError(t, err)
			require.Equal(t, kept, found)
			found.Data = nil
			next, err := client.CoreV1().ConfigMaps("default").Update(t.Context(), found, metav1.UpdateOptions{})
			require.NoError(t, err)
			was, err := strconv.Atoi(kept.ResourceVersion)
			require.NoError(t, err)
			is, err := strconv.Atoi(next.ResourceVersion)
			require.NoError(t, err)
			require.Less(t, is, was+1000, "the log goes on: there was no fence")
		})
	}
	t.Run("dev", func(t *testing.T) {
		data := t.TempDir()
		serve := func() *product.Process {
			return product.Serve(t, "dev", "--data", data, "--listen", "127.0.0.1:0")
		}
		dev := serve()
		_, client, _ := clientsFor(t, dev.URL())
		kept, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}}, metav1.CreateOptions{})
		require.NoError(t, err)
		root := filepath.Join(data, "bucket", "logplane", "root")
		require.Eventually(t, func() bool { _, err := os.Stat(root); return err == nil }, time.Minute, 10*time.Millisecond)
		dev.Stop()
		harm(t, root, "damaged")
		said, code := logplane(t, "dev", "--data", data, "--listen", "127.0.0.1:0")
		require.NotZero(t, code, said)
		require.Contains(t, said, "'logplane recover'")
		said, code = logplane(t, "recover", "--data", data, "--yes")
		require.Zero(t, code, said)
		_, client, _ = clientsFor(t, serve().URL())
		found, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), "c", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, kept, found)
	})
}

// TestRecoverWithoutTheLog: root and log are lost together. The recovered cell serves the objects that the bucket has,
// at revisions above every revision that was ever used.
func TestRecoverWithoutTheLog(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "bucket")
	lost := eventlogtest.Run(t, t.TempDir())
	where := product.Init(t, lost.ClientURL(), folder)
	lost.Shutdown()
	harm(t, filepath.Join(folder, "logplane", "root"), "lost")
	where[1] = eventlogtest.Run(t, t.TempDir()).ClientURL()
	said, code := logplane(t, append([]string{"init"}, where...)...)
	require.NotZero(t, code, said)
	require.Contains(t, said, "run 'logplane recover'", "no new cell is made over what is left of this one")
	said, code = logplane(t, append([]string{"recover"}, where...)...)
	require.NotZero(t, code, said)
	require.Contains(t, said, "LOST: all that was written after revision")
	said, code = logplane(t, append([]string{"recover", "--yes"}, where...)...)
	require.Zero(t, code, said)
	said, code = logplane(t, append([]string{"inspect", "fsck"}, where...)...)
	require.Zero(t, code, said)
	_, client, _ := clientsFor(t, product.Serve(t, append([]string{"api", "--listen", "127.0.0.1:0", "--authorization-mode", "AlwaysAllow"}, where...)...).URL())
	made, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	revision, err := strconv.Atoi(made.ResourceVersion)
	require.NoError(t, err)
	require.Greater(t, revision, 16<<20)
}

// harm damages or removes a file.
func harm(t *testing.T, file, how string) {
	t.Helper()
	if how == "lost" {
		require.NoError(t, os.Remove(file))
		return
	}
	body, err := os.ReadFile(file)
	require.NoError(t, err)
	body[len(body)/2] ^= 1
	require.NoError(t, os.WriteFile(file, body, 0o600))
}

// TestInitOfABucket: 'init' does not create a missing bucket unless a flag allows that, because the bucket's name may
// be mistyped. It refuses a bucket's server that creates an object where the server should only replace one. Its output
// lists the parts that it found and the parts that it made.
func TestInitOfABucket(t *testing.T) {
	if testing.Short() {
		t.Skip("a container")
	}
	s := miniotest.Start(t)
	t.Setenv("AWS_ACCESS_KEY_ID", miniotest.AccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", miniotest.SecretKey)
	log := eventlogtest.Run(t, t.TempDir()).ClientURL()
	initialize := func(endpoint string, flags ...string) (string, int) {
		return logplane(t, append([]string{"init", "--nats", log, "--bucket", "s3://cells/a", "--s3-endpoint", endpoint, "--s3-path-style"}, flags...)...)
	}
	said, code := initialize(s.Endpoint)
	require.NotZero(t, code, said)
	require.Contains(t, said, "there is no bucket 'cells': correct its name, or give --create-bucket to make it")
	exists, err := s.Client.BucketExists(t.Context(), "cells")
	require.NoError(t, err)
	require.False(t, exists)

	target, err := url.Parse(s.Endpoint)
	require.NoError(t, err)
	proxy := &httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) {
		p.SetURL(target)
		p.Out.Host = p.In.Host // the host is part of the signature
	}}
	careless := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut && r.Header.Get("If-Match") != "" && strings.HasSuffix(r.URL.Path, "-none") {
			w.Header().Set("ETag", `"created"`)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(careless.Close)
	said, code = initialize(careless.URL, "--create-bucket")
	require.NotZero(t, code, said)
	require.Contains(t, said, "it replaced an object that was not there (If-Match creates it)")

	said, code = initialize(s.Endpoint)
	require.Zero(t, code, said)
	require.Contains(t, said, "found the bucket 's3://cells/a'")
	require.Contains(t, said, "made a cell with the log")
	said, code = initialize(s.Endpoint)
	require.Zero(t, code, said)
	require.Contains(t, said, "found a cell with the log")
}
