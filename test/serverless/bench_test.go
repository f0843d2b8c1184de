package serverless

import (
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/test/serverless/emulator"
)

// These are prices of AWS in dollars, for x86-64 in us-east-1, from aws.amazon.com/lambda/pricing and
// aws.amazon.com/api-gateway/pricing in 2025. Since August 2025 AWS bills the start of a process, too. A function URL
// costs nothing.
const (
	priceGBSecond       = 0.0000166667
	priceMillion        = 0.20 // per million invocations
	priceMillionHTTPAPI = 1.00 // per million requests
	priceMillionRESTAPI = 3.50 // per million requests
)

// million returns the cost of a million invocations, each of which is billed for the given time.
func million(billed time.Duration) float64 {
	return priceMillion + 1e6*billed.Seconds()*emulator.MemorySize/1024*priceGBSecond
}

// BenchmarkInvocation prints how long a client waits for a GET and for a write: with a sandbox that must be started
// (from exec on), and with a thawed sandbox. It also prints the billed times, and the cost of a million such requests
// through a function URL.
func BenchmarkInvocation(b *testing.B) {
	for _, kind := range []string{"get", "create"} {
		b.Run(kind, func(b *testing.B) { benchmarkInvocation(b, kind) })
	}
}

func benchmarkInvocation(b *testing.B, kind string) {
	const warmed = 10
	c := newCell(b)
	n := 0
	event := func() []byte {
		method, path, body := "GET", "/api/v1/namespaces/default", ""
		if n++; kind == "create" {
			method, path, body = "POST", "/api/v1/namespaces/default/configmaps", fmt.Sprintf(`{\"metadata\":{\"name\":\"c%d\"}}`, n)
		}
		return fmt.Appendf(nil, `{"version":"2.0","rawPath":"%s","body":"%s","headers":{"authorization":"Bearer %s","content-type":"application/json"},`+
			`"requestContext":{"http":{"method":"%s","sourceIp":"127.0.0.1"},"domainName":"a.lambda-url.b.on.aws"}}`, path, body, token, method)
	}
	invoke := func(f *emulator.Function) time.Duration {
		before, began := len(f.Reports()), time.Now()
		got, err := f.Invoke(b.Context(), event())
		if err != nil {
			b.Fatal(err)
		}
		if said, err := io.ReadAll(got.Body); err != nil || got.Failure != "" || len(said) == 0 {
			b.Fatal(err, got.Failure)
		}
		got.Done()
		took := time.Since(began)
		eventlogtest.Eventually(b, "the invocation is over", func() bool { return len(f.Reports()) > before })
		return took
	}
	var cold, warm, coldBilled, warmBilled time.Duration
	var resident int64
	for b.Loop() {
		f := newFunction(b, "api", 1, c.environment...)
		cold += invoke(f)
		for range warmed {
			warm += invoke(f)
		}
		reports := f.Reports()
		f.Reap()
		coldBilled += reports[0].Billed()
		for _, r := range reports[1:] {
			warmBilled += r.Billed()
			resident = max(resident, r.Resident)
		}
	}
	per := func(d time.Duration, n int) time.Duration { return d / time.Duration(n) }
	cold, coldBilled = per(cold, b.N), per(coldBilled, b.N)
	warm, warmBilled = per(warm, b.N*warmed), per(warmBilled, b.N*warmed)
	milliseconds := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	b.ReportMetric(milliseconds(cold), "ms/cold")
	b.ReportMetric(milliseconds(warm), "ms/warm")
	b.ReportMetric(milliseconds(coldBilled), "billed-ms/cold")
	b.ReportMetric(milliseconds(warmBilled), "billed-ms/warm")
	b.ReportMetric(float64(resident>>20), "MiB")
	b.ReportMetric(million(coldBilled), "$/million-cold")
	b.ReportMetric(million(warmBilled), "$/million-warm")
	b.ReportMetric(million(warmBilled)+priceMillionHTTPAPI, "$/million-warm-HTTP-API")
	b.ReportMetric(million(warmBilled)+priceMillionRESTAPI, "$/million-warm-REST-API")
	b.ReportMetric(0, "ns/op")
}
