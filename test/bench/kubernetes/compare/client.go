package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/logplane/logplane/test/bench/kubernetes/side"
)

// client sends the script's requests to one side, and records the answers.
type client struct {
	ctx     context.Context
	http    *http.Client
	config  *rest.Config
	users   map[string]string // tokens
	section string
	record  *record
}

// record holds the answers by request. If the same request is sent again, its name gets a number.
type record struct {
	keys    []string
	answers map[string]answer
}

// answer is an answer; document is its decoded body, or the body's text.
type answer struct {
	status   int
	header   http.Header
	document any
}

// request is a request of the script.
type request struct {
	method, path, body  string
	accept, contentType string
	header              map[string]string
	user                string // "" is a member of system:masters
	// summarize, if set, shortens a document that is too long to be compared in full.
	summarize func(any) any
	// secret is a text in the request that differs between the sides.
	secret string
	// quiet keeps the answer out of the record, because only the script needs it.
	quiet bool
}

func newClient(ctx context.Context, s *side.System) (*client, error) {
	c, err := rest.HTTPClientFor(&rest.Config{TLSClientConfig: s.Config.TLSClientConfig})
	if err != nil {
		return nil, err
	}
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &client{
		ctx: ctx, http: c, config: s.Config, record: &record{answers: map[string]answer{}},
		users: map[string]string{"": s.Config.BearerToken, "stranger": s.Stranger, "unknown": "nonsense"},
	}, nil
}

// key returns a name for the request. The name is the same on both sides.
func (r request) key() string {
	words := []string{r.method, maskPath(r.path)}
	for name, value := range map[string]string{"as": r.accept, "sending": r.contentType, "by": r.user} {
		if value != "" {
			words = append(words, name+" "+value)
		}
	}
	sortWords(words[2:])
	for name, value := range r.header {
		words = append(words, name+": "+r.withoutSecret(value))
	}
	sortWords(words[2:])
	if r.body != "" {
		words = append(words, maskText(shorten(r.withoutSecret(r.body))))
	}
	return strings.Join(words, " ")
}

// withoutSecret replaces the request's secret in a text of the answer.
func (r request) withoutSecret(text string) string {
	if r.secret == "" {
		return text
	}
	return strings.ReplaceAll(text, r.secret, "<secret>")
}

// do sends a request and records the answer. If there is no answer, it records the error.
func (c *client) do(r request) answer {
	a := c.send(r)
	if r.quiet {
		return a
	}
	key := c.section + ": " + r.key()
	for n := 2; ; n++ {
		if _, taken := c.record.answers[key]; !taken {
			break
		}
		key = fmt.Sprintf("%s: %s (%d)", c.section, r.key(), n)
	}
	kept := a
	if r.summarize != nil {
		kept.document = r.summarize(a.document)
	}
	kept.document = mask(kept.document, r.withoutSecret)
	c.record.keys = append(c.record.keys, key)
	c.record.answers[key] = kept
	return a
}

func (c *client) send(r request) answer {
	sent, err := http.NewRequestWithContext(c.ctx, r.method, c.config.Host+r.path, strings.NewReader(r.body))
	if err != nil {
		return answer{document: "no request: " + err.Error()}
	}
	sent.Header.Set("User-Agent", "compare/1")
	if r.user != "nobody" {
		sent.Header.Set("Authorization", "Bearer "+c.users[r.user])
	}
	if r.accept == "" {
		r.accept = "application/json"
	}
	sent.Header.Set("Accept", r.accept)
	if r.body != "" && r.contentType == "" {
		r.contentType = "application/json"
	}
	if r.contentType != "" {
		sent.Header.Set("Content-Type", r.contentType)
	}
	for name, value := range r.header {
		sent.Header.Set(name, value)
	}
	got, err := c.http.Do(sent)
	if err != nil {
		return answer{document: "no answer: " + strings.ReplaceAll(err.Error(), c.config.Host, "")}
	}
	defer got.Body.Close()
	body, err := io.ReadAll(got.Body)
	if err != nil {
		return answer{status: got.StatusCode, header: got.Header, document: "a broken answer: " + err.Error()}
	}
	return answer{status: got.StatusCode, header: got.Header, document: decode(got.Header.Get("Content-Type"), body, strings.Contains(r.path, "watch=") || strings.Contains(r.path, "/watch/"))}
}

// decode decodes a body in any representation, so that the comparison sees the values that a client would see.
func decode(contentType string, body []byte, stream bool) any {
	media, _, _ := mime.ParseMediaType(contentType)
	var document any
	var err error
	switch {
	case len(body) == 0:
		return nil
	case media == "application/json" && stream:
		return decodeStream(body)
	case stream && strings.Contains(media, "kubernetes.protobuf") || stream && strings.Contains(media, "cbor"):
		return "a stream" // not decoded
	// upstream's index of OpenAPI v3 has this type
	case media == "application/json", media == "application/jwk-set+json", media == "text/plain" && body[0] == '{':
		err = json.Unmarshal(body, &document)
	case media == "application/yaml":
		err = yaml.Unmarshal(body, &document)
	case media == "application/cbor":
		err = direct.Unmarshal(body, &document)
	case media == "application/vnd.kubernetes.protobuf":
		object, _, failed := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
		if failed != nil {
			return fmt.Sprintf("%d bytes of protobuf", min(len(body), 1))
		}
		document, err = roundTrip(object)
	default:
		return string(body)
	}
	if err != nil {
		return string(body)
	}
	document, _ = roundTrip(document) // so that all numbers have one type
	return document
}

func roundTrip(v any) (document any, err error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return document, json.Unmarshal(text, &document)
}

// decodeStream returns the events of a watch that has ended.
func decodeStream(body []byte) any {
	events := []any{}
	lines := bufio.NewScanner(bytes.NewReader(body))
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var event any
		if json.Unmarshal(lines.Bytes(), &event) != nil {
			event = lines.Text()
		}
		events = append(events, event)
	}
	return events
}

// at returns the string at a path of the document, such as "metadata.resourceVersion".
func (a answer) at(path string) string {
	v := a.document
	for _, name := range strings.Split(path, ".") {
		object, _ := v.(map[string]any)
		v = object[name]
	}
	text, _ := v.(string)
	return text
}

// conditions returns the conditions in the object's status.
func (a answer) conditions() []any {
	object, _ := a.document.(map[string]any)
	status, _ := object["status"].(map[string]any)
	all, _ := status["conditions"].([]any)
	return all
}

// json changes the document, and returns it as the body of another request.
func (a answer) json(change func(map[string]any)) string {
	document, _ := roundTrip(a.document)
	object, _ := document.(map[string]any)
	if object == nil {
		return "{}"
	}
	if change != nil {
		change(object)
	}
	text, _ := json.Marshal(object)
	return string(text)
}

func (c *client) get(path string) answer { return c.do(request{method: "GET", path: path}) }

func (c *client) getAs(accept, path string) answer {
	return c.do(request{method: "GET", path: path, accept: accept})
}

func (c *client) post(path, body string) answer {
	return c.do(request{method: "POST", path: path, body: body})
}

func (c *client) put(path, body string) answer {
	return c.do(request{method: "PUT", path: path, body: body})
}

func (c *client) delete(path, body string) answer {
	return c.do(request{method: "DELETE", path: path, body: body})
}

// vanish deletes an object, even if it has finalizers.
func (c *client) vanish(path string) {
	c.do(request{method: "PATCH", path: path, body: `{"metadata":{"finalizers":null}}`, contentType: mergePatch, quiet: true})
	c.do(request{method: "DELETE", path: path, quiet: true})
}

// These are the types of PATCH.
const (
	jsonPatch      = "application/json-patch+json"
	mergePatch     = "application/merge-patch+json"
	strategicPatch = "application/strategic-merge-patch+json"
	applyYAML      = "application/apply-patch+yaml"
)

func (c *client) patch(kind, path, body string) answer {
	return c.do(request{method: "PATCH", path: path, body: body, contentType: kind})
}

// together runs n parts of the script that are independent of each other, several at once, since watches take time. The
// answers of the parts are recorded in order.
func (c *client) together(n int, part func(*client, int)) {
	parts := make([]client, n)
	var group errgroup.Group
	group.SetLimit(8)
	for i := range parts {
		parts[i] = *c
		parts[i].record = &record{answers: map[string]answer{}}
		group.Go(func() error { part(&parts[i], i); return nil })
	}
	_ = group.Wait()
	for _, p := range parts {
		for _, key := range p.record.keys {
			c.record.keys = append(c.record.keys, key)
			c.record.answers[key] = p.record.answers[key]
		}
	}
}

// watch reads a watch that ends after a second.
func (c *client) watch(path string) answer {
	join := "?"
	if strings.Contains(path, "?") {
		join = "&"
	}
	return c.get(path + join + "watch=1&timeoutSeconds=1")
}

// until repeats a request until the answer has the status.
func (c *client) until(status int, r request) answer {
	return c.await(r, func(a answer) bool { return a.status == status })
}

// await repeats a request until the answer is as wanted, and records the last answer. It is for results that come in
// the background.
func (c *client) await(r request, wanted func(answer) bool) answer {
	quiet := r
	quiet.quiet = true
	for range 1000 {
		if wanted(c.do(quiet)) || pause(c.ctx) != nil {
			break
		}
	}
	return c.do(r)
}

func escape(s string) string { return url.QueryEscape(s) }
