package check

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/zclconf/go-cty/cty"

	"github.com/logplane/logplane/test/product"
)

// TestAuthorization: the users of the log are those that 'logplane permissions' prints.
func TestAuthorization(t *testing.T) {
	printed := run(t, "permissions", "--user", "subscriber", "--namespace", "default")
	file, err := os.ReadFile("../aws/machine/authorization.conf")
	require.NoError(t, err)
	assert.Equal(t, printed, string(file))
	assert.Equal(t, printed, rendered(t, "cell")["ConfigMap/logplane-log"].Data["authorization.conf"])
}

// password has the form that files.sh makes: hexadecimal, so it may look like the beginning of a number.
const password = "12e45678abcdef00"

// TestLog: three servers, or one, start with the files that Terraform writes. 'logplane init' makes a log with a copy
// on each server, over TLS, as the user who has the right to make the log. The servers' configurations meet the
// requirements of a deployment. A server without a quorum is not healthy, which an alarm notices.
func TestLog(t *testing.T) {
	t.Setenv("LOGPLANE_PASSWORD", password)
	t.Setenv("SUBSCRIBER_PASSWORD", "7e8f")
	for _, n := range []int{3, 1} {
		t.Run(fmt.Sprint(n), func(t *testing.T) { testLog(t, n) })
	}
}

func testLog(t *testing.T, n int) {
	folder := t.TempDir()
	authority(t, folder)
	users, err := os.ReadFile("../aws/machine/authorization.conf")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(folder, "authorization.conf"), users, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "password"), []byte(password+"\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "wrong"), []byte("wrong"), 0o600))
	clients, peers, health := ports(t, n), ports(t, n), ports(t, n)
	c := load(t)
	var routes []cty.Value
	for _, peer := range peers {
		routes = append(routes, cty.StringVal("nats-route://"+peer))
	}
	var urls []string
	var servers []*server.Server
	for i := range n {
		rendered, err := c.template([]cty.Value{cty.StringVal("../aws/machine/nats.conf.tftpl"), cty.ObjectVal(map[string]cty.Value{
			"name": cty.StringVal(fmt.Sprint("log-", i)), "folder": cty.StringVal(filepath.Join(folder, fmt.Sprint(i))), "files": cty.StringVal(folder),
			"client": cty.StringVal(clients[i]), "peer": cty.StringVal(peers[i]), "health": cty.StringVal(health[i]), "routes": cty.ListVal(routes),
		})}, cty.String)
		require.NoError(t, err)
		name := filepath.Join(folder, fmt.Sprint(i, ".conf"))
		require.NoError(t, os.WriteFile(name, []byte(rendered.AsString()), 0o600))
		options, err := server.ProcessConfigFile(name)
		require.NoError(t, err)
		kept(t, options)
		assert.Len(t, options.Routes, n/2*3, "one server is no cluster, which would wait for others")
		options.NoLog, options.NoSigs = true, true
		s, err := server.NewServer(options)
		require.NoError(t, err)
		s.Start()
		t.Cleanup(func() {
			s.Shutdown()
			s.WaitForShutdown()
		})
		servers = append(servers, s)
		urls = append(urls, "tls://logplane@"+clients[i])
	}
	where := []string{"init", "--replicas", fmt.Sprint(n), "--nats", strings.Join(urls, ","), "--nats-ca-file", filepath.Join(folder, "nats-ca.crt"), "--bucket", "file://" + filepath.Join(folder, "bucket")}
	as := func(password string) *product.Process {
		p := product.Run(t, append(where, "--nats-password-file", filepath.Join(folder, password))...)
		<-p.Exited
		return p
	}
	deadline := time.Now().Add(time.Minute)
	for p := as("password"); p.Cmd.ProcessState.ExitCode() != 0; p = as("password") { // at first the servers have no leader
		require.True(t, time.Now().Before(deadline), p.Output())
	}
	require.NotZero(t, as("wrong").Cmd.ProcessState.ExitCode(), "whoever has no password makes no log")

	healthy := func(is bool) {
		t.Helper()
		require.Eventually(t, func() bool {
			response, err := http.Get("http://" + health[n-1] + "/healthz")
			if err != nil {
				return false
			}
			_ = response.Body.Close()
			return is == (response.StatusCode == http.StatusOK)
		}, time.Minute, 100*time.Millisecond)
	}
	healthy(true)
	for _, other := range servers[:n-1] {
		other.Shutdown()
	}
	healthy(n == 1)
}

// TestLogOnKubernetes: the chart's configuration meets the same requirements.
func TestLogOnKubernetes(t *testing.T) {
	t.Setenv("LOGPLANE_PASSWORD", password)
	t.Setenv("SUBSCRIBER_PASSWORD", "7e8f")
	folder := t.TempDir()
	authority(t, folder)
	place := strings.NewReplacer("/files/ca.crt", folder+"/nats-ca.crt", "/files/tls.", folder+"/nats.")
	for name, text := range rendered(t, "cell")["ConfigMap/logplane-log"].Data {
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(place.Replace(text)), 0o600))
	}
	options, err := server.ProcessConfigFile(filepath.Join(folder, "nats.conf"))
	require.NoError(t, err)
	kept(t, options)
	assert.Len(t, options.Routes, 3)
}

// kept checks a server's options against the requirements of docs/run/cell.md for a deployment.
func kept(t *testing.T, o *server.Options) {
	t.Helper()
	assert.True(t, o.SyncAlways, "an append is synced before it is acknowledged")
	assert.True(t, o.JetStream)
	assert.NotEmpty(t, o.StoreDir)
	assert.EqualValues(t, 8<<20, o.MaxPayload)
	assert.NotNil(t, o.TLSConfig)
	assert.Equal(t, len(o.Routes) > 0, o.Cluster.TLSConfig != nil)
	assert.Len(t, o.Users, 2)
}

// authority makes a certificate for 127.0.0.1 and its authority.
func authority(t *testing.T, folder string) {
	t.Helper()
	key := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		require.NoError(t, err)
		return k
	}
	write := func(name, kind string, der []byte) {
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	}
	until := time.Now().Add(time.Hour)
	root := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotAfter: until, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	rootKey, leafKey := key(), key()
	der, err := x509.CreateCertificate(rand.Reader, root, root, rootKey.Public(), rootKey)
	require.NoError(t, err)
	write("nats-ca.crt", "CERTIFICATE", der)
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "log"}, NotAfter: until, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err = x509.CreateCertificate(rand.Reader, leaf, root, leafKey.Public(), rootKey)
	require.NoError(t, err)
	write("nats.crt", "CERTIFICATE", der)
	der, err = x509.MarshalPKCS8PrivateKey(leafKey)
	require.NoError(t, err)
	write("nats.key", "PRIVATE KEY", der)
}

// ports returns addresses that are free at the moment.
func ports(t *testing.T, n int) (all []string) {
	t.Helper()
	for range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer listener.Close()
		all = append(all, listener.Addr().String())
	}
	return all
}
