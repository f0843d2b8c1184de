package kubestore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// TestResumable: a sequence is closed while its reader waits for long, and then continues after the last item, without
// a gap. During a short wait it stays open.
func TestResumable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failure := errors.New("no more")
		opened, at := 0, 0
		var open atomic.Int32 // a timer closes the sequence
		r := &resumable[int]{open: func() iter.Seq2[int, error] {
			opened++
			return func(yield func(int, error) bool) {
				open.Add(1)
				defer open.Add(-1)
				for n := at; n < 10; n++ {
					if !yield(n, nil) {
						return
					}
				}
				yield(0, failure)
			}
		}}
		for n, err := range r.all() {
			if at == 10 {
				require.Equal(t, failure, err)
				break
			}
			require.NoError(t, err)
			require.Equal(t, at, n)
			at++
			wait := heldFor / 2
			if n%3 == 0 {
				wait = 2 * heldFor
			}
			require.Equal(t, failure, r.during(func() error {
				time.Sleep(wait)
				if n%3 == 0 {
					require.Zero(t, open.Load(), "scans that are held meanwhile")
				} else {
					require.EqualValues(t, 1, open.Load())
				}
				return failure
			}))
		}
		require.Equal(t, 10, at)
		require.Equal(t, 1+4, opened)
		require.Zero(t, open.Load())
	})
}

// TestSlowStarts: watches that begin with the state, or from a revision that only segments have, send each object once
// and in order to a slow reader.
func TestSlowStarts(t *testing.T) {
	b := newBed(t, eventlogtest.Start(t), memory.Strict(t))
	s := newStore(b.Cell, pods(nil))
	start, err := s.GetCurrentResourceVersion(t.Context())
	require.NoError(t, err)
	const objects = 20 * bufferedEvents // more than a shrunken window holds
	for n := range objects {
		create(t, s, pod("ns", fmt.Sprintf("p%03d", n)))
		if n%(objects/4) == 0 {
			b.commit(t.Context())
		}
	}
	b.commit(t.Context())
	s.Feed.Shrink()
	for _, from := range []string{"", fmt.Sprint(start)} {
		read := testutil.ToFloat64(watchReads)
		ctx := withEnd(t.Context(), make(chan struct{}))
		w, err := s.Watch(ctx, "/pods/", storage.ListOptions{ResourceVersion: from, Recursive: true, Predicate: storage.Everything})
		require.NoError(t, err)
		for n := range objects {
			if n%(5*bufferedEvents) == 0 {
				time.Sleep(2 * heldFor) // the slow reader
			}
			e := <-w.ResultChan()
			require.Equal(t, watch.Added, e.Type)
			require.Equal(t, fmt.Sprintf("p%03d", n), e.Object.(*example.Pod).Name)
		}
		w.Stop()
		require.Equal(t, from != "", testutil.ToFloat64(watchReads) > read)
	}
}

// stateWriter writes to a client that is slow for some chunks of the state.
type stateWriter struct {
	*nameEncoding
	slow   int // the client is slow for one chunk of so many
	chunks int
	names  string
	events int
}

func (l *stateWriter) SendAll(frames []byte, events int) error {
	if l.chunks++; l.chunks%l.slow == 0 {
		time.Sleep(2 * heldFor)
	}
	l.names += string(frames)
	l.events += events
	return nil
}

// nameEncoding encodes an event as the object's name, and counts the encodings.
type nameEncoding struct{ encoded atomic.Int32 }

func (*nameEncoding) Verbatim(context.Context) Append { return nil }

func (f *nameEncoding) Name() string { return "names" }

func (f *nameEncoding) Frame(o runtime.Object) ([]byte, error) {
	f.encoded.Add(1)
	return []byte(o.(*example.Pod).Name + " "), nil
}

// TestStateInChunks: a state that is sent by watch writers is encoded once for all watches, even if clients are so slow
// that the scan is closed. After a change only one chunk is made again. The bookmark comes after the state.
func TestStateInChunks(t *testing.T) {
	b := newBed(t, eventlogtest.Start(t), memory.Strict(t))
	s := newStore(b.Cell, pods(nil))
	const objects = 1000 // at least four chunks, however they are cut
	want := ""
	for n := range objects {
		p := create(t, s, pod("ns", fmt.Sprintf("p%03d", n)))
		want += p.Name + " "
		if n == objects/2 {
			b.commit(t.Context())
		}
	}
	encoding := &nameEncoding{}
	selection := storage.Everything
	selection.AllowWatchBookmarks = true
	begin := func(slow int) (chunks int) {
		t.Helper()
		writer := &stateWriter{nameEncoding: encoding, slow: slow}
		ctx := withWatchWriter(withEnd(t.Context(), make(chan struct{})), writer)
		w, err := s.Watch(ctx, "/pods/", storage.ListOptions{Recursive: true, Predicate: selection, SendInitialEvents: new(true)})
		require.NoError(t, err)
		defer w.Stop()
		e := <-w.ResultChan()
		require.Equal(t, watch.Bookmark, e.Type)
		require.Equal(t, want, writer.names)
		require.Equal(t, objects, writer.events)
		return writer.chunks
	}
	chunks := begin(math.MaxInt)
	require.Greater(t, chunks, 3)
	require.EqualValues(t, objects, encoding.encoded.Load())
	require.Equal(t, chunks, begin(2))
	require.EqualValues(t, objects, encoding.encoded.Load(), "all chunks were kept")
	_, err := relabel(t.Context(), s, keyOf(pod("ns", "p123")), "n", "1")
	require.NoError(t, err)
	require.Equal(t, chunks, begin(3))
	require.LessOrEqual(t, encoding.encoded.Load(), int32(objects+mostItems), "one chunk, which may be the largest")
	require.Greater(t, encoding.encoded.Load(), int32(objects))
}
