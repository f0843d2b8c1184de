package eventlog

import (
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
	// Precondition is what JetStream enforces: the revision of the key's last event, tombstones
	// included, if it is still in the log, else 0.
	Precondition Revision
	// ContentType of Body: 'application/vnd.kubernetes.protobuf' or 'application/cbor'.
	ContentType string
	// Body is the object in its storage version without resourceVersion; for Deleted, its last state.
	Body []byte
	// TTL is how long the object may live, in whole seconds, 0 for ever. Only the deletion event that
	// the lifecycle appends ends it; reads never filter by a clock.
	TTL uint32
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
}
