package description

import (
	"bytes"
	"context"
	"crypto/sha512"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/munnerz/goautoneg"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/logplane/logplane/internal/apiserver/answers"
	"github.com/logplane/logplane/internal/apiserver/customresources"
	"github.com/logplane/logplane/internal/apiserver/description/spec"
	"github.com/logplane/logplane/internal/kubestore"
)

// openAPI serves the generated documents of the built-in groups as they were shipped, and documents of CRDs, which are
// computed from the newest view. It is safe for concurrent use.
type openAPI struct {
	config Config
	describer
	builtin   func() spec.Index // of the groups that the server serves
	overviews *madeOnce[customresources.State, *overview]
}

// NewOpenAPI returns a handler of '/openapi/…'.
func NewOpenAPI(c Config) http.Handler {
	return &openAPI{c, newDescriber(c.Logger, c.Definitions), sync.OnceValue(c.index), newMadeOnce[customresources.State](moments, func(*overview) int { return 1 })}
}

// changedRetries is how many times a document is begun anew because a CRD has changed while the document was made.
const changedRetries = 5

// ServeHTTP serves '/openapi/v2', '/openapi/v3' and '/openapi/v3/<path>'.
func (d *openAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		answers.Fail(w, r, apierrors.NewMethodNotSupported(schema.GroupResource{}, r.Method))
		return
	}
	for tries := 0; ; tries++ {
		err := d.serve(w, r)
		if err == nil {
			return
		}
		for _, of := range []string{"Etag", "Cache-Control", "Expires", "Content-Encoding"} { // headers of the document, not of the error
			w.Header().Del(of)
		}
		if changed := new(customresources.ChangedError); !errors.As(err, &changed) || tries == changedRetries {
			answers.Fail(w, r, notMade(r, err))
			return
		} // otherwise the finished parts are kept
	}
}

func (d *openAPI) serve(w http.ResponseWriter, r *http.Request) error {
	builtin := d.builtin()
	path := strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/openapi/"), "/")
	name := strings.TrimPrefix(path, "v3/")
	if etag, ok := builtin.V3[name]; ok && name != path { // CRDs do not change this document
		return (&described{etag, func(_ context.Context, f spec.Format) (spec.Document, error) { return spec.V3(name, f), nil }}).serve(w, r, path)
	}
	set, remotes, err := d.config.served(r.Context())
	if err != nil {
		return err
	}
	all, err := d.overviews.get(r.Context(), set.State, func(context.Context) (*overview, error) { return d.overview(builtin, set), nil })
	if err != nil {
		return err
	}
	if path == "v2" {
		document, err := d.whole(r.Context(), builtin, all, remotes)
		if err != nil {
			return err
		}
		return document.serve(w, r, path)
	}
	if path == "v3" {
		index, err := d.index(r.Context(), builtin, all, remotes)
		if err != nil {
			return err
		}
		w.Header().Set("Etag", strconv.Quote(fmt.Sprintf("%X", sha512.Sum512(index))))
		w.Header().Set("Content-Type", "application/json")
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(index))
		return nil
	}
	document, ok := all.v3[name]
	if !ok || name == path {
		answers.Unknown.ServeHTTP(w, r)
		return nil
	}
	return document.serve(w, r, path)
}

// whole returns the OpenAPI v2 document of all groups. It lacks remote versions whose servers do not answer in time.
func (d *openAPI) whole(ctx context.Context, builtin spec.Index, all *overview, remotes []*apiregistrationv1.APIService) (*described, error) {
	if len(remotes) == 0 {
		return d.v2(builtin, all.served, nil), nil
	}
	documents, err := d.config.Remotes.OpenAPIV2(ctx, remotes)
	if err != nil {
		return nil, err
	}
	var known []remoteV2
	for i, service := range remotes {
		if documents[i] != nil {
			known = append(known, remoteV2{service, documents[i]})
		}
	}
	return d.v2(builtin, all.served, known), nil
}

// index lists the OpenAPI v3 documents. Requests for the documents of remote versions are forwarded.
func (d *openAPI) index(ctx context.Context, builtin spec.Index, all *overview, remotes []*apiregistrationv1.APIService) ([]byte, error) {
	var located map[string]string
	if len(remotes) > 0 {
		var err error
		if located, err = d.config.Remotes.OpenAPIV3(ctx, remotes); err != nil {
			return nil, err
		}
	}
	return all.indexOf(builtin, located, d.config.Root)
}

// serve negotiates as upstream does, and sends the document compressed to clients that accept gzip.
func (d *described) serve(w http.ResponseWriter, r *http.Request, path string) error {
	w.Header().Set("Vary", "Accept, Accept-Encoding")
	format, ok := negotiate(r.Header.Get("Accept"), path)
	if !ok {
		w.WriteHeader(http.StatusNotAcceptable)
		return nil
	}
	w.Header().Set("Content-Type", contentType(format, path)) // also for a redirect, which would otherwise have an HTML page
	w.Header().Set("Etag", strconv.Quote(d.etag))
	if hash := r.URL.Query().Get("hash"); hash != "" && strings.HasPrefix(path, "v3/") {
		if hash != d.etag {
			http.Redirect(w, r, hashed(path, d.etag), http.StatusMovedPermanently)
			return nil
		}
		w.Header().Set("Cache-Control", "public, immutable")
		w.Header().Set("Expires", time.Now().AddDate(1, 0, 0).UTC().Format(http.TimeFormat))
	}
	if known(r.Header.Values("If-None-Match"), d.etag) {
		w.Header().Del("Content-Type")
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	if err := kubestore.TakeHeavySeat(r.Context()); err != nil { // megabytes are made, decompressed or sent
		return err
	}
	document, err := d.encode(r.Context(), format)
	if err != nil {
		return err
	}
	body := document.Gzip
	if acceptsGzip(r.Header.Get("Accept-Encoding")) {
		w.Header().Set("Content-Encoding", "gzip")
	} else {
		body = document.Plain()
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(http.StatusOK)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // fails only if the client is gone
	}
	return nil
}

// known reports whether a client says that it has the document (RFC 9110, section 13.1.2). A proxy that compresses
// answers makes their tags weak.
func known(ifNoneMatch []string, etag string) bool {
	for tag := range strings.SplitSeq(strings.Join(ifNoneMatch, ","), ",") {
		tag = strings.TrimPrefix(strings.TrimSpace(tag), "W/")
		if tag == "*" || tag == strconv.Quote(etag) {
			return true
		}
	}
	return false
}

// generation returns 'v2' or 'v3'.
func generation(path string) string { return path[:2] }

func contentType(f spec.Format, path string) string {
	if f == spec.JSON {
		return "application/json"
	}
	return "application/com.github.proto-openapi.spec." + generation(path) + ".v1.0+protobuf"
}

func negotiate(accept, path string) (spec.Format, bool) {
	if accept == "" {
		accept = "*/*"
	}
	proto := "com.github.proto-openapi.spec." + generation(path)
	for _, clause := range goautoneg.ParseAccept(accept) {
		if clause.Type != "application" && clause.Type != "*" {
			continue
		}
		switch clause.SubType {
		case "json", "*":
			return spec.JSON, true
		case proto + "@v1.0+protobuf", proto + ".v1.0+protobuf":
			return spec.Proto, true
		}
	}
	return "", false
}

func acceptsGzip(encodings string) bool {
	for _, e := range strings.Split(encodings, ",") {
		name, quality, _ := strings.Cut(strings.TrimSpace(e), ";")
		if name == "gzip" && strings.TrimSpace(quality) != "q=0" {
			return true
		}
	}
	return false
}
