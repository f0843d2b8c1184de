// Command peer runs the same bounded load against kube-apiserver with etcd and against 'logplane dev' on disk. Both run
// on this machine, one after the other. The command prints the medians and their ratios.
//
// A side is one of these two systems. A round starts a side on an empty folder, runs the load and stops the side. The
// sides take turns, and each side goes first in every other round, so that other work of the machine affects both sides
// alike. The load (load.go, watch.go) is a series of steps; each step reports one or more figures.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/logplane/logplane/test/bench/kubernetes/side"
)

// options bound the run.
type options struct {
	rounds int
	budget time.Duration // no round begins after this time, and everything stops after twice this time
	only   string        // the only side to run; both if empty
	load   load
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, parse()); err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		os.Exit(1)
	}
}

func parse() options {
	var o options
	flag.IntVar(&o.rounds, "rounds", 5, "how often each side runs")
	flag.DurationVar(&o.budget, "budget", 10*time.Minute, "begin no round after this time")
	flag.StringVar(&o.only, "only", "", "run one side: 'logplane' or 'kubernetes'")
	flag.IntVar(&o.load.objects, "objects", 10000, "objects in the list, at least 1000")
	flag.IntVar(&o.load.singles, "singles", 300, "requests of each kind that are sent one after the other")
	flag.IntVar(&o.load.lists, "lists", 5, "times each whole list is read")
	flag.DurationVar(&o.load.watching, "watching", 4*time.Second, "how long each watch step writes")
	flag.StringVar(&o.load.only, "steps", "", "take only the steps whose names contain this, for example 'watch lag'; list and pages then find fewer objects")
	flag.StringVar(&o.load.profiles, "profiles", "", "folder for one CPU profile per step; the binary must be built by 'make bench-peer-profiled'")
	flag.Parse()
	return o
}

func run(ctx context.Context, o options) error {
	binaries, err := side.Find("logplane", "etcd", "kube-apiserver")
	if err != nil {
		return err
	}
	sides := []side.Side{side.Dev(binaries["logplane"]), side.Kubernetes(binaries["etcd"], binaries["kube-apiserver"])}
	ctx, cancel := context.WithTimeout(ctx, 2*o.budget)
	defer cancel()
	t, begun := &table{}, time.Now()
	for round := 0; round < o.rounds && time.Since(begun) < o.budget; round++ {
		for turn := range sides {
			at := (round + turn) % len(sides)
			if o.only != "" && o.only != sides[at].Name {
				continue
			}
			fmt.Fprintf(os.Stderr, "round %d: %s\n", round+1, sides[at].Name)
			if err := runSide(ctx, sides[at], o.load, t.column(at)); err != nil {
				return fmt.Errorf("round %d of %s: %w", round+1, sides[at].Name, err)
			}
		}
	}
	if err := t.print(os.Stdout, sides); err != nil {
		return err
	}
	half, nearlyAll, err := bareWrites()
	if err != nil {
		return fmt.Errorf("write to %d connections: %w", floorWatches, err)
	}
	fmt.Printf("\nNothing but the writes of one event to %d connections: p50 %s ms, p99 %s ms behind the start.\n", floorWatches, short(half), short(nearlyAll))
	return nil
}

// runSide runs one round on an empty folder.
func runSide(ctx context.Context, s side.Side, l load, report reporter) (err error) {
	folder, err := os.MkdirTemp("", "peer-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	running, err := s.Start(ctx, folder)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, running.Stop()) }()
	return l.run(ctx, running, report)
}
