package gate

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/logplane/logplane/test/product"
)

// TestStubbornHandler: if a handler does not end at its request's deadline, the server answers in its place. The whole
// answer arrives while the handler still runs, nothing that the handler writes follows the answer, and the server logs
// that the handler still runs.
func TestStubbornHandler(t *testing.T) {
	for _, c := range []struct {
		name  string
		http2 bool
	}{{"HTTP/1.1", false}, {"HTTP/2", true}} {
		t.Run(c.name, func(t *testing.T) {
			var logged product.Output
			g := New(Config{Logger: slog.New(slog.NewTextHandler(&logged, nil))})
			release, ended := make(chan struct{}), make(chan error, 1)
			stubborn := g.WithTimeout(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Mine", "x")
				<-release
				w.WriteHeader(200)
				_, err := io.WriteString(w, "late")
				ended <- err
			}))
			listener := listen(t, stubborn, c.http2)
			answer, err := listener.Client().Get(listener.URL)
			require.NoError(t, err)
			defer func() { _ = answer.Body.Close() }()
			require.Equal(t, 504, answer.StatusCode)
			require.Empty(t, answer.Header.Get("Mine"))
			body, err := io.ReadAll(answer.Body)
			require.Contains(t, string(body), "request did not complete within the allotted timeout")
			if !c.http2 { // over HTTP/2, only the handler's end ends the stream cleanly
				require.NoError(t, err)
			}
			require.Contains(t, logged.String(), "a request runs on after its deadline")
			close(release)
			require.ErrorIs(t, <-ended, http.ErrHandlerTimeout)
		})
	}
}

// broken is a writer that panics when an answer begins.
type broken struct {
	http.ResponseWriter
	panics chan struct{}
}

func (b broken) WriteHeader(int) {
	close(b.panics)
	panic("no header can be written")
}

// TestPanicAtTheDeadline: if the code that answers in a handler's place panics, the request ends and the process does
// not. The panic is logged like any other panic.
func TestPanicAtTheDeadline(t *testing.T) {
	var logged product.Output
	g := New(Config{Logger: slog.New(slog.NewTextHandler(&logged, nil))})
	for _, multiplexed := range []bool{false, true} {
		t.Run(fmt.Sprintf("multiplexed=%v", multiplexed), func(t *testing.T) {
			panics := make(chan struct{})
			h := g.WithTimeout(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-panics }))
			listener := listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				h.ServeHTTP(broken{w, panics}, r)
			}), multiplexed)
			answer, err := listener.Client().Post(listener.URL+"/asked", "", nil) // a client does not repeat a POST
			if err == nil {
				_ = answer.Body.Close()
			}
			require.Error(t, err)
		})
	}
	require.Equal(t, 2, strings.Count(logged.String(), `msg="a request panicked"`))
	require.Equal(t, 2, strings.Count(logged.String(), "uri=/asked panic=\"no header can be written\""))
}

// TestLateAnswerGoesOn: no deadline cuts off the answer of a handler that has called AnswersLate.
func TestLateAnswerGoesOn(t *testing.T) {
	g := New(Config{Logger: slog.New(slog.DiscardHandler)})
	for _, multiplexed := range []bool{false, true} {
		t.Run(fmt.Sprintf("multiplexed=%v", multiplexed), func(t *testing.T) {
			late := g.WithTimeout(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				AnswersLate(r.Context())
				_, _ = io.WriteString(w, "in time, ")
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Value(deadlineKey{}).(*timed).passed
				<-time.After(2 * lastWord) // any other answer would be cut off by now
				_, _ = io.WriteString(w, "late")
			}))
			require.Equal(t, "in time, late", answerOf(t, listen(t, late, multiplexed)))
		})
	}
}

// TestAnswerAtTheDeadline: an answer that is complete at its deadline, but not sent yet, is still sent.
func TestAnswerAtTheDeadline(t *testing.T) {
	g := New(Config{Logger: slog.New(slog.DiscardHandler)})
	for _, multiplexed := range []bool{false, true} {
		t.Run(fmt.Sprintf("multiplexed=%v", multiplexed), func(t *testing.T) {
			atTheDeadline := g.WithTimeout(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, "whole")
				<-r.Context().Value(deadlineKey{}).(*timed).passed
			}))
			require.Equal(t, "whole", answerOf(t, listen(t, atTheDeadline, multiplexed)))
		})
	}
}

// listen serves requests over HTTP/1.1 or HTTP/2, with a deadline that passes soon.
func listen(t *testing.T, h http.Handler, http2 bool) *httptest.Server {
	t.Helper()
	listener := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(apirequest.WithRequestInfo(r.Context(), &apirequest.RequestInfo{Verb: "get"}), 100*time.Millisecond)
		defer cancel()
		h.ServeHTTP(w, r.WithContext(ctx))
	}))
	listener.EnableHTTP2 = http2
	listener.StartTLS()
	t.Cleanup(listener.Close)
	return listener
}

// answerOf requires a whole answer, and returns its body.
func answerOf(t *testing.T, listener *httptest.Server) string {
	t.Helper()
	answer, err := listener.Client().Get(listener.URL)
	require.NoError(t, err)
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return string(body)
}

// TestHandlerHasTheLastWord: a handler that waits on its context gives the answer itself, with its own headers. So does
// a handler that has called AnswersLate.
func TestHandlerHasTheLastWord(t *testing.T) {
	g := New(Config{Logger: slog.New(slog.DiscardHandler)})
	for name, h := range map[string]http.HandlerFunc{
		"at the deadline": func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			w.Header().Set("Mine", "x")
			w.WriteHeader(418)
		},
		"later": func(w http.ResponseWriter, r *http.Request) {
			AnswersLate(r.Context())
			<-r.Context().Done()
			<-time.After(2 * lastWord)
			w.Header().Set("Mine", "x")
			w.WriteHeader(418)
		},
		"with nothing but headers": func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Mine", "x") },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(apirequest.WithRequestInfo(t.Context(), &apirequest.RequestInfo{Verb: "get"}), 10*time.Millisecond)
			defer cancel()
			w := httptest.NewRecorder()
			w.Header().Set("Theirs", "y")
			g.WithTimeout(h).ServeHTTP(w, httptest.NewRequest("GET", "/", nil).WithContext(ctx))
			require.Equal(t, "x", w.Result().Header.Get("Mine"))
			require.Equal(t, "y", w.Result().Header.Get("Theirs"))
			if name != "with nothing but headers" {
				require.Equal(t, 418, w.Code)
			}
		})
	}
}
