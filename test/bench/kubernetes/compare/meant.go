package main

import (
	"regexp"
	"sync"
)

// intention is an intended difference, and the reason for it. Rows are rows of api.md. The narrower an entry is, the
// fewer mistakes it hides.
type intention struct {
	request, at  string // regular expressions; at must match the whole path
	ours, theirs int    // statuses of the answers; 0 is any
	why          string
	maybe        bool // the difference is not there in every run
}

// intentions are all intended differences. An entry that matches nothing in a whole run must be removed.
var intentions = []intention{
	// These entries are about paths and discovery.
	{request: `: GET /(index.html)?$`, at: `body\.paths\[/(healthz|livez|readyz|metrics|debug|logs|apis/history\.logplane\.dev|openapi|statusz|flagz)\b.*`, why: "each lists the health checks and paths that it has"},
	{request: `: (POST|PUT|PATCH|DELETE) (/|/index.html|/apis|/apis/[^/ ]+|/openapi/.*)$`, at: `status|header\..*|body.*`, ours: 405, why: "upstream answers every method as GET; we answer 405"},
	{request: `: HEAD /api$`, at: `status`, ours: 200, theirs: 405, why: "HEAD is answered wherever GET is"},
	{request: `: GET /version/?`, at: `body\.(gitCommit|gitTreeState|buildDate)`, why: "each its own source"},
	{request: ` as (text/html|application/cbor|application/json;g=apidiscovery.*)`, at: `body\.(details|message)`, ours: 406, why: "upstream has two ways to say that no representation fits"},
	{request: `GET /(openid|\.well-known)/`, at: `status|header\.(Content-Type|Cache-Control)|body.*`, ours: 200, theirs: 406, why: "public keys and their issuer are JSON, whatever kind of JSON is asked for"},
	{request: `(GET|HEAD) /openapi`, at: `header\.(Vary|Last-Modified)`, why: "documents do not change while a process runs; compressed ones are told apart in Vary"},
	{request: `sendInitialEvents=true.*allowWatchBookmarks=true`, at: `header\.Vary`, ours: 200, theirs: 200, why: "upstream may compress a watch that begins with a list; here the gate for it is off"},
	{request: `GET /openapi/v3$`, at: `header\.(Content-Type|Etag)`, ours: 200, theirs: 200, why: "the index of documents is JSON and says so"},
	{request: `GET /openapi/v3/(api/v1/)?$`, at: `status|header\..*`, ours: 200, theirs: 404, why: "a slash at the end is forgiven; upstream lists '/openapi/v3/' and does not serve it"},
	{at: `header\.X-Content-Type-Options|header\.Content-Type|body|body\.details\.causes`, ours: 404, theirs: 404, why: "an unknown path is a Status here (row 55), upstream a text"},

	// These entries are about the past and transactions (rows 73 and 74), which only Logplane serves.
	{request: ` /(openapi/v3/)?apis/history\.logplane\.dev\b`, at: `request`, why: "a group of ours"},
	{request: `GET /apis/?`, at: `body\.(groups|items)\[history\.logplane\.dev\]`, why: "a group of ours"},
	{request: `GET /openapi/v[23]$`, at: `body\.(paths\./?apis/history\.logplane\.dev\b|definitions\.dev\.logplane\.history\.v1\.).*`, why: "a group of ours"},
	{request: `/clusterroles`, at: `body\.(items|rows)\[logplane:aggregate-to-view\]`, why: "a role for our group"},
	{request: `/clusterrole(binding)?s`, at: `body\.(items|rows)\[logplane:transactions\]`, why: "a role for our group"},
	{request: `selfsubjectrulesreviews by stranger`, at: `body\.status\.resourceRules\.length`, why: "everybody may send a transaction"},

	{request: `reading: GET .* as text/csv$`, at: `status|header\.Content-Type|body`, ours: 200, theirs: 406, why: "a representation of ours (row 52)"},

	// These differences come from the storage and the controllers behind the API.
	{request: `componentstatuses`, at: `.*`, why: "the one component is the log: there is no etcd, and nobody knows of a scheduler or controller manager"},
	{request: `/apiservices`, at: `.*managedFields\[(logplane|kube-apiserver) Update status apiregistration.k8s.io/v1\]`, why: "written here by init and the lifecycle, there by controllers of kube-apiserver (row 65)"},
	{request: `/(flowschemas|prioritylevelconfigurations)`, at: `header\.Warning|.*\.status\.conditions(\[(Dangling|Enforced)\])?`, why: "priority and fairness is not enforced, and every object says so; upstream's controller says what it found"},
	{request: `/flowschemas`, at: `body\.rows\[sample\]\.cells\[5\]`, why: "the column of what that controller found"},
	{request: `/flowschemas`, at: `.*managedFields\[api-priority-and-fairness-config-consumer-v1 Apply status .*\]`, why: "that controller's"},
	{request: `/(flowschemas|prioritylevelconfigurations)`, at: `.*managedFields\[compare Update status.*\]\.fieldsV1\.f:status\.f:conditions\.\.`, why: "who is the first to write a condition owns their list"},
	{request: `/apiservices/`, at: `body\.status\.conditions\[Available\]`, why: "put back in time after the script has replaced the conditions", maybe: true},
	{request: `/apiservices\?.*watch=1`, at: `body.*`, ours: 200, theirs: 200, why: "the same, between two writes of the script", maybe: true},
	{request: `/flowschemas\?.*watch=1`, at: `body.*`, ours: 200, theirs: 200, why: "that controller writes between two writes of the script", maybe: true},
	{request: `(bootstrap|every resource): GET .*/(flowschemas|prioritylevelconfigurations)\b`, at: `body\.(items|rows)(\[.*\])?`, theirs: 200, why: "upstream's controllers make these"},
	{request: `/resourcequotas`, at: `.*\.status\.(hard|used)|body\.rows\[compare/(sample|updated)\]\.cells\[1\]`, why: "a quota's status is of its own write (docs/decisions/batches.md), there of kube-controller-manager"},
	{request: `tokenreviews .*"elsewhere"`, at: `body\.status\.error`, why: "there may be an authenticator more or fewer that says why", maybe: true},
	{request: `bootstrap: GET /api/v1/serviceaccounts$`, at: `body\.items\[.*/default\]`, why: "made here at the start, there by kube-controller-manager"},
	{request: `/leases`, at: `body\.items\[kube-system/apiserver-.*\]`, why: "the identity of a process of kube-apiserver"},
	{at: `body\.(items|rows)\[kube-system/kube-apiserver-legacy-service-account-token-tracking\]`, why: "the use of tokens of Secrets is not recorded: a read would become a write"},
	{at: `body\.(items|rows)\[(admin|edit|view)\].*(f:rules.*|rules)`, why: "aggregated here when they are read, there by kube-controller-manager"},
	{request: `(services|DELETE /api/v1/namespaces/default/services/kubernetes)`, at: `.*\.targetPort`, why: "a function has no port"},
	{request: `services: POST .*/services\?dryRun=All .*"dry-taken"`, at: `status|body.*`, ours: 422, theirs: 201, why: "a dry run is refused an address that is taken, as the request itself would be (row 41)"},
	{request: `/ipaddresses`, at: `.*managedFields`, why: "an address that a Service holds is a claim of its: nobody else manages its fields"},
	{request: `customresourcedefinitions`, at: `body\.(rows\[.*\]\.object\.)?metadata\.managedFields\[kube-apiserver Update status apiextensions.k8s.io/v1\]`, why: "names are accepted in the write itself, by nobody else"},
	{request: `POST .*/customresourcedefinitions`, at: `body\.status\.(acceptedNames\..*|conditions)`, ours: 201, theirs: 201, why: "names are accepted in the write itself (docs/decisions/custom-resources.md)"},

	// In these entries upstream answers 500 to a wrong request (internal/apiserver/answers/corrections.go), or has
	// another error.
	{request: `resourceVersion=(1?x|-1)$`, at: `status|body(\[0\])?\.(code|reason|message)`, ours: 400, theirs: 500, why: "not a revision"},
	{request: `sending application/apply-patch\+yaml .*("observedGeneration":1|"nothing":1)`, at: `status|body\.(code|reason)`, ours: 400, theirs: 500, why: "not a field of the schema"},
	{request: `bindings \{(\}$|.*"target":)`, at: `status|body\.(code|reason)`, ours: 400, theirs: 500, why: "a name is missing, or a target that is no node"},
	{request: `POST /api/v1/namespaces/compare/configmaps .*"resourceVersion"`, at: `status|body\.(code|reason)`, ours: 400, theirs: 500, why: "a new object has no revision"},
	{request: `strategic-merge-patch.*"nameless"`, at: `status|body\.(code|reason)`, ours: 400, theirs: 500, why: "the key that merges lists is missing"},
	{request: ` /api/v1/watch/?( |$)`, at: `status|header\..*|body`, ours: 400, theirs: 500, why: "a path without a resource"},
	{request: `PUT .*"resourceVersion":"x"`, at: `status|body\.(code|details|reason|message)`, ours: 422, theirs: 500, why: "not a revision"},
	{request: `POST /api/v1/namespaces/compare/services \{\}`, at: `body\.(details\.causes.*|message)`, ours: 422, theirs: 422, why: "validated before an address is taken"},
	{request: `bad input: (POST|PUT) .*(\{"a":\{"a":|\x{fffd})`, at: `body\.message`, ours: 400, theirs: 400, why: "a body is measured before it is decoded (docs/decisions/hostile-input.md)"},
	{request: `OPTIONS`, at: `status|header\..*|body`, ours: 204, theirs: 405, why: "OPTIONS asks for nothing (row 57)"},
	{request: `access: GET /(healthz|readyz)`, at: `.*`, ours: 200, theirs: 401, why: "a probe has no credentials, and kube-apiserver runs without anonymous requests here"},
	{request: `gadgets sending application/vnd.kubernetes.protobuf`, at: `.*`, ours: 415, theirs: 0, why: "upstream panics"},
}

// compiled returns the regular expressions of the intentions.
var compiled = sync.OnceValue(func() [][2]*regexp.Regexp {
	var all [][2]*regexp.Regexp
	for _, i := range intentions {
		all = append(all, [2]*regexp.Regexp{regexp.MustCompile(i.request), regexp.MustCompile("^(?:" + i.at + ")$")})
	}
	return all
})

// meant returns the intention that explains the difference, nil if there is none.
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
