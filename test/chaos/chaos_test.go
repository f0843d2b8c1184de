// Package chaos makes containers fail as machines fail in clouds, and checks the answers that clients get meanwhile.
//
// The containers of the real engine run three nats-servers (whose clocks differ by minutes), MinIO, two api, a watcher,
// a projector and a lifecycle. Links of toxiproxy lie between the servers and their clients. A proxy in front of MinIO
// may answer in MinIO's place. Concurrent clients send requests to both api processes while one fault after another
// happens (faults_test.go). At the end all keys are read through both api processes. The history is checked as
// test/history does: each key by porcupine, and lists by revision.
package chaos

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/logplane/logplane/test/history"
)

const (
	clients = 8
	// short is how long faults happen if CHAOS, a duration, is not set.
	short = 90 * time.Second
)

// happened is a fault that is over.
type happened struct {
	planned
	began, ended, whole int64 // in the history's time
	// recovered is the time from the fault's end until each process worked again.
	recovered map[string]time.Duration
	leader    string
	skew      time.Duration
}

// TestChaos: no fault loses an acknowledged write, or shows clients something that never existed. After each fault all
// processes recover by themselves.
func TestChaos(t *testing.T) {
	duration, seed := history.Settings(t, "CHAOS", short)
	t.Logf("%s of faults in %s; CHAOS_SEED=%d repeats their order", duration, image(), seed)
	random := rand.New(rand.NewPCG(seed, 0))
	c := newCell(t, random)
	w := history.NewWorkload([]history.Target{c.apis[0], c.apis[1]}, duration, c.fault, c.asked)
	require.NoError(t, w.MakeNamespaces(t.Context()))

	ctx, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	asking, stop := context.WithCancel(t.Context())
	defer stop()
	var group errgroup.Group
	for id := range clients {
		one := history.NewClient(w, id, rand.New(rand.NewPCG(seed, uint64(100+id))))
		group.Go(func() error { one.Run(asking); return nil })
	}
	var all []happened
	var err error
	for p := (&plan{cell: c, random: random, left: map[string][]string{}}); err == nil && history.Wait(ctx, history.Between(random, 0, time.Second)); {
		var h happened
		h, err = c.suffer(t.Context(), w, p.next(), howLong(random, duration))
		all = append(all, h)
		if err != nil {
			t.Error(err)
		}
	}
	stop()
	_ = group.Wait()
	if err == nil {
		reading, cancel := context.WithTimeout(t.Context(), recoverTimeout)
		defer cancel()
		if err := w.ReadAll(reading, clients, rand.New(rand.NewPCG(seed, 1))); err != nil {
			t.Error(err)
		}
		c.runUntil("inspect", "fsck")
	}
	report(t, c, w, seed, all)
}

// howLong returns how long a fault lasts. In a long run some faults last longer than the deadlines of requests and
// connections.
func howLong(random *rand.Rand, duration time.Duration) time.Duration {
	if duration > short && random.IntN(4) == 0 {
		return history.Between(random, 10*time.Second, 25*time.Second)
	}
	return history.Between(random, 2*time.Second, 6*time.Second)
}

// suffer lets a fault happen for a while, and waits until all processes have recovered.
func (c *cell) suffer(ctx context.Context, w *history.Workload, p planned, lasting time.Duration) (h happened, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s %s: %w", p.name, p.target, err)
		}
	}()
	h = happened{planned: p, began: w.Record.Now(), recovered: map[string]time.Duration{}}
	beginning, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	end, err := p.begin(c, beginning, p.target)
	if err == nil {
		history.Wait(ctx, lasting)
	}
	if end != nil {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
		defer cancel()
		if failure := end(ending); err == nil {
			err = failure
		}
	}
	h.ended = w.Record.Now()
	if err != nil {
		return h, err
	}
	ctx, cancel = context.WithTimeout(ctx, recoverTimeout)
	defer cancel()
	var group errgroup.Group
	for _, b := range c.all {
		if !slices.Contains(c.apis, b) {
			group.Go(func() error { return b.well(ctx) })
		}
	}
	if err := h.writes(ctx, c, w); err != nil {
		return h, err
	}
	if err := group.Wait(); err != nil {
		return h, err
	}
	if h.leader, h.skew, err = c.whole(ctx); err != nil {
		return h, err
	}
	h.whole = w.Record.Now()
	c.allRun(ctx)
	c.t.Log(h.line(w))
	return h, nil
}

// writes waits until each api has acknowledged a write that began after the fault's end.
func (h *happened) writes(ctx context.Context, c *cell, w *history.Workload) error {
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		for _, o := range slices.Backward(w.Record.Operations()) {
			if o.Return < h.ended {
				break
			}
			name, _, _ := strings.Cut(o.Process, ".")
			if before, known := h.recovered[name]; o.Call >= h.ended && o.Writes() && o.Outcome == history.Done && (!known || time.Duration(o.Return-h.ended) < before) {
				h.recovered[name] = time.Duration(o.Return - h.ended)
			}
		}
		if len(h.recovered) == len(c.apis) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("no write succeeds for %s on each of %d processes: %v", recoverTimeout, len(c.apis), h.recovered)
		}
	}
}

// line summarizes the cost of the fault. It counts all requests that were under way between the fault's beginning and
// the time when the log was whole again.
func (h *happened) line(w *history.Workload) string {
	outcomes, n := map[history.Outcome]int{}, 0
	for _, o := range w.Record.Operations() {
		if o.Return >= h.began && o.Call <= h.whole {
			outcomes[o.Outcome]++
			n++
		}
	}
	var recovered []string
	for _, name := range slices.Sorted(maps.Keys(h.recovered)) {
		recovered = append(recovered, fmt.Sprintf("%s %4.1f s", name, h.recovered[name].Seconds()))
	}
	return fmt.Sprintf("%-12s %-16s %4.1f s | %4d requests: %4d ok, %3d unknown, %3d refused, %4d conflicts and the like | first write: %s | log whole: %4.1f s (%s, clock %+.0f s)",
		h.name, h.target, time.Duration(h.ended-h.began).Seconds(), n, outcomes[history.Done], outcomes[history.Unknown], outcomes[history.Refused],
		n-outcomes[history.Done]-outcomes[history.Unknown]-outcomes[history.Refused], strings.Join(recovered, ", "),
		time.Duration(h.whole-h.ended).Seconds(), h.leader, h.skew.Seconds())
}

// report checks the history, and prints a summary. It saves a history that has violations.
func report(t *testing.T, c *cell, w *history.Workload, seed uint64, all []happened) {
	operations := w.Record.Operations()
	began := time.Now()
	violations := history.Check(operations)
	checked := time.Since(began)
	worst := time.Duration(0)
	for _, h := range all {
		for _, d := range h.recovered {
			worst = max(worst, d)
		}
	}
	history.Report(t, operations, violations, c.faults)
	t.Logf("%d faults, longest recovery %.1f s, checked in %s", len(all), worst.Seconds(), checked.Round(time.Millisecond))
	if !t.Failed() {
		return
	}
	folder := filepath.Join(os.TempDir(), "logplane-chaos", strconv.FormatUint(seed, 10))
	if err := history.Keep(folder, operations, violations); err != nil {
		t.Errorf("keep the history: %v", err)
	}
	for _, b := range c.all {
		if err := os.WriteFile(filepath.Join(folder, b.name+".log"), []byte(logsOf(b.c)), 0o666); err != nil {
			t.Errorf("keep the history: %v", err)
		}
	}
	t.Logf("the history and what containers printed are kept in %s", folder)
}
