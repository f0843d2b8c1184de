// Command cloudevents reads changes of a namespace's ConfigMaps with the CloudEvents SDK, and prints each change.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/signal"

	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/nats-io/nats.go"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	conn, err := nats.Connect(os.Getenv("NATS_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	for _, subject := range []string{"logplane.events.main.%core.configmaps.tour.*", "logplane.bodies.main.%core.configmaps.tour.*"} {
		if _, err := conn.Subscribe(subject, func(m *nats.Msg) { show(ctx, m) }); err != nil {
			log.Fatal(err)
		}
	}
	if err := conn.Flush(); err != nil { // now the server has the subscriptions
		log.Fatal(err)
	}
	fmt.Println("listening")
	<-ctx.Done()
}

func show(ctx context.Context, m *nats.Msg) {
	e, err := toEvent(ctx, m)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(e.Type(), e.Source(), e.Subject(), e.DataContentType(), len(e.Data()), "bytes")
}

// toEvent reads CloudEvents' binary mode. On NATS it has the same headers as on HTTP, except for their case.
func toEvent(ctx context.Context, m *nats.Msg) (*event.Event, error) {
	headers := http.Header{}
	for name, values := range m.Header {
		headers[http.CanonicalHeaderKey(name)] = values
	}
	e, err := binding.ToEvent(ctx, cehttp.NewMessage(headers, io.NopCloser(bytes.NewReader(m.Data))))
	if err != nil {
		return nil, err
	}
	return e, e.Validate()
}
