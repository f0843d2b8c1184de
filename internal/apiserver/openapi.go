package apiserver

import (
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/munnerz/goautoneg"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/spec3"
	openapispec "k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/logplane/logplane/internal/apiserver/spec"
)

//go:generate go test . -run TestSpecIsCurrent -update

// kubernetesVersion is the version whose API is served; OpenAPI documents carry it.
const kubernetesVersion = "v1.36.3"

// apiDescription serves OpenAPI: the generated documents of the built-in groups as they were shipped, and
// what CRDs add, computed from the newest view. It is safe for concurrent use.
type apiDescription struct {
	server *Server
	crds   *crdReader
	v2     perState[*described]
	v3     perState[map[string]*described]
}

// newOpenAPI serves '/openapi/…'.
func newOpenAPI(s *Server) (http.Handler, error) {
	return &apiDescription{
		server: s,
		crds:   newCRDReader(s),
		v2:     perState[*described]{build: describer{s.config.Logger}.v2},
		v3:     perState[map[string]*described]{build: describer{s.config.Logger}.v3},
	}, nil
}

// ServeHTTP serves '/openapi/v2', '/openapi/v3' and '/openapi/v3/<path>'.
func (d *apiDescription) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		d.server.fail(w, r, apierrors.NewMethodNotSupported(schema.GroupResource{}, r.Method))
		return
	}
	if err := d.serve(w, r); err != nil {
		d.server.fail(w, r, apierrors.NewInternalError(err))
	}
}

func (d *apiDescription) serve(w http.ResponseWriter, r *http.Request) error {
	set, err := d.crds.all(r.Context())
	if err != nil {
		return err
	}
	path := strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/openapi/"), "/")
	if path == "v2" {
		document, err := d.v2.get(set)
		if err != nil {
			return err
		}
		return document.serve(w, r, "v2")
	}
	documents, err := d.v3.get(set)
	if err != nil {
		return err
	}
	if path == "v3" {
		return serveIndex(w, r, documents)
	}
	document, ok := documents[strings.TrimPrefix(path, "v3/")]
	if !ok || !strings.HasPrefix(path, "v3/") {
		d.server.fail(w, r, notServed(r))
		return nil
	}
	return document.serve(w, r, path)
}

// serveIndex lists the OpenAPI v3 documents with their hashes.
func serveIndex(w http.ResponseWriter, r *http.Request, documents map[string]*described) error {
	index := handler3.OpenAPIV3Discovery{Paths: map[string]handler3.OpenAPIV3DiscoveryGroupVersion{}}
	for path, d := range documents {
		index.Paths[path] = handler3.OpenAPIV3DiscoveryGroupVersion{ServerRelativeURL: hashed("v3/"+path, d.etag)}
	}
	encoded, err := json.Marshal(index)
	if err != nil {
		return fmt.Errorf("encode the OpenAPI index: %w", err)
	}
	w.Header().Set("Etag", strconv.Quote(fmt.Sprintf("%X", sha512.Sum512(encoded))))
	w.Header().Set("Content-Type", "application/json")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(encoded))
	return nil
}

func hashed(path, etag string) string {
	return (&url.URL{Path: "/openapi/" + path, RawQuery: url.Values{"hash": {etag}}.Encode()}).String()
}

// described is one OpenAPI document in both formats.
type described struct {
	etag string
	// encode returns the document compressed.
	encode func(spec.Format) (spec.Document, error)
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
	document, err := d.encode(format)
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

// describer makes the documents. A CRD that it cannot describe is left out and logged, as upstream does.
type describer struct{ logger *slog.Logger }

func (d describer) leaveOut(crd *apiextensionsv1.CustomResourceDefinition, version string, err error) {
	d.logger.Warn("a CustomResourceDefinition is missing from OpenAPI", "name", crd.Name, "version", version, "error", err)
}

// v3 is the generated documents and one for each served version of the CRDs' groups, made when
// it is asked for. Its ETag comes from the CRDs, so that the index costs no building.
func (d describer) v3(set crdSet) (map[string]*described, error) {
	builtin, err := spec.Builtin()
	if err != nil {
		return nil, err
	}
	documents := map[string]*described{}
	for path, etag := range builtin.V3 {
		documents[path] = &described{etag, func(f spec.Format) (spec.Document, error) { return spec.V3(path, f) }}
	}
	custom := map[schema.GroupVersion][]*apiextensionsv1.CustomResourceDefinition{}
	for _, crd := range set.crds {
		if !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) {
			continue
		}
		for _, v := range crd.Spec.Versions {
			if v.Served {
				gv := schema.GroupVersion{Group: crd.Spec.Group, Version: v.Name}
				custom[gv] = append(custom[gv], crd)
			}
		}
	}
	for gv, crds := range custom {
		path := "apis/" + gv.String()
		if documents[path] == nil {
			documents[path] = &described{etagOfCRDs(crds), built(func() ([]byte, error) { return d.customV3(gv, crds) }, handler3.ToV3ProtoBinary)}
		}
	}
	return documents, nil
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

func (d describer) customV3(gv schema.GroupVersion, crds []*apiextensionsv1.CustomResourceDefinition) ([]byte, error) {
	var specs []*spec3.OpenAPI
	for _, crd := range crds {
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

// built encodes a document that is computed on first use.
func built(compute func() ([]byte, error), toProto func([]byte) ([]byte, error)) func(spec.Format) (spec.Document, error) {
	plain := sync.OnceValues(compute)
	asJSON := sync.OnceValues(func() (spec.Document, error) { return compress(plain()) })
	asProto := sync.OnceValues(func() (spec.Document, error) {
		b, err := plain()
		if err != nil {
			return spec.Document{}, err
		}
		return compress(toProto(b))
	})
	return func(f spec.Format) (spec.Document, error) {
		if f == spec.JSON {
			return asJSON()
		}
		return asProto()
	}
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

// v2 is the one document of everything. What CRDs add is spliced into the generated document
// without decoding the rest of it, which would cost a hundred times the memory.
func (d describer) v2(set crdSet) (*described, error) {
	builtin, err := spec.Builtin()
	if err != nil {
		return nil, err
	}
	var served []*apiextensionsv1.CustomResourceDefinition
	for _, crd := range set.crds {
		if apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) {
			served = append(served, crd)
		}
	}
	if len(served) == 0 {
		return &described{builtin.V2, spec.V2}, nil
	}
	return &described{etagOfCRDs(served), d.spliced(served)}, nil
}

func (d describer) spliced(crds []*apiextensionsv1.CustomResourceDefinition) func(spec.Format) (spec.Document, error) {
	added := sync.OnceValues(func() (*openapispec.Swagger, error) { return d.customV2(crds) })
	asJSON := sync.OnceValues(func() (spec.Document, error) {
		a, err := added()
		if err != nil {
			return spec.Document{}, err
		}
		return compress(spliceJSON(a))
	})
	asProto := sync.OnceValues(func() (spec.Document, error) {
		a, err := added()
		if err != nil {
			return spec.Document{}, err
		}
		return compress(spliceProto(a))
	})
	return func(f spec.Format) (spec.Document, error) {
		if f == spec.JSON {
			return asJSON()
		}
		return asProto()
	}
}

// sections of an OpenAPI document, and what is in one, undecoded.
type sections map[string]json.RawMessage

func builtinV2() (sections, error) {
	document, err := spec.V2(spec.JSON)
	if err != nil {
		return nil, err
	}
	plain, err := document.Plain()
	if err != nil {
		return nil, err
	}
	return decodeSections(plain)
}

func decodeSections(b []byte) (sections, error) {
	var f sections
	if err := json.Unmarshal(b, &f); err != nil {
		return nil, fmt.Errorf("decode an OpenAPI document: %w", err)
	}
	return f, nil
}

// customV2 is what the CRDs add to the generated document. A definition that both have is shared if it is
// the same and renamed otherwise, which upstream decides; it is given only those that both have.
func (d describer) customV2(crds []*apiextensionsv1.CustomResourceDefinition) (*openapispec.Swagger, error) {
	var specs []*openapispec.Swagger
	for _, crd := range crds {
		for _, v := range crd.Spec.Versions {
			if !v.Served {
				continue
			}
			s, err := builder.BuildOpenAPIV2(crd, v.Name, builder.Options{V2: true, IncludeSelectableFields: true})
			if err != nil {
				d.leaveOut(crd, v.Name, err)
				continue
			}
			s.Definitions = handler.PruneDefaults(s.Definitions)
			specs = append(specs, s)
		}
	}
	shared, err := sharedV2(specs)
	if err != nil {
		return nil, err
	}
	merged, err := builder.MergeSpecs(shared, specs...)
	if err != nil {
		return nil, fmt.Errorf("merge the OpenAPI of CRDs: %w", err)
	}
	for name := range shared.Definitions {
		delete(merged.Definitions, name)
	}
	for name := range shared.Parameters {
		delete(merged.Parameters, name)
	}
	return merged, nil
}

// sharedV2 is that part of the generated document whose names the CRDs' documents use too.
func sharedV2(specs []*openapispec.Swagger) (*openapispec.Swagger, error) {
	whole, err := builtinV2()
	if err != nil {
		return nil, err
	}
	definitions, err := decodeSections(whole["definitions"])
	if err != nil {
		return nil, err
	}
	shared := &openapispec.Swagger{}
	shared.Swagger = "2.0"
	shared.Paths = &openapispec.Paths{Paths: map[string]openapispec.PathItem{}}
	shared.Definitions = openapispec.Definitions{}
	if whole["parameters"] != nil {
		if err := json.Unmarshal(whole["parameters"], &shared.Parameters); err != nil {
			return nil, fmt.Errorf("decode an OpenAPI document: %w", err)
		}
	}
	if err := json.Unmarshal(whole["info"], &shared.Info); err != nil {
		return nil, fmt.Errorf("decode an OpenAPI document: %w", err)
	}
	for _, s := range specs {
		for name := range s.Definitions {
			if definitions[name] == nil {
				continue
			}
			var definition openapispec.Schema
			if err := json.Unmarshal(definitions[name], &definition); err != nil {
				return nil, fmt.Errorf("decode an OpenAPI document: %w", err)
			}
			shared.Definitions[name] = definition
		}
	}
	return shared, nil
}

func spliceJSON(added *openapispec.Swagger) ([]byte, error) {
	whole, err := builtinV2()
	if err != nil {
		return nil, err
	}
	encoded, err := json.Marshal(added)
	if err != nil {
		return nil, fmt.Errorf("encode the OpenAPI of CRDs: %w", err)
	}
	more, err := decodeSections(encoded)
	if err != nil {
		return nil, err
	}
	for _, section := range []string{"definitions", "parameters", "paths"} {
		if more[section] == nil {
			continue
		}
		all, err := decodeSections(whole[section])
		if err != nil {
			return nil, err
		}
		extra, err := decodeSections(more[section])
		if err != nil {
			return nil, err
		}
		for name, content := range extra {
			if all[name] == nil {
				all[name] = content
			}
		}
		if whole[section], err = json.Marshal(all); err != nil {
			return nil, fmt.Errorf("encode the OpenAPI of CRDs: %w", err)
		}
	}
	return json.Marshal(whole)
}

// spliceProto appends the additions to the generated document: protobuf reads a message that is written
// in two parts as their union.
func spliceProto(added *openapispec.Swagger) ([]byte, error) {
	encoded, err := json.Marshal(added)
	if err != nil {
		return nil, fmt.Errorf("encode the OpenAPI of CRDs: %w", err)
	}
	more, err := handler.ToProtoBinary(encoded)
	if err != nil {
		return nil, fmt.Errorf("encode the OpenAPI of CRDs: %w", err)
	}
	d, err := spec.V2(spec.Proto)
	if err != nil {
		return nil, err
	}
	whole, err := d.Plain()
	if err != nil {
		return nil, err
	}
	return append(whole, more...), nil
}
