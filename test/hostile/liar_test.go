package hostile

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// liar is a webhook for admission and conversion, whose answers are mutated.
type liar struct {
	*httptest.Server
	mu sync.Mutex
	m  *mutator // guarded by mu
}

func newLiar(t *testing.T, seed uint64) *liar {
	l := &liar{m: &mutator{rand.New(rand.NewPCG(seed, 1<<32)), nil}}
	l.Server = httptest.NewTLSServer(l)
	t.Cleanup(func() {
		l.CloseClientConnections()
		l.Close()
	})
	return l
}

// ServeHTTP makes a correct answer, and puts up to three mistakes into that answer.
func (l *liar) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var review struct {
		APIVersion, Kind string
		Request          struct {
			UID, DesiredAPIVersion string
			Objects                []map[string]any
		}
	}
	_ = json.NewDecoder(io.LimitReader(r.Body, 16<<20)).Decode(&review)
	response := map[string]any{
		"uid": review.Request.UID, "allowed": true, "warnings": []any{"careful"}, "auditAnnotations": map[string]any{"a": "b"},
		"patchType": "JSONPatch", "patch": base64.StdEncoding.EncodeToString([]byte(`[{"op":"add","path":"/metadata/annotations","value":{"a":"b"}}]`)),
		"status": map[string]any{"code": 403, "message": "no", "reason": "Forbidden"},
	}
	if review.Kind == "ConversionReview" {
		for _, object := range review.Request.Objects {
			object["apiVersion"] = review.Request.DesiredAPIVersion
		}
		response = map[string]any{"uid": review.Request.UID, "convertedObjects": review.Request.Objects, "result": map[string]any{"status": "Success"}}
	}
	right, _ := json.Marshal(map[string]any{"apiVersion": review.APIVersion, "kind": review.Kind, "response": response})
	l.mu.Lock()
	body, code, encoding, wait := string(right), http.StatusOK, "", time.Duration(0)
	for range l.m.IntN(4) {
		switch l.m.IntN(12) {
		case 0:
			code = []int{100, 204, 302, 307, 401, 404, 429, 500, 503}[l.m.IntN(9)]
		case 1:
			encoding = "gzip"
		case 2:
			wait = time.Duration(l.m.IntN(2_000)) * time.Millisecond
		case 3, 4:
			body = l.m.bytes(body)
		default:
			body = l.m.structure(body)
		}
	}
	l.mu.Unlock()
	select {
	case <-time.After(wait):
	case <-r.Context().Done():
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Location", "https://127.0.0.1:1/")
	if encoding != "" {
		w.Header().Set("Content-Encoding", encoding)
	}
	w.WriteHeader(code)
	_, _ = io.WriteString(w, body)
}

// objects returns the configurations with which the server calls the liar for objects with a label, and a kind that the
// liar converts. Requests for which the liar is called may be answered 500, as upstream answers them.
func (l *liar) objects() []struct{ path, body string } {
	authority := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: l.Certificate().Raw}))
	client := fmt.Sprintf(`{"url":%q,"caBundle":%q}`, l.URL, authority)
	configuration := func(kind, policy string) string {
		return fmt.Sprintf(`{"metadata":{"name":"liar"},"webhooks":[{"name":"%s.lie.example.com","clientConfig":%s,"failurePolicy":"%s","sideEffects":"None","admissionReviewVersions":["v1"],"timeoutSeconds":1,`+
			`"objectSelector":{"matchLabels":{"lie":"yes"}},"rules":[{"apiGroups":["*"],"apiVersions":["*"],"operations":["*"],"resources":["configmaps","lies","deployments"]}]}]}`, kind, client, policy)
	}
	lies := strings.NewReplacer("things", "lies", "thing", "lie", "Thing", "Lie", `"th"`, `"li"`).Replace(crd)
	var definition map[string]any
	_ = json.Unmarshal([]byte(lies), &definition)
	spec := definition["spec"].(map[string]any)
	loose := map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}
	spec["versions"] = append(spec["versions"].([]any), map[string]any{"name": "v2", "served": true, "storage": false, "schema": loose})
	var config any
	_ = json.Unmarshal([]byte(client), &config)
	spec["conversion"] = map[string]any{"strategy": "Webhook", "webhook": map[string]any{"conversionReviewVersions": []string{"v1"}, "clientConfig": config}}
	converted, _ := json.Marshal(definition)
	const admission = "/apis/admissionregistration.k8s.io/v1/"
	return []struct{ path, body string }{
		{crds, string(converted)},
		{admission + "mutatingwebhookconfigurations", configuration("mutating", "Fail")},
		{admission + "validatingwebhookconfigurations", configuration("validating", "Ignore")},
	}
}

const aLie = `{"apiVersion":"fuzz.example.com/v1","kind":"Lie","metadata":{"generateName":"a","labels":{"lie":"yes"}},"spec":{"name":"aa","any":{"a":{"b":"c"}},"list":[{"k":"x","v":"1"}]}}`

// lying are requests for which the liar is called.
var lying = []query{
	post("/api/v1/namespaces/default/configmaps", `{"metadata":{"generateName":"lie-","labels":{"lie":"yes"}},"data":{"a":"b"}}`),
	patch("/api/v1/namespaces/default/configmaps/lie?fieldManager=lie", "apply-patch", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"lie","labels":{"lie":"yes"}},"data":{"a":"b"}}`),
	post("/apis/fuzz.example.com/v1/namespaces/default/lies", aLie),
	post("/apis/fuzz.example.com/v2/namespaces/default/lies?dryRun=All", strings.Replace(aLie, "/v1", "/v2", 1)),
	patch("/apis/fuzz.example.com/v2/namespaces/default/lies/a?fieldManager=m&force=true", "apply-patch", strings.NewReplacer("/v1", "/v2", `"generateName":"a"`, `"name":"a"`).Replace(aLie)),
	get("/apis/fuzz.example.com/v2/namespaces/default/lies?limit=5"),
	get("/apis/fuzz.example.com/v2/lies?watch=1&timeoutSeconds=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"),
	get("/at/1s/apis/fuzz.example.com/v2/lies"),
}
