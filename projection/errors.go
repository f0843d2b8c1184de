package projection

import (
	"errors"

	"github.com/logplane/logplane/projection/segment"
)

// Errors of views, matched with errors.Is. Calls may also return eventlog.ErrDiverged, which is final: from then on
// every call returns ErrDiverged, and the process must stop.
var (
	// ErrExpired: the revision is below the floor; the API answers 410.
	ErrExpired = errors.New("the revision is older than retention")
	// ErrBehind: too many events wait to be committed; the API answers 429.
	ErrBehind = errors.New("too many events wait to be committed")
	// ErrTooMuch: too many archived events would have to be held in memory; the API answers 410.
	ErrTooMuch = errors.New("too much was written between two checkpoints to read a moment there: ask for fewer objects, or for a moment near a checkpoint")
	// ErrTrimmed: a rule of history keeps the past of these objects for a shorter time (HistoryRule); the API answers
	// 410.
	ErrTrimmed = errors.New("a rule of --history-rules keeps no more of it")
	// ErrFuture: the revision does not exist yet.
	ErrFuture = errors.New("the revision does not exist yet")
	// ErrDamaged: a segment does not hold the bytes that were written to it. A further read does not help.
	ErrDamaged = segment.ErrCorrupt
	// ErrNewer: a newer Logplane has written something to the bucket that this version does not know.
	ErrNewer = segment.ErrNewer
	// ErrNoRoot: the bucket has no root although the cell was founded, or the log has lost its beginning. Nothing can
	// be read until an operator says where the snapshot is.
	ErrNoRoot = errors.New("the bucket does not have the log's cell: check the bucket, the prefix and the stream, run 'logplane init' if it has never run on them, or 'logplane recover' if the root was lost")
	// ErrHole: the log was purged past the root (invariant 5 was broken, or the bucket is an old copy).
	ErrHole = errors.New("the log was purged past the root: restore a newer bucket, or run 'logplane recover', which says what is lost")

	// errFenceRaced is wrapped when the root changed while the cell was fenced.
	errFenceRaced = errors.New("the root changes: a projector is still running, stop it")

	// errRootLost is wrapped when a new cell would be made over the remains of another cell.
	errRootLost = errors.New("there are checkpoints of a cell whose root was lost: run 'logplane recover', or give a prefix that holds none")

	// errRootGone is wrapped when the bucket no longer has a root, although this process has read one.
	errRootGone = errors.New("the bucket was emptied: restore it, or run 'logplane recover' if the root alone was lost")
)

// ReadError says that stored data could not be read: the bucket or the log has failed. Its text names objects in the
// bucket, and is for operators, not for clients.
type ReadError struct{ Err error }

// Error implements error.
func (e *ReadError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *ReadError) Unwrap() error { return e.Err }

// unread wraps the error of a read in a ReadError, unless the error is about the request itself.
func unread(err error) error {
	if _, known := errors.AsType[*ReadError](err); known || err == nil {
		return err
	}
	for _, answer := range []error{errEnough, ErrExpired, ErrTooMuch, ErrTrimmed, ErrFuture, ErrNoBranch} {
		if errors.Is(err, answer) {
			return err
		}
	}
	return &ReadError{err}
}
