package requests

import (
	"net/http"
	"net/url"
	"strings"
)

// ClusterPrefix begins the paths of a cell's other clusters: '/clusters/NAME' is put before any other path.
const ClusterPrefix = "/clusters/"

// CutCluster cuts '/clusters/NAME' from the beginning of a request's path. The name is empty if the path has none.
func CutCluster(r *http.Request) (name string, stripped *http.Request) {
	name, stripped, _ = Cut(ClusterPrefix, r)
	if name == "" {
		return "", r
	}
	return name, stripped
}

// Cut cuts a prefix that ends with a slash, and the segment after it, from the beginning of a request's path. It
// returns the segment, and the request for the rest of the path; or false if the path does not begin so.
func Cut(prefix string, r *http.Request) (segment string, stripped *http.Request, ok bool) {
	segment, path, ok := cutPath(prefix, r.URL.Path)
	if !ok {
		return "", r, false
	}
	u := *r.URL
	u.Path = path
	if _, raw, ok := cutPath(prefix, u.RawPath); ok {
		u.RawPath = raw
	}
	return segment, with(r, &u), true
}

func cutPath(prefix, path string) (segment, rest string, ok bool) {
	path, ok = strings.CutPrefix(path, prefix)
	if !ok {
		return "", "", false
	}
	segment, rest, _ = strings.Cut(path, "/")
	return segment, "/" + rest, true
}

// In puts a root such as '/clusters/NAME' before the path of a request.
func In(root string, r *http.Request) *http.Request {
	u := *r.URL
	if u.RawPath != "" {
		u.RawPath = root + u.RawPath
	}
	u.Path = root + u.Path
	return with(r, &u)
}

func with(r *http.Request, u *url.URL) *http.Request {
	out := new(http.Request)
	*out = *r
	out.URL = u
	return out
}
