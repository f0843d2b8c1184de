package gate

import (
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// TestStoppedWatches: a process that stops accepts no more watches, and knows when its last watch has ended.
func TestStoppedWatches(t *testing.T) {
	w := newWatches(WatchLimits{})
	var open []*Watch
	for range 2 {
		open = append(open, &Watch{end: make(chan struct{})})
		require.NoError(t, w.admit(open[len(open)-1]))
	}
	require.NoError(t, w.checkDraining())
	ends, ended := w.stop()
	require.Len(t, ends, 2)
	require.Error(t, w.checkDraining())
	late := &Watch{}
	require.True(t, apierrors.IsServiceUnavailable(w.admit(late)))
	w.leave(late)
	for _, end := range ends {
		end()
		require.NotPanics(t, end, "a watch may be ended twice")
	}
	for _, o := range open {
		select {
		case <-ended:
			t.Fatal("a watch has not left yet")
		default:
		}
		<-o.end
		w.leave(o)
	}
	<-ended
	ends, ended = w.stop()
	require.Empty(t, ends)
	<-ended

	_, ended = newWatches(WatchLimits{}).stop()
	<-ended // none was open
}

// TestSeatsAreGivenBack: a user at the limit may watch again when one of their watches has ended. Other users may
// watch meanwhile.
func TestSeatsAreGivenBack(t *testing.T) {
	w := newWatches(WatchLimits{User: 2, Process: 3})
	watch := func(user string) *Watch { return &Watch{user: user, weight: 1} }
	one, two := watch("a"), watch("a")
	require.NoError(t, w.admit(one))
	require.NoError(t, w.admit(two))
	require.True(t, apierrors.IsTooManyRequests(w.admit(watch("a"))), "a third one of one user")
	other := watch("b")
	require.NoError(t, w.admit(other))
	require.True(t, apierrors.IsTooManyRequests(w.admit(watch("c"))), "a fourth one")
	for _, o := range []*Watch{one, one, other} { // leaving twice counts once
		w.leave(o)
	}
	require.NoError(t, w.admit(watch("a")))
	require.True(t, apierrors.IsTooManyRequests(w.admit(watch("a"))), "a third one of one user")
}
