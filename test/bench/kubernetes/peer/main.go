// Command peer runs the same bounded load against kube-apiserver with etcd and against Logplane on disk. Both run on
// this machine, one after the other. The command prints the medians and their ratios.
//
// The shape says what runs. 'serve' is one process of Logplane beside one etcd, both with TLS and HTTP/2, as people run
// them. 'three' is a watcher, a projector, a lifecycle and three servers of the log beside three members of etcd.
// 'plain' is 'logplane dev', which has no TLS and asks nobody for credentials.
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
	shape  string
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
	flag.StringVar(&o.shape, "shape", "serve", "'serve', 'three' or 'plain'")
	flag.DurationVar(&side.SyncDelay, "sync-delay", 0, "by how much each sync of a file takes longer, as on a slower disk; needs strace")
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
	binaries, err := side.Find("logplane", "etcd", "kube-apiserver", "nats-server")
	if err != nil {
		return err
	}
	kubernetes := side.Kubernetes(binaries["etcd"], binaries["kube-apiserver"], 1)
	var logplane side.Side
	switch o.shape {
	case "serve":
		logplane = side.Serve(binaries["logplane"])
	case "plain":
		logplane = side.Dev(binaries["logplane"])
	case "three":
		logplane = side.Cell(binaries["nats-server"], binaries["logplane"], 3)
		kubernetes = side.Kubernetes(binaries["etcd"], binaries["kube-apiserver"], 3)
	default:
		return fmt.Errorf("--shape is '%s': it must be 'serve', 'three' or 'plain'", o.shape)
	}
	if err := describeMachine(); err != nil {
		return err
	}
	sides := []side.Side{logplane, kubernetes}
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
