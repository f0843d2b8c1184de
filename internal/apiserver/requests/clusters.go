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
	name, path, ok := cutCluster(r.URL.Path)
	if !ok {
		return "", r
	}
	u := *r.URL
	u.Path = path
	if _, raw, ok := cutCluster(u.RawPath); ok {
		u.RawPath = raw
	}
	return name, with(r, &u)
}

func cutCluster(path string) (name, rest string, ok bool) {
	path, ok = strings.CutPrefix(path, ClusterPrefix)
	if !ok {
		return "", "", false
	}
	name, rest, _ = strings.Cut(path, "/")
	return name, "/" + rest, name != ""
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
