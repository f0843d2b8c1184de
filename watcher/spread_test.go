package watcher

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestDrainWaits: a drain lasts until the last client has left, but only for a while after the last watch was ended.
func TestDrainWaits(t *testing.T) {
	for name, test := range map[string]struct{ leaves, lasts time.Duration }{
		"client leaves late":  {12 * time.Second, 12 * time.Second},
		"client never leaves": {time.Hour, 15 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start, ended := time.Now(), make(chan struct{})
				left := time.AfterFunc(test.leaves, func() { close(ended) })
				defer left.Stop()
				drain(t.Context(), 10*time.Second, 5*time.Second, []func(){func() {}, func() {}}, ended)
				require.Equal(t, test.lasts, time.Since(start))
			})
		})
	}
}

// TestDrainIsSpread: watches end one after the other over the given time.
func TestDrainIsSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const open, spread = 10, 10 * time.Second
		start, ends, ended := time.Now(), make([]func(), open), make([]time.Duration, open)
		for i := range ends {
			ends[i] = func() { ended[i] = time.Since(start) }
		}
		endAll(t.Context(), spread, ends)
		for i, at := range ended {
			require.Equal(t, time.Duration(i)*spread/open, at, "when watch %d of %d was ended", i+1, open)
		}
	})
}
