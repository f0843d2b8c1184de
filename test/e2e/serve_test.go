package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/localstack/authority"
	"github.com/logplane/logplane/test/product"
)

// servePatience bounds each wait of the tests of 'logplane serve'.
const servePatience = 2 * time.Minute

// served is a cell of 'logplane serve', which its tests stop, kill and start again at one address.
type served struct {
	*testing.T
	data, address string
	flags         []string
	process       *product.Process
}

func newServed(t *testing.T, flags ...string) *served {
	t.Helper()
	s := &served{T: t, data: filepath.Join(t.TempDir(), "cell"), address: eventlogtest.FreeAddress(t), flags: flags}
	s.start()
	return s
}

func (s *served) args() []string {
	return append([]string{"serve", "--data", s.data, "--listen", s.address, "--external-address", s.address, "--drain", "100ms"}, s.flags...)
}

// start starts the cell, and says how long that took and how much memory the idle process has.
func (s *served) start() {
	s.Helper()
	began := time.Now()
	s.process = product.Serve(s.T, s.args()...)
	s.Logf("ready after %s, %s", time.Since(began).Round(time.Millisecond), s.memory())
}

func (s *served) memory() string {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.process.Cmd.Process.Pid))
	require.NoError(s, err)
	for line := range strings.Lines(string(status)) {
		if resident, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			return "resident: " + strings.TrimSpace(resident)
		}
	}
	return ""
}

// admin returns the administrator's configuration.
func (s *served) admin() *rest.Config {
	s.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(s.data, "admin.kubeconfig"))
	require.NoError(s, err)
	config.QPS = -1
	return config
}

func (s *served) client() *kubernetes.Clientset { return kubernetes.NewForConfigOrDie(s.admin()) }

// create makes a ConfigMap without client-go's retries, and returns its revision.
func create(ctx context.Context, client kubernetes.Interface, name string) (uint64, error) {
	made := &corev1.ConfigMap{}
	err := client.CoreV1().RESTClient().Post().Namespace("default").Resource("configmaps").MaxRetries(0).
		Body(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}).Do(ctx).Into(made)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(made.ResourceVersion, 10, 64)
}

// load is clients that create ConfigMaps, each of another name, until stop is called.
type load struct {
	stop func() // returns when the last client has ended

	mu      sync.Mutex
	acks    map[string]ack // mu; by name
	refused error          // mu; the last refusal with 503
}

type ack struct {
	revision uint64
	at       time.Time
}

func (s *served) load(name string) *load {
	s.Helper()
	client := s.client()
	ctx, cancel := context.WithCancel(s.Context())
	l := &load{acks: map[string]ack{}}
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				name := fmt.Sprintf("%s-%d-%d", name, w, i)
				revision, err := create(ctx, client, name)
				l.mu.Lock()
				if err == nil {
					l.acks[name] = ack{revision, time.Now()}
				}
				if apierrors.IsServiceUnavailable(err) {
					l.refused = err
				}
				l.mu.Unlock()
				if err != nil { // the process is away
					_ = eventlog.Pause(ctx, 10*time.Millisecond)
				}
			}
		})
	}
	l.stop = func() { cancel(); writers.Wait() }
	s.Cleanup(l.stop)
	return l
}

func (l *load) acknowledged() map[string]ack {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.acks)
}

func (l *load) refusal() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refused
}

// more waits until the clients got that many more acknowledgements.
func (l *load) more(t *testing.T, n int) {
	t.Helper()
	before := len(l.acknowledged())
	eventlogtest.Eventually(t, "writes are acknowledged", func() bool { return len(l.acknowledged()) >= before+n })
}

// lost returns what was acknowledged and is not there.
func (s *served) lost(acks map[string]ack) map[string]ack {
	s.Helper()
	list, err := s.client().CoreV1().ConfigMaps("default").List(s.Context(), metav1.ListOptions{})
	require.NoError(s, err)
	lost := maps.Clone(acks)
	for _, there := range list.Items {
		delete(lost, there.Name)
	}
	return lost
}

// TestServe: one command serves a whole cell with TLS and credentials. Acknowledged writes are there after a kill, and
// deleted namespaces go.
func TestServe(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	admin := s.client()
	_, err := create(t.Context(), admin, "kept")
	require.NoError(t, err)
	s.process.Kill()

	s.start()
	_, err = admin.CoreV1().ConfigMaps("default").Get(t.Context(), "kept", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, http.StatusUnauthorized, statusOf(t, rest.AnonymousClientConfig(s.admin()), "/api/v1/namespaces"))

	_, err = admin.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "gone"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	watch, err := admin.CoreV1().Namespaces().Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=gone"})
	require.NoError(t, err)
	defer watch.Stop()
	require.NoError(t, admin.CoreV1().Namespaces().Delete(t.Context(), "gone", metav1.DeleteOptions{}))
	for event := range watch.ResultChan() {
		if event.Type == "DELETED" {
			break
		}
	}
	s.process.Stop()
}

// TestServeUnderInformer: while clients write, the process is killed, and replaced as an upgrade does it. Nothing that
// was acknowledged is lost, and an informer sees every event once, without a second list.
func TestServeUnderInformer(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	d := &disaster{T: t, lists: map[string]int{}}
	config := s.admin()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return counting{next, d} })
	ctx, cancel := context.WithTimeout(t.Context(), servePatience)
	defer cancel()
	informer := informers.NewSharedInformerFactory(kubernetes.NewForConfigOrDie(config), 0).Core().V1().ConfigMaps().Informer()
	seen := record(t, informer)
	go informer.RunWithContext(ctx)
	require.True(t, cache.WaitForCacheSync(ctx.Done(), informer.HasSynced))

	l := s.load("w")
	for range product.Rounds(t, 2) {
		l.more(t, 100)
		s.process.Kill()
		s.start()
		l.more(t, 100)
		s.process.Stop()
		s.start()
	}
	l.more(t, 100)
	l.stop()
	t.Logf("after %d writes %s", len(l.acknowledged()), s.memory())
	require.Empty(t, s.lost(l.acknowledged()))
	want := newExpectation()
	for name, ack := range l.acknowledged() {
		want.revisions[name] = []uint64{ack.revision}
	}
	seen.waitFor(ctx, t, want)
	seen.mu.Lock()
	defer seen.mu.Unlock()
	for name, revisions := range seen.seen { // also what was written and not acknowledged
		if strings.HasPrefix(name, "w-") {
			require.Len(t, revisions, 1, name)
		}
	}
	require.Equal(t, 1, d.listed()["configmaps"])
}

// TestServeCertificates: a watch stays open while the files of --tls-cert-file are replaced, and new connections see
// the new certificate. A certificate of the process's own that ends soon is renewed at the start.
func TestServeCertificates(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.process.Stop()
	file := func(name string) string { return filepath.Join(s.data, name) }
	signer, err := authority.Open(file("ca.crt"), file("ca.key"))
	require.NoError(t, err)
	sign := func(certificate, key string) (serial string) {
		template := &x509.Certificate{DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
		signed, private, err := signer.Sign(template, time.Hour)
		require.NoError(t, err)
		for path, content := range map[string][]byte{key: private, certificate: signed} {
			require.NoError(t, os.WriteFile(file(path+".new"), content, 0o600))
			require.NoError(t, os.Rename(file(path+".new"), file(path)))
		}
		pair, err := tls.LoadX509KeyPair(file(certificate), file(key))
		require.NoError(t, err)
		return pair.Leaf.SerialNumber.String()
	}
	shown := func() *x509.Certificate {
		dialer := &tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} // the test compares the certificate itself
		conn, err := dialer.DialContext(t.Context(), "tcp", s.address)
		require.NoError(t, err)
		defer conn.Close()
		return conn.(*tls.Conn).ConnectionState().PeerCertificates[0]
	}
	sign("tls.crt", "tls.key")
	s.start()
	require.Greater(t, time.Until(shown().NotAfter), 300*24*time.Hour, "it was renewed")
	s.process.Stop()

	first := sign("given.crt", "given.key")
	s.flags = []string{"--tls-cert-file", file("given.crt"), "--tls-private-key-file", file("given.key"), "--client-ca-file", file("ca.crt")}
	s.start()
	require.Equal(t, first, shown().SerialNumber.String())
	client := s.client()
	watch, err := client.CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	defer watch.Stop()
	second := sign("given.crt", "given.key")
	eventlogtest.Eventually(t, "new connections see the new certificate", func() bool { return shown().SerialNumber.String() == second })
	_, err = create(t.Context(), client, "after")
	require.NoError(t, err)
	for event := range watch.ResultChan() {
		object, ok := event.Object.(*corev1.ConfigMap)
		require.True(t, ok, "%v", event)
		if object.Name == "after" {
			return
		}
	}
	t.Fatal("the watch ended")
}

// TestServeFullDisk: while the disk is full, writes get 503 and a watch stays open. Once there is room, writes succeed,
// and the watch shows them.
func TestServeFullDisk(t *testing.T) {
	t.Parallel()
	disk := eventlogtest.MountDisk(t, 96<<20)
	s := &served{T: t, data: filepath.Join(disk.Folder, "cell"), address: eventlogtest.FreeAddress(t)}
	s.start()
	client := s.client()
	watch, err := client.CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	defer watch.Stop()
	l := s.load("w")
	l.more(t, 10)
	disk.Fill(t)
	eventlogtest.Eventually(t, "writes are refused", func() bool { return l.refusal() != nil })
	require.ErrorContains(t, l.refusal(), "nothing was written")
	disk.Free(t)
	l.more(t, 10)
	l.stop()
	waiting := l.acknowledged()
	for len(waiting) > 0 {
		event, open := <-watch.ResultChan()
		require.True(t, open, "the watch ended")
		object, ok := event.Object.(*corev1.ConfigMap)
		require.True(t, ok, "%v", event)
		delete(waiting, object.Name)
	}
	require.Empty(t, s.lost(l.acknowledged()))
	s.process.Stop()
}

// TestServeOuterLog: with --nats the log is on another server, and a new data folder with the same keys continues.
func TestServeOuterLog(t *testing.T) {
	t.Parallel()
	nats := eventlogtest.Run(t, t.TempDir()).ClientURL()
	s := newServed(t, "--nats", nats, "--bucket", "file://"+filepath.Join(t.TempDir(), "bucket"))
	l := s.load("w")
	l.more(t, 20)
	s.process.Kill()
	require.NoDirExists(t, filepath.Join(s.data, "log"))
	s.start()
	l.more(t, 20)
	l.stop()
	require.Empty(t, s.lost(l.acknowledged()))
	s.process.Stop()
}

// statusOf returns the status with which the server answers a GET.
func statusOf(t *testing.T, config *rest.Config, path string) int {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	answer, err := client.Get(config.Host + path)
	require.NoError(t, err)
	defer answer.Body.Close()
	return answer.StatusCode
}
