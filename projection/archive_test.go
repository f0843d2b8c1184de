package projection

import (
	"fmt"
	"math/rand/v2"
	"runtime/metrics"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/filesystem"
	"github.com/logplane/logplane/projection/cache"
)

// TestGrowingArchive writes LOGPLANE_ARCHIVE MiB of archived events, half of whose bytes compress, to a bucket in the
// file system. In eight steps it prints the sizes of a root, a commit and a checkpoint, and the peak of the process's
// memory. The process has the projector, an embedded log that is purged, and the writer. No size grows from step to
// step. LOGPLANE_ARCHIVE_SEGMENTS is how many event segments a root lists.
func TestGrowingArchive(t *testing.T) {
	if testing.Short() {
		t.Skip("megabytes of events")
	}
	const steps, each, bodyBytes = 8, 64, 16 << 10
	mebibytes := setting("LOGPLANE_ARCHIVE", 64)
	objects := min(1000, 2*mebibytes)
	files, err := filesystem.Open(t.TempDir())
	require.NoError(t, err)
	booked := newLedger()
	booked.Bucket = files
	log := eventlogtest.Open(t, eventlog.Config{Conn: eventlogtest.Start(t), InMemory: true})
	p, err := Open(Config{Log: log, Bucket: booked, Budget: cache.NewBudget(32 << 20), History: time.Hour, Retention: time.Hour,
		Checkpoints: []CheckpointRule{{Every: time.Second, Keep: 10 * time.Second}}})
	require.NoError(t, err)
	p.manyEvents = setting("LOGPLANE_ARCHIVE_SEGMENTS", 8)
	p.rootFooters = min(rootFooters, mebibytes<<5) // so that few segments need an idx object

	rng := rand.New(rand.NewPCG(1, 2))
	last := make([]Revision, objects)
	purged, applied, n := Revision(0), Revision(0), 0
	write := func() int {
		var writes []eventlog.Write
		for range each {
			o := n % objects
			n++
			body := make([]byte, bodyBytes)
			for i := range bodyBytes / 2 {
				body[i] = byte(rng.Uint32())
			}
			w := eventlog.Write{Key: podKey(fmt.Sprintf("o%04d", o)), Op: eventlog.Modified, ContentType: "application/cbor", Body: body, Base: last[o], Precondition: last[o]}
			if w.Base == 0 {
				w.Op = eventlog.Added
			}
			if w.Precondition <= purged {
				w.Precondition = 0
			}
			writes = append(writes, w)
		}
		head, err := log.Append(t.Context(), eventlog.Basis{}, fmt.Sprint("archive-", n), writes...)
		require.NoError(t, err)
		for i := range each {
			last[(n-each+i)%objects] = head - Revision(each-1-i)
		}
		return each * bodyBytes
	}
	peak := newPeak(t)
	var roots, copies []int
	for step := range steps {
		root, commit, copied := 0, int64(0), 0
		for bytes := 0; bytes < mebibytes<<20/steps; {
			for range 4 {
				bytes += write()
			}
			before, copiesBefore := booked.bytesWritten, booked.bytesOf["ckpt"]
			applied, err = p.Commit(t.Context())
			require.NoError(t, err)
			commit = max(commit, booked.bytesWritten-before)
			copied = max(copied, int(booked.bytesOf["ckpt"]-copiesBefore))
			purged = max(purged, applied-min(applied, 2*each))
			require.NoError(t, p.Retain(t.Context(), purged, purged))
			require.NoError(t, compactOnly(t.Context(), p))
			body, _, err := files.Get(t.Context(), p.rootKey())
			require.NoError(t, err)
			root = max(root, len(body))
		}
		_, err = p.Collect(t.Context(), 0)
		require.NoError(t, err)
		r := p.Current().snap.root
		var kept int64
		require.NoError(t, files.List(t.Context(), "logplane/events/", func(a bucket.Attributes) error { kept += a.Size; return nil }))
		t.Logf("%5d MiB of events, %4d in the bucket: root at most %6d bytes, %3d segments and %2d pages; commit %8d, checkpoint %6d; memory %3d MiB",
			(step+1)*mebibytes/steps, kept>>20, root, len(r.Events), len(r.Pages), commit, copied, peak.Swap(0)>>20)
		roots, copies = append(roots, root), append(copies, copied)
	}
	require.NotEmpty(t, p.Current().snap.root.Pages)
	require.Less(t, roots[steps-1], roots[steps/2-1]+4096)
	require.Less(t, copies[steps-1], copies[steps/2-1]+4096)
	reader, err := Open(Config{Log: log, Bucket: files})
	require.NoError(t, err)
	events := 0
	for _, err := range reader.Archived(t.Context(), Keys{}, 0, applied, nil) {
		require.NoError(t, err)
		events++
	}
	require.Equal(t, n, events)
}

// newPeak returns a number: the most bytes that objects had on the heap since the number was last set to 0. The heap is
// sampled a hundred times a second.
func newPeak(t *testing.T) *atomic.Uint64 {
	var peak atomic.Uint64
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop) })
	go func() {
		held := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		for {
			metrics.Read(held)
			peak.Store(max(peak.Load(), held[0].Value.Uint64()))
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
	return &peak
}
