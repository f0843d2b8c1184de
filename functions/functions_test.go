package functions

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/aws/aws-lambda-go/events"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/apiserver"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/internal/kubestore/fanout"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket/memory"
)

func TestMain(m *testing.M) {
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	os.Exit(m.Run())
}

// invoke sends a request as a Lambda function URL does. The error is the
// one at the end of the response, which Lambda reports to the client.
func invoke(t *testing.T, h http.Handler, method, path, query, body string) (*events.LambdaFunctionURLStreamingResponse, string, error) {
	t.Helper()
	request := &events.LambdaFunctionURLRequest{
		RawPath: path, RawQueryString: query, Body: body,
		Headers: map[string]string{"content-type": "application/json", "host": "127.0.0.1"},
	}
	request.RequestContext.HTTP.Method = method
	request.RequestContext.DomainName = "127.0.0.1"
	response, err := lambdaFunction(h)(t.Context(), request)
	require.NoError(t, err)
	text, err := io.ReadAll(response)
	_, content, found := strings.Cut(string(text), strings.Repeat("\x00", 8)) // the part before is Lambda's
	require.True(t, found)
	return response, content, err
}

// TestLambda creates, reads and lists through the Lambda entry; a watch is redirected with its whole path.
func TestLambda(t *testing.T) {
	log := eventlogtest.Log(t)
	p, err := projection.Open(projection.Config{Log: log, Bucket: memory.Strict(t)})
	require.NoError(t, err)
	cell := kubestore.Cell{Log: log, Projection: p, Cluster: "main", Feed: fanout.NewFeed(log, p)}
	config := apiserver.Config{Cell: cell, ExternalAddress: "127.0.0.1:443", WatcherURL: "https://watcher.example:1234"}
	server, err := apiserver.New(config)
	require.NoError(t, err)
	require.NoError(t, server.Bootstrap(t.Context()))
	h, err := New(config)
	require.NoError(t, err)

	response, text, err := invoke(t, h, http.MethodPost, "/api/v1/namespaces/default/configmaps", "", `{"metadata":{"name":"a"},"data":{"b":"c"}}`)
	require.NoError(t, err)
	require.Equal(t, http.StatusCreated, response.StatusCode, text)
	response, text, err = invoke(t, h, http.MethodGet, "/api/v1/namespaces/default/configmaps/a", "", "")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, response.StatusCode, text)
	var got struct{ Data map[string]string }
	require.NoError(t, json.Unmarshal([]byte(text), &got))
	require.Equal(t, map[string]string{"b": "c"}, got.Data)

	response, text, err = invoke(t, h, http.MethodGet, "/api/v1/configmaps", "watch=true&resourceVersion=1", "")
	require.NoError(t, err)
	require.Equal(t, http.StatusTemporaryRedirect, response.StatusCode, text)
	require.Equal(t, "https://watcher.example:1234/api/v1/configmaps?watch=true&resourceVersion=1", response.Headers["Location"])
}

// TestLambdaSurvivesAPanic: a panic in lambdaurl's goroutine would end the function's process.
func TestLambdaSurvivesAPanic(t *testing.T) {
	panics := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(context.Canceled) })
	response, text, err := invoke(t, panics, http.MethodGet, "/", "", "")
	require.NoError(t, err)
	require.Equal(t, http.StatusInternalServerError, response.StatusCode)
	require.Contains(t, text, `"reason":"InternalError"`)
}

// TestLambdaCutsWhatIsCut: a response that is given up after it
// has begun does not look complete, and nothing is added to it.
func TestLambdaCutsWhatIsCut(t *testing.T) {
	const half = `{"kind":"ConfigMapList","items":[{`
	for name, cause := range map[string]any{"given up": http.ErrAbortHandler, "panicked": context.Canceled} {
		t.Run(name, func(t *testing.T) {
			response, text, err := invoke(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, half)
				panic(cause)
			}), http.MethodGet, "/api/v1/configmaps", "", "")
			require.Equal(t, http.StatusOK, response.StatusCode)
			require.Equal(t, half, text)
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		})
	}
}
