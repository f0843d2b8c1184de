package check

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/dop251/goja"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/test/product"
)

// front runs CloudFront's function on a request, and returns the origin that it chooses. The interpreter here knows
// more of the language than CloudFront's own runtime.
func front(t *testing.T, target string) string {
	t.Helper()
	source, err := os.ReadFile("../aws/front.js")
	require.NoError(t, err)
	code, found := strings.CutPrefix(string(source), "import cf from 'cloudfront';\n")
	require.True(t, found)
	vm := goja.New()
	origin := "api"
	require.NoError(t, vm.Set("cf", map[string]any{"selectRequestOriginById": func(id string) { origin = id }}))
	_, err = vm.RunString(code)
	require.NoError(t, err)
	handler, isFunction := goja.AssertFunction(vm.Get("handler"))
	require.True(t, isFunction)
	r := httptest.NewRequest(http.MethodGet, target, http.NoBody)
	request := map[string]any{"method": r.Method, "uri": r.URL.Path, "querystring": query(r.URL.RawQuery), "headers": map[string]any{}, "cookies": map[string]any{}}
	answer, err := handler(goja.Undefined(), vm.ToValue(map[string]any{"version": "1.0", "request": request}))
	require.NoError(t, err)
	require.Equal(t, vm.ToValue(request).Export(), answer.Export(), "the request goes on as it came")
	return origin
}

// query returns a query in the form that CloudFront uses: a parameter that comes twice has its last value, and a list
// of all values.
func query(raw string) map[string]any {
	all := map[string]any{}
	for pair := range strings.SplitSeq(raw, "&") {
		name, value, _ := strings.Cut(pair, "=")
		if name == "" {
			continue
		}
		one := map[string]any{"value": value}
		if before, again := all[name].(map[string]any); again {
			values, _ := before["multiValue"].([]any)
			if values == nil {
				values = []any{map[string]any{"value": before["value"]}}
			}
			one["multiValue"] = append(values, map[string]any{"value": value})
		}
		all[name] = one
	}
	return all
}

// streams are the paths that nodes serve. 'logplane front' sends streams to 'api', which serves each stream until its
// end. A function cannot serve a stream for that long.
var streams = []string{
	"/api/v1/namespaces/a/pods/p/log", "/api/v1/namespaces/a/pods/p/exec", "/api/v1/namespaces/a/pods/p/attach", "/api/v1/namespaces/a/pods/p/portforward",
	"/api/v1/namespaces/a/pods/p/proxy/x/y", "/api/v1/namespaces/a/services/s/proxy", "/api/v1/nodes/n/proxy/metrics",
}

// TestFront: CloudFront sends to the watchers the requests that 'logplane front' sends there, and also the requests for
// streams.
func TestFront(t *testing.T) {
	role := func(name string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(name)) }))
		t.Cleanup(s.Close)
		return s.URL
	}
	ours := product.Serve(t, "front", "--listen", "127.0.0.1:0", "--api", role("api"), "--watcher", role("watcher"))
	paths := []string{
		"/api/v1/configmaps", "/api/v1/namespaces/a/configmaps", "/apis/apps/v1/namespaces/a/deployments", "/apis/example.com/v1/widgets",
		"/api/v1/watch/configmaps", "/api/v1/watch/namespaces/a/configmaps", "/apis/apps/v1/watch/deployments",
		"/version", "/openapi/v3", "/api", "/apis/apps/v1", "/", "/api/v1/namespaces/watch/pods", "/api/v1/namespaces/a/secrets/proxy", "/apis/batch/v1/namespaces/a/jobs/log",
	}
	queries := []string{"", "?limit=500", "?watch", "?watch=", "?watch=1", "?watch=true", "?watch=True", "?watch=0", "?watch=false", "?watch=FALSE", "?watch=no", "?watch=0&watch=1", "?watch=1&watch=0", "?resourceVersion=5&watch=true&timeoutSeconds=9"}
	for _, path := range slices.Concat(paths, streams) {
		for _, query := range queries {
			watched := get(t, ours.URL()+path+query) == "watcher"
			sent := front(t, path+query) == "watcher"
			switch {
			case slices.Contains(streams, path) || watched:
				assert.True(t, sent, path+query)
			case strings.Contains(path, "configmaps") || !strings.Contains(query, "watch"):
				assert.False(t, sent, path+query)
			} // these resources cannot be watched, so any process answers
		}
	}
}

func get(t *testing.T, address string) string {
	t.Helper()
	response, err := http.Get(address)
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return string(body)
}

// TestFrontRuntime: CloudFront accepts the function, and the origin that it chooses is one of the distribution's.
func TestFrontRuntime(t *testing.T) {
	c := load(t)
	function := c.Blocks["aws_cloudfront_function.front"].Body
	assert.Equal(t, "cloudfront-js-2.0", text(function.Attributes["runtime"].Expr), "the first that can choose an origin")
	source, err := os.ReadFile("../aws/front.js")
	require.NoError(t, err)
	assert.Less(t, len(source), 10<<10, "what CloudFront takes")
	ids := map[string]bool{}
	for _, block := range c.Blocks["aws_cloudfront_distribution.front"].Body.Blocks {
		if block.Type == "origin" {
			ids[text(block.Body.Attributes["origin_id"].Expr)] = true
		}
	}
	assert.Equal(t, map[string]bool{"api": true, "watcher": true}, ids)
	assert.Contains(t, string(source), "selectRequestOriginById('watcher')")
}
