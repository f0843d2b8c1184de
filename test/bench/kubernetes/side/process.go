// Package side starts the servers that bench compares. A side is a server under test, with all its processes, on an
// empty folder.
package side

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// stopTimeout is how long a process may take to end before it is killed.
const stopTimeout = 10 * time.Second

// process is a child process. The child ends when ctx ends, or when its parent ends.
type process struct {
	cmd    *exec.Cmd
	output string // the file with its output
}

// SyncDelay is how much longer each sync of a file takes in every process that is started from then on. A SyncDelay
// needs strace.
var SyncDelay time.Duration

// slowed returns the command with syncs that take SyncDelay longer. The process stays a child of this program (-D). It
// stops for strace only in its syncs (--seccomp-bpf) and at signals, which Go's scheduler must therefore not send.
// kube-apiserver syncs nothing.
func slowed(command []string) []string {
	if SyncDelay == 0 || filepath.Base(command[0]) == "kube-apiserver" {
		return command
	}
	const calls = "fsync,fdatasync"
	return append([]string{"strace", "-D", "-f", "--seccomp-bpf", "-qq", "-o", "/dev/null", "-E", "GODEBUG=asyncpreemptoff=1", "-e",
		"trace=" + calls, "-e", fmt.Sprintf("inject=%s:delay_exit=%d", calls, SyncDelay.Microseconds())}, command...)
}

func startProcess(ctx context.Context, folder string, command []string) (*process, error) {
	file, err := os.CreateTemp(folder, filepath.Base(command[0])+"-*.log")
	if err != nil {
		return nil, err
	}
	defer file.Close() // the child has its own descriptor
	command = slowed(command)
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = file, file, folder
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", command[0], err)
	}
	return &process{cmd, file.Name()}, nil
}

// stop asks the process to end, kills it after stopTimeout, and waits for it.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	kill := time.AfterFunc(stopTimeout, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	_ = p.cmd.Wait() // how it ended does not matter for the figures
	return nil
}

// ResidentMiB returns the resident memory of all processes of the system.
func (s *System) ResidentMiB() (float64, error) {
	var pages int
	for _, p := range s.processes {
		fields, err := p.proc("statm")
		if err != nil {
			return 0, err
		}
		n, err := strconv.Atoi(fields[1])
		if err != nil {
			return 0, err
		}
		pages += n
	}
	return float64(pages*os.Getpagesize()) / (1 << 20), nil
}

// CPU returns the processor time that all processes of the system have used, to 10 ms.
func (s *System) CPU() (time.Duration, error) {
	var ticks int
	for _, p := range s.processes {
		fields, err := p.proc("stat")
		if err != nil {
			return 0, err
		}
		for _, field := range fields[13:15] { // utime and stime; the name, a field before them, must not have a space
			n, err := strconv.Atoi(field)
			if err != nil {
				return 0, err
			}
			ticks += n
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}

func (p *process) proc(name string) ([]string, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.cmd.Process.Pid, name))
	if err != nil {
		return nil, fmt.Errorf("look at a process, which may have ended: %w", err)
	}
	return strings.Fields(string(content)), nil
}

// OwnCPU is the processor time that this program has used.
func OwnCPU() (time.Duration, error) {
	var used syscall.Rusage
	err := syscall.Getrusage(syscall.RUSAGE_SELF, &used)
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()), err
}
