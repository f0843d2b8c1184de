package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const (
	watched      = "watched" // the namespace of the watch steps
	writeCadence = 40 * time.Millisecond
	watchTimeout = time.Minute
	asStream     = asProtobuf + ";stream=watch"
)

// viewer is one watch, on a connection of its own.
type viewer interface {
	// next waits for one more event and says when it came, and what holds its object's name.
	next() (came time.Time, held []byte, err error)
	stop()
}

// open starts a watch of the namespace from a revision.
type open func(ctx context.Context, s *system, revision string) (viewer, error)

// watch writes 25 objects a second while n watches look on. The lag is from the moment a create is sent until
// the event has come; so a write is part of it.
func (l load) watch(n int, open open) func(context.Context, string) (int, error) {
	return func(ctx context.Context, name string) (int, error) {
		ctx, cancel := context.WithTimeout(ctx, watchTimeout)
		defer cancel()
		viewers, err := l.openAll(ctx, n, open)
		if err != nil {
			return 0, err
		}
		prefix := fmt.Sprintf("seen-%d", time.Now().UnixNano()) // the steps share a namespace
		sent := make([]time.Time, l.watching/writeCadence)
		seen := make([]sequence, n)
		before, err := ownCPU()
		if err != nil {
			return 0, err
		}
		group, ctx := errgroup.WithContext(ctx)
		for i, v := range viewers {
			seen[i] = make(sequence, len(sent))
			group.Go(func() error { defer v.stop(); return seen[i].fill(v) })
		}
		group.Go(func() error { return l.write(ctx, prefix, sent) })
		if err := group.Wait(); err != nil {
			return 0, err
		}
		after, err := ownCPU()
		if err != nil {
			return 0, err
		}
		l.report(name+": client CPU", "ms", milliseconds(after-before)/float64(len(sent)))
		return len(sent), l.reportLags(name, prefix, sent, seen)
	}
}

func (l load) openAll(ctx context.Context, n int, open open) ([]viewer, error) {
	list, err := l.client.CoreV1().ConfigMaps(watched).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return nil, err
	}
	viewers := make([]viewer, n)
	for i := range viewers {
		if viewers[i], err = open(ctx, l.system, list.ResourceVersion); err != nil {
			return nil, err
		}
	}
	return viewers, nil
}

// write creates at a fixed cadence and notes when; a slow answer makes what follows it late, not fewer. The
// bodies are encoded before, so that a create is sent as soon as it is said to be. Streams are read when the
// event should long have arrived, so that their reading takes no processor from who sends it.
func (l load) write(ctx context.Context, prefix string, sent []time.Time) error {
	bodies := make([][]byte, len(sent))
	for i := range bodies {
		object := configMap(nameOf(prefix, i))
		object.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}
		var err error
		if bodies[i], err = json.Marshal(object); err != nil {
			return err
		}
	}
	ticker := time.NewTicker(writeCadence)
	defer ticker.Stop()
	for i, body := range bodies {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		create := l.client.CoreV1().RESTClient().Post().Namespace(watched).Resource("configmaps").SetHeader("Content-Type", asJSON).Body(body)
		l.system.held.Lock()
		time.AfterFunc(writeCadence/2, l.system.held.Unlock)
		sent[i] = time.Now()
		if _, err := create.DoRaw(ctx); err != nil {
			return err
		}
	}
	return nil
}

func nameOf(prefix string, i int) string { return fmt.Sprintf("%s-%05d", prefix, i) }

// sequence is what one watch has seen. Its k-th event is of the k-th create, since they come in order; that it
// was is checked afterwards.
type sequence []struct {
	came time.Time
	held []byte
}

func (s sequence) fill(v viewer) (err error) {
	for i := range s {
		if s[i].came, s[i].held, err = v.next(); err != nil {
			return fmt.Errorf("%d of %d events came: %w", i, len(s), err)
		}
	}
	return nil
}

func (l load) reportLags(name, prefix string, sent []time.Time, seen []sequence) error {
	first := slices.Clone(seen[0])
	for _, s := range seen {
		for i, event := range s {
			if event.came.Before(first[i].came) {
				first[i] = event
			}
		}
	}
	var lags, behind []float64
	for _, s := range seen {
		for i, event := range s {
			if !bytes.Contains(event.held, []byte(nameOf(prefix, i))) {
				return fmt.Errorf("a watch's event %d is not of '%s'", i, nameOf(prefix, i))
			}
			lags = append(lags, milliseconds(event.came.Sub(sent[i])))
			behind = append(behind, milliseconds(event.came.Sub(first[i].came)))
		}
	}
	l.report(name+": p50", "ms", quantile(lags, 0.5))
	l.report(name+": p99", "ms", quantile(lags, 0.99))
	if len(seen) > 1 {
		l.report(name+": p50 behind the first", "ms", quantile(behind, 0.5))
		l.report(name+": p99 behind the first", "ms", quantile(behind, 0.99))
	}
	return nil
}

// stream is a watch that only tells events apart.
type stream struct {
	io.ReadCloser
	arrivals *arrivals
}

// openStream asks for the bytes of a protobuf watch. An event has come when its last byte has arrived.
func openStream(ctx context.Context, s *system, revision string) (viewer, error) {
	o := &stream{}
	config := rest.CopyConfig(s.config)
	config.QPS = -1
	config.Dial = func(ctx context.Context, network, address string) (_ net.Conn, err error) {
		o.arrivals, err = dialArrivals(ctx, network, address, &s.held)
		return o.arrivals, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	o.ReadCloser, err = client.CoreV1().RESTClient().Get().Namespace(watched).Resource("configmaps").
		SetHeader("Accept", asStream).Param("watch", "1").Param("resourceVersion", revision).Stream(ctx)
	return o, err
}

// next reads a frame: its length, then that many bytes.
func (s *stream) next() (time.Time, []byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(s, length[:]); err != nil {
		return time.Time{}, nil, err
	}
	frame := make([]byte, binary.BigEndian.Uint32(length[:]))
	if _, err := io.ReadFull(s, frame); err != nil {
		return time.Time{}, nil, err
	}
	return s.arrivals.at(), frame, nil
}

func (s *stream) stop() { _ = s.Close() }

// decoded is a watch by client-go.
type decoded struct{ watch.Interface }

// openDecoded watches as every client does. An event has come when it is decoded.
func openDecoded(ctx context.Context, s *system, revision string) (viewer, error) {
	client, err := s.connect(asProtobuf)
	if err != nil {
		return nil, err
	}
	w, err := client.CoreV1().ConfigMaps(watched).Watch(ctx, metav1.ListOptions{ResourceVersion: revision})
	return decoded{w}, err
}

func (d decoded) next() (time.Time, []byte, error) {
	event, ok := <-d.ResultChan()
	came := time.Now()
	if !ok {
		return came, nil, errors.New("the watch ended")
	}
	object, ok := event.Object.(*corev1.ConfigMap)
	if !ok || event.Type != watch.Added {
		return came, nil, fmt.Errorf("a watch said %s: %v", event.Type, event.Object)
	}
	return came, []byte(object.Name), nil
}

func (d decoded) stop() { d.Stop() }
