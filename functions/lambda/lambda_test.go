package lambda

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// posted is one request that a function posted.
type posted struct {
	path, body string
	header     http.Header
	trailer    http.Header
}

// answers runs the loop on events, one after another, and returns the requests that the loop posted for each event.
func answers(t *testing.T, run func(context.Context, Config) error, change func(*Config), events ...string) []posted {
	t.Helper()
	all, err := answersOf(t, run, change, func(int) time.Time { return time.Now().Add(time.Minute) }, events...)
	require.ErrorIs(t, err, context.Canceled)
	require.Len(t, all, len(events))
	return all
}

// answersOf is answers for a platform that sets a deadline for each invocation, and for a loop that may end by itself.
func answersOf(t *testing.T, run func(context.Context, Config) error, change func(*Config), deadline func(n int) time.Time, events ...string) (all []posted, err error) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var mu sync.Mutex
	next := 0
	mux := http.NewServeMux()
	mux.HandleFunc("GET /2018-06-01/runtime/invocation/next", func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if next == len(events) {
			stop()
			<-r.Context().Done() // an answer would be another invocation
			return
		}
		w.Header().Set("Lambda-Runtime-Aws-Request-Id", fmt.Sprint("id-", next))
		w.Header().Set("Lambda-Runtime-Deadline-Ms", fmt.Sprint(deadline(next).UnixMilli()))
		_, _ = io.WriteString(w, events[next])
		next++
	})
	mux.HandleFunc("POST /", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, posted{r.URL.Path, string(body), r.Header, r.Trailer})
		w.WriteHeader(http.StatusAccepted)
	})
	mux.HandleFunc("POST /2020-01-01/extension/register", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(extensionIDHeader, "id")
	})
	mux.HandleFunc("GET /2020-01-01/extension/event/next", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	s := httptest.NewServer(mux)
	defer s.Close()
	defer stop()
	c := Config{Address: s.Listener.Addr().String()}
	if change != nil {
		change(&c)
	}
	err = run(ctx, c)
	return all, err
}

func serving(h http.HandlerFunc) func(context.Context, Config) error {
	return func(ctx context.Context, c Config) error { return ServeHTTP(ctx, h, c) }
}

const (
	urlEvent  = `{"version":"2.0","rawPath":"/api","requestContext":{"http":{"method":"GET","sourceIp":"192.0.2.1"},"domainName":"a.lambda-url.b.on.aws"}}`
	restEvent = `{"httpMethod":"GET","path":"/api","requestContext":{"identity":{"sourceIp":"192.0.2.1"}}}`
)

// TestAnswersThatAreCut: an answer that ends early does not look complete, and nothing is added to it.
func TestAnswersThatAreCut(t *testing.T) {
	for name, cause := range map[string]any{"given up": http.ErrAbortHandler, "panicked": io.ErrNoProgress} {
		t.Run(name, func(t *testing.T) {
			half := func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, `{"items":[{`)
				panic(cause)
			}
			streamed := answers(t, serving(half), nil, urlEvent)[0]
			require.Equal(t, "streaming", streamed.header.Get(responseModeHeader))
			require.True(t, strings.HasSuffix(streamed.body, "\x00"+`{"items":[{`), "%q", streamed.body)
			require.Equal(t, "Logplane.ResponseCut", streamed.trailer.Get(errorTypeHeader))
			said, err := base64.StdEncoding.DecodeString(streamed.trailer.Get(errorBodyHeader))
			require.NoError(t, err)
			require.Contains(t, string(said), "cut off")

			whole := answers(t, serving(half), nil, restEvent)[0]
			require.Equal(t, "/2018-06-01/runtime/invocation/id-0/error", whole.path)
			require.NotContains(t, whole.body, "items")
		})
	}
}

// TestPanics: a panic before the answer gives a Status, and the function continues.
func TestPanics(t *testing.T) {
	for _, got := range answers(t, serving(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		panic("a fault")
	}), nil, urlEvent, restEvent) {
		require.NotContains(t, got.body, "gzip")
		require.Contains(t, got.path, "/response")
		require.Contains(t, got.body, "500")
		require.Contains(t, got.body, "InternalError")
	}
}

// TestAnswersWithoutABody: some answers have no body, whatever the handler writes, as with net/http's server.
func TestAnswersWithoutABody(t *testing.T) {
	for _, code := range []int{http.StatusOK, http.StatusNoContent, http.StatusNotModified} {
		method := "GET"
		if code == http.StatusOK {
			method = "HEAD"
		}
		events := []string{strings.Replace(urlEvent, "GET", method, 1), strings.Replace(restEvent, "GET", method, 1)}
		for _, got := range answers(t, serving(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			_, _ = io.WriteString(w, "a body")
		}), nil, events...) {
			require.Contains(t, got.body, fmt.Sprint(code))
			require.NotContains(t, got.body, "a body")
		}
	}
}

// TestFarDeadlines: deadlines that no platform would set do not end the loop.
func TestFarDeadlines(t *testing.T) {
	for _, ms := range []int64{-1 << 62, 0, 253402300800000, 1 << 62} {
		all, err := answersOf(t, serving(func(w http.ResponseWriter, _ *http.Request) {}), nil, func(int) time.Time { return time.UnixMilli(ms) }, urlEvent, urlEvent)
		require.ErrorIs(t, err, context.Canceled, "the test ends it")
		require.Len(t, all, 2)
	}
}

// TestRequests: a handler gets the same request from an event as from net/http's server.
func TestRequests(t *testing.T) {
	const body = "aGVsbG8=" // hello
	for name, c := range map[string]struct {
		event string
		check func(*testing.T, *http.Request)
	}{
		"path and query stay as they were sent": {
			`{"rawPath":"/apis/a%2Fb","rawQueryString":"labelSelector=a%3Db&watch=","requestContext":{"http":{"method":"PATCH"},"domainName":"x.lambda-url.y"}}`,
			func(t *testing.T, r *http.Request) {
				require.Equal(t, "/apis/a%2Fb?labelSelector=a%3Db&watch=", r.RequestURI)
				require.Equal(t, "a=b", r.URL.Query().Get("labelSelector"))
				require.Equal(t, http.MethodPatch, r.Method)
			},
		},
		"a stage is no part of the path": {
			`{"rawPath":"/prod/api","requestContext":{"stage":"prod","http":{"method":"GET"},"domainName":"x.execute-api.y"}}`,
			func(t *testing.T, r *http.Request) { require.Equal(t, "/api", r.URL.Path) },
		},
		"a path that only begins like the stage": {
			`{"rawPath":"/prodapi/v1","requestContext":{"stage":"prod","http":{"method":"GET"},"domainName":"x.execute-api.y"}}`,
			func(t *testing.T, r *http.Request) { require.Equal(t, "/prodapi/v1", r.URL.Path) },
		},
		"what follows two slashes is no host": {
			`{"rawPath":"//u:p@other.example/api","requestContext":{"http":{"method":"GET"},"domainName":"x.lambda-url.y"}}`,
			func(t *testing.T, r *http.Request) {
				require.Equal(t, "//u:p@other.example/api", r.URL.Path)
				require.Empty(t, r.URL.Host)
				require.Nil(t, r.URL.User)
			},
		},
		"a path ends where the front says": {
			`{"httpMethod":"GET","path":"/a?watch=1#b","queryStringParameters":{"c":"d"},"requestContext":{}}`,
			func(t *testing.T, r *http.Request) {
				require.Equal(t, "/a?watch=1#b", r.URL.Path)
				require.Equal(t, "c=d", r.URL.RawQuery)
			},
		},
		"a header in two spellings": {
			`{"httpMethod":"GET","path":"/","headers":{"authorization":"Bearer c"},"multiValueHeaders":{"authorization":["Bearer b"],"Authorization":["Bearer a"]},"requestContext":{}}`,
			func(t *testing.T, r *http.Request) {
				require.Equal(t, []string{"Bearer a", "Bearer b"}, r.Header["Authorization"])
			},
		},
		"groups that were joined": {
			`{"rawPath":"/","headers":{"impersonate-group":"one, two","accept":"a,b"},"requestContext":{"http":{"method":"GET"},"domainName":"x.lambda-url.y"}}`,
			func(t *testing.T, r *http.Request) {
				require.Equal(t, []string{"one", "two"}, r.Header["Impersonate-Group"])
				require.Equal(t, []string{"a,b"}, r.Header["Accept"])
			},
		},
		"headers and queries with several values": {
			`{"httpMethod":"GET","path":"/","multiValueHeaders":{"impersonate-group":["a,b","c"]},"multiValueQueryStringParameters":{"command":["x","y z"]},"requestContext":{}}`,
			func(t *testing.T, r *http.Request) {
				require.Equal(t, []string{"a,b", "c"}, r.Header["Impersonate-Group"])
				require.Equal(t, []string{"x", "y z"}, r.URL.Query()["command"])
			},
		},
		"a body in base64, cookies, host and client": {
			`{"rawPath":"/","cookies":["a=1","b=2"],"headers":{"host":"api.example"},"body":"` + body + `","isBase64Encoded":true,"requestContext":{"http":{"method":"POST","sourceIp":"2001:db8::1"},"domainName":"x.lambda-url.y"}}`,
			func(t *testing.T, r *http.Request) {
				text, err := io.ReadAll(r.Body)
				require.NoError(t, err)
				require.Equal(t, "hello", string(text))
				require.EqualValues(t, len(text), r.ContentLength)
				require.Equal(t, "a=1; b=2", r.Header.Get("Cookie"))
				require.Equal(t, "api.example", r.Host)
				require.Equal(t, "[2001:db8::1]:0", r.RemoteAddr)
			},
		},
		"a token together with a signature for AWS": {
			`{"rawPath":"/","headers":{"authorization":"AWS4-HMAC-SHA256 Credential=x","x-logplane-authorization":"Bearer t"},"requestContext":{"http":{"method":"GET"},"domainName":"x.lambda-url.y"}}`,
			func(t *testing.T, r *http.Request) {
				require.Equal(t, "Bearer t", r.Header.Get("Authorization"))
				require.Empty(t, r.Header.Get(tokenHeader))
			},
		},
		"a signature alone is nobody's token": {
			`{"rawPath":"/","headers":{"authorization":"AWS4-HMAC-SHA256 Credential=x"},"requestContext":{"http":{"method":"GET"},"domainName":"x.lambda-url.y"}}`,
			func(t *testing.T, r *http.Request) { require.Empty(t, r.Header.Get("Authorization")) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			k := kindOf([]byte(c.event))
			require.NotEqual(t, notHTTP, k)
			r, err := requestOf(t.Context(), k, []byte(c.event))
			require.NoError(t, err)
			c.check(t, r)
		})
	}
}

// TestAnswersOfFronts: a front gets an answer in its own form, and binary data as base64.
func TestAnswersOfFronts(t *testing.T) {
	h := serving(func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Warning"] = []string{"one", "two"}
		w.Header().Set("Set-Cookie", "a=1")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte{0xff, '<', 0})
	})
	decode := func(of posted) (a answer) {
		require.NoError(t, json.Unmarshal([]byte(of.body), &a))
		return a
	}
	buffered := func(c *Config) { c.Buffered = true }
	all := answers(t, h, buffered, urlEvent, restEvent)
	url, rest := decode(all[0]), decode(all[1])
	for _, a := range []answer{url, rest} {
		require.Equal(t, http.StatusCreated, a.StatusCode)
		require.True(t, a.Base64)
		require.Equal(t, base64.StdEncoding.EncodeToString([]byte{0xff, '<', 0}), a.Body)
	}
	require.Equal(t, "one,two", url.Headers["Warning"])
	require.Equal(t, []string{"a=1"}, url.Cookies)
	require.Equal(t, []string{"one", "two"}, rest.MultiValueHeaders["Warning"])
}

// TestJobsFail: the platform must learn that a job has failed, so that it delivers the job again.
func TestJobsFail(t *testing.T) {
	got := answers(t, func(ctx context.Context, c Config) error {
		return RunJob(ctx, func(context.Context) (any, error) { return nil, io.ErrUnexpectedEOF }, c)
	}, nil, "{}")[0]
	require.Equal(t, "/2018-06-01/runtime/invocation/id-0/error", got.path)
	require.Contains(t, got.body, "unexpected EOF")
}

// TestJobsPanic: a job that panics is a failed invocation. The process ends, and does not report a failed start.
func TestJobsPanic(t *testing.T) {
	runs := 0
	all, err := answersOf(t, func(ctx context.Context, c Config) error {
		return RunJob(ctx, func(context.Context) (any, error) { runs++; panic("a fault") }, c)
	}, nil, func(int) time.Time { return time.Now().Add(time.Minute) }, "{}", "{}")
	require.ErrorIs(t, err, ErrServing)
	require.Equal(t, 1, runs)
	require.Len(t, all, 1)
	require.Equal(t, "/2018-06-01/runtime/invocation/id-0/error", all[0].path)
	require.Contains(t, all[0].body, "panicked")
}

// TestThawed: the handler learns of a pause from the platform's clock, which the deadlines show. The handler learns of
// no pause if invocations follow each other closely.
func TestThawed(t *testing.T) {
	begin := time.Now().Add(time.Minute)
	pauses := []time.Duration{0, time.Millisecond, still, still + time.Millisecond, 0, time.Hour}
	var thawed []int // the invocations before which Thawed was called
	n := 0
	_, err := answersOf(t, serving(func(http.ResponseWriter, *http.Request) { n++ }), func(c *Config) {
		c.Thawed = func(context.Context) { thawed = append(thawed, n) }
	}, func(n int) time.Time {
		begin = begin.Add(pauses[n])
		return begin
	}, slices.Repeat([]string{restEvent}, len(pauses))...)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, []int{3, 5}, thawed)
}

// TestNothingGoesOn: the loop does not ask for the next invocation while the handler of the last one runs. Here the
// platform answers before the handler has ended, as it does when the client is gone.
func TestNothingGoesOn(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	asked, ended := 0, false
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !strings.HasSuffix(r.URL.Path, "/next"):
			w.WriteHeader(http.StatusAccepted) // without reading the body
		case asked > 0:
			stop()
			return
		default:
			asked++
			w.Header().Set("Lambda-Runtime-Aws-Request-Id", "id")
			_, _ = io.WriteString(w, urlEvent)
		}
	}))
	defer s.Close()
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for {
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				break
			}
		}
		ended = true // without a lock, so that the race detector notices a handler that still runs
	})
	require.ErrorIs(t, ServeHTTP(ctx, handler, Config{Address: s.Listener.Addr().String()}), context.Canceled)
	require.True(t, ended)
}

// TestMetrics: a line has the counts since the last line. There is at most one line a minute, and one line with the
// remaining counts at the end.
func TestMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	counter := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "things_total"}, []string{"kind"})
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{Name: "lag_seconds"})
	other := prometheus.NewCounter(prometheus.CounterOpts{Name: "other_total"})
	registry.MustRegister(counter, gauge, other)
	var out bytes.Buffer
	m := &Metrics{From: registry, Names: []string{"things_total", "lag_seconds", "nothing_total"}, Function: "f", To: &out}
	invocations := 0
	answers(t, serving(func(http.ResponseWriter, *http.Request) {
		invocations++
		counter.WithLabelValues("a").Inc()
		counter.WithLabelValues("b").Inc()
		gauge.Set(1.5)
	}), func(c *Config) { c.Metrics = m }, restEvent, restEvent, restEvent)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 2)
	for i, things := range []float64{2, 4} {
		var line struct {
			Things float64 `json:"things_total"`
			Lag    float64 `json:"lag_seconds"`
			AWS    struct {
				Timestamp         int64
				CloudWatchMetrics []struct {
					Namespace  string
					Dimensions [][]string
					Metrics    []struct{ Name, Unit string }
				}
			} `json:"_aws"`
			Function string
		}
		require.NoError(t, json.Unmarshal([]byte(lines[i]), &line))
		require.Equal(t, things, line.Things)
		require.Equal(t, 1.5, line.Lag)
		require.Equal(t, "f", line.Function)
		require.Equal(t, [][]string{{"Function"}}, line.AWS.CloudWatchMetrics[0].Dimensions)
		require.Equal(t, []struct{ Name, Unit string }{{"things_total", "Count"}, {"lag_seconds", "Seconds"}}, line.AWS.CloudWatchMetrics[0].Metrics)
		require.NotContains(t, lines[i], "other_total")
	}
}

// FuzzRequest: no event ends the process.
func FuzzRequest(f *testing.F) {
	for _, event := range []string{urlEvent, restEvent, "", "{}", `{"requestContext":{"elb":{}}}`, `{"httpMethod":"\n","path":"%zz","requestContext":{}}`} {
		f.Add([]byte(event))
	}
	f.Fuzz(func(t *testing.T, event []byte) {
		k := kindOf(event)
		if k == notHTTP || k == loadBalancer {
			return
		}
		r, err := requestOf(t.Context(), k, event)
		if err == nil {
			_ = r.URL.String()
		}
	})
}
