// Package lifecycle finishes what an API request only begins: event functions, driven by the log.
//
// Nouns. A task is one thing that an event may ask for: to empty a terminating namespace, to delete the
// instances of a terminating CustomResourceDefinition, to aggregate ClusterRoles. A task looks at the
// state, never at the event, so it may run at any time, twice, or on several processes at once.
//
// An event's path through the package:
//
//  1. Run reads the state once, so that a task whose event came while nobody listened is found, and then
//     follows the log. (Handle takes a single event from whoever delivers it.)
//  2. The event names tasks (task.go): a changed namespace, an object that is gone from one, …
//  3. The task runs against the API in process, with upstream's semantics: finalizers, preconditions,
//     grace periods, status conditions (namespace.go, definition.go, role.go).
//  4. What cannot be finished yet waits for the event that changes it, such as a finalizer's removal; a
//     slow timer with jitter is there only for what no event announces.
//  5. Whatever outlives its TTL is deleted by the log's time (expiry.go).
//
// A crash at any point costs a repetition: step 1 of the next process begins where this one stopped.
package lifecycle
