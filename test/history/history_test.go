package history

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

const (
	clients = 12
	// short is the length of histories without LOGPLANE_HISTORIES, a duration: as long as CI can afford. 'make history'
	// has long histories.
	short = 60 * time.Second
	// artifactsVariable names the folder in which failed histories are kept.
	artifactsVariable = "LOGPLANE_HISTORIES_FOLDER"
)

// TestHistory checks histories on one server and on three (W1 to W5, W7, R1, R2, 'Revisions').
func TestHistory(t *testing.T) {
	if testing.Short() {
		t.Skip("minutes of killing and pausing processes")
	}
	duration, seed := Settings(t, "LOGPLANE_HISTORIES", short)
	for name, servers := range map[string]int{"one server": 1, "three servers": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // the subtests wait more than they work
			runHistory(t, servers, seed, duration)
		})
	}
}

// workload is the work of a cell's clients.
type workload struct {
	*Workload
	cell *cell
}

func runHistory(t *testing.T, servers int, seed uint64, duration time.Duration) {
	t.Logf("seed %d, %s", seed, duration)
	c := newCell(t, folders(t, servers)...)
	targets := make([]Target, apis)
	for i := range targets {
		targets[i] = c.slots[i]
	}
	w := workload{NewWorkload(targets, duration, c.fault, c.asked), c}
	require.NoError(t, w.MakeNamespaces(t.Context()))

	ctx, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	for id := range clients {
		one := NewClient(w.Workload, id, rand.New(rand.NewPCG(seed, uint64(100+id))))
		group.Go(func() error { one.Run(ctx); return nil })
	}
	for i, disturb := range []func(context.Context, *rand.Rand) error{c.disturbProcesses, c.disturbServers, c.disturbAll} {
		group.Go(func() error { return disturb(ctx, rand.New(rand.NewPCG(seed, uint64(i)))) })
	}
	// The history shows the violations before the error, so it is checked even after an error.
	if err := group.Wait(); err != nil {
		t.Error(err)
	} else {
		ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
		defer cancel()
		require.NoError(t, c.revive(ctx))
		require.NoError(t, c.servers.whole(ctx))
		require.NoError(t, w.ReadAll(ctx, clients, rand.New(rand.NewPCG(seed, 4))))
	}
	out, code, err := c.logplane(t.Context(), "inspect", "fsck")
	require.NoError(t, err)
	if code != 0 {
		t.Errorf("fsck: exit code %d: %s", code, out)
	}
	began := time.Now()
	violations := Check(w.Record.Operations())
	w.report(t, servers, seed, violations)
	t.Logf("checked in %s", time.Since(began).Round(time.Millisecond))
}

func folders(t *testing.T, n int) (all []string) {
	for range n {
		all = append(all, t.TempDir())
	}
	return all
}

// report prints a summary of the history. It saves a history that has violations.
func (w workload) report(t *testing.T, servers int, seed uint64, violations []Violation) {
	c := w.cell
	for _, p := range c.outputs {
		if p.raced() {
			c.fault("%s has a data race: %s", p.name, p.output())
		}
	}
	n := &c.counts
	t.Logf("%d server(s), seed %d", servers, seed)
	t.Logf("%d kills and %d pauses of processes, %d fences (%d interrupted first, %d processes forgotten), %d leader changes (%d asked for), "+
		"%d kills and %d pauses of servers, %d stalls and %d cuts of links", n.kills.Load(), n.pauses.Load(), n.fences.Load(), n.brokenFences.Load(),
		n.forgotten.Load(), n.leaderChanges.Load(), n.stepDowns.Load(), n.serverKills.Load(), n.serverPauses.Load(), n.linkStalls.Load(), n.linkCuts.Load())
	Report(t, w.Record.Operations(), violations, c.faults)
	if t.Failed() {
		w.keep(t, servers, seed, violations)
	}
}

func (w workload) keep(t *testing.T, servers int, seed uint64, violations []Violation) {
	root := os.Getenv(artifactsVariable)
	if root == "" {
		root = filepath.Join(os.TempDir(), "logplane-history")
	}
	folder := filepath.Join(root, fmt.Sprintf("%d-servers-%d", servers, seed))
	if err := Keep(folder, w.Record.Operations(), violations); err != nil {
		t.Errorf("keep the history: %v", err)
	}
	for _, p := range w.cell.outputs {
		if err := os.WriteFile(filepath.Join(folder, p.name+".log"), []byte(p.output()), 0o666); err != nil {
			t.Errorf("keep the history: %v", err)
		}
	}
	t.Logf("the history, what processes printed, and a picture of each key without an order are kept in %s", folder)
}
