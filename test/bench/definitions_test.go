package bench

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/logplane/logplane/internal/apiserver/customresources/crdtest"
	"github.com/logplane/logplane/test/product"
)

const (
	// definitions is how many CustomResourceDefinitions a large platform has, for example one with all of
	// Crossplane's providers.
	definitions = 1000
	// definitionBytes is the size of each definition's schema.
	definitionBytes = 100_000
)

// BenchmarkManyDefinitions prints what 1,000 CustomResourceDefinitions of 100 KB in 100 groups cost 'logplane dev':
// their creation, the description of all of them, the first use of one, and a start with all of them. The memory is
// measured before OpenAPI v2 is asked for, which few clients do, and after it.
func BenchmarkManyDefinitions(b *testing.B) {
	for b.Loop() {
		folder := b.TempDir()
		l := &load{b: b, process: product.Dev(b, folder), client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}}
		took := func(what string, do func()) {
			began := time.Now()
			do()
			b.ReportMetric(float64(time.Since(began).Microseconds())/1000, what)
		}
		took("create-all-ms", func() { l.each(definitions, l.define) })
		took("create-one-more-ms", func() { l.define(definitions) })
		describe := func(suffix string) {
			took("discovery"+suffix, func() { l.call("GET", "/apis", "") })
			took("openapi-v3-index"+suffix, func() { l.call("GET", "/openapi/v3", "") })
			took("openapi-v3-of-a-group"+suffix, func() { l.call("GET", "/openapi/v3/apis/g7.example.com/v1", "") })
		}
		describe("-first-ms")
		describe("-again-ms")
		took("list-of-definitions-ms", func() { l.call("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "") })
		const things = "/apis/g7.example.com/v1/namespaces/default/thing107s"
		took("first-create-ms", func() {
			l.call("POST", things, `{"apiVersion":"g7.example.com/v1","kind":"Thing107","metadata":{"name":"t"}}`)
		})
		took("get-ms", func() { l.call("GET", things+"/t", "") })
		b.ReportMetric(l.resident(), "resident-MiB")
		took("openapi-v2-ms", func() { l.call("GET", "/openapi/v2", "") })
		b.ReportMetric(l.resident(), "resident-after-v2-MiB")
		l.process.Stop()
		took("restart-to-ready-ms", func() { l.process = product.Dev(b, folder) })
		took("restart-first-get-ms", func() { l.call("GET", things+"/t", "") })
		took("restart-discovery-ms", func() { l.call("GET", "/apis", "") })
		b.ReportMetric(l.resident(), "restart-resident-MiB")
		l.process.Kill()
	}
}

func (l *load) define(i int) {
	l.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crdtest.Large(i, fmt.Sprintf("g%d.example.com", i%100), definitionBytes))
}
