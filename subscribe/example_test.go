package subscribe_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/nats-io/nats.go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/logplane/logplane/subscribe"
)

// This program reacts to changes of the ConfigMaps of one namespace. When it is started again, it continues where it
// was.
func ExampleRun() {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		log.Fatal(err)
	}
	conn, err := nats.Connect(nats.DefaultURL, nats.MaxReconnects(-1))
	if err != nil {
		log.Fatal(err)
	}
	from, _ := os.ReadFile("from") // before the first run there is no file, and the run begins with the state
	err = subscribe.Run(context.Background(), subscribe.Config{
		Conn: conn, REST: config, Resource: corev1.SchemeGroupVersion.WithResource("configmaps"), Namespace: "tour",
		From: string(from), Bookmarks: true,
	}, func(_ context.Context, e subscribe.Event) error {
		fmt.Println(e.Type, e.Name, e.Revision)
		if e.From == "" { // in the middle of the state
			return nil
		}
		return os.WriteFile("from", []byte(e.From), 0o600)
	})
	log.Fatal(err)
}

// received is a message of a resource whose bodies are republished, as NATS delivers it.
func received() *nats.Msg {
	return &nats.Msg{
		Subject: "logplane.bodies.main.%core.configmaps.tour.greeting_v2",
		Header: nats.Header{
			"ce-type":            {"dev.logplane.object.modified"},
			"content-type":       {"application/json"},
			"Nats-Subject":       {"logplane.log.main.%core.configmaps.tour.greeting_v2"},
			"Nats-Sequence":      {"3"},
			"Nats-Stream-Source": {"logplane 42 logplane.log.> logplane.bodies.>"},
		},
		Data: []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"greeting.v2","namespace":"tour"},"data":{"text":"hello"}}`),
	}
}

func ExampleParse() {
	e, err := subscribe.Parse("logplane", received())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(e.Type, e.Namespace, e.Name, "revision", e.Revision)
	// Output: MODIFIED tour greeting.v2 revision 42
}

func ExampleDecode() {
	e, err := subscribe.Parse("logplane", received())
	if err != nil {
		log.Fatal(err)
	}
	configMap, err := subscribe.Decode[corev1.ConfigMap](e, scheme.Scheme)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(configMap.Name, configMap.ResourceVersion, configMap.Data["text"])
	// Output: greeting.v2 42 hello
}
