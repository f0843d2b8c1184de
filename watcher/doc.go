// Package watcher is the long-running form of the API server. It serves all live watches from one reader of the log,
// and serves every other request as a function does.
//
//	log ──▶ Run: one reader ──▶ feed ──┬──▶ watch ──▶ client        Drain, when the process stops:
//	                                   ├──▶ watch ──▶ client          new watches ──▶ 503, not ready
//	                                   └──▶ watch ──▶ client          open ones end one after the other
//
// The package's neighbours: internal/kubestore joins each watch to the feed (package fanout) and reads the past for the
// watch. internal/apiserver/gate counts watches, lets few start at once, and cuts off slow clients: functions need gate
// too, for watches of the past and for streams to nodes. Package doorbell calls functions that have work. Package
// functions redirects live watches to this package; neither package imports the other.
package watcher
