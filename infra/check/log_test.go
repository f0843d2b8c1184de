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
	for _, name := range []string{"../aws/machine/authorization.conf", "../kubernetes/plain/authorization.conf"} {
		file, err := os.ReadFile(name)
		require.NoError(t, err)
		assert.Equal(t, printed, string(file), name)
	}
}

// password has the form that files.sh makes: hexadecimal, so it may look like the beginning of a number.
const password = "12e45678abcdef00"

// TestLog: three servers start with the files that Terraform writes. 'logplane init' makes a log with three copies on
// them, over TLS, as the user with the right to do so. The servers' configurations meet what a deployment must provide.
func TestLog(t *testing.T) {
	t.Setenv("LOGPLANE_PASSWORD", password)
	t.Setenv("SUBSCRIBER_PASSWORD", "7e8f")
	folder := t.TempDir()
	authority(t, folder)
	users, err := os.ReadFile("../aws/machine/authorization.conf")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(folder, "authorization.conf"), users, 0o600))
	clients, peers := ports(t, 3), ports(t, 3)
	c := load(t)
	var routes []cty.Value
	for _, peer := range peers {
		routes = append(routes, cty.StringVal("nats-route://"+peer))
	}
	var urls []string
	for i := range 3 {
		rendered, err := c.template([]cty.Value{cty.StringVal("../aws/machine/nats.conf.tftpl"), cty.ObjectVal(map[string]cty.Value{
			"name": cty.StringVal(fmt.Sprint("log-", i)), "folder": cty.StringVal(filepath.Join(folder, fmt.Sprint(i))), "files": cty.StringVal(folder),
			"client": cty.StringVal(clients[i]), "peer": cty.StringVal(peers[i]), "health": cty.StringVal("127.0.0.1:0"), "routes": cty.ListVal(routes),
		})}, cty.String)
		require.NoError(t, err)
		name := filepath.Join(folder, fmt.Sprint(i, ".conf"))
		require.NoError(t, os.WriteFile(name, []byte(rendered.AsString()), 0o600))
		options, err := server.ProcessConfigFile(name)
		require.NoError(t, err)
		kept(t, options)
		options.NoLog, options.NoSigs = true, true
		s, err := server.NewServer(options)
		require.NoError(t, err)
		s.Start()
		t.Cleanup(func() {
			s.Shutdown()
			s.WaitForShutdown()
		})
		urls = append(urls, "tls://logplane:"+password+"@"+clients[i])
	}
	where := []string{"--nats", strings.Join(urls, ","), "--nats-ca-file", filepath.Join(folder, "nats-ca.crt"), "--bucket", "file://" + filepath.Join(folder, "bucket")}
	deadline := time.Now().Add(time.Minute)
	for { // at first the servers have no leader
		p := product.Run(t, append([]string{"init", "--replicas", "3"}, where...)...)
		<-p.Exited
		if p.Cmd.ProcessState.ExitCode() == 0 {
			break
		}
		require.True(t, time.Now().Before(deadline), p.Output())
	}
	stranger := product.Run(t, append([]string{"init", "--nats", strings.ReplaceAll(strings.Join(urls, ","), password, "wrong")}, where[2:]...)...)
	<-stranger.Exited
	require.NotZero(t, stranger.Cmd.ProcessState.ExitCode(), "whoever has no password makes no log")
}

// TestLogOnKubernetes: the overlay's configuration meets the same requirements.
func TestLogOnKubernetes(t *testing.T) {
	t.Setenv("LOGPLANE_PASSWORD", password)
	t.Setenv("SUBSCRIBER_PASSWORD", "7e8f")
	folder := t.TempDir()
	authority(t, folder)
	data := overlay(t, "plain")
	for id, o := range data {
		if !strings.HasPrefix(id, "ConfigMap/log-") {
			continue
		}
		for name, text := range o.Data {
			require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(strings.ReplaceAll(text, "/files/", folder+"/")), 0o600))
		}
	}
	options, err := server.ProcessConfigFile(filepath.Join(folder, "nats.conf"))
	require.NoError(t, err)
	kept(t, options)
}

// kept checks a server's options against what docs/run/cell.md says that a deployment must provide.
func kept(t *testing.T, o *server.Options) {
	t.Helper()
	assert.True(t, o.SyncAlways, "an append is synced before it is acknowledged")
	assert.True(t, o.JetStream)
	assert.NotEmpty(t, o.StoreDir)
	assert.EqualValues(t, 8<<20, o.MaxPayload)
	assert.Len(t, o.Routes, 3)
	assert.NotNil(t, o.TLSConfig)
	assert.NotNil(t, o.Cluster.TLSConfig)
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
