package apiserver

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
)

// FuzzHandler sends anything: the answer comes in time, never says that we failed, and an error is a Status.
func FuzzHandler(f *testing.F) {
	s := newServer(f)
	if err := s.Bootstrap(f.Context()); err != nil {
		f.Fatal(err)
	}
	for _, r := range []request{
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
	} {
		f.Add(r.method, r.path, r.contentType, r.accept, r.body)
	}
	f.Fuzz(func(t *testing.T, method, target, contentType, accept, body string) {
		u, err := url.ParseRequestURI(target)
		if err != nil || !strings.HasPrefix(target, "/") || !validMethod(method) {
			return // the listener refuses it
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		r := (&http.Request{
			Method: method, URL: u, RequestURI: target, Host: "localhost", RemoteAddr: "127.0.0.1:1", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Header: http.Header{"Content-Type": {contentType}, "Accept": {accept}}, Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)),
		}).WithContext(ctx)
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if ctx.Err() != nil {
			t.Fatalf("%s %s took too long", method, target)
		}
		if w.Code == http.StatusInternalServerError {
			t.Fatalf("%s %s: %d %s", method, target, w.Code, w.Body)
		}
		if w.Code < 400 || !strings.HasPrefix(w.Header().Get("Content-Type"), "application/json") || method == http.MethodHead {
			return
		}
		var status struct {
			Kind string
			Code int
		}
		if err := json.Unmarshal(w.Body.Bytes(), &status); err != nil || status.Kind != "Status" || status.Code != w.Code {
			t.Fatalf("%s %s: %d %s", method, target, w.Code, w.Body)
		}
	})
}

func validMethod(method string) bool {
	return method != "" && strings.Trim(method, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}
