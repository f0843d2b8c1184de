// Package lifecycle finishes work that an API request only begins, such as a deletion. The log's events say when there
// is work. One process does the work of all clusters of a cell.
//
// Nouns. A task is one piece of work that an event may ask for; task.go lists the kinds. A task looks at the state and
// never at the event. So a task may run at any time, twice, or in several processes at once. A create that still saw a
// namespace or a definition alive may be appended for a while after the termination began (clock.go). A leftover is an
// object that was appended even later, when its namespace was gone. A life is what the process keeps of one cluster
// that has work (lives.go); a quiet cluster has no life.
//
// An event's path through the package:
//
//  1. Run reads main's state once, to find the tasks of events that came while no lifecycle ran, and then follows the
//     log. Meanwhile it reads the states of the other clusters, one after the other. It reads a branch's state when the
//     branch begins.
//  2. Each event names tasks (task.go), for example because a namespace has changed or an object in a namespace is
//     gone.
//  3. A task waits in a queue (queue.go). Tasks that look at garbage have a queue of their own, because the garbage of
//     one tenant could hold up all other tasks. Tasks that must ask remote servers (remote.go) also have a queue of
//     their own, because one slow server could hold up all other tasks. In each queue, clusters take turns, and so do
//     the namespaces of a cluster.
//  4. The task runs against the API in the same process, with upstream's semantics: finalizers, preconditions, grace
//     periods, status conditions.
//  5. A task that cannot be finished yet waits for an event that lets the task finish, such as the removal of a
//     finalizer. A slow timer with jitter covers only changes that no event announces. No wait is longer than a day.
//  6. Objects that outlive their TTL are deleted, by the log's time (expiry.go).
//
// A crash at any point costs only repeated work, because the next process begins with step 1. Once (once.go) takes the
// same path for a single call, and for one cluster after the other: Once begins with a cluster's state, and ends when
// no event asks for more work.
package lifecycle
