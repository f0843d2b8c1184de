package chaos

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// bucketFault says how the bucket's server misbehaves. The zero value means that the server is correct.
type bucketFault struct {
	// status is the answer to one of two requests; 0 for none. If after is set, MinIO has carried out the request, but
	// the client cannot know that.
	status int
	after  bool
	// broken: one of two answers ends half-way, and the connection breaks.
	broken bool
	// skew is added to every time in an answer, in headers and in lists.
	skew time.Duration
}

// bucketFront is a proxy that may answer in MinIO's place. Its methods are safe for concurrent use.
type bucketFront struct {
	server *httptest.Server
	// spoilt counts the answers that differ from MinIO's.
	spoilt atomic.Int64

	mu     sync.Mutex
	random *rand.Rand  // guarded by mu
	fault  bucketFault // guarded by mu
}

// newBucketFront returns a front for the S3 server at an address, until the test ends.
func newBucketFront(t testing.TB, address string, random *rand.Rand) *bucketFront {
	f := &bucketFront{random: random}
	transport := &http.Transport{DisableCompression: true}
	proxy := &httputil.ReverseProxy{
		Transport: transport,
		// The signature covers the host to which the client sent the request.
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: address})
			r.Out.Host = r.In.Host
		},
		ModifyResponse: f.spoil,
		// Without a server, the client gets no answer at all.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	f.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if fault, hit := f.draw(); hit && fault.status != 0 && !fault.after {
			f.spoilt.Add(1)
			status, body := refusal(fault.status)
			w.Header().Set("Content-Type", "application/xml")
			w.WriteHeader(status)
			_, _ = w.Write(body)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	f.server.Config.ErrorLog = quiet
	f.server.Start()
	t.Cleanup(func() {
		f.server.CloseClientConnections()
		f.server.Close()
		transport.CloseIdleConnections()
	})
	return f
}

func (f *bucketFront) set(fault bucketFault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fault
}

// draw returns the present fault, and whether the fault hits this request.
func (f *bucketFront) draw() (fault bucketFault, hit bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fault, f.random.IntN(2) == 0
}

var told = regexp.MustCompile(`<LastModified>([^<]+)</LastModified>`)

// spoil changes MinIO's answer to a request that MinIO has carried out.
func (f *bucketFront) spoil(answer *http.Response) error {
	fault, hit := f.draw()
	switch {
	case fault.status != 0 && fault.after && hit:
		status, body := refusal(fault.status)
		answer.StatusCode, answer.Status = status, ""
		answer.Header = http.Header{"Content-Type": {"application/xml"}}
		return f.replace(answer, body, len(body))
	case fault.broken && hit:
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			return err
		}
		if len(body) < 2 {
			return io.ErrUnexpectedEOF // the client gets no answer at all
		}
		return f.replace(answer, body[:len(body)/2], len(body))
	case fault.skew != 0:
		for _, name := range []string{"Date", "Last-Modified"} {
			if at, err := http.ParseTime(answer.Header.Get(name)); err == nil {
				answer.Header.Set(name, at.Add(fault.skew).UTC().Format(http.TimeFormat))
			}
		}
		if answer.Header.Get("Content-Type") == "application/xml" {
			body, err := io.ReadAll(answer.Body)
			if err != nil {
				return err
			}
			body = told.ReplaceAllFunc(body, func(match []byte) []byte {
				at, err := time.Parse(time.RFC3339, string(told.FindSubmatch(match)[1]))
				if err != nil {
					return match
				}
				return fmt.Appendf(nil, "<LastModified>%s</LastModified>", at.Add(fault.skew).UTC().Format("2006-01-02T15:04:05.000Z"))
			})
			return f.replace(answer, body, len(body))
		}
		f.spoilt.Add(1)
	}
	return nil
}

// replace replaces the answer's body, and sets the length that the answer claims to have.
func (f *bucketFront) replace(answer *http.Response, body []byte, length int) error {
	f.spoilt.Add(1)
	_ = answer.Body.Close()
	answer.Body = io.NopCloser(bytes.NewReader(body))
	answer.ContentLength, answer.TransferEncoding = int64(length), nil
	answer.Header.Set("Content-Length", strconv.Itoa(length))
	return nil
}

// refusal is S3's answer when S3 fails, or when requests come too fast.
func refusal(status int) (int, []byte) {
	code := "InternalError"
	if status == http.StatusServiceUnavailable {
		code = "SlowDown"
	}
	return status, fmt.Appendf(nil, `<?xml version="1.0" encoding="UTF-8"?><Error><Code>%s</Code><Message>chaos</Message></Error>`, code)
}
