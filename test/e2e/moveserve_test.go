package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	retrying "k8s.io/client-go/tools/watch"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/bucket/s3/miniotest"
	"github.com/logplane/logplane/test/product"
)

// moveWrites is how many writes are acknowledged before the move begins, and again after it.
const moveWrites = 1000 / eventlogtest.Slowdown

// TestMoveServe: an operator moves the cell of 'logplane serve' to three NATS servers and MinIO as docs/run/move.md
// says, while clients write and watch through a front. Every acknowledged write is there afterwards, with its revision.
// A watch that resumes at its last revision delivers every change once and in order, and so do informers that do not
// list again. Tokens stay valid, and nothing serves the old folder again.
func TestMoveServe(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts three NATS servers and a container")
	}
	storage := miniotest.Start(t)
	require.NoError(t, storage.Client.MakeBucket(t.Context(), "cells", minio.MakeBucketOptions{Region: miniotest.Region}))
	t.Setenv("AWS_ACCESS_KEY_ID", miniotest.AccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", miniotest.SecretKey)
	servers := eventlogtest.Cluster(t)
	var urls []string
	for _, s := range servers.Server {
		urls = append(urls, s.ClientURL())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()

	data, address := filepath.Join(t.TempDir(), "cell"), "localhost:"+strings.Split(eventlogtest.FreeAddress(t), ":")[1]
	file := func(name string) string { return filepath.Join(data, name) }
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	require.NoError(t, os.WriteFile(tokens, []byte("admin,admin,0,system:masters\n"), 0o600))
	serve := []string{"serve", "--data", data, "--listen", "127.0.0.1:0", "--external-address", address, "--token-auth-file", tokens, "--drain", "1s"}
	before := product.Serve(t, serve...)
	api, watcher := eventlogtest.FreeAddress(t), eventlogtest.FreeAddress(t)
	certificate := []string{"--tls-cert-file", file("tls.crt"), "--tls-private-key-file", file("tls.key")}
	product.Serve(t, append([]string{
		"front", "--listen", "127.0.0.1:" + strings.Split(address, ":")[1], "--api-ca-file", file("ca.crt"),
		"--api", before.URL(), "--watcher", before.URL(), "--api", "https://" + api, "--watcher", "https://" + watcher,
	}, certificate...)...)

	through := &rest.Config{Host: "https://" + address, BearerToken: "admin", TLSClientConfig: rest.TLSClientConfig{CAFile: file("ca.crt")}, QPS: -1}
	admin := kubernetes.NewForConfigOrDie(through)
	account := accountOf(ctx, t, admin, through)
	seen, relists := informed(ctx, t, account)
	resumed := watched(ctx, t, admin)

	pace := &pace{last: time.Now()}
	writing, stop := context.WithCancel(ctx)
	var writers sync.WaitGroup
	written := make([]*expectation, 4)
	for w := range written {
		written[w] = newExpectation()
		writers.Go(func() {
			random := rand.New(rand.NewPCG(uint64(w), 1))
			for writing.Err() == nil {
				change(ctx, t, random, steadyStore{admin, pace}, fmt.Sprintf("w%d-%d", w, random.IntN(20)), written[w])
			}
		})
	}
	defer writers.Wait()
	defer stop()
	reaches := func(n int64) {
		t.Helper()
		for pace.acknowledged.Load() < n {
			require.NoError(t, ctx.Err())
			time.Sleep(time.Millisecond)
		}
	}
	reaches(moveWrites)

	where := []string{"--nats", strings.Join(urls, ","), "--bucket", "s3://cells", "--s3-endpoint", storage.Endpoint, "--s3-path-style"}
	move := append([]string{"move", "--data", data, "--replicas", "3"}, where...)
	for ahead := ""; !strings.Contains(ahead, "nothing was moved"); { // the servers may not be ready to make the stream
		require.NoError(t, ctx.Err(), ahead)
		ahead, _ = logplane(t, move...)
	}
	move = append(move, "--yes")
	moving := product.Run(t, move...)
	for !strings.Contains(moving.Output(), "stop the process") {
		select {
		case <-moving.Exited:
			t.Fatal(moving.Output())
		case <-ctx.Done():
			t.Fatal(moving.Output())
		case <-time.After(time.Millisecond):
		}
	}
	before.Stop()
	<-moving.Exited
	require.Zero(t, moving.Cmd.ProcessState.ExitCode(), moving.Output())
	t.Log(moving.Output())

	where = append(where, "--root-ca-file", file("ca.crt"))
	credentials := append([]string{
		"--client-ca-file", file("ca.crt"), "--token-auth-file", tokens, "--external-address", address,
		"--service-account-issuer", "https://" + address, "--service-account-signing-key-file", file("service-account.key"),
	}, append(certificate, where...)...)
	var started sync.WaitGroup
	started.Go(func() { product.Serve(t, append([]string{"watcher", "--listen", watcher}, credentials...)...) })
	started.Go(func() {
		product.Serve(t, append([]string{"api", "--listen", api, "--watcher-url", "https://" + watcher}, credentials...)...)
	})
	started.Wait()
	product.Run(t, append([]string{"projector"}, where[:len(where)-2]...)...)
	product.Run(t, append([]string{"lifecycle"}, where...)...)
	moved := pace.acknowledged.Load()
	reaches(moved + moveWrites)
	stop()
	writers.Wait()
	require.NoError(t, ctx.Err())
	longest, unknown := pace.longest, pace.unknown.Load()
	t.Logf("%d writes, %d with an unknown outcome; the longest pause between two acknowledgements was %s; informers listed %d times again",
		pace.acknowledged.Load(), unknown, longest.Round(time.Millisecond), relists.Load())

	for _, e := range written {
		resumed.waitFor(ctx, t, e)
		if relists.Load() == 0 { // after ten seconds client-go lists again, and then it need not see every change
			seen.waitFor(ctx, t, e)
		}
		for name, revisions := range e.revisions {
			last := revisions[len(revisions)-1]
			now, err := admin.CoreV1().ConfigMaps("default").Get(ctx, name, metav1.GetOptions{})
			if last == 0 {
				require.True(t, apierrors.IsNotFound(err), "%s: %v", name, err)
				continue
			}
			require.NoError(t, err)
			require.Equal(t, strconv.FormatUint(last, 10), now.ResourceVersion, name)
		}
	}

	ends := func(code int, says string, args ...string) {
		t.Helper()
		said, ended := logplane(t, args...)
		require.Equal(t, code, ended, said)
		require.Contains(t, said, says)
	}
	ends(1, "was moved on", serve...)
	ends(0, "moved the cell to", move...)
	product.Serve(t, append(serve, where[:len(where)-2]...)...) // also on the old machine, with its keys
	ends(0, "clean", append([]string{"inspect", "fsck"}, where[:len(where)-2]...)...)
}

// accountOf returns a client of an administrator's service account, with a token that the cell issues now.
func accountOf(ctx context.Context, t *testing.T, admin kubernetes.Interface, through *rest.Config) *rest.Config {
	t.Helper()
	_, err := admin.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "reader"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = admin.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: "reader"}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	token, err := admin.CoreV1().ServiceAccounts("default").CreateToken(ctx, "reader", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(t, err)
	as := rest.CopyConfig(through)
	as.BearerToken = token.Status.Token
	return as
}

// informed runs an informer, and counts how often it lists again.
func informed(ctx context.Context, t *testing.T, config *rest.Config) (*recording, *atomic.Int64) {
	t.Helper()
	lists, synced := &atomic.Int64{}, &atomic.Bool{}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if query := r.URL.Query(); synced.Load() && (query.Get("watch") == "" || query.Get("sendInitialEvents") == "true") {
				lists.Add(1)
			}
			return next.RoundTrip(r)
		})
	})
	informer := informers.NewSharedInformerFactory(kubernetes.NewForConfigOrDie(config), 0).Core().V1().ConfigMaps().Informer()
	seen := record(t, informer)
	go informer.RunWithContext(ctx)
	require.True(t, cache.WaitForCacheSync(ctx.Done(), informer.HasSynced))
	synced.Store(true)
	return seen, lists
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// watched watches from now on. After each failure it resumes at the last revision, and it never lists.
func watched(ctx context.Context, t *testing.T, client kubernetes.Interface) *recording {
	t.Helper()
	maps := client.CoreV1().ConfigMaps("default")
	now, err := maps.List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	resuming, err := retrying.NewRetryWatcherWithContext(ctx, now.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return maps.Watch(ctx, o) },
	})
	require.NoError(t, err)
	r := newRecording()
	go func() {
		for event := range resuming.ResultChan() {
			if event.Type == watch.Error {
				t.Errorf("the watch broke off: %v", event.Object)
				return
			}
			r.note(t, event.Object, event.Type == watch.Deleted)
		}
	}()
	return r
}

// pace counts acknowledged writes, and measures the longest pause between two of them.
type pace struct {
	acknowledged, unknown atomic.Int64

	mu      sync.Mutex
	last    time.Time     // guarded by mu
	longest time.Duration // guarded by mu
}

func (p *pace) step() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.longest, p.last = max(p.longest, now.Sub(p.last)), now
	p.acknowledged.Add(1)
}

// steadyStore writes until it knows the outcome. If an answer does not say whether the write was made, it reads the
// object.
type steadyStore struct {
	client kubernetes.Interface
	*pace
}

// settle tries a write until it is made. After an error, made returns the object if the write was made all the same.
func (s steadyStore) settle(ctx context.Context, write func() (*corev1.ConfigMap, error), made func() (*corev1.ConfigMap, error)) (string, error) {
	for {
		object, err := write()
		if err != nil {
			s.unknown.Add(1)
			object, err = made()
		}
		if err == nil && object != nil {
			s.step()
			return object.ResourceVersion, nil
		}
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
	}
}

func (s steadyStore) create(ctx context.Context, name string) (string, error) {
	maps := s.client.CoreV1().ConfigMaps("default")
	return s.settle(ctx, func() (*corev1.ConfigMap, error) {
		return maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	}, func() (*corev1.ConfigMap, error) { return maps.Get(ctx, name, metav1.GetOptions{}) })
}

func (s steadyStore) touch(ctx context.Context, name, value string) (string, error) {
	maps := s.client.CoreV1().ConfigMaps("default")
	return s.settle(ctx, func() (*corev1.ConfigMap, error) {
		return maps.Patch(ctx, name, types.MergePatchType, annotate(value), metav1.PatchOptions{})
	}, func() (*corev1.ConfigMap, error) {
		object, err := maps.Get(ctx, name, metav1.GetOptions{})
		if err == nil && object.Annotations["value"] != value {
			return nil, nil
		}
		return object, err
	})
}

func (s steadyStore) remove(ctx context.Context, name string) error {
	maps := s.client.CoreV1().ConfigMaps("default")
	_, err := s.settle(ctx, func() (*corev1.ConfigMap, error) {
		return &corev1.ConfigMap{}, maps.Delete(ctx, name, metav1.DeleteOptions{})
	}, func() (*corev1.ConfigMap, error) {
		_, err := maps.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return &corev1.ConfigMap{}, nil
		}
		return nil, err
	})
	return err
}
