// Command nats prints changes of the ConfigMaps of a namespace, using only nats.go. It sees changes only while it is
// connected; examples/resume misses no changes.
package main

import (
	"fmt"
	"log"
	"os"
	"os/signal"

	"github.com/nats-io/nats.go"
)

func main() {
	conn, err := nats.Connect(os.Getenv("NATS_URL"))
	if err != nil {
		log.Fatal(err)
	}
	_, err = conn.Subscribe("logplane.events.main.%core.configmaps.tour.*", func(m *nats.Msg) {
		fmt.Println(m.Header.Get("ce-type"), m.Header.Get("ce-subject"), "revision", m.Header.Get("Nats-Sequence"))
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := conn.Flush(); err != nil { // now the server has the subscription
		log.Fatal(err)
	}
	fmt.Println("listening")
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt)
	<-interrupted
	conn.Close()
}
