// Command mutants makes the mistakes of a list (list.go), one at a time, and runs the tests that must notice each.
//
// A mistake that no test notices is a gap in the tests. So is a mistake that only causes a timeout, because it would
// take an hour to find the cause. If a mistake can no longer be made, because its line has changed, the list must be
// brought up to date.
//
// The source tree is not changed: the compiler gets the changed file in place of the real one.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// mutant is one mistake.
type mutant struct {
	name string
	// file is where the mistake is made: old, which must occur exactly once, becomes new.
	file, old, new string
	// tests are the names of the tests that must notice, separated by '|'. They are in the file's folder, or in the
	// folder 'in'.
	tests, in string
	// why says what the mistake would do to users.
	why string
}

func (m *mutant) folder() string {
	if m.in != "" {
		return m.in
	}
	return filepath.Dir(m.file)
}

// mutated returns the file with the mistake.
func (m *mutant) mutated(tree string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(tree, m.file))
	if err != nil {
		return nil, err
	}
	if n := strings.Count(string(text), m.old); n != 1 {
		return nil, fmt.Errorf("%s has %q %d times, not once: bring %q in test/mutants/list.go up to date", m.file, m.old, n, m.name)
	}
	return []byte(strings.Replace(string(text), m.old, m.new, 1)), nil
}

var (
	only    = flag.String("only", "", "a regular expression: make only the mistakes whose names or files match")
	workers = flag.Int("workers", 2, "how many mistakes are tried at once")
	// Less than the time for which tests wait themselves.
	timeout = flag.Duration("timeout", 25*time.Second, "how long the tests of one mistake may take; longer is a failure")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	began := time.Now()
	tree, err := os.Getwd()
	if err != nil {
		return err
	}
	wanted, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	chosen := slices.DeleteFunc(slices.Clone(list), func(m mutant) bool {
		return !wanted.MatchString(m.name) && !wanted.MatchString(m.file)
	})
	scratch, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	if err := passNow(ctx, tree, chosen); err != nil {
		return err
	}
	queue, wrong := make(chan *mutant), 0
	var running sync.WaitGroup
	var mu sync.Mutex // guards wrong and the terminal
	for range *workers {
		running.Go(func() {
			for m := range queue {
				start := time.Now()
				verdict, said := m.try(ctx, tree, scratch)
				mu.Lock()
				if verdict != killed {
					wrong++
				}
				if verdict == killed && len(said) > longest {
					said = said[:longest] + "…"
				}
				fmt.Printf("%-9s %4.1fs  %-34s %s\n", verdict, time.Since(start).Seconds(), m.name, said)
				mu.Unlock()
			}
		})
	}
	for i := range chosen {
		queue <- &chosen[i]
	}
	close(queue)
	running.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	fmt.Printf("%d mistakes, %d noticed, in %s\n", len(chosen), len(chosen)-wrong, time.Since(began).Round(time.Second))
	if wrong > 0 {
		return fmt.Errorf("%d of %d mistakes were not noticed as they must be", wrong, len(chosen))
	}
	return nil
}

// passNow runs the tests without a mistake, because a failure with a mistake means nothing if they fail anyway.
func passNow(ctx context.Context, tree string, chosen []mutant) error {
	tests := map[string][]string{} // by folder
	for _, m := range chosen {
		tests[m.folder()] = append(tests[m.folder()], strings.Split(m.tests, "|")...)
	}
	for folder, names := range tests {
		slices.Sort(names)
		out, err := test(ctx, tree, folder, strings.Join(slices.Compact(names), "|"), 10*time.Minute)
		if err != nil {
			return fmt.Errorf("the tests of %s fail without any mistake:\n%s", folder, out)
		}
	}
	return ctx.Err()
}

// test runs tests of one folder, and returns their output.
func test(ctx context.Context, tree, folder, names string, timeout time.Duration, flags ...string) (string, error) {
	args := append([]string{"test", "-vet=off", "-ldflags=-s -w", "-timeout", timeout.String(), "-run", "^(" + names + ")$"}, flags...)
	command := exec.CommandContext(ctx, "go", append(args, "./"+folder)...)
	command.Dir = tree
	out, err := command.CombinedOutput()
	return string(out), err
}

// verdict is the outcome of a mistake; all but killed are failures.
type verdict string

const (
	killed   verdict = "noticed"
	survived verdict = "SURVIVED"
	late     verdict = "TIMEOUT" // the tests only timed out
	stale    verdict = "STALE"   // the mistake cannot be made any more
)

// try makes the mistake, and runs its tests. It returns the verdict, and the first failure with its message.
func (m *mutant) try(ctx context.Context, tree, scratch string) (verdict, string) {
	overlay, err := m.overlay(tree, scratch)
	if err != nil {
		return stale, err.Error()
	}
	out, err := test(ctx, tree, m.folder(), m.tests, *timeout, "-count=1", "-failfast", "-overlay", overlay)
	var exit *exec.ExitError
	switch {
	case err == nil:
		return survived, "no test failed: " + m.why
	case !errors.As(err, &exit):
		return stale, err.Error()
	case strings.Contains(out, "[build failed]") || strings.Contains(out, "[setup failed]"):
		return stale, "it does not compile: " + out
	case strings.Contains(out, "panic: test timed out"):
		return late, "no test failed within " + timeout.String() + ": " + m.why
	}
	return killed, reason(out)
}

// overlay writes the changed file, and the overlay file that names it for the compiler.
func (m *mutant) overlay(tree, scratch string) (string, error) {
	text, err := m.mutated(tree)
	if err != nil {
		return "", err
	}
	changed := filepath.Join(scratch, m.name+".go")
	if err := os.WriteFile(changed, text, 0o600); err != nil {
		return "", err
	}
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(tree, m.file): changed}})
	if err != nil {
		return "", err
	}
	name := filepath.Join(scratch, m.name+".json")
	return name, os.WriteFile(name, replace, 0o600)
}

// longest is how much of a test's output is printed: tests may compare whole histories.
const longest = 300

var (
	failed = regexp.MustCompile(`^ *--- FAIL: (\S+)`)
	// field is a line of testify's output. The continuation lines of a text have no label.
	field = regexp.MustCompile(`^\s+(Error|Messages):\s*(.*)$`)
	where = regexp.MustCompile(`^\s+(\w+\.go:\d+): ?(.*)$`)
)

// reason returns the name of the first test that failed, and the beginning of its message.
func reason(out string) string {
	lines := strings.Split(out, "\n")
	name, said := "", ""
	for _, line := range lines {
		switch found := failed.FindStringSubmatch(line); {
		case found != nil && said != "":
			return name + ": " + said
		case found != nil:
			name = found[1]
		case strings.HasPrefix(line, "panic: "):
			return strings.TrimPrefix(name+": "+line, ": ")
		case name == "":
		case field.MatchString(line):
			said = strings.TrimSpace(said + " " + field.FindStringSubmatch(line)[2])
		case said == "" && where.MatchString(line):
			said = where.FindStringSubmatch(line)[2]
		case strings.HasSuffix(said, ":"), strings.Contains(line, "expected: "), strings.Contains(line, "actual  : "):
			said += " " + strings.TrimSpace(line)
		}
	}
	if name == "" {
		return "the test process failed: " + lines[0]
	}
	return name + ": " + said
}
