package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/apiserver"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/internal/kubestore/kubestoretest"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/memory"
	"github.com/logplane/logplane/test/product"
)

// plantation has the sizes of a fan and of a chain of dependents of one owner. Another owner has a fan of the same
// size.
type plantation struct{ fan, chain int }

// sizes are the sizes for a test. LOGPLANE_ROUNDS=10000 makes a fan of 10,000 and a chain of 500.
func sizes(t *testing.T) plantation {
	fan := 1000
	if testing.Short() || eventlogtest.Slowdown > 1 {
		fan = 100
	}
	fan = product.Rounds(t, fan)
	return plantation{fan: fan, chain: fan / 20}
}

// plant creates a plantation in namespace n. 'gone' is the owner that will be deleted.
func (c *cluster) plant(p plantation) {
	c.Helper()
	c.createNamespace("n")
	gone, alive := c.own("n", "gone"), c.own("n", "alive")
	group, ctx := errgroup.WithContext(c.Context())
	group.SetLimit(16)
	create := func(name string, owner *corev1.ConfigMap) (*corev1.ConfigMap, error) {
		o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{ownerOf(owner, true)}}}
		return c.client.CoreV1().ConfigMaps("n").Create(ctx, o, metav1.CreateOptions{})
	}
	group.Go(func() error {
		last := gone
		for i := range p.chain {
			link, err := create(fmt.Sprintf("link-%d", i), last)
			if err != nil {
				return err
			}
			last = link
		}
		return nil
	})
	for i := range p.fan {
		group.Go(func() error { _, err := create(fmt.Sprintf("fan-%d", i), gone); return err })
		group.Go(func() error { _, err := create(fmt.Sprintf("kept-%d", i), alive); return err })
	}
	require.NoError(c, group.Wait())
}

// harvest counts the remaining objects of a plantation.
func (c *cluster) harvest() (garbage, kept int) {
	c.Helper()
	list, err := c.client.CoreV1().ConfigMaps("n").List(context.Background(), metav1.ListOptions{})
	require.NoError(c, err)
	for _, o := range list.Items {
		switch o.Name[:4] {
		case "fan-", "link", "gone":
			garbage++
		case "kept":
			kept++
		}
	}
	return garbage, kept
}

// deletions waits until namespace n has had the given number of deletions after a revision, and returns the revision of
// the last event that was read.
func (c *cluster) deletions(after eventlog.Revision, n int) eventlog.Revision {
	c.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*patience)
	defer cancel()
	enough := errors.New("that many are gone")
	err := c.cell.Log.Follow(ctx, eventlog.Position{Revision: after}, func(b eventlog.Batch) error {
		for _, e := range b {
			after = e.Revision
			if e.Op == eventlog.Deleted && e.Key.Namespace == "n" {
				n--
			}
		}
		if n <= 0 {
			return enough
		}
		return nil
	})
	require.ErrorIs(c, err, enough)
	return after
}

// crowd writes the given number of unrelated ConfigMaps: half into namespace n, before and after the namespace's other
// ConfigMaps, and half into other namespaces.
func (c *cluster) crowd(unrelated int) {
	c.Helper()
	for i := range 10 {
		c.createNamespace(fmt.Sprintf("crowd-%d", i))
	}
	model, err := c.client.CoreV1().ConfigMaps("crowd-0").Create(c.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "model"},
		Data: map[string]string{"text": string(make([]byte, 300))}}, metav1.CreateOptions{})
	require.NoError(c, err)
	view, err := c.cell.Projection.Latest(c.Context())
	require.NoError(c, err)
	row, found, err := view.Get(c.Context(), "main/configmaps/crowd-0/"+model.Name, view.Revision())
	require.NoError(c, err)
	require.True(c, found)
	for i := 0; i < unrelated; i += 500 {
		var writes []projection.Write
		for j := range min(500, unrelated-i) {
			key := row.ID
			key.Name = fmt.Sprintf("%c-%d", "az"[j%2], i+j)
			key.Namespace = "n"
			if j%4 > 1 {
				key.Namespace = fmt.Sprintf("crowd-%d", j%10)
			}
			at, err := view.State(c.Context(), key)
			require.NoError(c, err)
			writes = append(writes, at.Put(row.ContentType, row.Value, 0))
		}
		_, err = view.Append(c.Context(), fmt.Sprint("unrelated-", i), writes...)
		require.NoError(c, err)
	}
}

// TestGarbageReadsOnlyDependents: the number of reads of the bucket and of messages to the log after an owner's
// deletion does not depend on the number of other objects. A process that has read nothing yet does all of the work.
func TestGarbageReadsOnlyDependents(t *testing.T) {
	t.Parallel()
	p := sizes(t)
	cost := func(unrelated int) (reads, messages int64) {
		server := eventlogtest.Run(t, t.TempDir())
		log := eventlogtest.Open(t, eventlog.Config{Conn: eventlogtest.Connect(t, server)})
		b := bucket.Count(memory.Strict(t))
		c := newClusterWith(t, log, b)
		c.plant(p)
		c.crowd(unrelated)
		_, err := c.cell.Projection.Commit(t.Context())
		require.NoError(t, err)
		c.deleteConfigMap("n", "gone", metav1.DeletePropagationForeground)
		_, err = c.cell.Projection.Commit(t.Context())
		require.NoError(t, err)

		// Nobody commits, so the tail must hold everything.
		c.cell = kubestoretest.Cell(t, projection.Config{Log: log, Bucket: b, TailBytes: 1 << 30})
		c.server, err = apiserver.New(apiserver.Config{Cell: c.cell})
		require.NoError(t, err)
		c.restart()
		messagesNow := func() int64 {
			stats, err := server.Varz(nil)
			require.NoError(t, err)
			return stats.InMsgs
		}
		read := func() int64 { return b.Counts().Get + b.Counts().GetRange }
		before, sent := read(), messagesNow()
		view, err := c.cell.Projection.Latest(t.Context())
		require.NoError(t, err)
		_, err = c.tasksOfState(t.Context(), view)
		require.NoError(t, err)
		t.Logf("next to %d: %d reads of the bucket and %d messages to find what is to be done", unrelated, read()-before, messagesNow()-sent)
		began := time.Now()
		left, err := c.Once(t.Context())
		reads, messages = read()-before, messagesNow()-sent
		require.NoError(t, err)
		require.Empty(t, left)
		require.Equal(t, p.fan, c.references())
		t.Logf("next to %d: %d dependents were gone after %s, %d reads of the bucket and %d messages to the log",
			unrelated, p.fan+p.chain, time.Since(began).Round(time.Millisecond), reads, messages)
		return reads, messages
	}
	fewReads, fewMessages := cost(p.fan)
	manyReads, manyMessages := cost(10 * p.fan)
	require.LessOrEqual(t, manyReads, fewReads+fewReads/5+20) // the snapshot may have one more level
	require.LessOrEqual(t, manyMessages, fewMessages+fewMessages/5)
}

// TestGarbageTogether: fan and chain are deleted, and objects with a living owner stay, although our collector is
// stopped again and again while upstream's collector runs alongside. Our collector first works alone: with so few
// objects, upstream's collector might otherwise delete all of them.
func TestGarbageTogether(t *testing.T) {
	p := sizes(t)
	c := newWatched(t)
	c.plant(p)
	garbage, _ := c.harvest()
	view, err := c.cell.Projection.Latest(t.Context())
	require.NoError(t, err)
	at := view.Revision()
	c.deleteConfigMap("n", "gone", metav1.DeletePropagationForeground)
	const stops = 50
	began := time.Now()
	for i := range stops {
		c.restart()
		stop := c.run()
		at = c.deletions(at, garbage*(i+1)/stops-garbage*i/stops)
		stop()
		if i == 0 {
			c.runUpstream()
			kept, err := c.client.CoreV1().ConfigMaps("n").Get(t.Context(), "kept-0", metav1.GetOptions{})
			require.NoError(t, err)
			eventlogtest.Eventually(t, "upstream's collector knows what there is", func() bool { return c.upstream.GraphHasUID(kept.UID) })
		}
	}
	t.Logf("%d dependents were gone after %s and %d stops", p.fan+p.chain, time.Since(began).Round(time.Millisecond), stops)
	c.restart()
	require.Empty(t, c.once())
	garbage, kept := c.harvest()
	require.Zero(t, garbage)
	require.Equal(t, p.fan, kept)
	require.Equal(t, p.fan, c.references())
	ours := 0
	for author, n := range c.authors("n", eventlog.Deleted) {
		if author.User == kubestore.PartOf("lifecycle").User {
			ours += n
			require.Positive(t, author.Cause.Revision, "the deletion of the owner, or of a link by the other collector")
		}
	}
	require.Positive(t, ours)
}
