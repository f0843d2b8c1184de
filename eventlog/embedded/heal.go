package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/nats-io/nats-server/v2/server"
)

// room is the free space that Heal needs before it opens the log again: twice the rest of the largest batch.
const room = 4 * maxPayload

// noRoom are the errors of a disk that stored nothing of a write, and may store the same write later. After any other
// error the content of the disk is unknown.
var noRoom = []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG}

// Heal repairs a log that the server could not write because the disk was full: it opens the log again once there is
// space. JetStream itself would refuse appends for ever, however much space there is later. Until there is space the
// log can be read, Writable returns the reason, and Heal changes nothing. The owner of the server calls Heal now and
// then, one call at a time.
//
// An error means that writes of the log cannot be trusted any more. The process must then end. A crash during Heal is
// like any other crash of the process.
func (s *Server) Heal() error {
	failed := s.health()
	if failed == nil {
		return nil
	}
	if !slices.ContainsFunc(noRoom, func(e error) bool { return strings.HasSuffix(failed.Error(), e.Error()) }) {
		return fmt.Errorf("write the log: %w: look at its disk, then start again", failed)
	}
	s.dropState()
	if err := s.tryRoom(); err != nil {
		full := fmt.Errorf("the log cannot be written until %s has %d MiB of free space: %w", s.options.StoreDir, room>>20, err)
		if s.failed.Swap(&full) == nil {
			slog.Error("the log's disk is full; writes are refused", "error", full)
		}
		return nil
	}
	if err := s.reopen(); err != nil {
		return fmt.Errorf("open the log again, which could not be written (%w): %w", failed, err)
	}
	s.failed.Store(nil)
	slog.Warn("opened the log again after its disk was full", "error", failed)
	return nil
}

// reopen starts a new server that reads the log from its files. If instead JetStream were opened again in the running
// server, it would race with requests that come meanwhile. Clients reconnect by themselves.
func (s *Server) reopen() error {
	shown, err := s.streams() // after a failed write this may count an event that is not in the files
	if err != nil {
		return err
	}
	s.stop()
	s.dropState()
	if err := s.start(); err != nil {
		return err
	}
	if err := s.health(); err != nil {
		return err
	}
	written, err := s.streams()
	for stream, b := range shown {
		if err == nil && written[stream].Head < b.Head {
			err = fmt.Errorf("event %d was shown to readers and never written, nor acknowledged: start again", b.Head)
		}
	}
	return err
}

// dropState removes the notes (index.db) that JetStream made about a log that it could not write. The notes name an
// event that was never written, and JetStream would leave a hole in its place when it opens the log again. Without the
// notes JetStream reads the events themselves, as after a crash.
func (s *Server) dropState() {
	notes, _ := filepath.Glob(filepath.Join(s.options.StoreDir, server.JetStreamStoreDir, "*", "streams", "*", "msgs", "index.db")) // the pattern is well formed
	for _, note := range notes {
		if err := os.Remove(note); err != nil && !errors.Is(err, fs.ErrNotExist) {
			slog.Error("cannot remove what JetStream noted of a log that it could not write; remove it before the next start", "file", note, "error", err)
		}
	}
}

// Writable returns an error if Heal has found that the log cannot be written, and nil otherwise.
func (s *Server) Writable() error {
	failed := s.failed.Load()
	if failed != nil {
		return *failed
	}
	return nil
}

// health returns an error if JetStream cannot write its storage, or has not opened it. Only JetStream's health check
// shows either fault.
func (s *Server) health() error {
	status := s.server.Load().Healthz(nil)
	if strings.HasPrefix(status.Error, "JetStream") { // other errors are about connections: the check waits 1 ms
		return errors.New(status.Error)
	}
	return nil
}

// checkRoom returns an error if the log may contain half of a batch and there is no space for the rest. When JetStream
// starts, it writes the rest from the messages that it has staged. If JetStream cannot write the staged messages, it
// discards them.
func (s *Server) checkRoom() error {
	staged, _ := filepath.Glob(filepath.Join(s.options.StoreDir, server.JetStreamStoreDir, "*", "streams", "*", "batches", "*")) // the pattern is well formed
	if len(staged) == 0 {
		return nil
	}
	if err := s.tryRoom(); err != nil {
		return fmt.Errorf("the log's disk is full, and the log may have half of a batch: make %d MiB of space in %s, then start again: %w", room>>20, s.options.StoreDir, err)
	}
	return nil
}

// tryRoom writes and syncs as much as the log will need soon. After a crash its file remains; the next tryRoom replaces
// the file.
func (s *Server) tryRoom() error {
	f, err := os.Create(filepath.Join(s.options.StoreDir, "room"))
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, room))
	return errors.Join(err, f.Sync(), f.Close(), os.Remove(f.Name()))
}
