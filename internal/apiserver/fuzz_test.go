package apiserver

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// FuzzHandler sends arbitrary requests. The answer comes in time and is never 500, and an error is a Status.
func FuzzHandler(f *testing.F) {
	s := newBootstrapped(f)
	for _, r := range seeds {
		f.Add(r.method, r.path, r.contentType, r.accept, r.body)
	}
	f.Fuzz(func(t *testing.T, method, path, contentType, accept, body string) {
		checkAnswer(t, s, request{method: method, path: path, contentType: contentType, accept: accept, body: body})
	})
}

// TestRandomRequests is FuzzHandler without measuring coverage, because for coverage all of Kubernetes would be
// compiled again. It combines parts of the seeds and changes them at random.
//
// The seed is fixed unless LOGPLANE_FUZZ_SEED sets another. A test that runs for every commit should not find an old
// fault by chance, once in a hundred runs.
func TestRandomRequests(t *testing.T) {
	s := newBootstrapped(t)
	seed := uint64(1)
	if other := os.Getenv("LOGPLANE_FUZZ_SEED"); other != "" {
		var err error
		seed, err = strconv.ParseUint(other, 10, 64)
		require.NoError(t, err)
	}
	var workers sync.WaitGroup
	for worker := range uint64(16) { // in parallel, because some requests wait for a revision that does not exist yet
		workers.Go(func() {
			r := rand.New(rand.NewPCG(seed, worker))
			for range 100 {
				checkAnswer(t, s, randomRequest(r))
			}
		})
	}
	workers.Wait()
}

func randomRequest(r *rand.Rand) request {
	pick := func() request { return seeds[r.IntN(len(seeds))] }
	sent := pick()
	if r.IntN(4) == 0 {
		sent.path = pick().path
	}
	if r.IntN(4) == 0 {
		sent.method = pick().method
	}
	if r.IntN(4) == 0 {
		sent.body, sent.contentType = pick().body, pick().contentType
	}
	sent.path, sent.body, sent.accept = mutate(r, sent.path), mutate(r, sent.body), mutate(r, sent.accept)
	return sent
}

// mutate changes a text in up to three places.
func mutate(r *rand.Rand, text string) string {
	for range r.IntN(4) {
		if len(text) == 0 {
			return text
		}
		i, j := r.IntN(len(text)), r.IntN(len(text))
		switch r.IntN(4) {
		case 0:
			text = text[:i] + text[min(len(text), i+1+r.IntN(3)):]
		case 1:
			text = text[:i] + string([]byte{byte(r.IntN(256))}) + text[i:]
		case 2:
			text = text[:i] + text[min(i, j):max(i, j)] + text[i:]
		case 3:
			words := []string{"null", "-1", "18446744073709551616", "{}", "[]", "\x00", "%00", "..", "\"\"", "$patch", "\u00ff", "metadata", "/"}
			text = text[:i] + words[r.IntN(len(words))] + text[i:]
		}
	}
	return text
}

func newBootstrapped(t testing.TB) *Server {
	s := newServer(t, func(c *Config) { c.Logger = slog.New(slog.DiscardHandler) })
	require.NoError(t, s.Bootstrap(t.Context()))
	return s
}

var seeds = []request{
	{method: "GET", path: "/"},
	{method: "GET", path: configMaps + "?limit=1&continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiJ4In0"},
	{method: "GET", path: configMaps + "?resourceVersion=18446744073709551615&resourceVersionMatch=Exact"},
	{method: "GET", path: configMaps + "?fieldSelector=metadata.name%3Dx&labelSelector=a+in+(b)"},
	{method: "GET", path: "/apis/apps/v1/deployments", accept: "application/json;as=Table;v=v1;g=meta.k8s.io,application/yaml"},
	{method: "GET", path: "/openapi/v2"},
	{method: "GET", path: "/apis", accept: "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"},
	{method: "POST", path: configMaps, body: `{"metadata":{"name":"x"},"data":{"a":"1"}}`},
	{method: "POST", path: configMaps + "?dryRun=All&fieldValidation=Strict", body: "metadata: {name: x}\n", contentType: "application/yaml"},
	{method: "POST", path: configMaps, body: "\xd9\xd9\xf7\xa1", contentType: "application/cbor"},
	{method: "POST", path: configMaps, body: "k8s\x00\x0a\x02", contentType: "application/vnd.kubernetes.protobuf"},
	{method: "POST", path: "/apis/batch/v1/namespaces/default/jobs", body: `{"metadata":{"generateName":"x"},"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}`},
	{method: "POST", path: "/api/v1/namespaces/default/services", body: `{"metadata":{"name":"x"},"spec":{"type":"NodePort","ports":[{"port":80}]}}`},
	{method: "POST", path: "/apis/authorization.k8s.io/v1/subjectaccessreviews", body: `{"spec":{"user":"x","nonResourceAttributes":{"path":"/","verb":"get"}}}`},
	{method: "PUT", path: configMaps + "/x", body: `{"metadata":{"name":"x","resourceVersion":"1"}}`},
	{method: "PATCH", path: configMaps + "/x", body: `[{"op":"copy","from":"/data","path":"/metadata/labels"}]`, contentType: "application/json-patch+json"},
	{method: "PATCH", path: configMaps + "/x", body: `{"data":{"$patch":"replace"}}`, contentType: "application/strategic-merge-patch+json"},
	{method: "PATCH", path: configMaps + "/x?fieldManager=f&force=true", body: "apiVersion: v1\nkind: ConfigMap\n", contentType: "application/apply-patch+yaml"},
	{method: "PATCH", path: "/apis/apps/v1/namespaces/default/deployments/x/scale", body: `{"spec":{"replicas":-1}}`, contentType: "application/merge-patch+json"},
	{method: "DELETE", path: configMaps + "/x", body: `{"propagationPolicy":"Foreground","preconditions":{"uid":"x"}}`},
	{method: "DELETE", path: configMaps + "?labelSelector=a"},
	{method: "DELETE", path: "/api/v1/namespaces/default/services/x?gracePeriodSeconds=1&orphanDependents=true"},
	{method: "PUT", path: "/api/v1/namespaces/x/finalize", body: `{"metadata":{"name":"x"},"spec":{"finalizers":[]}}`},
	{method: "PUT", path: "/apis/apps/v1/namespaces/default/deployments/x/status", body: `{"metadata":{"name":"x"},"status":{"replicas":1}}`},
	{method: "PUT", path: "/apis/coordination.k8s.io/v1/namespaces/default/leases/x", body: `{"metadata":{"name":"x","uid":"x","resourceVersion":"0"}}`},
	{method: "PATCH", path: "/api/v1/nodes/x/status", body: `{"status":{"conditions":[{"type":"Ready","$patch":"delete"}]}}`, contentType: "application/strategic-merge-patch+json"},
	{method: "POST", path: "/api/v1/namespaces/default/pods", body: `{"metadata":{"name":"x"},"spec":{"containers":[{"name":"c","image":"i","resources":{"limits":{"cpu":"1"}}}]}}`},
	{method: "POST", path: "/api/v1/namespaces/default/pods/x/binding", body: `{"target":{"kind":"Node","name":"x"}}`},
	{method: "POST", path: "/api/v1/namespaces/default/pods/x/eviction", body: `{"metadata":{"name":"x"},"deleteOptions":{"preconditions":{"resourceVersion":"x"}}}`},
	{method: "POST", path: "/apis/authentication.k8s.io/v1/tokenreviews", body: `{"spec":{"token":"x"}}`},
	{method: "POST", path: "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings", body: `{"metadata":{"name":"x"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"x"},"subjects":[{"kind":"User","name":"x"}]}`},
	{method: "POST", path: "/apis/certificates.k8s.io/v1/certificatesigningrequests", body: `{"metadata":{"name":"x"},"spec":{"request":"eA==","signerName":"example.com/x","usages":["client auth"]}}`},
	{method: "POST", path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body: `{"metadata":{"name":"xs.example.com"},"spec":{"group":"example.com","names":{"plural":"xs","kind":"X"},"scope":"Namespaced","versions":[{"name":"v1","served":true,"storage":true,"subresources":{"status":{}},"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","x-kubernetes-validations":[{"rule":"self.a > 0"}],"properties":{"a":{"type":"integer"}}}}}}}]}}`},
	{method: "POST", path: "/apis/example.com/v1/namespaces/default/xs", body: `{"apiVersion":"example.com/v1","kind":"X","metadata":{"name":"x"},"spec":{"a":1}}`},
	{method: "PATCH", path: "/apis/example.com/v1/namespaces/default/xs/x?fieldManager=f", body: "apiVersion: example.com/v1\nkind: X\nspec: {a: 2}\n", contentType: "application/apply-patch+yaml"},
	{method: "PUT", path: "/apis/example.com/v1/namespaces/default/xs/x", body: `{"apiVersion":"example.com/v1","kind":"X","metadata":{"name":"x","resourceVersion":"1"},"spec":{"a":1}}`},
	{method: "GET", path: "/apis/example.com/v1/xs?limit=2&resourceVersion=1&resourceVersionMatch=NotOlderThan"},
	{method: "GET", path: "/api/v1/namespaces/default/services/x?resourceVersion=5&pretty=1", accept: "application/yaml;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"},
	{method: "GET", path: "/openapi/v3/apis/example.com/v1?hash=x"},
	{method: "GET", path: "/api/v1/watch/namespaces/default/configmaps?timeoutSeconds=1"},
	{method: "GET", path: configMaps + "?watch=1&timeoutSeconds=1&resourceVersion=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"},
}

func checkAnswer(t *testing.T, s *Server, sent request) {
	t.Helper()
	u, err := url.ParseRequestURI(sent.path)
	if err != nil || !strings.HasPrefix(sent.path, "/") || !validMethod(sent.method) {
		return // the listener would refuse such a request
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r := (&http.Request{
		Method: sent.method, URL: u, RequestURI: sent.path, Host: "localhost", RemoteAddr: "127.0.0.1:1", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {sent.contentType}, "Accept": {sent.accept}}, Body: io.NopCloser(strings.NewReader(sent.body)), ContentLength: int64(len(sent.body)),
	}).WithContext(ctx)
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	if ctx.Err() != nil {
		t.Errorf("%+v took too long", sent)
	}
	if w.Code == http.StatusInternalServerError {
		t.Errorf("%+v: %d %s", sent, w.Code, w.Body)
	}
	if w.Code < 400 || !strings.HasPrefix(w.Header().Get("Content-Type"), "application/json") || sent.method == http.MethodHead {
		return
	}
	var status struct {
		Kind string
		Code int
	}
	if err := json.Unmarshal(w.Body.Bytes(), &status); err != nil || status.Kind != "Status" || status.Code != w.Code {
		t.Errorf("%+v: %d %s", sent, w.Code, w.Body)
	}
}

func validMethod(method string) bool {
	return method != "" && strings.Trim(method, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}
