// Package functions is the stateless form of the API server: any number of instances serve every request except live
// watches, and run nothing between two requests.
//
//	clients ──▶ function ──┬─ reads, writes, watches of the past ──▶ internal/apiserver ──▶ log, bucket
//	               │       └─ live watches ──▶ 307 to the watcher's URL, or 405 without one
//	               └─ nothing is kept: no feed, no goroutine, no state that another request needs
//
// Its neighbours: package lambda runs a function on AWS Lambda, package lifecycle finishes what requests begin, and
// package watcher, at the other end of the redirect, serves the live watches. Packages functions and watcher do not
// import each other: each gives internal/apiserver the few parts in which the two differ.
package functions
