package gate

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// TestDrainIsSpread: a process that stops accepts no more watches. It ends its watches one after the other over the
// given time, and the drain returns when the last watch has left.
func TestDrainIsSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const open, spread = 10, 10 * time.Second
		w, ended, start := newWatches(WatchLimits{}), make(chan time.Duration, open), time.Now()
		for range open {
			o := &openWatch{end: make(chan struct{})}
			require.NoError(t, w.admit(o))
			go func() {
				<-o.end
				ended <- time.Since(start)
				time.Sleep(time.Minute) // the client is slow
				w.leave(o)
			}()
		}
		go func() {
			synctest.Wait()
			late := &openWatch{}
			if err := w.admit(late); !apierrors.IsServiceUnavailable(err) {
				t.Errorf("a watch is admitted while the process drains: %v", err)
			}
			w.leave(late)
		}()
		w.drain(t.Context(), spread)
		require.Equal(t, open, len(ended))
		for i := range open {
			require.Equal(t, time.Duration(i)*spread/open, <-ended, "when watch %d of %d was ended", i+1, open)
		}
		require.Equal(t, spread-spread/open+time.Minute, time.Since(start), "when the process had drained")
		require.Empty(t, w.open)
	})
}

// TestPlacesAreGivenBack: a user at the limit may watch again when one of their watches has ended. Other users may
// watch meanwhile.
func TestPlacesAreGivenBack(t *testing.T) {
	w := newWatches(WatchLimits{User: 2, Process: 3})
	watch := func(user string) *openWatch { return &openWatch{user: user, weight: 1} }
	one, two := watch("a"), watch("a")
	require.NoError(t, w.admit(one))
	require.NoError(t, w.admit(two))
	require.True(t, apierrors.IsTooManyRequests(w.admit(watch("a"))), "a third one of one user")
	other := watch("b")
	require.NoError(t, w.admit(other))
	require.True(t, apierrors.IsTooManyRequests(w.admit(watch("c"))), "a fourth one")
	for _, o := range []*openWatch{one, one, other} { // leaving twice counts once
		w.leave(o)
	}
	require.NoError(t, w.admit(watch("a")))
	require.True(t, apierrors.IsTooManyRequests(w.admit(watch("a"))), "a third one of one user")
}
