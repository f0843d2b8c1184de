package logplanetest_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/logplane/logplane/logplanetest"
)

// ExampleRun starts one server for several tests. A single test calls Start, which also stops the server.
func ExampleRun() {
	klog.SetSlogLogger(slog.New(slog.NewTextHandler(io.Discard, nil)))
	ctx := context.Background()
	config, stop, err := logplanetest.Run(ctx)
	if err != nil {
		log.Fatal(err)
	}
	clients := kubernetes.NewForConfigOrDie(config)
	created, err := clients.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "greeting"}, Data: map[string]string{"text": "hello"},
	}, metav1.CreateOptions{})
	if err != nil {
		log.Fatal(err)
	}
	list, err := clients.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{
		ResourceVersion: created.ResourceVersion, ResourceVersionMatch: metav1.ResourceVersionMatchExact,
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, one := range list.Items {
		fmt.Println(one.Name, one.Data["text"], one.ResourceVersion == created.ResourceVersion)
	}
	if err := stop(); err != nil {
		log.Fatal(err)
	}
	// Output: greeting hello true
}
