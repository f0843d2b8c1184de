// Package lifecycle finishes what an API request only begins. The events of the log say when there is something to do.
//
// Nouns. A task is one thing that an event may ask for: emptying a terminating namespace, deleting the instances of a
// terminating CustomResourceDefinition, aggregating ClusterRoles, deleting strays, looking at an object that may be
// garbage, recounting a quota, releasing a volume, ending a Job or a bootstrap token, deleting the tokens of a service
// account, registering the versions of custom resources as APIServices, checking remote ones. A task looks at the state
// and never at the event. So it may run at any time, twice, or in several processes at once. A namespace or a
// definition settles: for a while after it began to terminate, creates that saw it alive may still land. A stray is an
// object that landed even later, when its namespace was gone.
//
// An event's path through the package:
//
//  1. Run reads the state once, to find the tasks of events that came while no lifecycle ran, and then follows the log.
//  2. Each event names tasks (task.go), for example because a namespace has changed or an object in one is gone.
//  3. A task waits in a queue (queue.go). Tasks that look at garbage have a queue of their own, because one tenant
//     could hold up all others. So do tasks that must ask remote servers (remote.go), because one server could do the
//     same. In each queue, namespaces take turns.
//  4. The task runs against the API in the same process, with upstream's semantics: finalizers, preconditions, grace
//     periods, status conditions (namespace.go, definition.go, role.go, apiservice.go, stray.go, garbage.go, quota.go,
//     volumes.go, ttl.go, account.go).
//  5. A task that cannot be finished yet waits for the event that changes that, such as the removal of a finalizer. A
//     slow timer with jitter covers only changes that no event announces. No wait is longer than a day.
//  6. Objects that outlive their TTL are deleted, by the log's time (expiry.go).
//
// A crash at any point costs only repeated work, because the next process begins with step 1. Once (once.go) takes the
// same path for a single call: it begins with the state, and ends when no event asks for more.
package lifecycle
