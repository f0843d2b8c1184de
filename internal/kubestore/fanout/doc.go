// Package fanout brings each event of the log to the watches that it concerns. One Feed follows the projection for all
// watches of a process. Work whose result is the same for many watches is done once.
//
// An event passes through these types, in this order:
//
//	the log
//	   │ Feed.Run follows the projection, which reads the log.
//	   ▼
//	Event           One event, and whether it is void. It is kept in the Window,
//	   │            the newest part of the past, for watches that come back.
//	   │ The Feed looks up the subscriptions of the event's key: its audience.
//	   ▼
//	Delivery        The event on its way to all of its audience. It is freed when the last
//	   │            subscription has taken it. A Delivery without an event is a bookmark.
//	   │ It waits in the queue of each Subscription. The Feed never waits for a queue. If
//	   │ many watches get it, each idle watch takes it at once (Offer).
//	   ▼
//	change          The delivery as one Store sees it: the objects before and after the event.
//	   │            Each object is decoded, and its labels and fields are read, only once.
//	   │            If many watches get the object, it is also encoded only once.
//	   │ Delivery.For compares both objects with the selection of one watch.
//	   ▼
//	watch.Event     The message for the client. The watch puts it into its own channel.
//
// A Subscription covers one key, or all keys with a prefix. If the subscription selects one value of a field, an Index
// leaves out the events of objects that neither have the value nor had it.
//
// A watch joins the Feed and gets the Window as of that moment. It reads older events from the projection, then takes
// the events that it needs from the Window, then from its queue. So it misses nothing and gets nothing twice. When a
// queue is full, its subscription leaves the Feed. The watch then joins again and reads the missed events.
package fanout
