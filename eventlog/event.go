package eventlog

import (
	"fmt"
	"time"
)

// Revision is a sequence number of the log's stream. Only clients see a revision as a resourceVersion.
type Revision uint64

// Op is the kind of change that an event made to its object.
type Op uint8

// A barrier changes nothing. It proves a head on a replicated log, and every fold skips it.
const (
	Barrier Op = iota
	Added
	Modified
	Deleted
)

// Write is an event that has not been appended yet.
type Write struct {
	Key Key
	Op  Op
	// Base is the live revision that the write replaces, 0 for Added (invariant 13).
	Base Revision
	// Precondition is the condition that JetStream enforces: the revision of the key's last event (tombstones
	// included), or 0 if the log no longer holds that event.
	Precondition Revision
	// Inherits is the revision of the version that the key inherits, in a cluster that is a branch; 0 if the key
	// inherits nothing. It is the same in all events of the key.
	Inherits Revision
	// ContentType of Body: 'application/vnd.kubernetes.protobuf' or 'application/cbor'.
	ContentType string
	// Body is the object in its storage version without resourceVersion; for Deleted, its last state.
	Body []byte
	// TTL is how long the object may live, in whole seconds; 0 means for ever. The object ends only with the deletion
	// event that the lifecycle appends: reads never filter by a clock.
	TTL    uint32
	Author Author
}

// Event is one message of the log.
type Event struct {
	Write
	// Revision is the event's sequence number in the log.
	Revision Revision
	// Time is the log's timestamp of the event; no other clock decides anything (invariant 12).
	Time time.Time
	// RequestID is the id that the writer gave the event (CloudEvents id).
	RequestID string
	// Epoch is the cell's epoch when the event was written (invariant 9).
	Epoch uint64
	// Trace is the W3C traceparent of the request that wrote the event. It is empty if nobody traced that request
	// (Traced). Anyone who may publish chooses its content, so only its length can be relied on.
	Trace string
	// Outdates is set on a barrier whose writer replaced the root by a root with less content and no higher applied
	// revision. A process that reads the barrier must read the root again before it continues.
	Outdates bool
	// Before and Left are how many events of the same append come before and after this event.
	Before, Left uint32
}

// Position is a revision, with the request id and the time that tell its event from any other event that ever had this
// revision. A log that went back gives out revisions a second time (invariant 9), so a reader that resumes compares the
// event at its last position.
type Position struct {
	Revision  Revision
	RequestID string
	// Time is the event's log time, in nanoseconds since 1970.
	Time int64
}

// Position returns the event's position.
func (e *Event) Position() Position { return Position{e.Revision, e.RequestID, e.Time.UnixNano()} }

// Compare returns ErrDiverged if the event that is now at the position's revision is not the event of the position. A
// position without a request id, such as a revision that a user gave, matches any event. If 'now' has no request id, it
// is the position of a message that is not an event. Another copy of that message may have had an id, so then only the
// times are compared.
func (p Position) Compare(now Position) error {
	if now.RequestID == "" {
		now.RequestID = p.RequestID
	}
	if p.RequestID != "" && now != p {
		return fmt.Errorf("revision %d was request %q and is now request %q: %w", p.Revision, p.RequestID, now.RequestID, ErrDiverged)
	}
	return nil
}

// Batch is all events of one append, in order and contiguous. Only Follow makes batches, so a reader that gets them
// never holds half of an append. A barrier is a batch of its own.
type Batch []Event

// Continues reports whether e belongs to the same append as the event before it in the log.
func (e *Event) Continues(before *Event) bool { return before.Left > 0 && e.Left == before.Left-1 }

// Basis identifies the view from which a write was computed. Head and Epoch come from the one view that showed the
// write's base. A projection.View makes the Basis; the linter keeps other code from calling Append.
type Basis struct {
	// Head is the view's revision. The log held that revision with all of its batch. No precondition is above Head.
	Head Revision
	// Epoch is the epoch of the view's root. Append writes it into the events (invariant 9).
	Epoch uint64
}
