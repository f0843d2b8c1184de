package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/logplane/logplane/test/bench/kubernetes/side"
)

const (
	watched      = "watched" // the namespace of the watch steps
	watchTimeout = time.Minute
	// writesInFlight bounds the creates that wait for their answers: a side that cannot keep up gets fewer creates a
	// second.
	writesInFlight = 8
)

// viewer is one watch, on a connection of its own.
type viewer interface {
	// collect receives the bytes that wait in the socket, without decoding. It is called while objects are written.
	collect(scratch []byte) error
	// next waits for the next event. It returns the time when the event came, and bytes that contain the name of the
	// event's object.
	next() (came time.Time, held []byte, err error)
	stop()
}

// open starts a watch of the namespace from a revision.
type open func(ctx context.Context, s *side.System, revision string) (viewer, error)

// watch creates perSecond objects a second, while n watches run. The lag is from the moment when a create is sent until
// its event has come, so the lag includes the write. Events are decrypted and examined after the last create.
func (l load) watch(n, perSecond int, open open) func(context.Context, string) error {
	return func(ctx context.Context, name string) error {
		ctx, cancel := context.WithTimeout(ctx, watchTimeout)
		defer cancel()
		viewers, err := l.openAll(ctx, n, open)
		if err != nil {
			return err
		}
		cadence := time.Second / time.Duration(perSecond)
		// the steps share a namespace
		w := &writes{prefix: fmt.Sprintf("seen-%d-", time.Now().UnixNano()), sent: make([]time.Time, l.watching/cadence)}
		if err := w.encode(); err != nil {
			return err
		}
		if err := l.counted(name, len(w.sent), func() error { return l.write(ctx, w, cadence, viewers) }); err != nil {
			return err
		}
		l.report(name+": between two creates", "ms", milliseconds(w.took)/float64(len(w.sent)))
		return l.reportLags(name, w, viewers)
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

// writes are the creates of one step.
type writes struct {
	prefix string // of the objects' names; a number follows
	bodies [][]byte
	sent   []time.Time
	took   time.Duration
}

const digits = 5

// encode makes all bodies before the first create, so that each create is sent at the time that write notes for it.
func (w *writes) encode() (err error) {
	w.bodies = make([][]byte, len(w.sent))
	for i := range w.bodies {
		object := configMap(fmt.Sprintf("%s%0*d", w.prefix, digits, i))
		object.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}
		if w.bodies[i], err = json.Marshal(object); err != nil {
			return err
		}
	}
	return nil
}

// number returns the number of the create whose object's name is in the bytes.
func (w *writes) number(held []byte) (int, error) {
	_, rest, found := bytes.Cut(held, []byte(w.prefix))
	if !found || len(rest) < digits {
		return 0, fmt.Errorf("an event is of none of '%s...'", w.prefix)
	}
	i, err := strconv.Atoi(string(rest[:digits]))
	if err == nil && i >= len(w.sent) {
		err = fmt.Errorf("an event is of '%s%d', which was not sent", w.prefix, i)
	}
	return i, err
}

// write creates at a fixed cadence, and notes when each create was sent. A create does not wait for the answer to the
// create before. Events are collected twice before the next create. The first collection is half-way between two
// creates: most events have arrived by then, so the collection takes little processor time from the senders. The second
// collection is shortly before the next create, so that the late events of one create are not collected together with
// the events of the next.
func (l load) write(ctx context.Context, w *writes, cadence time.Duration, viewers []viewer) error {
	creates, ctx := errgroup.WithContext(ctx)
	creates.SetLimit(writesInFlight)
	scratch := make([]byte, 64<<10)
	ticker := time.NewTicker(cadence)
	defer ticker.Stop()
	begun := time.Now()
	for i, body := range w.bodies {
		var tick time.Time
		select {
		case <-ctx.Done():
			return creates.Wait()
		case tick = <-ticker.C:
		}
		creates.Go(func() error {
			create := l.client.CoreV1().RESTClient().Post().Namespace(watched).Resource("configmaps").SetHeader("Content-Type", asJSON).Body(body)
			w.sent[i] = time.Now()
			_, err := create.DoRaw(ctx)
			return err
		})
		for _, moment := range []time.Time{tick.Add(cadence / 2), tick.Add(cadence * 9 / 10)} {
			time.Sleep(time.Until(moment))
			if err := collect(viewers, scratch); err != nil {
				return err
			}
		}
	}
	err := creates.Wait()
	w.took = time.Since(begun)
	return err
}

func collect(viewers []viewer, scratch []byte) error {
	for _, v := range viewers {
		if err := v.collect(scratch); err != nil {
			return err
		}
	}
	return nil
}

// sightings are the times at which one watch saw the creates.
type sightings struct {
	came []time.Time
	// joined counts the events that came together with a later event. Such an event gets the later event's time, which
	// is never earlier than its own time.
	joined int
}

func (w *writes) seenBy(v viewer) (s sightings, err error) {
	s.came = make([]time.Time, len(w.sent))
	var before time.Time
	for n := range s.came {
		came, held, err := v.next()
		if err != nil {
			return s, fmt.Errorf("%d of %d events came: %w", n, len(s.came), err)
		}
		i, err := w.number(held)
		if err != nil {
			return s, err
		}
		if !s.came[i].IsZero() {
			return s, fmt.Errorf("the event of '%s%d' came twice", w.prefix, i)
		}
		if came.Equal(before) {
			s.joined++
		}
		s.came[i], before = came, came
	}
	return s, nil
}

func (l load) reportLags(name string, w *writes, viewers []viewer) error {
	seen := make([]sightings, len(viewers))
	var reading errgroup.Group
	for i, v := range viewers {
		reading.Go(func() (err error) { defer v.stop(); seen[i], err = w.seenBy(v); return err })
	}
	if err := reading.Wait(); err != nil {
		return err
	}
	var lags, behind []float64
	joined := 0
	for i, sent := range w.sent {
		first := slices.MinFunc(seen, func(a, b sightings) int { return a.came[i].Compare(b.came[i]) }).came[i]
		for _, s := range seen {
			lags = append(lags, milliseconds(s.came[i].Sub(sent)))
			behind = append(behind, milliseconds(s.came[i].Sub(first)))
		}
	}
	for _, s := range seen {
		joined += s.joined
	}
	l.report(name+": p50", "ms", quantile(lags, 0.5))
	l.report(name+": p99", "ms", quantile(lags, 0.99))
	if len(seen) > 1 {
		l.report(name+": p50 behind the first", "ms", quantile(behind, 0.5))
		l.report(name+": p99 behind the first", "ms", quantile(behind, 0.99))
		l.report(name+": arrived with a later one", "%", 100*float64(joined)/float64(len(lags)))
	}
	return nil
}

// decoded is a watch by client-go, which reads and decodes events as they come.
type decoded struct {
	watch.Interface
	seen chan sighting
}

type sighting struct {
	event watch.Event
	came  time.Time
}

// openDecoded opens a watch in the way that every client does. The time of an event is the time when it is decoded.
func openDecoded(ctx context.Context, s *side.System, revision string) (viewer, error) {
	client, err := connect(s)
	if err != nil {
		return nil, err
	}
	w, err := client.CoreV1().ConfigMaps(watched).Watch(ctx, metav1.ListOptions{ResourceVersion: revision})
	if err != nil {
		return nil, err
	}
	d := decoded{w, make(chan sighting, 1<<10)} // more than one step writes
	go func() {
		defer close(d.seen)
		for event := range w.ResultChan() {
			d.seen <- sighting{event, time.Now()}
		}
	}()
	return d, nil
}

func (d decoded) collect([]byte) error { return nil }

func (d decoded) next() (time.Time, []byte, error) {
	s, ok := <-d.seen
	if !ok {
		return s.came, nil, errors.New("the watch ended")
	}
	object, ok := s.event.Object.(*corev1.ConfigMap)
	if !ok || s.event.Type != watch.Added {
		return s.came, nil, fmt.Errorf("a watch said %s: %v", s.event.Type, s.event.Object)
	}
	return s.came, []byte(object.Name), nil
}

func (d decoded) stop() { d.Stop() }
