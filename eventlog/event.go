package eventlog

import (
	"fmt"
	"time"
)

// Revision is a sequence of the log's stream; on the wire to clients, and only there, it is resourceVersion.
type Revision uint64

// Op says what an event did to its object.
type Op uint8

// A barrier changes nothing: it proves a head on a replicated log and every fold skips it.
const (
	Barrier Op = iota
	Added
	Modified
	Deleted
)

// Write is an event that is still to be appended.
type Write struct {
	Key Key
	Op  Op
	// Base is the live revision that the write replaces, 0 for Added (invariant 13).
	Base Revision
	// Precondition is what JetStream enforces: the revision of the key's last event, tombstones included, if it is
	// still in the log, else 0.
	Precondition Revision
	// ContentType of Body: 'application/vnd.kubernetes.protobuf' or 'application/cbor'.
	ContentType string
	// Body is the object in its storage version without resourceVersion; for Deleted, its last state.
	Body []byte
	// TTL is how long the object may live, in whole seconds, 0 for ever. Only the deletion event that the lifecycle
	// appends ends it; reads never filter by a clock.
	TTL    uint32
	Author Author
}

// Event is one message of the log.
type Event struct {
	Write
	// Revision is the event's place in the log.
	Revision Revision
	// Time is the log's timestamp of the event; no other clock decides anything (invariant 12).
	Time time.Time
	// RequestID is the id that its writer gave it (CloudEvents id).
	RequestID string
	// Epoch of the cell when it was written (invariant 9).
	Epoch uint64
	// Trace is W3C's traceparent of the request that wrote it, empty where nobody traced that (Traced). It may be
	// anything of that length: whoever may publish chooses it.
	Trace string
	// Outdates is set on a barrier whose writer has replaced the root by one that has less, although it has applied no
	// more. Who reads the barrier must read the root again before it goes on.
	Outdates bool
	// Before and Left are how many events of the same append come before this one and follow it.
	Before, Left uint32
}

// Position is a place in the log and what tells its event from any other that was ever there. A log that went back
// gives revisions again (invariant 9), so who resumes compares the event at the last position that it knows.
type Position struct {
	Revision  Revision
	RequestID string
	// Time is the event's log time, in nanoseconds since 1970.
	Time int64
}

// Position of the event.
func (e *Event) Position() Position { return Position{e.Revision, e.RequestID, e.Time.UnixNano()} }

// Compare is ErrDiverged unless the event that is now at the position's revision is the one that was there. Without a
// request id, only a revision is known, such as one that a user gave: then any event will do. What is now no event has
// none; another copy of it may have had one, and its time tells.
func (p Position) Compare(now Position) error {
	if now.RequestID == "" {
		now.RequestID = p.RequestID
	}
	if p.RequestID != "" && now != p {
		return fmt.Errorf("revision %d was request %q and is now request %q: %w", p.Revision, p.RequestID, now.RequestID, ErrDiverged)
	}
	return nil
}

// Batch is all events of one append, in order and contiguous. Only Follow makes it, so nobody who reads the log by
// batches ever holds half of one. A barrier is a batch of its own.
type Batch []Event

// Continues reports whether the event is of the same append as the one before it in the log.
func (e *Event) Continues(before *Event) bool { return before.Left > 0 && e.Left == before.Left-1 }

// Basis is what a write was computed from. Head and Epoch come from one view: the one that showed the write's base. A
// projection.View makes it; the linter keeps others from calling Append.
type Basis struct {
	// Head is the view's revision: the log held it, with all of its batch. No write has a precondition above it.
	Head Revision
	// Epoch is that of the view's root; the log writes it into the events (invariant 9).
	Epoch uint64
}
