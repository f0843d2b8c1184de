package serverless

import (
	"fmt"
	"io"
	"testing"
	"time"
)

// BenchmarkInvocation prints how long a client waits for a GET: of a sandbox that has to be started, from exec on, and
// of one that is thawed.
func BenchmarkInvocation(b *testing.B) {
	c := newCell(b)
	event := fmt.Appendf(nil, `{"version":"2.0","rawPath":"/api/v1/namespaces/default","headers":{"authorization":"Bearer %s"},`+
		`"requestContext":{"http":{"method":"GET","sourceIp":"127.0.0.1"},"domainName":"a.lambda-url.b.on.aws"}}`, token)
	invoke := func(f *function) time.Duration {
		began := time.Now()
		got, err := f.invoke(b.Context(), event)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, got.body); err != nil || got.failure != "" {
			b.Fatal(err, got.failure)
		}
		got.done()
		return time.Since(began)
	}
	var cold, warm time.Duration
	for b.Loop() {
		f := newFunction(b, "api", 1, c.environment...)
		cold += invoke(f)
		for range 10 {
			warm += invoke(f)
		}
		f.reap()
	}
	b.ReportMetric(float64(cold.Microseconds())/1000/float64(b.N), "ms/cold")
	b.ReportMetric(float64(warm.Microseconds())/10000/float64(b.N), "ms/warm")
}
