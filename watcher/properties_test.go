package watcher_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/bucket/memory"
	"github.com/logplane/logplane/watcher"
)

// runs is how many seeded histories TestWatchProperties makes. LOGPLANE_WATCH_RUNS asks for more, and
// LOGPLANE_WATCH_SEED for a first seed other than 0.
const runs = 8

// TestWatchProperties records the events of random writes that clients get through selectors. Meanwhile watchers are
// killed and drained, lose their connection to the log, and the past is committed, purged and forgotten. Then it
// compares the records with the log, property by property.
func TestWatchProperties(t *testing.T) {
	t.Parallel()
	n, first := runs, 0
	if testing.Short() {
		n = 1
	}
	if more, err := strconv.Atoi(os.Getenv("LOGPLANE_WATCH_RUNS")); err == nil {
		n = more
	}
	if seed, err := strconv.Atoi(os.Getenv("LOGPLANE_WATCH_SEED")); err == nil {
		first = seed
	}
	server := eventlogtest.Run(t, t.TempDir())
	total := tally{}
	for seed := first; seed < first+n; seed++ {
		t.Run(strconv.Itoa(seed), func(t *testing.T) { total.add(newWorld(t, server, uint64(seed)).run()) })
	}
	t.Logf("histories from seed %d: %v", first, total)
	if total[histories] >= runs {
		for _, what := range []string{events, selected, bookmarks, resumed, kills, drains, reconnects, commits, purges} {
			require.NotZero(t, total[what], "it was tested through %s", what)
		}
	}
}

// tally counts the kinds of occurrences in a history, to show that the test has each kind.
type tally map[string]int

const (
	histories  = "histories"
	events     = "events"
	selected   = "events of selectors" // from objects that began or ceased to match
	bookmarks  = "bookmarks"
	resumed    = "watches resumed"
	expired    = "410s"
	kills      = "kills"
	drains     = "drains"
	reconnects = "NATS reconnects"
	commits    = "commits"
	purges     = "purges" // of the log, where the floor moves too
)

func (a tally) add(b tally) {
	for what, n := range b {
		a[what] += n
	}
}

// seen is the part of an object that selectors look at.
type seen struct{ key, color string }

// happened is one event of the log. The log has the truth.
type happened struct {
	seen
	revision eventlog.Revision
	deleted  bool
}

// world is one seeded history.
type world struct {
	t      *testing.T
	random *rand.Rand
	writer *server
	slots  []*slot
	start  eventlog.Revision
	// live is the color of each existing object. written has the writer's changes, by the acknowledged revision.
	live    map[string]string
	written map[eventlog.Revision]seen
	removed []happened
	tally   tally
}

// slot is a place for one watcher process, which may be replaced at any moment. It has its own connection to the log.
type slot struct {
	cell cell
	conn *nats.Conn
	link *eventlogtest.Link

	mu  sync.Mutex
	now *server // by mu
}

func (s *slot) current() *server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

func (s *slot) replace(t *testing.T) {
	fresh := s.cell.serve(t, func(c *watcher.Config) { c.Spread = 10 * time.Millisecond })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = fresh
}

func newWorld(t *testing.T, server *natsserver.Server, seed uint64) *world {
	name := fmt.Sprintf("seed%d", seed)
	bucket := memory.Strict(t)
	config := eventlog.Config{Conn: eventlogtest.Connect(t, server), Stream: name, Prefix: name, InMemory: true}
	w := &world{
		t: t, random: rand.New(rand.NewPCG(seed, 4)), live: map[string]string{}, written: map[eventlog.Revision]seen{}, tally: tally{histories: 1},
		writer: cell{eventlogtest.Open(t, config), bucket, http1}.serve(t),
	}
	for _, namespace := range []string{"default", "other"} {
		w.writer.post("/api/v1/namespaces", fmt.Sprintf(`{"metadata":{"name":%q}}`, namespace))
	}
	w.start = revisionOf(w.writer.get(configMaps))
	for _, protocol := range []string{http1, http2} {
		conn, link := eventlogtest.ConnectThrough(t, server)
		config.Conn = conn
		s := &slot{cell: cell{eventlogtest.Open(t, config), bucket, protocol}, conn: conn, link: link}
		s.replace(t)
		w.slots = append(w.slots, s)
	}
	return w
}

func revisionOf(o object) eventlog.Revision {
	n, _ := strconv.ParseUint(o.revision(), 10, 64)
	return eventlog.Revision(n)
}

// run writes, with trouble in between, lets every client reach the end, and judges the clients' records.
func (w *world) run() tally {
	var clients []*client
	var watching sync.WaitGroup
	for i, view := range views {
		c := &client{view: view, slots: w.slots, writer: w.writer, random: rand.New(rand.NewPCG(w.random.Uint64(), 5)), position: w.start, streaming: i%2 == 1}
		clients = append(clients, c)
		watching.Go(c.run)
	}
	for range 80 {
		w.change()
		if w.random.IntN(4) == 0 {
			w.trouble()
		}
	}
	for _, s := range w.slots {
		s.link.Resume()
	}
	w.put("default/a", "red", true)
	w.put("default/z", "blue", true)
	watching.Wait()
	truth := w.removed
	for rev, s := range w.written {
		truth = append(truth, happened{seen: s, revision: rev})
	}
	slices.SortFunc(truth, func(a, b happened) int { return cmp.Compare(a.revision, b.revision) })
	floor := w.writer.projection.Current().Floor()
	for _, c := range clients {
		w.judge(c, truth, floor)
	}
	for _, s := range w.slots {
		w.tally[reconnects] += int(s.conn.Stats().Reconnects)
	}
	return w.tally
}

// change writes or deletes one random object.
func (w *world) change() {
	key := []string{"default/a", "default/b", "default/c", "other/a", "other/b"}[w.random.IntN(5)]
	_, exists := w.live[key]
	if exists && w.random.IntN(4) == 0 {
		w.writer.delete(pathOf(key))
		// Nobody else writes, so the head is the deletion.
		w.removed = append(w.removed, happened{seen{key: key}, revisionOf(w.writer.get(configMaps)), true})
		delete(w.live, key)
		return
	}
	w.put(key, []string{"red", "blue"}[w.random.IntN(2)], false)
}

func pathOf(key string) string {
	namespace, name := split(key)
	return "/api/v1/namespaces/" + namespace + "/configmaps/" + name
}

func split(key string) (namespace, name string) {
	return key[:len(key)-2], key[len(key)-1:]
}

func (w *world) put(key, color string, last bool) {
	namespace, name := split(key)
	body := fmt.Sprintf(`{"metadata":{"name":%q,"labels":{"color":%q}},"data":{"n":"%d","last":"%t"}}`, name, color, w.random.Uint64(), last)
	var o object
	_, exists := w.live[key]
	if exists {
		o = w.writer.patch(pathOf(key), body)
	} else {
		o = w.writer.post("/api/v1/namespaces/"+namespace+"/configmaps", body)
	}
	w.live[key] = color
	w.written[revisionOf(o)] = seen{key, color}
}

// trouble does one random thing that clients must not notice, except by a 410 below the floor.
func (w *world) trouble() {
	s := w.slots[w.random.IntN(len(w.slots))]
	switch w.random.IntN(6) {
	case 0:
		s.link.Cut()
	case 1:
		s.link.Resume()
	case 2: // a kill
		s.link.Resume()
		s.current().stop()
		s.replace(w.t)
		w.tally[kills]++
	case 3: // a rolling restart
		s.link.Resume()
		old := s.current()
		s.replace(w.t)
		old.watcher.Drain(w.t.Context())
		old.stop()
		w.tally[drains]++
	case 4:
		_, err := w.writer.projection.Commit(w.t.Context())
		require.NoError(w.t, err)
		w.tally[commits]++
	case 5:
		w.forget()
	}
}

// forget purges all but the newest events, and raises the floor to the same revision.
func (w *world) forget() {
	applied, err := w.writer.projection.Commit(w.t.Context())
	require.NoError(w.t, err)
	before := w.writer.projection.Current().Floor()
	floor := max(before, applied-min(applied, eventlog.Revision(w.random.IntN(40))))
	if floor <= before {
		return
	}
	first := w.first()
	require.NoError(w.t, w.writer.projection.Retain(w.t.Context(), floor, floor))
	require.Greater(w.t, w.first(), first)
	w.tally[purges]++
}

// first is the log's first revision.
func (w *world) first() eventlog.Revision {
	bounds, err := w.writer.cell.log.Head(w.t.Context())
	require.NoError(w.t, err)
	return bounds.First
}

// view is a collection that a client watches, with the selector of its objects.
type view struct {
	path    string
	matches func(seen) bool
	selects bool // whether a change can make an object begin or cease to match
}

func inDefault(s seen) bool { return s.key[:len(s.key)-2] == "default" }

var views = []view{
	{configMaps + "?", inDefault, false},
	{"/api/v1/configmaps?", func(seen) bool { return true }, false},
	{configMaps + "?labelSelector=color%3Dred&", func(s seen) bool { return inDefault(s) && s.color == "red" }, true},
	{"/api/v1/configmaps?labelSelector=color%21%3Dred&", func(s seen) bool { return s.color != "red" }, true},
	{configMaps + "?fieldSelector=metadata.name%3Da&", func(s seen) bool { return s.key == "default/a" }, false},
	{"/api/v1/configmaps?fieldSelector=metadata.namespace%3Ddefault&", inDefault, false},
}

// entry is one thing that a client received: an event, a bookmark, or the state ('STATE') as of a revision.
type entry struct {
	kind, key string
	revision  eventlog.Revision
	state     map[string]eventlog.Revision
}

// client behaves like client-go's reflector. It keeps its position, watches from there whatever happens, and lists
// again only when it is told that its revision has expired.
type client struct {
	view
	slots     []*slot
	writer    *server
	random    *rand.Rand
	streaming bool // whether the client begins with a streaming list instead of the world's start

	position eventlog.Revision
	ends     bool // whether the state that is being received contains the last object
	done     bool
	record   []entry
	resumed  int
	expired  []eventlog.Revision // positions answered with 410
	err      error
}

// deadline bounds a client that never reaches the end.
const deadline = 60 * time.Second

func (c *client) run() {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	if c.streaming {
		c.position = 0
	}
	for !c.done && c.err == nil {
		if ctx.Err() != nil {
			c.err = fmt.Errorf("the end was not seen; at %d", c.position)
			return
		}
		if c.watch(ctx, c.slots[c.random.IntN(len(c.slots))].current()) {
			c.list(ctx)
			continue
		}
		c.resumed++
		select { // so that a process that cannot be reached is not asked in a tight loop
		case <-time.After(time.Duration(c.random.IntN(10)) * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// watch reads from the position until the stream ends or is cut at random. It reports a 410.
func (c *client) watch(ctx context.Context, s *server) (expired bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	query := fmt.Sprintf("watch=1&allowWatchBookmarks=true&timeoutSeconds=%d", 3+c.random.IntN(5))
	initial := map[string]eventlog.Revision{}
	c.ends = false
	if c.position == 0 {
		query += "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
	} else {
		query, initial = fmt.Sprintf("%s&resourceVersion=%d", query, c.position), nil
	}
	request, err := http.NewRequestWithContext(ctx, "GET", s.url+c.path+query, nil)
	if err != nil {
		c.err = err
		return false
	}
	response, err := s.client.Do(request)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return response.StatusCode == http.StatusGone
	}
	events := json.NewDecoder(response.Body)
	for cut := 1 + c.random.IntN(30); cut > 0; cut-- {
		var e object
		if events.Decode(&e) != nil {
			return false
		}
		if e["type"] == "ERROR" {
			if fmt.Sprint(e.field("object.code")) == "410" {
				c.expired = append(c.expired, c.position)
				return true
			}
			return false
		}
		initial = c.receive(e, initial)
		if c.done {
			return false
		}
	}
	return false
}

// receive records an event. The initial events are the state, which is recorded as a whole once they end.
func (c *client) receive(e object, initial map[string]eventlog.Revision) map[string]eventlog.Revision {
	var o = object(e.field("object").(map[string]any))
	key := fmt.Sprintf("%v/%v", o.field("metadata.namespace"), o.field("metadata.name"))
	switch {
	case initial == nil && e["type"] == "BOOKMARK":
		c.record = append(c.record, entry{kind: "BOOKMARK", revision: revisionOf(o)})
	case initial == nil:
		c.record = append(c.record, entry{kind: fmt.Sprint(e["type"]), key: key, revision: revisionOf(o)})
		c.done = o.field("data.last") == "true" && e["type"] != "DELETED"
	case e["type"] == "BOOKMARK":
		c.record = append(c.record, entry{kind: "STATE", revision: revisionOf(o), state: initial})
		c.done = c.ends
	default:
		initial[key] = revisionOf(o)
		c.ends = c.ends || o.field("data.last") == "true"
		return initial
	}
	c.position = revisionOf(o)
	return nil
}

// list begins again with a list, as a client must after a 410.
func (c *client) list(ctx context.Context) {
	request, err := http.NewRequestWithContext(ctx, "GET", c.writer.url+c.path, nil)
	if err != nil {
		c.err = err
		return
	}
	response, err := c.writer.client.Do(request)
	if err != nil {
		c.err = err
		return
	}
	defer response.Body.Close()
	var list object
	c.err = json.NewDecoder(response.Body).Decode(&list)
	if c.err != nil {
		return
	}
	state := map[string]eventlog.Revision{}
	for _, item := range list["items"].([]any) {
		o := object(item.(map[string]any))
		state[fmt.Sprintf("%v/%v", o.field("metadata.namespace"), o.field("metadata.name"))] = revisionOf(o)
		c.done = c.done || o.field("data.last") == "true"
	}
	c.position = revisionOf(list)
	c.record = append(c.record, entry{kind: "STATE", revision: c.position, state: state})
}

// expected returns the events that a client must see in (after, upto], and the state with which the client starts.
func expected(truth []happened, v view, after, upto eventlog.Revision) (state map[string]eventlog.Revision, events []entry) {
	state = map[string]eventlog.Revision{}
	matching := map[string]bool{}
	for _, h := range truth {
		if h.revision > upto {
			break
		}
		was, is := matching[h.key], !h.deleted && v.matches(h.seen)
		matching[h.key] = is
		if h.revision <= after {
			delete(state, h.key)
			if is {
				state[h.key] = h.revision
			}
			continue
		}
		switch {
		case is && was:
			events = append(events, entry{kind: "MODIFIED", key: h.key, revision: h.revision})
		case is:
			events = append(events, entry{kind: "ADDED", key: h.key, revision: h.revision})
		case was:
			events = append(events, entry{kind: "DELETED", key: h.key, revision: h.revision})
		}
	}
	return state, events
}

// judge compares one client's record with the truth.
func (w *world) judge(c *client, truth []happened, floor eventlog.Revision) {
	require.NoError(w.t, c.err, c.path)
	w.tally[resumed] += c.resumed
	w.tally[expired] += len(c.expired)
	for _, position := range c.expired {
		require.Less(w.t, position, floor, "410 at or above the floor, %s", c.path)
	}
	start, last, got := w.start, w.start, []entry(nil)
	// compare requires that the events since the last state are reliable, atomic and filterable. The events are exactly
	// the matching changes, each with the type that the change has for this selector. No change before the last event
	// is left out.
	compare := func(upto eventlog.Revision, property string) {
		_, want := expected(truth, c.view, start, upto)
		require.Equal(w.t, want, got, "%s: %s, from %d to %d", property, c.path, start, upto)
	}
	for _, e := range c.record {
		switch e.kind {
		case "STATE":
			compare(last, "reliable")
			want, _ := expected(truth, c.view, e.revision, e.revision)
			require.Equal(w.t, want, e.state, "the state at %d is one cut: %s", e.revision, c.path)
			start, last, got = e.revision, e.revision, nil
		case "BOOKMARK":
			require.GreaterOrEqual(w.t, e.revision, last, "bookmarks never go back: %s", c.path)
			compare(e.revision, "bookmarkable")
			last = e.revision
			w.tally[bookmarks]++
		default:
			require.Greater(w.t, e.revision, last, "ordered and unique: %s", c.path)
			last, got = e.revision, append(got, entry{kind: e.kind, key: e.key, revision: e.revision})
			w.tally[events]++
			if c.selects && e.kind != "MODIFIED" {
				w.tally[selected]++
			}
		}
	}
	compare(last, "resumable")
}
