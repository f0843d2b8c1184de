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

// room is what must fit on the disk before the log is opened again: the rest of the largest batch, and as much again.
const room = 4 * maxPayload

// noRoom are the errors of a disk that took nothing of what was written and may take it later. Another error leaves
// open what is on the disk.
var noRoom = []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG}

// Heal opens the log again after it could not be written because the disk was full, once there is space: JetStream
// itself answers no append any more, however much space there is later. Until then the log can be read, Writable says
// what is wrong, and Heal changes nothing. Whoever runs the server calls it now and then, one call at a time.
//
// An error means that the log cannot be trusted to be written any more, and that the process must end. A crash anywhere
// in here is one of the process.
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

// reopen reads the log from its files: by a new server, since JetStream that is opened again in a running one races
// with the requests that come meanwhile. Connections come back by themselves.
func (s *Server) reopen() error {
	shown, err := s.streams() // after a failed write, perhaps with an event that is not in the files
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

// dropState removes what JetStream noted of a log that it could not write: by that it would find, when it opens the log
// again, that an event is missing which it never wrote, and leave a hole in its place. Without the note it reads the
// events themselves, as after a crash.
func (s *Server) dropState() {
	notes, _ := filepath.Glob(filepath.Join(s.options.StoreDir, server.JetStreamStoreDir, "*", "streams", "*", "msgs", "index.db")) // the pattern is well formed
	for _, note := range notes {
		if err := os.Remove(note); err != nil && !errors.Is(err, fs.ErrNotExist) {
			slog.Error("cannot remove what JetStream noted of a log that it could not write; remove it before the next start", "file", note, "error", err)
		}
	}
}

// Writable is nil unless Heal has found that the log cannot be written.
func (s *Server) Writable() error {
	failed := s.failed.Load()
	if failed != nil {
		return *failed
	}
	return nil
}

// health is an error if JetStream cannot write, or has not opened, what it stores. Only its health check tells.
func (s *Server) health() error {
	status := s.server.Load().Healthz(nil)
	if strings.HasPrefix(status.Error, "JetStream") { // not of its connections, which it gives a millisecond
		return errors.New(status.Error)
	}
	return nil
}

// checkRoom is an error if there may be half a batch in the log, and no space for the rest. JetStream writes that when
// it is started, from what it has staged; if it cannot, it forgets it.
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

// tryRoom writes and syncs as much as the log will need soon. A crash leaves a file that the next try replaces.
func (s *Server) tryRoom() error {
	f, err := os.Create(filepath.Join(s.options.StoreDir, "room"))
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, room))
	return errors.Join(err, f.Sync(), f.Close(), os.Remove(f.Name()))
}
