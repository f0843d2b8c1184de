// Package history records the answers that clients of a cell get while the cell is disturbed, and checks these answers.
//
// A history has all operations of all clients with the times of their calls and answers. Clients create, update, patch,
// delete, get and list ServiceAccounts through any process. They use ServiceAccounts because the answer to the deletion
// of a ServiceAccount has the deletion's revision. At the end all keys are read through all processes. Then Check finds
// the violations in the history.
//
// The tests here kill, pause, cut off and fence processes. Four API processes, a projector and a sweeper (a projector
// that purges and collects within seconds) run on one nats-server or on three, each in a process of its own. Meanwhile,
// at random times, disturbers:
//
//  1. kill API processes and projectors and start them again, or pause them;
//  2. kill, pause and cut off nats-servers, and depose the log's leader;
//  3. fence the cell as docs/run/recover.md says, except that processes that are only paused continue afterwards.
package history

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/logplane/logplane/eventlog"
)

// RequestTimeout is the longest time that a client's request may take, at the client and at the server.
const RequestTimeout = 10 * time.Second

// namespaces is how long all clients use one namespace before they change to the next.
const namespaces = 12 * time.Second

// Target is where a process serves the API. The process may change at any moment.
type Target interface {
	// At returns the address and the name of the process; both are empty while no process serves.
	At() (address, process string)
}

// Workload is the state that all clients share.
type Workload struct {
	targets []Target
	// fault is called with each act that no process may do. fence is called with the message of each process that asks
	// for a fence.
	fault func(format string, args ...any)
	fence func(process, message string)

	Record     *Record
	Namespaces []string // names of namespaces, in the order in which they are used
	Cold       string   // a namespace that is used throughout the test, but seldom
	Period     time.Duration

	mu      sync.Mutex
	learned map[string][]uint64 // guarded by mu: by key, revisions from the answers to gets and writes, the newest last
	lists   map[string][]uint64 // guarded by mu: by namespace, revisions of lists
}

// KeysEach is how many keys of a namespace all clients use.
const KeysEach = 5

// NewWorkload returns a workload with enough namespaces for the duration. It calls fault with each act that no process
// may do. It calls fence with each process that reports the log as lost, and with that process's message. All clients
// may call both functions at once.
func NewWorkload(targets []Target, duration time.Duration, fault func(format string, args ...any), fence func(process, message string)) *Workload {
	w := &Workload{
		targets: targets, fault: fault, fence: fence, Record: &Record{Start: time.Now()}, Cold: "cold", Period: namespaces,
		learned: map[string][]uint64{}, lists: map[string][]uint64{},
	}
	for i := range int(duration/namespaces) + 1 {
		w.Namespaces = append(w.Namespaces, fmt.Sprintf("hot%d", i))
	}
	return w
}

// KeyOf returns the i-th of the KeysEach keys that all clients use in a namespace.
func KeyOf(namespace string, i int) string { return fmt.Sprintf("%s/k%d", namespace, i) }

// Client is one client. It has one request in flight at a time.
type Client struct {
	*Workload
	id     int
	fresh  int // the number of this client's keys to which no other client writes
	random *rand.Rand
	http   *http.Client
}

// NewClient returns a client. The client's number must be unique.
func NewClient(w *Workload, id int, random *rand.Rand) *Client {
	return &Client{Workload: w, id: id, random: random, http: &http.Client{
		Transport: &http.Transport{MaxIdleConnsPerHost: 1, DialContext: (&net.Dialer{Timeout: RequestTimeout}).DialContext},
	}}
}

// Run sends random requests until ctx ends. The last request is answered or times out.
func (c *Client) Run(ctx context.Context) {
	for ctx.Err() == nil {
		o := c.choose()
		if !c.ask(ctx, o) {
			break
		}
		// Without pauses, most answers of a history would be refusals by processes that are gone or were fenced.
		switch o.Outcome {
		case Refused:
			Wait(ctx, Between(c.random, 10*time.Millisecond, 100*time.Millisecond))
		case Unknown:
			Wait(ctx, Between(c.random, 100*time.Millisecond, time.Second))
		}
	}
	c.http.CloseIdleConnections()
}

// namespace returns the namespace that everybody uses at present, or the cold namespace, which is seldom used. No
// namespace is used for long, so the history of one key has few unknown outcomes.
func (c *Client) namespace() string {
	if c.random.IntN(12) == 0 {
		return c.Cold
	}
	return c.Namespaces[min(int(time.Since(c.Record.Start)/c.Period), len(c.Namespaces)-1)]
}

// choose makes a random request.
func (c *Client) choose() *Operation {
	namespace := c.namespace()
	o := &Operation{Key: KeyOf(namespace, c.random.IntN(KeysEach))}
	switch n := c.random.IntN(100); {
	case n < 6: // the key is new, so even a log that was wiped would take the write
		c.fresh++
		o.Kind, o.Key = Create, fmt.Sprintf("%s/f%d-%d", namespace, c.id, c.fresh)
	case n < 16:
		o.Kind = Create
	case n < 34:
		o.Kind, o.Base = Update, c.base(o.Key)
	case n < 45:
		o.Kind = Update
	case n < 53:
		o.Kind = Patch
	case n < 57:
		o.Kind, o.Base = Patch, c.base(o.Key)
	case n < 61:
		o.Kind = Remove
	case n < 65:
		o.Kind, o.Base = Remove, c.base(o.Key)
	case n < 88:
		o.Kind = Get
	case n < 97:
		o.Kind, o.Key = List, namespace
	default:
		o.Kind, o.Key = Exact, namespace
		o.Base = c.past(namespace)
		if o.Base == 0 {
			o.Kind = List
		}
	}
	return o
}

// base returns the newest known revision of the key, or seldom an older revision; 0 if no revision is known.
func (c *Client) base(key string) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.learned[key]
	if len(known) == 0 {
		return 0
	}
	return known[max(0, len(known)-1-max(0, c.random.IntN(12)-9))]
}

// past returns the revision of an earlier list.
func (c *Client) past(namespace string) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.lists[namespace]
	if len(known) == 0 {
		return 0
	}
	return known[max(0, len(known)-1-c.random.IntN(20))]
}

// learn lets all clients use the revisions in an answer.
func (c *Client) learn(o *Operation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case o.Outcome != Done:
	case o.Kind == List:
		c.lists[o.Key] = append(c.lists[o.Key], o.Revision)
	case o.Kind != Exact && o.Kind != Remove:
		c.learned[o.Key] = append(c.learned[o.Key], o.Revision)
	}
}

// ask sends the request to a random process, and records the request and its answer. It returns false if ctx ends
// before a process serves.
func (c *Client) ask(ctx context.Context, o *Operation) bool {
	for {
		s := c.targets[c.random.IntN(len(c.targets))]
		if address, _ := s.At(); address != "" {
			c.AskAt(ctx, o, s)
			return true
		}
		if !Wait(ctx, time.Millisecond) {
			return false
		}
	}
}

// AskAt sends the request to one process, which must serve, and records the request and its answer. The end of ctx does
// not end the request, because the outcome of the request would then be unknown: the request has its own deadline.
func (c *Client) AskAt(ctx context.Context, o *Operation, s Target) {
	address, process := s.At()
	o.ID, o.Client, o.Process = c.Record.id(), c.id, process
	if o.Writes() && o.Kind != Remove {
		o.Value = "v" + strconv.Itoa(o.ID)
	}
	timeout := Between(c.random, RequestTimeout/12, RequestTimeout)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout+Between(c.random, 0, time.Second))
	defer cancel()
	o.Call = c.Record.Now()
	c.send(ctx, o, address, timeout)
	o.Return = c.Record.Now()
	c.Record.add(o)
	c.learn(o)
}

func (c *Client) send(ctx context.Context, o *Operation, address string, timeout time.Duration) {
	switch o.Kind {
	case List, Exact:
		c.sendList(ctx, o, address, timeout)
	default:
		var answer object
		if c.exchange(ctx, o, requestFor(o, address, timeout), &answer) {
			o.Revision, o.Read = answer.revision(), answer.Metadata.Annotations["value"]
		}
	}
}

// sendList lists, half of the time in pages from different processes. Different revisions of pages are a fault.
func (c *Client) sendList(ctx context.Context, o *Operation, address string, timeout time.Duration) {
	query := url.Values{"timeout": {timeout.String()}}
	if c.random.IntN(2) == 0 {
		query.Set("limit", "2")
	}
	if o.Kind == Exact {
		query.Set("resourceVersion", strconv.FormatUint(o.Base, 10))
		query.Set("resourceVersionMatch", "Exact")
	}
	for {
		var page objects
		r := request{method: http.MethodGet, url: "http://" + address + path(o.Key+"/", query)}
		if !c.exchange(ctx, o, r, &page) {
			return
		}
		revision, _ := strconv.ParseUint(page.Metadata.ResourceVersion, 10, 64)
		if o.Revision != 0 && revision != o.Revision {
			c.fault("list %d: one page is of revision %d, the next of %d", o.ID, o.Revision, revision)
		}
		o.Revision = revision
		for _, i := range page.Items {
			if i.Metadata.Name == serversOwn {
				continue
			}
			o.Items = append(o.Items, Item{o.Key + "/" + i.Metadata.Name, i.Metadata.Annotations["value"], i.revision()})
		}
		if page.Metadata.Continue == "" {
			return
		}
		query = url.Values{"timeout": {timeout.String()}, "limit": {"2"}, "continue": {page.Metadata.Continue}}
		if next, _ := c.targets[c.random.IntN(len(c.targets))].At(); next != "" {
			address = next
		}
	}
}

// serversOwn is the ServiceAccount that the server makes in each namespace: no client has written it.
const serversOwn = "default"

// object has the fields of a ServiceAccount that these tests use. The answer to the deletion of a ServiceAccount is the
// object, with the deletion's revision.
type object struct {
	Metadata struct {
		Name            string            `json:"name,omitempty"`
		ResourceVersion string            `json:"resourceVersion,omitempty"`
		Annotations     map[string]string `json:"annotations,omitempty"`
	} `json:"metadata"`
}

func (o *object) revision() uint64 {
	revision, _ := strconv.ParseUint(o.Metadata.ResourceVersion, 10, 64)
	return revision
}

type objects struct {
	Metadata struct {
		ResourceVersion string `json:"resourceVersion"`
		Continue        string `json:"continue"`
	} `json:"metadata"`
	Items []object `json:"items"`
}

type status struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

type request struct {
	method, url, contentType string
	body                     any
}

// path returns the path of a namespace's collection, or of an object.
func path(key string, query url.Values) string {
	namespace, name, _ := strings.Cut(key, "/")
	p := "/api/v1/namespaces/" + namespace + "/serviceaccounts"
	if name != "" {
		p += "/" + name
	}
	return p + "?" + query.Encode()
}

func requestFor(o *Operation, address string, timeout time.Duration) request {
	r := request{contentType: "application/json"}
	namespace, name, _ := strings.Cut(o.Key, "/")
	key, query := o.Key, url.Values{"timeout": {timeout.String()}}
	metadata := map[string]any{"annotations": map[string]any{"value": o.Value}}
	base := strconv.FormatUint(o.Base, 10)
	if o.Base != 0 {
		metadata["resourceVersion"] = base
	}
	whole := map[string]any{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}
	switch o.Kind {
	case Create:
		metadata["name"] = name
		r.method, key, r.body = http.MethodPost, namespace+"/", whole
	case Update:
		metadata["name"] = name
		r.method, r.body = http.MethodPut, whole
	case Patch:
		r.method, r.contentType, r.body = http.MethodPatch, "application/merge-patch+json", map[string]any{"metadata": metadata}
	case Remove:
		options := map[string]any{"apiVersion": "v1", "kind": "DeleteOptions"}
		if o.Base != 0 {
			options["preconditions"] = map[string]any{"resourceVersion": base}
		}
		r.method, r.body = http.MethodDelete, options
	default:
		r.method, r.contentType = http.MethodGet, ""
	}
	r.url = "http://" + address + path(key, query)
	return r
}

// exchange sends one request, notes the outcome, and decodes a successful answer.
func (c *Client) exchange(ctx context.Context, o *Operation, r request, into any) bool {
	var body io.Reader
	if r.body != nil {
		encoded, err := json.Marshal(r.body)
		if err != nil {
			panic(err) // cannot fail: maps of strings
		}
		body = bytes.NewReader(encoded)
	}
	o.Outcome = Unknown
	sent, err := http.NewRequestWithContext(ctx, r.method, r.url, body)
	if err != nil {
		panic(err) // cannot fail: this program's own URL
	}
	sent.Header.Set("User-Agent", "history")
	if r.contentType != "" {
		sent.Header.Set("Content-Type", r.contentType)
	}
	answer, err := c.http.Do(sent)
	var text []byte
	if err == nil {
		o.Code = answer.StatusCode
		text, err = io.ReadAll(answer.Body)
		_ = answer.Body.Close()
	}
	if err == nil && o.Code < 300 {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		o.Message = err.Error()
		if nobodyThere(err) {
			o.Outcome = Refused
		}
		return false
	}
	if o.Code >= 300 {
		c.failed(o, text)
		return false
	}
	o.Outcome = Done
	return true
}

// nobodyThere says whether no connection was made, so that nothing was sent.
func nobodyThere(err error) bool {
	var dial *net.OpError
	return errors.As(err, &dial) && dial.Op == "dial"
}

// failed notes the outcome that follows from an answer other than success.
func (c *Client) failed(o *Operation, text []byte) {
	var s status
	_ = json.Unmarshal(text, &s)
	o.Message = s.Message
	switch {
	case o.Code == http.StatusConflict && s.Reason == "AlreadyExists":
		o.Outcome = Exists
	case o.Code == http.StatusConflict:
		o.Outcome = Conflict
	case o.Code == http.StatusNotFound:
		o.Outcome = Missing
	case o.Code == http.StatusTooManyRequests:
		o.Outcome = Refused
	case o.Code == http.StatusServiceUnavailable && (strings.Contains(s.Message, "nothing was written") || strings.Contains(s.Message, "reading the log failed")):
		o.Outcome = Refused // docs/guarantees.md, W7
	case o.Code == http.StatusGone && (o.Kind == List || o.Kind == Exact):
		o.Outcome = Refused
	case o.Code < 500:
		c.fault("unexpected answer %d to %s %s (operation %d): %s", o.Code, o.Kind, o.Key, o.ID, text)
	}
	if AsksForFence(s.Message) {
		c.fence(o.Process, s.Message)
	}
}

// AsksForFence says whether a message reports the log as lost.
func AsksForFence(message string) bool { return strings.Contains(message, "'logplane fence'") }

// MakeNamespaces creates the namespaces of all keys, and begins the record.
func (w *Workload) MakeNamespaces(ctx context.Context) error {
	c := NewClient(w, 0, rand.New(rand.NewPCG(0, 0)))
	defer c.http.CloseIdleConnections()
	address, _ := w.targets[0].At()
	for _, name := range append([]string{w.Cold}, w.Namespaces...) {
		o := &Operation{Kind: Create}
		made := c.exchange(ctx, o, request{
			method: http.MethodPost, url: "http://" + address + "/api/v1/namespaces", contentType: "application/json",
			body: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name}},
		}, &object{})
		if !made {
			return fmt.Errorf("create namespace %s: %d %s", name, o.Code, o.Message)
		}
	}
	w.Record.Start = time.Now()
	return nil
}

// ReadAll reads every key through every process, as part of the history. The disturbances must have ended: every read
// must be answered before ctx ends. The client's number must be unique.
func (w *Workload) ReadAll(ctx context.Context, client int, random *rand.Rand) error {
	c := NewClient(w, client, random)
	defer c.http.CloseIdleConnections()
	var reads []Operation
	for _, namespace := range append([]string{w.Cold}, w.Namespaces...) {
		reads = append(reads, Operation{Kind: List, Key: namespace})
		for i := range KeysEach {
			reads = append(reads, Operation{Kind: Get, Key: KeyOf(namespace, i)})
		}
	}
	for _, target := range w.targets {
		for _, read := range reads {
			for {
				o := read
				c.AskAt(ctx, &o, target)
				if o.Outcome == Done || o.Outcome == Missing {
					break
				}
				if ctx.Err() != nil {
					return fmt.Errorf("%s does not answer: %d %s", o.Process, o.Code, o.Message)
				}
			}
		}
	}
	return nil
}

// Wait waits for a duration. It returns false if ctx has ended.
func Wait(ctx context.Context, d time.Duration) bool { return eventlog.Pause(ctx, d) == nil }

// Between returns a random duration.
func Between(random *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(random.Int64N(int64(most-least)+1))
}
