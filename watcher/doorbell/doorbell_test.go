package doorbell

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/stretchr/testify/require"
)

// TestRings: the first change rings at once. The changes of the next five seconds ring once at their end. After that
// nothing rings.
func TestRings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var rings atomic.Int64
		b, err := New(ctx, []string{"http://127.0.0.1/"}, 5*time.Second)
		require.NoError(t, err)
		began := time.Now()
		var at []time.Duration
		b.client.Transport = ringing(func() { rings.Add(1); at = append(at, time.Since(began)) })
		done := make(chan error, 1)
		go func() { done <- b.Run(ctx) }()
		for range 1000 {
			b.Work()
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, []time.Duration{0, 5 * time.Second}, at)
		b.Work()
		synctest.Wait()
		require.EqualValues(t, 3, rings.Load())
		stop()
		require.NoError(t, <-done)
	})
}

// ringing is a server without a network, for tests in which time is simulated.
func ringing(f func()) http.RoundTripper {
	return transport(func(r *http.Request) (*http.Response, error) {
		f()
		return &http.Response{StatusCode: http.StatusAccepted, Body: http.NoBody, Request: r}, nil
	})
}

type transport func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestUnheard: a ring that fails is tried again a few times. After the last try, the next change rings again.
func TestUnheard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		rings := 0
		b, err := New(ctx, []string{"http://127.0.0.1/"}, 5*time.Second)
		require.NoError(t, err)
		b.client.Transport = transport(func(*http.Request) (*http.Response, error) { rings++; return nil, io.ErrUnexpectedEOF })
		done := make(chan error, 1)
		go func() { done <- b.Run(ctx) }()
		for n := 1; n <= 2; n++ {
			b.Work()
			time.Sleep(time.Hour)
			synctest.Wait()
			require.Equal(t, n*tries, rings)
		}
		stop()
		require.NoError(t, <-done)
	})
}

// TestStays: a ring that is redirected counts as not heard, and sends nothing to the other host. The errors of the ring
// do not contain the key in the URL.
func TestStays(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("another host was called") }))
	defer other.Close()
	for _, code := range []int{301, 302, 303, 307, 308} {
		door := httptest.NewServer(http.RedirectHandler(other.URL, code))
		b, err := New(t.Context(), []string{door.URL + "/run?code=secret"}, time.Second)
		require.NoError(t, err)
		err = b.post(t.Context(), b.doors[0])
		require.ErrorContains(t, err, fmt.Sprint(code))
		door.Close()
		err = b.post(t.Context(), b.doors[0])
		require.ErrorContains(t, err, "refused")
		require.NotContains(t, err.Error()+b.doors[0].String(), "secret")
	}
	_, err := New(t.Context(), []string{"http://lambda.eu-west-1.amazonaws.com/2015-03-31/functions/f/invocations"}, time.Second)
	require.ErrorContains(t, err, "https://")
}

// TestSigned: AWS gets the requests that its services expect, signed with the keys of the environment. Other hosts get
// no signature.
func TestSigned(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "the-key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "the-secret")
	t.Setenv("AWS_SESSION_TOKEN", "the-session")
	type got struct {
		request *http.Request
		body    string
	}
	rung := make(chan got, 1)
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		rung <- got{r, string(body)}
		w.WriteHeader(http.StatusAccepted)
	}))
	defer s.Close()
	for address, c := range map[string]struct{ service, body, header string }{
		"https://lambda.eu-central-1.amazonaws.com/2015-03-31/functions/projector/invocations": {"lambda", "{}", "Event"},
		"https://sqs.eu-central-1.amazonaws.com/123456789012/work":                             {"sqs", "Action=SendMessage&Version=2012-11-05&MessageBody=work", ""},
		"https://knative.example/projector":                                                    {"", "{}", ""},
	} {
		ctx, stop := context.WithCancel(t.Context())
		b, err := New(ctx, []string{address}, time.Hour)
		require.NoError(t, err)
		b.client.Transport = &http.Transport{
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // every host name leads to this server
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, network, s.Listener.Addr().String())
			},
		}
		done := make(chan error, 1)
		go func() { done <- b.Run(ctx) }()
		b.Work()
		r := <-rung
		require.Equal(t, http.MethodPost, r.request.Method)
		require.Equal(t, c.body, r.body)
		require.Equal(t, c.header, r.request.Header.Get("X-Amz-Invocation-Type"))
		require.Equal(t, strings.TrimPrefix(address, "https://"), r.request.Host+r.request.URL.Path)
		if c.service == "" {
			require.Empty(t, r.request.Header.Get("Authorization"))
		} else {
			requireSigned(t, r.request, r.body, c.service)
		}
		stop()
		require.NoError(t, <-done)
	}
}

// requireSigned signs the received request again, as AWS would, and compares the signatures.
func requireSigned(t *testing.T, r *http.Request, body, service string) {
	t.Helper()
	at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	require.NoError(t, err)
	again, err := http.NewRequestWithContext(t.Context(), r.Method, "https://"+r.Host+r.URL.Path, strings.NewReader(body))
	require.NoError(t, err)
	_, signed, found := strings.Cut(r.Header.Get("Authorization"), "SignedHeaders=")
	require.True(t, found)
	signed, _, _ = strings.Cut(signed, ",")
	for name := range strings.SplitSeq(signed, ";") {
		if name != "host" && name != "content-length" {
			again.Header.Set(name, r.Header.Get(name))
		}
	}
	keys, err := credentials.NewStaticCredentialsProvider("the-key", "the-secret", "the-session").Retrieve(t.Context())
	require.NoError(t, err)
	hash := sha256.Sum256([]byte(body))
	require.NoError(t, v4.NewSigner().SignHTTP(t.Context(), keys, again, hex.EncodeToString(hash[:]), service, "eu-central-1", at))
	require.Equal(t, again.Header.Get("Authorization"), r.Header.Get("Authorization"))
}
