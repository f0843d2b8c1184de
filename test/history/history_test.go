// Package history records what clients of a cell are told while its parts are killed, paused, cut off and fenced, and
// checks it.
//
// A history is all operations of all clients with the times of their calls and answers. Four API processes, a
// projector and a sweeper (a projector that purges and collects within seconds) run on one nats-server, or three,
// each in a process of its own. Clients create, update, patch, delete, get and list ServiceAccounts through
// whichever process, because a deletion of one answers with its revision. Disturbers meanwhile, at random moments:
//
//  1. kill API processes and projectors and start them again, or pause them;
//  2. kill, pause and cut off nats-servers, and depose the log's leader;
//  3. fence the cell as docs/operations.md says, except that processes which are only paused go on afterwards.
//
// At the end all keys are read through all processes. Then check finds what is wrong with the history.
package history

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

const (
	clients = 12
	// Without LOGPLANE_HISTORIES, a duration, histories are as long as CI can bear; 'make history' has long ones.
	short      = 60 * time.Second
	namespaces = 12 * time.Second // how long each namespace is the one that everybody uses
	// artifactsVariable names the folder that failed histories are kept in.
	artifactsVariable = "LOGPLANE_HISTORIES_FOLDER"
)

// TestHistory checks histories on one server and on three (W1 to W5, W7, R1, R2, 'Revisions').
func TestHistory(t *testing.T) {
	if testing.Short() {
		t.Skip("minutes of killing and pausing processes")
	}
	duration := short
	if wanted := os.Getenv("LOGPLANE_HISTORIES"); wanted != "" {
		var err error
		duration, err = time.ParseDuration(wanted)
		require.NoError(t, err, "LOGPLANE_HISTORIES must be a duration")
	}
	seed := uint64(time.Now().UnixNano())
	if wanted := os.Getenv("LOGPLANE_HISTORIES_SEED"); wanted != "" {
		var err error
		seed, err = strconv.ParseUint(wanted, 10, 64)
		require.NoError(t, err, "LOGPLANE_HISTORIES_SEED must be a number")
	}
	for name, servers := range map[string]int{"one server": 1, "three servers": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // they wait more than they work
			runHistory(t, servers, seed, duration)
		})
	}
}

func runHistory(t *testing.T, servers int, seed uint64, duration time.Duration) {
	t.Logf("seed %d, %s", seed, duration)
	c := newCell(t, servers)
	w := &workload{
		cell: c, record: &record{start: time.Now()}, cold: "cold", period: namespaces,
		learned: map[string][]uint64{}, lists: map[string][]uint64{},
	}
	for i := range int(duration/namespaces) + 1 {
		w.keys = append(w.keys, fmt.Sprintf("hot%d", i))
	}
	w.makeNamespaces(t)
	w.record.start = time.Now()

	ctx, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	for id := range clients {
		one := newClient(w, id, rand.New(rand.NewPCG(seed, uint64(100+id))))
		group.Go(func() error { one.run(ctx); return nil })
	}
	for i, disturb := range []func(context.Context, *rand.Rand) error{c.disturbProcesses, c.disturbServers, c.disturbAll} {
		group.Go(func() error { return disturb(ctx, rand.New(rand.NewPCG(seed, uint64(i)))) })
	}
	// What went wrong by then is in the history all the same.
	if err := group.Wait(); err != nil {
		t.Error(err)
	} else {
		w.readAll(t, seed)
	}
	out, code, err := c.logplane(t.Context(), "inspect", "fsck")
	require.NoError(t, err)
	if code != 0 {
		t.Errorf("fsck: exit code %d: %s", code, out)
	}
	began := time.Now()
	violations := check(w.record.operations)
	w.report(t, servers, seed, violations)
	t.Logf("checked in %s", time.Since(began).Round(time.Millisecond))
}

// makeNamespaces creates the namespaces of all keys.
func (w *workload) makeNamespaces(t *testing.T) {
	t.Helper()
	c := newClient(w, clients, rand.New(rand.NewPCG(0, 0)))
	for _, name := range append([]string{w.cold}, w.keys...) {
		address, _ := w.cell.slots[0].at()
		o := &operation{Kind: create}
		made := c.exchange(t.Context(), o, request{
			method: "POST", url: "http://" + address + "/api/v1/namespaces", contentType: "application/json",
			body: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name}},
		}, &object{})
		require.True(t, made, "create namespace %s: %d %s", name, o.Code, o.Message)
	}
}

// readAll reads every key through every process, as part of the history.
// Nothing disturbs the cell any more, so all must answer in the end.
func (w *workload) readAll(t *testing.T, seed uint64) {
	t.Helper()
	c := newClient(w, clients+1, rand.New(rand.NewPCG(seed, 4)))
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	require.NoError(t, w.cell.revive(ctx))
	require.NoError(t, w.cell.servers.whole(ctx))
	var reads []operation
	for _, namespace := range append([]string{w.cold}, w.keys...) {
		reads = append(reads, operation{Kind: list, Key: namespace})
		for i := range keysEach {
			reads = append(reads, operation{Kind: get, Key: keyOf(namespace, i)})
		}
	}
	for _, s := range w.cell.slots[:apis] {
		for _, read := range reads {
			for {
				o := read
				c.askAt(&o, s)
				if o.Outcome == done || o.Outcome == missing {
					break
				}
				require.NoError(t, ctx.Err(), "%s does not answer: %d %s", o.Process, o.Code, o.Message)
			}
		}
	}
}

var digits = regexp.MustCompile(`[0-9]+`)

// report prints what happened, and keeps the history if something in it is wrong.
func (w *workload) report(t *testing.T, servers int, seed uint64, violations []violation) {
	c := w.cell
	for _, p := range c.outputs {
		if p.raced() {
			c.fault("%s has a data race: %s", p.name, p.output())
		}
	}
	outcomes, kinds, messages := map[outcome]int{}, map[kind]int{}, map[string]int{}
	acknowledged := 0
	for _, o := range w.record.operations {
		outcomes[o.Outcome]++
		kinds[o.Kind]++
		if o.writes() && o.Outcome == done {
			acknowledged++
		}
		if o.Outcome == unknown || o.Outcome == refused {
			messages[fmt.Sprintf("%s %d %.160s", o.Outcome, o.Code, digits.ReplaceAllString(o.Message, "N"))]++
		}
	}
	n := &c.counts
	t.Logf("%d server(s), seed %d: %d operations %v, %d acknowledged writes, outcomes %v", servers, seed, len(w.record.operations), kinds, acknowledged, outcomes)
	t.Logf("%d kills and %d pauses of processes, %d fences (%d interrupted first, %d processes forgotten), %d leader changes (%d asked for), "+
		"%d kills and %d pauses of servers, %d stalls and %d cuts of links", n.kills.Load(), n.pauses.Load(), n.fences.Load(), n.brokenFences.Load(),
		n.forgotten.Load(), n.leaderChanges.Load(), n.stepDowns.Load(), n.serverKills.Load(), n.serverPauses.Load(), n.linkStalls.Load(), n.linkCuts.Load())
	most := slices.SortedFunc(maps.Keys(messages), func(a, b string) int { return cmp.Compare(messages[b], messages[a]) })
	for _, m := range most[:min(len(most), 12)] {
		t.Logf("  %d times: %s", messages[m], m)
	}
	t.Logf("%d violations, %d faults", len(violations), len(c.faults))
	require.Positive(t, acknowledged, "nothing was written")
	for _, fault := range c.faults {
		t.Error(fault)
	}
	for i, v := range violations {
		if i == 30 {
			t.Errorf("and %d more", len(violations)-i)
			break
		}
		t.Errorf("%s: %s", v.key, v.what)
	}
	if t.Failed() {
		w.keep(t, servers, seed, violations)
	}
}

func (w *workload) keep(t *testing.T, servers int, seed uint64, violations []violation) {
	root := os.Getenv(artifactsVariable)
	if root == "" {
		root = filepath.Join(os.TempDir(), "logplane-history")
	}
	folder := filepath.Join(root, fmt.Sprintf("%d-servers-%d", servers, seed))
	if err := keep(folder, w.record.operations, violations); err != nil {
		t.Errorf("keep the history: %v", err)
	}
	for _, p := range w.cell.outputs {
		if err := os.WriteFile(filepath.Join(folder, p.name+".log"), []byte(p.output()), 0o666); err != nil {
			t.Errorf("keep the history: %v", err)
		}
	}
	t.Logf("the history, what processes printed, and a picture of each key without an order are kept in %s", folder)
}
