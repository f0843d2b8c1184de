// Package requests describes a request: the operation that its method and URL ask for, its id, and its body once the
// whole body has arrived.
package requests

import (
	"bytes"
	"net/http"
	"regexp"
	"strconv"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/sets"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
)

// DescribesProcess is true for paths that must be answered even if the log cannot be read. These answers show nothing
// that is in the log.
func DescribesProcess(path string) bool { return path == "/metrics" || path == "/version" }

// isWatch is true for a watch.
var isWatch = genericfilters.BasicLongRunningRequestCheck(sets.NewString("watch"), sets.NewString())

// IsLongRunning is true for a watch, and for the subresources that stream, such as exec and log, also if a remote API
// server serves them.
func IsLongRunning(r *http.Request, info *apirequest.RequestInfo) bool {
	return isWatch(r, info) || info != nil && info.IsResourceRequest && nodeSubresources[info.Subresource]
}

// Infos parse the path and the query of a request as kube-apiserver does.
var Infos = genericapiserver.NewRequestInfoResolver(&genericapiserver.Config{
	LegacyAPIGroupPrefixes: sets.NewString(genericapiserver.DefaultLegacyAPIPrefix),
})

// WatcherServes is true for requests that 'api' redirects to a watcher. The verb decides: '/api/v1/watch/…' is a watch
// too.
func WatcherServes(info *apirequest.RequestInfo) bool { return info.Verb == "watch" }

// Destination tells a proxy in front of other processes two things about a request. watcher says that 'api' would
// redirect the request to a watcher. lasts says that the request lasts for as long as its client likes. Both are false
// if the URL cannot be parsed, so that 'api' gets the request and refuses it.
func Destination(r *http.Request) (watcher, lasts bool) {
	if len(r.URL.RawQuery) > MaxQuery {
		return false, false
	}
	_, r = CutCluster(r)
	info, err := Infos.NewRequestInfo(r)
	if err != nil {
		return false, false
	}
	return WatcherServes(info), IsLongRunning(r, info)
}

// HasPort reports whether upstream's handler can make an address of the name that a client calls. Upstream panics if
// the name has a port that is not a number below 65536.
func HasPort(info *apirequest.RequestInfo) bool {
	_, _, port, ok := utilnet.SplitSchemeNamePort(info.Name)
	if !ok || port == "" || info.Subresource != "proxy" || info.Resource != "pods" && info.Resource != "nodes" {
		return true // upstream serves the request, or reports the mistake
	}
	_, err := strconv.ParseUint(port, 10, 16)
	return err == nil
}

// nodeSubresources are the subresources that a kubelet or a program in a Pod serves.
var nodeSubresources = map[string]bool{"exec": true, "attach": true, "portforward": true, "log": true, "proxy": true}

// NeedsNode reports whether a kubelet, or a program on the kubelet's node, serves the request.
func NeedsNode(info *apirequest.RequestInfo) bool {
	if info.APIGroup != "" || !nodeSubresources[info.Subresource] {
		return false
	}
	return info.Resource == "pods" || info.Resource == "services" || info.Resource == "nodes"
}

// MaxQuery bounds a request's query. Long queries are selectors, and each term of a selector is compared with every
// object of a list or a watch. Proxies allow less.
const MaxQuery = 32 << 10

// OnlyReads reports whether a request writes nothing.
func OnlyReads(r *http.Request) bool {
	return r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions
}

// ID is the request's Audit-Id.
func ID(r *http.Request) string { return audit.GetAuditIDTruncated(r.Context()) }

var ids = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// WithID drops an Audit-Id that is too long for a log, or has characters that an id does not need. Upstream's filter
// then makes a new Audit-Id.
func WithID(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get(auditinternal.HeaderAuditID)
		if id != "" && !ids.MatchString(id) {
			r.Header.Del(auditinternal.HeaderAuditID)
		}
		h.ServeHTTP(w, r)
	})
}

// Body is a body that has arrived in full.
type Body struct {
	*bytes.Reader
	All []byte
}

// NewBody makes a body from its bytes.
func NewBody(all []byte) *Body { return &Body{bytes.NewReader(all), all} }

// Close implements io.Closer.
func (*Body) Close() error { return nil }
