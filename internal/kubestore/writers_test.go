package kubestore

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// What is waited for is what counted when the wait began: requests, and the appends of those whose clients went away.
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
