package kubestore

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// Wait waits for the requests that counted when Wait began, and for the appends of requests whose clients went away.
func TestWriters(t *testing.T) {
	var w Writers
	require.NoError(t, w.Wait(t.Context()), "nothing runs")
	ctx, end := w.Begin(t.Context())
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, w.Wait(canceled), context.Canceled, "a request runs")
	landed, err := Cell{}.beginAppend(ctx)
	require.NoError(t, err)
	end()
	end()
	_, endLater := w.Begin(t.Context())
	require.ErrorIs(t, w.Wait(canceled), context.Canceled, "its append is on its way")

	_, endLatest := w.Begin(t.Context())
	waited := make(chan error, 1)
	go func() { waited <- w.Wait(context.Background()) }()
	select {
	case err := <-waited:
		t.Fatal("did not wait for a running write: ", err)
	default:
	}
	landed()
	_, err = Cell{}.beginAppend(ctx)
	require.ErrorIs(t, err, errRequestEnded)
	endLater()
	endLatest()
	require.NoError(t, <-waited)
}

// TestWaitForAllBefore: a wait lasts until every running write has ended, even if an earlier wait, given up or not,
// waits for the same write.
func TestWaitForAllBefore(t *testing.T) {
	var w Writers
	over, cancel := context.WithCancel(t.Context())
	cancel()
	_, oldest := w.Begin(t.Context())
	require.ErrorIs(t, w.Wait(over), context.Canceled, "the first wait")
	_, middle := w.Begin(t.Context())
	require.ErrorIs(t, w.Wait(over), context.Canceled, "the second wait")
	middle()
	require.ErrorIs(t, w.Wait(over), context.Canceled, "a wait while the write of two waits before still runs")
	oldest()
	require.NoError(t, w.Wait(over), "nothing runs")
}

// TestWaitForNoneAfter: a wait ends even while writes that began after it still run. Otherwise a busy process would
// never delete a namespace.
func TestWaitForNoneAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Writers
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		_, before := w.Begin(t.Context())
		waited := false
		go func() { waited = w.Wait(ctx) == nil }()
		synctest.Wait()
		_, after := w.Begin(t.Context())
		require.False(t, waited, "the wait has not waited for a write that ran")
		before()
		synctest.Wait()
		require.True(t, waited, "the wait waits for a write that began after it")
		after()
	})
}
