package apiserver

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/munnerz/goautoneg"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/spec3"

	"github.com/logplane/logplane/internal/apiserver/customresources"
	"github.com/logplane/logplane/internal/apiserver/spec"
)

//go:generate go test . -run TestSpecIsCurrent -update

// kubernetesVersion is the version whose API is served; OpenAPI documents carry it.
const kubernetesVersion = "v1.36.3"

const (
	// describedVersions is how many versions of one CRD OpenAPI v2 describes, the newest. Each costs some 10 ms and
	// 30 KiB. No CRD that we know of has half as many; clients that know v3 find them all there.
	describedVersions = 64
	// documentBytes bounds the finished documents that one process keeps, compressed; the built-in ones do not count.
	documentBytes = 32 << 20
	// additionBytes bounds what it keeps to make the next OpenAPI v2 document of, if not every CRD has changed.
	additionBytes = 64 << 20
)

// apiDescription serves OpenAPI: the generated documents of the built-in groups as they were shipped, and
// what CRDs add, computed from the newest view. It is safe for concurrent use.
type apiDescription struct {
	server *Server
	crds   *customresources.Reader
	describer
	overviews *madeOnce[customresources.State, *overview]
}

// newOpenAPI serves '/openapi/…'.
func newOpenAPI(s *Server) (http.Handler, error) {
	describer, err := newDescriber(s.config.Logger)
	if err != nil {
		return nil, err
	}
	overviews, err := newMadeOnce[customresources.State](1, func(*overview) int { return 1 })
	if err != nil {
		return nil, err
	}
	return &apiDescription{s, s.definitions, describer, overviews}, nil
}

// ServeHTTP serves '/openapi/v2', '/openapi/v3' and '/openapi/v3/<path>'.
func (d *apiDescription) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		d.server.fail(w, r, apierrors.NewMethodNotSupported(schema.GroupResource{}, r.Method))
		return
	}
	if err := d.serve(w, r); err != nil {
		d.server.fail(w, r, notMade(r, err))
	}
}

// notMade says why a description could not be made, or that the request did not wait until it was.
func notMade(r *http.Request, err error) error {
	if r.Context().Err() != nil {
		return apierrors.NewTimeoutError("the request ended before its answer was made", 1)
	}
	return apierrors.NewInternalError(err)
}

func (d *apiDescription) serve(w http.ResponseWriter, r *http.Request) error {
	builtin, err := spec.Builtin()
	if err != nil {
		return err
	}
	path := strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/openapi/"), "/")
	name := strings.TrimPrefix(path, "v3/")
	if etag, ok := builtin.V3[name]; ok && name != path { // no CRD changes it
		return (&described{etag, func(_ context.Context, f spec.Format) (spec.Document, error) { return spec.V3(name, f) }}).serve(w, r, path)
	}
	set, err := d.crds.All()
	if err != nil {
		return err
	}
	all, err := d.overviews.get(r.Context(), set.State, func(context.Context) (*overview, error) { return d.overview(builtin, set) })
	if err != nil {
		return err
	}
	if path == "v2" {
		return all.v2.serve(w, r, path)
	}
	if path == "v3" {
		serveIndex(w, r, all.index)
		return nil
	}
	document, ok := all.v3[name]
	if !ok || name == path {
		d.server.fail(w, r, notServed(r))
		return nil
	}
	return document.serve(w, r, path)
}

// indexOf lists the OpenAPI v3 documents with their hashes.
func indexOf(builtin spec.Index, custom map[string]*described) ([]byte, error) {
	index := handler3.OpenAPIV3Discovery{Paths: map[string]handler3.OpenAPIV3DiscoveryGroupVersion{}}
	for path, etag := range builtin.V3 {
		index.Paths[path] = handler3.OpenAPIV3DiscoveryGroupVersion{ServerRelativeURL: hashed("v3/"+path, etag)}
	}
	for path, d := range custom {
		index.Paths[path] = handler3.OpenAPIV3DiscoveryGroupVersion{ServerRelativeURL: hashed("v3/"+path, d.etag)}
	}
	encoded, err := json.Marshal(index)
	if err != nil {
		return nil, fmt.Errorf("encode the OpenAPI index: %w", err)
	}
	return encoded, nil
}

func serveIndex(w http.ResponseWriter, r *http.Request, index []byte) {
	w.Header().Set("Etag", strconv.Quote(fmt.Sprintf("%X", sha512.Sum512(index))))
	w.Header().Set("Content-Type", "application/json")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(index))
}

func hashed(path, etag string) string {
	return (&url.URL{Path: "/openapi/" + path, RawQuery: url.Values{"hash": {etag}}.Encode()}).String()
}

// described is one OpenAPI document in both formats.
type described struct {
	etag string
	// encode returns the document compressed.
	encode func(context.Context, spec.Format) (spec.Document, error)
}

// serve negotiates as upstream does, and sends the document compressed to whoever accepts that.
func (d *described) serve(w http.ResponseWriter, r *http.Request, path string) error {
	w.Header().Set("Vary", "Accept, Accept-Encoding")
	format, ok := negotiate(r.Header.Get("Accept"), path)
	if !ok {
		w.WriteHeader(http.StatusNotAcceptable)
		return nil
	}
	if hash := r.URL.Query().Get("hash"); hash != "" && strings.HasPrefix(path, "v3/") {
		if hash != d.etag {
			http.Redirect(w, r, hashed(path, d.etag), http.StatusMovedPermanently)
			return nil
		}
		w.Header().Set("Cache-Control", "public, immutable")
		w.Header().Set("Expires", time.Now().AddDate(1, 0, 0).UTC().Format(http.TimeFormat))
	}
	w.Header().Set("Etag", strconv.Quote(d.etag))
	if r.Header.Get("If-None-Match") == strconv.Quote(d.etag) {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	document, err := d.encode(r.Context(), format)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", contentType(format, path))
	body := document.Gzip
	if acceptsGzip(r.Header.Get("Accept-Encoding")) {
		w.Header().Set("Content-Encoding", "gzip")
	} else if body, err = document.Plain(); err != nil {
		return err
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(http.StatusOK)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // fails when the client is gone, and then nothing can be told to it
	}
	return nil
}

// generation is 'v2' or 'v3'.
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

// describer makes the documents. A CRD that it cannot describe is left out and logged, as upstream does. It is
// safe for concurrent use.
type describer struct {
	logger    *slog.Logger
	documents *madeOnce[documentKey, spec.Document]
	additions *madeOnce[additionKey, addition]
	// splicing has room for one: an OpenAPI v2 document takes much memory while it is made.
	splicing chan struct{}
}

// documentKey names a finished document. Path is 'v2' or 'v3/…'.
type documentKey struct {
	path, etag string
	format     spec.Format
}

// additionKey names what one state of a CRD adds to OpenAPI v2.
type additionKey struct {
	uid             types.UID
	resourceVersion string
	format          spec.Format
}

func newDescriber(logger *slog.Logger) (describer, error) {
	documents, err := newMadeOnce[documentKey](documentBytes, func(d spec.Document) int { return len(d.Gzip) })
	if err != nil {
		return describer{}, err
	}
	additions, err := newMadeOnce[additionKey](additionBytes, addition.size)
	return describer{logger, documents, additions, make(chan struct{}, 1)}, err
}

func (d describer) leaveOut(crd *apiextensionsv1.CustomResourceDefinition, version string, err error) {
	d.logger.Warn("a CustomResourceDefinition is missing from OpenAPI", "name", crd.Name, "version", version, "error", err)
}

// overview is what there is to serve for one set of CRDs. Documents are made when they are asked for; their
// ETags come from the CRDs, so that the overview costs no building.
type overview struct {
	v2    *described
	v3    map[string]*described // of CRDs, by path
	index []byte
}

func (d describer) overview(builtin spec.Index, set customresources.Set) (*overview, error) {
	var served []*apiextensionsv1.CustomResourceDefinition
	custom := map[schema.GroupVersion][]*apiextensionsv1.CustomResourceDefinition{}
	for _, crd := range set.Definitions {
		if !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) {
			continue
		}
		served = append(served, crd)
		for _, v := range crd.Spec.Versions {
			if v.Served {
				gv := schema.GroupVersion{Group: crd.Spec.Group, Version: v.Name}
				custom[gv] = append(custom[gv], crd)
			}
		}
	}
	o := &overview{v2: d.v2(builtin, served), v3: map[string]*described{}}
	for gv, crds := range custom {
		path := "apis/" + gv.String()
		if _, ok := builtin.V3[path]; !ok {
			o.v3[path] = d.v3(gv, crds)
		}
	}
	var err error
	o.index, err = indexOf(builtin, o.v3)
	return o, err
}

// etagOfCRDs names a document by what it is made of, and by the version of what makes it.
func etagOfCRDs(crds []*apiextensionsv1.CustomResourceDefinition) string {
	sum := sha512.New()
	fmt.Fprintln(sum, kubernetesVersion)
	for _, crd := range crds {
		fmt.Fprintln(sum, crd.UID, crd.ResourceVersion)
	}
	return fmt.Sprintf("%X", sum.Sum(nil))
}

// v3 is the document of a version of the CRDs' group.
func (d describer) v3(gv schema.GroupVersion, crds []*apiextensionsv1.CustomResourceDefinition) *described {
	key := documentKey{path: "v3/apis/" + gv.String(), etag: etagOfCRDs(crds)}
	asJSON := func(ctx context.Context) (spec.Document, error) {
		return d.documents.get(ctx, key.in(spec.JSON), func(ctx context.Context) (spec.Document, error) { return compress(d.customV3(ctx, gv, crds)) })
	}
	asProto := func(ctx context.Context) (spec.Document, error) {
		document, err := asJSON(ctx)
		if err != nil {
			return spec.Document{}, err
		}
		plain, err := document.Plain()
		if err != nil {
			return spec.Document{}, err
		}
		return compress(handler3.ToV3ProtoBinary(plain))
	}
	return &described{key.etag, func(ctx context.Context, f spec.Format) (spec.Document, error) {
		if f == spec.JSON {
			return asJSON(ctx)
		}
		return d.documents.get(ctx, key.in(f), asProto)
	}}
}

func (k documentKey) in(f spec.Format) documentKey {
	k.format = f
	return k
}

func (d describer) customV3(ctx context.Context, gv schema.GroupVersion, crds []*apiextensionsv1.CustomResourceDefinition) ([]byte, error) {
	var specs []*spec3.OpenAPI
	for _, crd := range crds {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		s, err := builder.BuildOpenAPIV3(crd, gv.Version, builder.Options{IncludeSelectableFields: true})
		if err != nil {
			d.leaveOut(crd, gv.Version, err)
			continue
		}
		specs = append(specs, s)
	}
	merged, err := builder.MergeSpecsV3(specs...)
	if err != nil {
		return nil, fmt.Errorf("describe %s: %w", gv, err)
	}
	return json.Marshal(merged)
}

func compress(b []byte, err error) (spec.Document, error) {
	if err != nil {
		return spec.Document{}, err
	}
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		return spec.Document{}, err
	}
	_, err = w.Write(b)
	if err = errors.Join(err, w.Close()); err != nil {
		return spec.Document{}, fmt.Errorf("compress an OpenAPI document: %w", err)
	}
	return spec.Document{Gzip: out.Bytes()}, nil
}
