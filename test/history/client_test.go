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
)

// requestTimeout is the longest that a request of a client may take, at the server too.
const requestTimeout = 10 * time.Second

// workload is what all clients share.
type workload struct {
	cell   *cell
	record *record
	keys   []string // namespaces' names, in time
	cold   string   // the namespace that is used all the time, and seldom
	period time.Duration

	mu      sync.Mutex
	learned map[string][]uint64 // mu: by key, revisions that gets and writes brought, the newest last
	lists   map[string][]uint64 // mu: by namespace, revisions of lists
}

// keysEach is how many keys a namespace has.
const keysEach = 5

func keyOf(namespace string, i int) string { return fmt.Sprintf("%s/k%d", namespace, i) }

// client is one client; it has one request in flight.
type client struct {
	*workload
	id     int
	fresh  int // how many keys nobody else writes to
	random *rand.Rand
	http   *http.Client
}

func newClient(w *workload, id int, random *rand.Rand) *client {
	return &client{workload: w, id: id, random: random, http: &http.Client{
		Transport: &http.Transport{MaxIdleConnsPerHost: 1, DialContext: (&net.Dialer{Timeout: requestTimeout}).DialContext},
	}}
}

// run sends random requests until ctx ends. The last one is answered or times out.
func (c *client) run(ctx context.Context) {
	for ctx.Err() == nil {
		o := c.choose()
		if !c.ask(ctx, o) {
			break
		}
		// Else most of a history would be the refusals of processes that are gone, and of those that were fenced.
		switch o.Outcome {
		case refused:
			wait(ctx, between(c.random, 10*time.Millisecond, 100*time.Millisecond))
		case unknown:
			wait(ctx, between(c.random, 100*time.Millisecond, time.Second))
		}
	}
	c.http.CloseIdleConnections()
}

// namespace is the one of the time, whose keys everybody uses, or the cold one. None
// lives for long, so that the history of one key has few outcomes that are unknown.
func (c *client) namespace() string {
	if c.random.IntN(12) == 0 {
		return c.cold
	}
	return c.keys[min(int(time.Since(c.record.start)/c.period), len(c.keys)-1)]
}

// choose makes a random request.
func (c *client) choose() *operation {
	namespace := c.namespace()
	o := &operation{Key: keyOf(namespace, c.random.IntN(keysEach))}
	switch n := c.random.IntN(100); {
	case n < 6: // a log that was wiped takes it from anybody
		c.fresh++
		o.Kind, o.Key = create, fmt.Sprintf("%s/f%d-%d", namespace, c.id, c.fresh)
	case n < 16:
		o.Kind = create
	case n < 34:
		o.Kind, o.Base = update, c.base(o.Key)
	case n < 45:
		o.Kind = update
	case n < 53:
		o.Kind = patch
	case n < 57:
		o.Kind, o.Base = patch, c.base(o.Key)
	case n < 61:
		o.Kind = remove
	case n < 65:
		o.Kind, o.Base = remove, c.base(o.Key)
	case n < 88:
		o.Kind = get
	case n < 97:
		o.Kind, o.Key = list, namespace
	default:
		o.Kind, o.Key = exact, namespace
		o.Base = c.past(namespace)
		if o.Base == 0 {
			o.Kind = list
		}
	}
	return o
}

// base is the newest revision that anybody knows of the key, seldom an older one; 0 if none is known.
func (c *client) base(key string) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.learned[key]
	if len(known) == 0 {
		return 0
	}
	return known[max(0, len(known)-1-max(0, c.random.IntN(12)-9))]
}

// past is a revision of an earlier list.
func (c *client) past(namespace string) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.lists[namespace]
	if len(known) == 0 {
		return 0
	}
	return known[max(0, len(known)-1-c.random.IntN(20))]
}

// learn lets all clients use what an answer brought.
func (c *client) learn(o *operation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case o.Outcome != done:
	case o.Kind == list:
		c.lists[o.Key] = append(c.lists[o.Key], o.Revision)
	case o.Kind != exact && o.Kind != remove:
		c.learned[o.Key] = append(c.learned[o.Key], o.Revision)
	}
}

// ask sends the request to a random process and records it with its answer. It is false if ctx ends before one serves.
func (c *client) ask(ctx context.Context, o *operation) bool {
	for {
		s := c.cell.slots[c.random.IntN(apis)]
		if address, _ := s.at(); address != "" {
			c.askAt(o, s)
			return true
		}
		if !wait(ctx, time.Millisecond) {
			return false
		}
	}
}

func (c *client) askAt(o *operation, s *slot) {
	address, process := s.at()
	o.ID, o.Client, o.Process = c.record.id(), c.id, process
	if o.writes() && o.Kind != remove {
		o.Value = "v" + strconv.Itoa(o.ID)
	}
	timeout := between(c.random, requestTimeout/12, requestTimeout)
	ctx, cancel := context.WithTimeout(c.cell.t.Context(), timeout+between(c.random, 0, time.Second))
	defer cancel()
	o.Call = c.record.now()
	c.send(ctx, o, address, timeout)
	o.Return = c.record.now()
	c.record.add(o)
	c.learn(o)
}

func (c *client) send(ctx context.Context, o *operation, address string, timeout time.Duration) {
	switch o.Kind {
	case list, exact:
		c.sendList(ctx, o, address, timeout)
	default:
		var answer object
		if c.exchange(ctx, o, requestFor(o, address, timeout), &answer) {
			o.Revision, o.Read = answer.revision(), answer.Metadata.Annotations["value"]
		}
	}
}

// sendList lists, half of the times in pages from different processes. That pages have different revisions is a fault.
func (c *client) sendList(ctx context.Context, o *operation, address string, timeout time.Duration) {
	query := url.Values{"timeout": {timeout.String()}}
	if c.random.IntN(2) == 0 {
		query.Set("limit", "2")
	}
	if o.Kind == exact {
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
			c.cell.fault("list %d: one page is of revision %d, the next of %d", o.ID, o.Revision, revision)
		}
		o.Revision = revision
		for _, i := range page.Items {
			if i.Metadata.Name == serversOwn {
				continue
			}
			o.Items = append(o.Items, item{o.Key + "/" + i.Metadata.Name, i.Metadata.Annotations["value"], i.revision()})
		}
		if page.Metadata.Continue == "" {
			return
		}
		query = url.Values{"timeout": {timeout.String()}, "limit": {"2"}, "continue": {page.Metadata.Continue}}
		if next, _ := c.cell.slots[c.random.IntN(apis)].at(); next != "" {
			address = next
		}
	}
}

// serversOwn is the ServiceAccount that the server makes with each namespace: no client's write explains it.
const serversOwn = "default"

// object is what matters of a ServiceAccount: a deletion of one answers with it, and so with its own revision.
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

// path is a namespace's collection, or an object's.
func path(key string, query url.Values) string {
	namespace, name, _ := strings.Cut(key, "/")
	p := "/api/v1/namespaces/" + namespace + "/serviceaccounts"
	if name != "" {
		p += "/" + name
	}
	return p + "?" + query.Encode()
}

func requestFor(o *operation, address string, timeout time.Duration) request {
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
	case create:
		metadata["name"] = name
		r.method, key, r.body = http.MethodPost, namespace+"/", whole
	case update:
		metadata["name"] = name
		r.method, r.body = http.MethodPut, whole
	case patch:
		r.method, r.contentType, r.body = http.MethodPatch, "application/merge-patch+json", map[string]any{"metadata": metadata}
	case remove:
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

// exchange sends one request, notes the outcome, and decodes the answer if that is a success.
func (c *client) exchange(ctx context.Context, o *operation, r request, into any) bool {
	var body io.Reader
	if r.body != nil {
		encoded, err := json.Marshal(r.body)
		if err != nil {
			panic(err) // maps of strings
		}
		body = bytes.NewReader(encoded)
	}
	o.Outcome = unknown
	sent, err := http.NewRequestWithContext(ctx, r.method, r.url, body)
	if err != nil {
		panic(err) // our own URL
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
			o.Outcome = refused
		}
		return false
	}
	if o.Code >= 300 {
		c.failed(o, text)
		return false
	}
	o.Outcome = done
	return true
}

// nobodyThere says that no connection was made, so nothing was sent.
func nobodyThere(err error) bool {
	var dial *net.OpError
	return errors.As(err, &dial) && dial.Op == "dial"
}

// failed notes what an answer other than success means.
func (c *client) failed(o *operation, text []byte) {
	var s status
	_ = json.Unmarshal(text, &s)
	o.Message = s.Message
	switch {
	case o.Code == http.StatusConflict && s.Reason == "AlreadyExists":
		o.Outcome = exists
	case o.Code == http.StatusConflict:
		o.Outcome = conflict
	case o.Code == http.StatusNotFound:
		o.Outcome = missing
	case o.Code == http.StatusTooManyRequests:
		o.Outcome = refused
	case o.Code == http.StatusServiceUnavailable && (strings.Contains(s.Message, "nothing was written") || strings.Contains(s.Message, "reading the log failed")):
		o.Outcome = refused // docs/guarantees.md, W7
	case o.Code == http.StatusGone && (o.Kind == list || o.Kind == exact):
		o.Outcome = refused
	case o.Code < 500:
		c.cell.fault("unexpected answer %d to %s %s (operation %d): %s", o.Code, o.Kind, o.Key, o.ID, text)
	}
	if asksForFence(s.Message) && !c.cell.isExcused(o.Process) {
		c.cell.fault("%s asks for a fence of a healthy cell (operation %d): %s", o.Process, o.ID, s.Message)
	}
}
