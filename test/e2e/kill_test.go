package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/test/product"
)

const (
	kills       = 50 / eventlogtest.Slowdown
	killWriters = 4
)

// TestKill kills 'logplane dev' at random moments under load, 50 times on one folder. Every acknowledged write exists
// afterwards, and no resourceVersion is ever given twice (invariants 1, 6 and 9).
func TestKill(t *testing.T) {
	t.Parallel()
	rounds := kills
	if testing.Short() {
		rounds = 3
	}
	folder := t.TempDir()
	random := rand.New(rand.NewPCG(7, 7))
	acknowledged := &journal{latest: map[string]string{}, revisions: map[string]string{}}
	for round := range rounds {
		server := product.Dev(t, folder)
		verify(t, server.URL(), acknowledged, fmt.Sprintf("before round %d", round))
		writeUntilKilled(t, server, acknowledged, round, time.Duration(20+random.IntN(400))*time.Millisecond)
	}
	verify(t, product.Dev(t, folder).URL(), acknowledged, "at the end")
	t.Logf("%d kills, %d acknowledged writes, none lost", rounds, len(acknowledged.revisions))
}

// journal has the writes that the server has acknowledged.
type journal struct {
	mu        sync.Mutex
	latest    map[string]string // guarded by mu: the value last acknowledged, by name
	revisions map[string]string // guarded by mu: by resourceVersion, the write that got it
	repeated  []string          // guarded by mu
}

func (j *journal) acknowledge(object *corev1.ConfigMap) {
	j.mu.Lock()
	defer j.mu.Unlock()
	write := object.Name + "=" + object.Data["value"]
	if earlier, taken := j.revisions[object.ResourceVersion]; taken {
		j.repeated = append(j.repeated, fmt.Sprintf("%s for %s and %s", object.ResourceVersion, earlier, write))
	}
	j.revisions[object.ResourceVersion] = write
	j.latest[object.Name] = object.Data["value"]
}

// writeUntilKilled creates and updates objects from several writers, and kills the server after a while. Each name has
// only one writer, so the last acknowledged value must exist. The write in flight at the kill may have had its effect,
// or not.
func writeUntilKilled(t *testing.T, server *product.Process, j *journal, round int, after time.Duration) {
	t.Helper()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL(), QPS: -1})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	for w := range killWriters {
		writers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				name := fmt.Sprintf("r%d-w%d-%d", round, w, i/3)
				object := &corev1.ConfigMap{
					ObjectMeta: metav1.ObjectMeta{Name: name},
					Data:       map[string]string{"value": strconv.Itoa(i)},
				}
				if i%3 == 0 {
					object, err := client.CoreV1().ConfigMaps("default").Create(ctx, object, metav1.CreateOptions{})
					if err != nil {
						return
					}
					j.acknowledge(object)
					continue
				}
				object, err := client.CoreV1().ConfigMaps("default").Update(ctx, object, metav1.UpdateOptions{})
				if err != nil {
					return
				}
				j.acknowledge(object)
			}
		})
	}
	select {
	case <-server.Exited:
		t.Errorf("the server ended by itself: %s", server.Output())
	case <-time.After(after):
	}
	server.Kill()
	cancel()
	writers.Wait()
}

// verify reads all objects, and compares them with the acknowledged writes. A value may be newer than the last
// acknowledged value by one write, which was in flight at a kill.
func verify(t *testing.T, url string, j *journal, when string) {
	t.Helper()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: url, QPS: -1})
	require.NoError(t, err)
	list, err := client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err, when)
	found := map[string]string{}
	for _, object := range list.Items {
		found[object.Name] = object.Data["value"]
		j.mu.Lock()
		write, known := j.revisions[object.ResourceVersion]
		j.mu.Unlock()
		require.True(t, !known || write == object.Name+"="+object.Data["value"], "%s: revision %s was %s, is %s=%s",
			when, object.ResourceVersion, write, object.Name, object.Data["value"])
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	require.Empty(t, j.repeated, when)
	for name, want := range j.latest {
		acknowledged, err := strconv.Atoi(want)
		require.NoError(t, err)
		got, present := found[name]
		require.True(t, present, "%s: %s was acknowledged and is missing", when, name)
		require.Contains(t, []string{want, strconv.Itoa(acknowledged + 1)}, got, "%s: %s", when, name)
	}
}
