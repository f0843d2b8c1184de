package aggregation

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestKeptIsAskedOnce: callers that need an answer at the same time share one request to the server. An answer is used
// for some seconds, and longer while there is no newer answer.
func TestKeptIsAskedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, asked := &kept[int]{}, 0
		answer := func(context.Context, int) (int, error) {
			time.Sleep(time.Second)
			asked++
			return asked, nil
		}
		_, err := k.last()
		require.Equal(t, errUnasked, err)
		var running sync.WaitGroup
		for range 10 {
			running.Go(func() { k.ask(t.Context(), answer) })
		}
		running.Wait()
		got, err := k.last()
		require.NoError(t, err)
		require.Equal(t, 1, got)
		require.True(t, k.isFresh())
		time.Sleep(keptFor)
		require.False(t, k.isFresh())

		k.ask(t.Context(), func(_ context.Context, before int) (int, error) { return before, errors.New("it is down") })
		got, err = k.last()
		require.ErrorContains(t, err, "down")
		require.Equal(t, 1, got)
		require.True(t, k.isFresh(), "a failure is not tried again at once")
		time.Sleep(keptFor)
		k.ask(t.Context(), func(context.Context, int) (int, error) { panic("at the disco") })
		_, err = k.last()
		require.ErrorContains(t, err, "disco")
	})
}

// TestAClientThatLeavesHoldsUpNobody: if the client whose request is asking the server leaves, a waiting request asks
// instead.
func TestAClientThatLeavesHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kept[int]{}
		slow := func(ctx context.Context, _ int) (int, error) {
			select {
			case <-time.After(patience / 2):
				return 7, nil
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience/4)
		defer cancel()
		go func() { _ = askAll(ctx, asking(k, slow)) }()
		synctest.Wait()
		require.NoError(t, askAll(t.Context(), asking(k, slow)))
		value, err := k.last()
		require.NoError(t, err)
		require.Equal(t, 7, value)
	})
}

// TestAClientThatLeavesSaysNothingOfAServer: a request whose client has left does not count as a failure of the server.
// A server that takes too long does count as failed.
func TestAClientThatLeavesSaysNothingOfAServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kept[int]{}
		wait := func(ctx context.Context, _ int) (int, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		}
		for _, short := range []time.Duration{time.Millisecond, time.Second} {
			ctx, cancel := context.WithTimeout(t.Context(), short)
			require.NoError(t, askAll(ctx, asking(k, wait)))
			cancel()
			require.False(t, k.isFresh())
		}
		began := time.Now()
		require.NoError(t, askAll(t.Context(), asking(k, wait)))
		require.Equal(t, patience, time.Since(began))
		require.True(t, k.isFresh())
		_, err := k.last()
		require.Equal(t, errImpatient, err)
	})
}

func asking[T any](k *kept[T], f func(context.Context, T) (T, error)) []func(context.Context) {
	return []func(context.Context){func(ctx context.Context) { k.ask(ctx, f) }}
}
