package eventlog_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/embedded"
)

// open returns a new log on a server inside this process.
func open(ctx context.Context) (log *eventlog.Log, stop func()) {
	folder, err := os.MkdirTemp("", "log-")
	must(err)
	server, err := embedded.Start(embedded.Config{Folder: folder, Prefix: "logplane"})
	must(err)
	conn, err := server.Connect()
	must(err)
	config := eventlog.Config{Conn: conn}
	must(eventlog.Create(ctx, config))
	log, err = eventlog.Open(ctx, config)
	must(err)
	return log, func() {
		conn.Close()
		server.Stop()
		must(os.RemoveAll(folder))
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

var greeting = eventlog.Key{Cluster: "main", Resource: "configmaps", Prefix: "/configmaps", Namespace: "tour", Name: "greeting"}

// A write names the event from which it was computed. The log appends the write only if that event is still the last
// event of the write's key.
func ExampleLog_Append() {
	ctx := context.Background()
	log, stop := open(ctx)
	defer stop()

	start, err := log.Head(ctx)
	must(err)
	basis := eventlog.Basis{Head: start.Head}
	created, err := log.Append(ctx, basis, "request-1",
		eventlog.Write{Key: greeting, Op: eventlog.Added, ContentType: "application/json", Body: []byte(`{"text":"hello"}`)})
	fmt.Println("created at", created, err)

	update := eventlog.Write{Key: greeting, Op: eventlog.Modified, Base: created, Precondition: created,
		ContentType: "application/json", Body: []byte(`{"text":"hello again"}`)}
	updated, err := log.Append(ctx, basis, "request-2", update)
	fmt.Println("updated at", updated, err)

	_, err = log.Append(ctx, basis, "request-3", update)
	fmt.Println("conflict:", errors.Is(err, eventlog.ErrConflict))

	// Output:
	// created at 1 <nil>
	// updated at 2 <nil>
	// conflict: true
}

// Head says how far the log reaches. Tail reads the log up to there, in order and without a hole.
func ExampleLog_Tail() {
	ctx := context.Background()
	log, stop := open(ctx)
	defer stop()

	// One append of several writes is atomic: all events are in the log, or none.
	created := eventlog.Write{Key: greeting, Op: eventlog.Added, Body: []byte("hello")}
	other := created
	other.Key.Name = "farewell"
	_, err := log.Append(ctx, eventlog.Basis{}, "request-1", created, other)
	must(err)

	bounds, err := log.Head(ctx)
	must(err)
	err = log.Tail(ctx, 0, bounds.Head, func(e eventlog.Event) error {
		fmt.Println(e.Revision, e.RequestID, e.Key.RowKey(), string(e.Body))
		return nil
	})
	must(err)

	// Output:
	// 1 request-1 main/configmaps/tour/greeting hello
	// 2 request-1.1 main/configmaps/tour/farewell hello
}

// Follow also yields later events, an append at a time, until its function returns an error.
func ExampleLog_Follow() {
	ctx := context.Background()
	log, stop := open(ctx)
	defer stop()

	created, err := log.Append(ctx, eventlog.Basis{}, "request-1", eventlog.Write{Key: greeting, Op: eventlog.Added})
	must(err)
	_, err = log.Append(ctx, eventlog.Basis{Head: created}, "request-2",
		eventlog.Write{Key: greeting, Op: eventlog.Deleted, Base: created, Precondition: created})
	must(err)

	enough := errors.New("enough")
	err = log.Follow(ctx, eventlog.Position{}, func(batch eventlog.Batch) error {
		for _, e := range batch {
			fmt.Println(e.Revision, e.Key.Name, e.Op == eventlog.Deleted)
			if e.Op == eventlog.Deleted {
				return enough
			}
		}
		return nil
	})
	fmt.Println(err)

	// Output:
	// 1 greeting false
	// 2 greeting true
	// enough
}
