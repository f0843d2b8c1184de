// Command compare sends the same requests to Logplane and to kube-apiserver with etcd, and prints each unintended
// difference between their answers. It exits with 1 if there is such a difference.
//
//  1. Both sides start, each on an empty folder (package side), with the same users and RBAC.
//  2. One script (script_*.go) runs on both at once. It may use a value of an answer, such as a resourceVersion, in
//     a later request; every answer is recorded under the request that it answers.
//  3. Values that vary from run to run are masked (mask.go): uids, times, revisions, addresses, tokens.
//  4. The records are compared (differ.go), and intended differences are removed (meant.go).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/logplane/logplane/test/bench/kubernetes/side"
)

// kubernetesArgs give kube-apiserver the defaults of Logplane.
var kubernetesArgs = []string{
	"--anonymous-auth=false",
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	budget := flag.Duration("budget", 10*time.Minute, "give up after this time")
	only := flag.String("sections", "", "run only the sections of the script whose names contain this")
	all := flag.Bool("all", false, "print the differences that are meant too")
	flag.Parse()
	ctx, cancel := context.WithTimeout(ctx, *budget)
	defer cancel()
	different, err := compare(ctx, *only, *all)
	if err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
	}
	if err != nil || different {
		os.Exit(1)
	}
}

// compare returns whether there is a difference that is not intended.
func compare(ctx context.Context, only string, all bool) (bool, error) {
	binaries, err := side.Find("logplane", "nats-server", "etcd", "kube-apiserver")
	if err != nil {
		return false, err
	}
	sides := []side.Side{
		side.Cell(binaries["nats-server"], binaries["logplane"], 1),
		side.Kubernetes(binaries["etcd"], binaries["kube-apiserver"], 1, kubernetesArgs...),
	}
	records := make([]*record, len(sides))
	group, ctx := errgroup.WithContext(ctx)
	for i, s := range sides {
		group.Go(func() (err error) {
			records[i], err = play(ctx, s, only)
			if err != nil {
				return fmt.Errorf("%s: %w", s.Name, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return false, err
	}
	return report(records[0], records[1], only == "", all), nil
}

// play runs the script on a side.
func play(ctx context.Context, s side.Side, only string) (_ *record, err error) {
	folder, err := os.MkdirTemp("", "compare-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	running, err := s.Start(ctx, folder)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, running.Stop()) }()
	c, err := newClient(ctx, running)
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	for _, part := range script {
		if strings.Contains(part.name, only) {
			c.section = part.name
			started := time.Now()
			part.run(c)
			fmt.Fprintf(os.Stderr, "%s: %s took %s\n", s.Name, part.name, time.Since(started).Round(time.Millisecond))
		}
	}
	fmt.Fprintf(os.Stderr, "%s: %d requests in %s\n", s.Name, len(c.record.keys), time.Since(begun).Round(time.Millisecond))
	return c.record, ctx.Err()
}

// report prints the differences. If only a part of the script ran, an entry of the list may match nothing.
func report(ours, theirs *record, whole, all bool) bool {
	unexplained, explained := 0, 0
	used := map[*intention]bool{}
	for _, d := range differences(ours, theirs) {
		if why := meant(d); why != nil {
			explained++
			used[why] = true
			if !all {
				continue
			}
		} else {
			unexplained++
		}
		fmt.Println(d)
	}
	for i := range intentions {
		if why := &intentions[i]; whole && !used[why] && !why.maybe {
			unexplained++
			fmt.Printf("no longer there, remove it from meant.go: %s at %s: %s\n", why.request, why.at, why.why)
		}
	}
	fmt.Printf("%d requests, %d differences that are meant, %d that are not\n", len(ours.keys), explained, unexplained)
	return unexplained > 0
}
