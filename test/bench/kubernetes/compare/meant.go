package main

import (
	"regexp"
	"sync"
)

// intention is a difference that is meant, and why. Rows are those
// of api.md. The narrower an entry, the less hides behind it.
type intention struct {
	request, at  string // regular expressions; at matches the whole of it
	ours, theirs int    // statuses of the answers; 0 is any
	why          string
	maybe        bool // it is not there in every run
}

// intentions are all of them. An entry that matches nothing in a whole run must go.
var intentions = []intention{
	// Paths and discovery.
	{request: `: GET /(index.html)?$`, at: `body\.paths.*`, why: "each lists the health checks and paths that it has"},
	{request: `: (POST|PUT|PATCH|DELETE) (/|/index.html|/apis|/apis/[^/ ]+|/openapi/.*)$`, at: `status|header\..*|body.*`, why: "upstream answers every method as GET; we answer 405"},
	{request: `: HEAD /`, at: `status|header\..*`, why: "HEAD is answered wherever GET is"},
	{request: `: GET /version/?`, at: `body\.(gitCommit|gitTreeState|buildDate)`, why: "each its own source"},
	{request: `GET /openapi/v2`, at: `body\.paths\./(\.well-known|openid)/.*`, why: "tokens of service accounts are not issued yet"},
	{at: `body\.resources\[serviceaccounts/token\]|body\.items\[0\]\.versions\[0\]\.resources\[\d+\].*|body\.(paths|definitions|components)\..*(serviceaccounts/\{name\}/token|TokenRequest|BoundObjectReference).*`, why: "tokens of service accounts are not issued yet", maybe: true},
	{request: `serviceaccounts/[a-z]+/token`, at: `.*`, why: "tokens of service accounts are not issued yet"},
	{request: ` as (text/html|application/cbor|application/json;g=apidiscovery.*)`, at: `body\.(details|message)`, why: "upstream has two ways to say that no representation fits", maybe: true},
	{request: `discovery: GET /(api|apis/.*)/v[^/]* as application/cbor`, at: `.*`, why: "plain discovery is not served as CBOR: upstream's handler of /api/v1 panics there"},
	{request: `(GET|HEAD) /openapi`, at: `header\.(Vary|Last-Modified)`, why: "documents do not change while a process runs; compressed ones are told apart in Vary"},
	{at: `header\.X-Content-Type-Options|header\.Content-Type|body|body\.details\.causes`, ours: 404, theirs: 404, why: "an unknown path is a Status here (row 55), upstream a text"},

	// What is behind the API.
	{request: `/(proxy|log|exec|attach|portforward)\b`, at: `status|body.*`, why: "no way to nodes is configured: 405 before the object is looked up (row 64)"},
	{request: `componentstatuses`, at: `.*`, why: "there is no etcd, scheduler or controller manager whose health could be asked for"},
	{request: `apiservices`, at: `body.*`, why: "written here by init and the lifecycle, there by controllers of kube-apiserver (row 65)", maybe: true},
	{request: `(flowschemas|prioritylevelconfigurations)`, at: `body.*`, why: "priority and fairness is not enforced: upstream's controller makes and marks these"},
	{request: `bootstrap: GET /api/v1/serviceaccounts$`, at: `body\.items\[.*/default\]`, why: "made here at the start, there by kube-controller-manager"},
	{request: `/leases`, at: `body\.items\[kube-system/apiserver-.*`, why: "the identity of a process of kube-apiserver"},
	{at: `body\.(items|rows)\[kube-system/kube-apiserver-legacy-service-account-token-tracking\]`, why: "no tokens, nothing to track"},
	{at: `body\.(items|rows)\[(admin|edit|view)\].*(f:rules.*|rules)`, why: "aggregated here when they are read, there by kube-controller-manager"},
	{request: `(services|DELETE /api/v1/namespaces/default/services/kubernetes)`, at: `.*\.targetPort`, why: "a function has no port"},
	{request: `/ipaddresses`, at: `.*managedFields.*`, why: "an address that a Service holds is a claim of its: nobody else manages its fields"},

	// Where upstream answers 500 to a request that is wrong (internal/apiserver/corrections.go), and other errors.
	{at: `.*`, ours: 400, theirs: 500, why: "the client's mistake is not the server's"},
	{at: `.*`, ours: 422, theirs: 500, why: "the client's mistake is not the server's"},
	{request: `POST /api/v1/namespaces/compare/services \{\}`, at: `body\..*`, ours: 422, theirs: 422, why: "validated before an address is taken"},
	{request: `OPTIONS`, at: `status|header\..*|body`, ours: 204, theirs: 405, why: "OPTIONS asks for nothing (row 57)"},
	{request: `access: GET /(healthz|readyz)`, at: `.*`, ours: 200, theirs: 401, why: "a probe has no credentials, and kube-apiserver runs without anonymous requests here"},
	{request: `tokenreviews`, at: `body\.status\.audiences`, why: "no tokens are issued, so no audience is configured"},
	{request: `GET /openapi/v3$`, at: `header\.(Content-Type|Etag)|body`, ours: 200, theirs: 200, why: "the index of documents is JSON and says so"},
	{request: `gadgets sending application/vnd.kubernetes.protobuf`, at: `.*`, ours: 415, theirs: 0, why: "upstream panics"},
	{request: `customresourcedefinitions`, at: `body\.(rows\[.*\]\.object\.)?metadata\.managedFields.*`, why: "names are accepted in the write itself, by nobody else"},
	{request: `customresourcedefinitions`, at: `body\.status.*`, ours: 201, theirs: 201, why: "names are accepted in the write itself (docs/decisions/custom-resources.md)"},
}

// compiled are the expressions of the intentions.
var compiled = sync.OnceValue(func() [][2]*regexp.Regexp {
	var all [][2]*regexp.Regexp
	for _, i := range intentions {
		all = append(all, [2]*regexp.Regexp{regexp.MustCompile(i.request), regexp.MustCompile("^(?:" + i.at + ")$")})
	}
	return all
})

// meant is nil if the difference is not.
func meant(d difference) *intention {
	for i, expressions := range compiled() {
		if why := intentions[i]; why.ours != 0 && why.ours != d.ourStatus || why.theirs != 0 && why.theirs != d.theirStatus {
			continue
		}
		if expressions[0].MatchString(d.request) && expressions[1].MatchString(d.at) {
			return &intentions[i]
		}
	}
	return nil
}
