// Package subscribe is for programs that act on changes of a Logplane cell. It delivers every change of one resource
// once and in order, and can continue from a revision after any time away. It is a module of its own that requires only
// the NATS client and client-go.
//
// Nouns. An Event is one change of one object. Its Revision is the object's resourceVersion, which is also the number
// of the event's message in the cell's log. From is a position between events from which a run can continue. An
// announcement is a message that NATS republished: it has an event's headers, and says that there is a change to read.
// A pass is one short watch.
//
// The path of an event:
//
//  1. Run subscribes on NATS first, so that from then on announcements wake Run.
//  2. Run asks the API, with the subscriber's own credentials, for a revision that is certainly recent. Run reads
//     passes after From until it has reached that revision. In this way Run catches up, even over changes that the log
//     no longer holds.
//  3. Run gives each change of a pass to the handler, and moves From. A pass ends with a bookmark, which proves that
//     there are no other changes up to the bookmark's revision.
//  4. Once From is past every announced revision, Run waits. It holds no connection to the API and needs none.
//  5. An announcement wakes Run, and Run continues with step 3.
//
// NATS decides only when the API is read, never which changes are delivered. So NATS can neither lose nor repeat an
// event:
//
//   - While the connection to NATS is down, one pass follows the other. When the connection is back, Run repeats step
//     2.
//   - A change may be stored but never announced, because core NATS delivers at most once: a server died in between, or
//     a route between servers broke. Run delivers such a change in its place in the order, after the next announcement
//     or at the next check. A check repeats step 2; Config.Check is the time between checks.
//   - If the cell no longer keeps the revision from which to continue, Run returns ErrExpired.
package subscribe
