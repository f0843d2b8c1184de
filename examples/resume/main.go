// Command resume prints every change of the ConfigMaps of a namespace once, across restarts: it stores its position in
// a file and continues from there.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"

	"github.com/nats-io/nats.go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/logplane/logplane/subscribe"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Getenv("NATS_URL"), os.Getenv("KUBECONFIG"), os.Getenv("POSITION")); !errors.Is(err, context.Canceled) {
		log.Fatal(err)
	}
}

func run(ctx context.Context, url, kubeconfig, position string) error {
	conn, err := nats.Connect(url, nats.MaxReconnects(-1))
	if err != nil {
		return err
	}
	defer conn.Close()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	from, err := os.ReadFile(position)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	err = subscribe.Run(ctx, subscribe.Config{
		Conn: conn, REST: config, Resource: corev1.SchemeGroupVersion.WithResource("configmaps"), Namespace: "tour",
		From: string(from), Bookmarks: true,
	}, func(ctx context.Context, e subscribe.Event) error {
		if e.Type != watch.Bookmark {
			configMap, err := subscribe.Decode[corev1.ConfigMap](e, scheme.Scheme)
			if err != nil {
				return err
			}
			fmt.Println(e.Type, configMap.Name, "revision", configMap.ResourceVersion, configMap.Data)
		}
		if e.From == "" { // the state is still coming
			return nil
		}
		return os.WriteFile(position, []byte(e.From), 0o600)
	})
	if errors.Is(err, subscribe.ErrExpired) { // the program was away for too long: the next run begins with the state
		return errors.Join(err, os.Remove(position))
	}
	return err
}
