// Package kubestore implements upstream's storage.Interface over views and the log.
//
// Nouns. A Cell holds everything that all stores of a process share. A Resource describes the objects of one store. A
// path is upstream's storage key ('/services/specs/ns/name'). A row key is the cluster and the path, and a row is a
// view's version of the object under a row key. A Request holds the facts that a context has about its request, such as
// the newest View that the request has used. A Claim is an object that only one owner can hold. The Feed follows the
// log once for all watches of a process (package fanout).
//
// A read chooses its view by its resourceVersion: the request's view, any view, a view not older than a revision, or a
// view that has an exact revision. Everything that the read returns is true at one revision of that view.
//
// A write takes these steps:
//
//  1. The object is encoded by the resource's codec, without its resourceVersion, and transformed.
//  2. The key's last row is read from the request's view (projection.State). The revision of the live row is the base.
//     The revision of the last event, which may be a deletion, is the precondition if the log still holds that event,
//     else 0.
//  3. The update function runs on the decoded row: preconditions, validation, admission.
//  4. If the function changed nothing, nothing is appended, and the stored revision is the answer.
//  5. The object and its claims are appended in one batch (Cell.Append). The acknowledged revision is the answer.
//  6. After a conflict the store reads a view that is newer than the conflict, and continues with step 2.
//
// A watch reads the state or the past from the projection and then joins the feed at a revision. Events up to that
// revision come from Projection.Events, later events from the feed. So the watch misses nothing and repeats nothing. A
// watch that cannot keep up leaves the feed, joins again and reads the missed events.
package kubestore
