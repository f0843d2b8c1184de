package main

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

const (
	watched      = "watched" // the namespace of the watch steps
	sentLabel    = "sent"    // nanoseconds since 1970, when the request was sent
	writeCadence = 40 * time.Millisecond
	watchTimeout = time.Minute
)

// watch writes 25 objects a second while n watches, each on a connection of its own, look on. The lag is
// from the moment a create is sent until a watch has decoded its event; so a write is part of it.
func (l load) watch(n int) func(context.Context, string) (int, error) {
	return func(ctx context.Context, name string) (int, error) {
		ctx, cancel := context.WithTimeout(ctx, watchTimeout)
		defer cancel()
		writes := int(l.watching / writeCadence)
		lags := &lags{}
		watches, err := l.openWatches(ctx, n)
		if err != nil {
			return 0, err
		}
		group, ctx := errgroup.WithContext(ctx)
		for _, w := range watches {
			group.Go(func() error { defer w.Stop(); return lags.take(ctx, w, writes) })
		}
		group.Go(func() error { return l.write(ctx, fmt.Sprintf("watched-by-%d", n), writes) })
		if err := group.Wait(); err != nil {
			return 0, err
		}
		l.report(name+": p50", "ms", quantile(lags.values, 0.5))
		l.report(name+": p99", "ms", quantile(lags.values, 0.99))
		return writes, nil
	}
}

func (l load) openWatches(ctx context.Context, n int) ([]watch.Interface, error) {
	list, err := l.client.CoreV1().ConfigMaps(watched).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	watches := make([]watch.Interface, 0, n)
	for range n {
		client, err := l.system.connect(asProtobuf)
		if err != nil {
			return nil, err
		}
		w, err := client.CoreV1().ConfigMaps(watched).Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
		if err != nil {
			return nil, err
		}
		watches = append(watches, w)
	}
	return watches, nil
}

// write creates at a fixed cadence; a slow answer makes what follows it late, not fewer.
func (l load) write(ctx context.Context, prefix string, n int) error {
	ticker := time.NewTicker(writeCadence)
	defer ticker.Stop()
	for i := range n {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		if err := createStamped(ctx, l.client.CoreV1().ConfigMaps(watched), fmt.Sprintf("%s-%05d", prefix, i)); err != nil {
			return err
		}
	}
	return nil
}

func createStamped(ctx context.Context, maps corev1client.ConfigMapInterface, name string) error {
	object := configMap(name)
	object.Labels[sentLabel] = strconv.FormatInt(time.Now().UnixNano(), 10)
	_, err := maps.Create(ctx, object, metav1.CreateOptions{})
	return err
}

// lags are of all watches of a step.
type lags struct {
	mu     sync.Mutex
	values []float64 // milliseconds; guarded by mu
}

// take reads n events of one watch.
func (l *lags) take(ctx context.Context, w watch.Interface, n int) error {
	taken := make([]float64, 0, n)
	for len(taken) < n {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d events came: %w", len(taken), n, ctx.Err())
		case event, ok := <-w.ResultChan():
			if !ok {
				return fmt.Errorf("the watch ended after %d of %d events", len(taken), n)
			}
			lag, err := lagOf(event)
			if err != nil {
				return err
			}
			taken = append(taken, lag)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.values = append(l.values, taken...)
	return nil
}

func lagOf(event watch.Event) (float64, error) {
	now := time.Now().UnixNano()
	object, ok := event.Object.(metav1.Object)
	if !ok || event.Type != watch.Added {
		return 0, fmt.Errorf("a watch said %s: %v", event.Type, event.Object)
	}
	sent, err := strconv.ParseInt(object.GetLabels()[sentLabel], 10, 64)
	return float64(now-sent) / 1e6, err
}
