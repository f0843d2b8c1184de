package bench

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/logplane/logplane/test/product"
)

// definitions is how many CustomResourceDefinitions a large platform has.
const definitions = 3000

// BenchmarkManyDefinitions prints what 3,000 CustomResourceDefinitions in 100 groups cost 'logplane dev': their
// creation, the description of all of them, the first use of one, and a start with all of them.
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
		describe := func(suffix string) {
			took("discovery"+suffix, func() { l.call("GET", "/apis", "") })
			took("openapi-v3-index"+suffix, func() { l.call("GET", "/openapi/v3", "") })
			took("openapi-v3-of-a-group"+suffix, func() { l.call("GET", "/openapi/v3/apis/g7.example.com/v1", "") })
			took("openapi-v2"+suffix, func() { l.call("GET", "/openapi/v2", "") })
		}
		describe("-first-ms")
		describe("-again-ms")
		took("list-of-definitions-ms", func() { l.call("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "") })
		const things = "/apis/g7.example.com/v1/namespaces/default/thing1007s"
		took("first-create-ms", func() {
			l.call("POST", things, `{"apiVersion":"g7.example.com/v1","kind":"Thing1007","metadata":{"name":"t"}}`)
		})
		took("get-ms", func() { l.call("GET", things+"/t", "") })
		b.ReportMetric(l.resident(), "resident-MiB")
		l.process.Stop()
		took("restart-to-ready-ms", func() { l.process = product.Dev(b, folder) })
		took("restart-first-get-ms", func() { l.call("GET", things+"/t", "") })
		took("restart-discovery-ms", func() { l.call("GET", "/apis", "") })
		b.ReportMetric(l.resident(), "restart-resident-MiB")
		l.process.Kill()
	}
}

func (l *load) define(i int) {
	l.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", fmt.Sprintf(
		`{"metadata":{"name":"thing%[1]ds.g%[2]d.example.com"},"spec":{"group":"g%[2]d.example.com","scope":"Namespaced",`+
			`"names":{"plural":"thing%[1]ds","singular":"thing%[1]d","kind":"Thing%[1]d","listKind":"Thing%[1]dList"},`+
			`"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{`+
			`"spec":{"type":"object","properties":{"size":{"type":"integer"},"color":{"type":"string","enum":["red","green"]}}},`+
			`"status":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}}}]}}`, i, i%100))
}
