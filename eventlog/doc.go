// Package eventlog is the log: one NATS JetStream stream, the only source of truth of a cell.
//
// Nouns. A Key names one object and is its subject in the stream. An Event is one message: an object was added,
// modified or deleted. A Revision is the message's stream sequence. The head is the last revision, first is the first
// one still retained. A barrier is a no-op event that proves a head.
//
// A write's path through the package:
//
//  1. Append encodes each Write as headers and body, and publishes it with the precondition on the key's own subject
//     (one message, or an atomic batch).
//  2. The acknowledged sequence is the Revision. A broken precondition is ErrConflict. An outcome that the answer
//     leaves open, or that has no answer, is resolved: the same is published again until it is acknowledged or can
//     never land any more, and is then searched for. Past the deadline it is ErrUnknown.
//  3. Head learns a revision at least as new as every write acknowledged before the call.
//  4. Tail reads the events between two revisions, complete and in order, or says ErrPurged.
//  5. Follow streams every event after a revision, for long-running readers.
//  6. Purge removes what a committed root covers.
package eventlog
