// Package subscribe is for programs that act on changes of a Logplane cell: it brings every change of one resource
// once and in order, and goes on from a revision after any time away. It is a module of its own, which requires nothing
// but NATS' client and client-go.
//
// Nouns. An Event is one change of one object. Its Revision is the object's resourceVersion, and the number of its
// message in the cell's log. From is a place between events to go on from. An announcement is a message that NATS
// republished: it has an event's headers, and says that there is something to read. A pass is one short watch.
//
// The path of an event:
//
//  1. Run subscribes on NATS first, so that from then on announcements wake it.
//  2. It asks the API, under the subscriber's own credentials, for a revision that is certainly recent, and reads
//     passes after From until it has reached that revision: this is the catching up, over what the log has
//     forgotten too.
//  3. Each change that a pass brings goes to the handler, and From moves on. A pass ends with a bookmark: proof
//     that there is nothing else up to it.
//  4. Once From is past everything announced, no connection to the API is held and none is needed: Run waits.
//  5. An announcement wakes it, and it goes on with 3.
//
// NATS decides only when the API is read, never what is delivered. Nothing can be lost or repeated by it:
//
//   - While the connection to NATS is down one pass follows the other; when it is back, 2 is done again.
//   - What was stored but never announced (a server died in between, a route between servers broke: core NATS
//     delivers at most once) comes, in its place in the order, with the next announcement; or at the next check,
//     which does 2 again every Config.Check.
//   - A revision that the cell has forgotten is ErrExpired.
package subscribe
