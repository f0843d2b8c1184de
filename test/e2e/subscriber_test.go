package e2e

import (
	"fmt"

	"github.com/nats-io/nats.go"
)

// subscribe is the README's subscriber with its lines sent to print; the test compares the two texts.
func subscribe(url string, print func(string)) (*nats.Conn, error) {
	var fmt = printer{print}
	conn, err := nats.Connect(url)
	if err != nil {
		return nil, err
	}
	_, err = conn.Subscribe("logplane.events.main.%core.configmaps.tour.*", func(m *nats.Msg) {
		fmt.Println(m.Header.Get("ce-type"), m.Header.Get("ce-subject"), "revision", m.Header.Get("Nats-Sequence"))
	})
	return conn, err
}

type printer struct{ print func(string) }

func (p printer) Println(words ...any) { p.print(fmt.Sprintln(words...)) }
