// Package eventlog is the log: one NATS JetStream stream, the only source of truth of a cell.
//
// Nouns. A Key names one object and is its subject in the stream. An Event is one message: an object was added,
// modified or deleted. A Revision is the message's stream sequence. The head is the last revision; first is the oldest
// revision that the log still holds. A barrier is a no-op event that proves a head.
//
// A write's path through the package:
//
//  1. Append encodes each Write as headers and body, and publishes it with its precondition on the key's own subject.
//     Several writes are one atomic batch.
//  2. The acknowledged sequence is the Revision. A broken precondition is ErrConflict. If no answer comes, or the
//     answer does not decide the outcome, Append publishes the same messages again. It stops when one copy is
//     acknowledged, or when no copy can enter the log any more (resolve.go). Past the deadline the outcome is
//     ErrUnknown.
//  3. Head learns a revision at least as new as every write that was acknowledged before the call.
//  4. Tail reads the events between two revisions, complete and in order, or returns ErrPurged.
//  5. Follow streams every event after a revision, for long-running readers.
//  6. Purge removes events that a committed root covers.
package eventlog
