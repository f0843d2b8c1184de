// Package kubestore is k8s.io/apiserver's storage.Interface, natively over a View and the Log.
//
// Nouns. A Cell is what all stores of a process share; a Resource describes the objects of one store.
// A path is upstream's storage key ('/services/specs/ns/name'), a row key is the cluster and the path.
// The request's view is the View that a request was given with WithView. A Claim is an object that only
// one owner can hold. The Feed follows the log once per process, for every watch.
//
// A read takes the view that its resourceVersion asks for (the request's, any, not older than, exact),
// and everything it returns is true at one revision of that view.
//
// A write's path through the package:
//
//  1. The object is encoded by the resource's codec, without resourceVersion, and transformed.
//  2. The key's last row is read from the request's view: its revision, if live, is the base; its
//     revision, tombstones included, is the precondition if it is still in the log, else 0.
//  3. The update function (preconditions, validation, admission) runs on the decoded row.
//  4. Nothing changed: nothing is appended, and the stored revision is the answer.
//  5. The object and its claims are appended in one batch. The acknowledged revision is the answer.
//  6. Conflict: a view newer than the conflict is read and everything from 2 on is done again.
//
// A watch reads the state or the past from the projection, then joins the feed at a known revision:
// what is at or below it comes from Projection.Events, what is above it from the feed, so that nothing is
// missed or repeated. A watch that cannot keep up leaves the feed and reads the past again.
package kubestore
