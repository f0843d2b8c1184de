package description

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/fxamacker/cbor/v2"
	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	"github.com/klauspost/compress/s2"
	"google.golang.org/protobuf/proto"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	kubeversion "k8s.io/apimachinery/pkg/version"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-openapi/pkg/handler"
	openapispec "k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/logplane/logplane/internal/apiserver/aggregation"
	"github.com/logplane/logplane/internal/apiserver/customresources"
	"github.com/logplane/logplane/internal/apiserver/description/spec"
	"github.com/logplane/logplane/internal/apiserver/listers"
)

const (
	// describedVersions is how many versions of one CRD OpenAPI v2 describes: only the newest versions are described.
	// Each version costs some 5 ms and 30 KiB. No CRD that we know of has even half as many versions. OpenAPI v3
	// describes all versions.
	describedVersions = 64
	// additionBytes bounds the additions that one process keeps. The next document reuses the additions of unchanged
	// CRDs.
	additionBytes = 64 << 20
)

// An OpenAPI v2 document is the generated document with one addition for each CRD. An addition is made once for each
// state of its CRD. Additions are spliced in without decoding the rest of the document; decoding would cost a hundred
// times the memory.

// additionKey names the addition of one state of a CRD to OpenAPI v2.
type additionKey struct {
	uid             types.UID
	resourceVersion string
	format          spec.Format
}

// leaveOut logs that a version of a CRD is not described.
func (d describer) leaveOut(crd, version string, err error) {
	d.logger.Warn("a CustomResourceDefinition is missing from OpenAPI", "name", crd, "version", version, "error", err)
}

// unreadError says that a CRD could not be read. It must not count as a CRD that cannot be described.
type unreadError struct{ error }

// remoteV2 is a remote version's APIService, and the OpenAPI v2 document of its server.
type remoteV2 struct {
	service  *apiregistrationv1.APIService
	document *aggregation.Document
}

func (d describer) spliced(ctx context.Context, crds []customresources.Summary, remotes []remoteV2, f spec.Format) ([]byte, error) {
	select {
	case d.splicing <- struct{}{}:
		defer func() { <-d.splicing }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	generated := sync.OnceValues(decodeGeneratedV2)
	all := addition{}
	for _, crd := range crds {
		more, err := d.addition(ctx, additionKey{crd.UID, crd.ResourceVersion, f}, generated,
			func(ctx context.Context, g generatedV2) (addition, error) {
				full, err := d.definitions.Full(ctx, crd)
				if err != nil && !listers.IsUndecodable(err) {
					err = &unreadError{err}
				}
				if err != nil {
					return nil, err
				}
				return d.customV2(ctx, full, g)
			})
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if unread := new(unreadError); errors.As(err, &unread) {
			return nil, unread.error
		}
		if err != nil { // the other CRDs must still be described
			d.leaveOut(crd.Name, "all", err)
			continue
		}
		all.add(more)
	}
	for _, r := range remotes {
		key := additionKey{r.service.UID, r.service.ResourceVersion + " " + r.document.Etag, f}
		more, err := d.addition(ctx, key, generated, func(_ context.Context, g generatedV2) (addition, error) { return r.addition(g) })
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			d.logger.Warn("a remote API server is missing from OpenAPI", "apiService", r.service.Name, "error", err)
			continue
		}
		all.add(more)
	}
	if f == spec.Proto {
		return spliceProto(all), nil
	}
	g, err := generated()
	if err != nil {
		return nil, err
	}
	return g.spliceJSON(all)
}

// addition returns the addition of a CRD or a remote version to the generated document. An addition that is not kept is
// made by asJSON, and converted if the key asks for protobuf.
func (d describer) addition(ctx context.Context, key additionKey, generated func() (generatedV2, error),
	asJSON func(context.Context, generatedV2) (addition, error),
) (addition, error) {
	create := asJSON
	if key.format != spec.JSON {
		create = func(ctx context.Context, g generatedV2) (addition, error) {
			encoded, err := d.addition(ctx, additionKey{key.uid, key.resourceVersion, spec.JSON}, generated, asJSON)
			if err != nil {
				return nil, err
			}
			return encoded.toProto(g)
		}
	}
	kept, err := d.additions.get(ctx, key, func(ctx context.Context) (folded, error) {
		g, err := generated()
		if err != nil {
			return nil, err
		}
		return fold(create(ctx, g))
	})
	if err != nil {
		return nil, err
	}
	return kept.unfold()
}

// addition returns a remote version's addition to the generated document, in JSON.
func (r remoteV2) addition(g generatedV2) (addition, error) {
	pruned := *r.document.Only(schema.GroupVersion{Group: r.service.Spec.Group, Version: r.service.Spec.Version})
	pruned.Definitions = handler.PruneDefaults(pruned.Definitions)
	return g.addition([]*openapispec.Swagger{&pruned})
}

// sections of an OpenAPI document by name, or the entries of one section by name. They are not decoded.
type sections map[string]json.RawMessage

func decodeSections(b []byte) (sections, error) {
	var f sections
	if err := json.Unmarshal(b, &f); err != nil {
		return nil, fmt.Errorf("decode an OpenAPI document: %w", err)
	}
	return f, nil
}

// addition has the entries that are added to each section of the generated document, by the section's name. An entry is
// JSON, or a protobuf document with only this entry.
type addition map[string]sections

const (
	definitionsSection = "definitions"
	parametersSection  = "parameters"
	pathsSection       = "paths"
)

// folded is a compressed addition, which takes a tenth of the space. Space matters because an addition that is not kept
// is made anew for each document, and making very many additions takes longer than a request may take.
type folded []byte

func fold(a addition, err error) (folded, error) {
	if err != nil {
		return nil, err
	}
	encoded, err := cbor.Marshal(a)
	if err != nil {
		return nil, fmt.Errorf("fold an OpenAPI document: %w", err)
	}
	return s2.EncodeBetter(nil, encoded), nil
}

func (f folded) unfold() (a addition, err error) {
	encoded, err := s2.Decode(nil, f)
	if err == nil {
		err = cbor.Unmarshal(encoded, &a)
	}
	if err != nil {
		return nil, fmt.Errorf("unfold an OpenAPI document: %w", err)
	}
	return a, nil
}

func (a addition) add(more addition) {
	for section, entries := range more {
		if a[section] == nil {
			a[section] = sections{}
		}
		maps.Copy(a[section], entries)
	}
}

// generatedV2 is the generated document.
type generatedV2 struct {
	whole       sections
	definitions sections
	// parameters are decoded, because every addition may share them.
	parameters map[string]openapispec.Parameter
}

func decodeGeneratedV2() (g generatedV2, err error) {
	if g.whole, err = decodeSections(spec.V2(spec.JSON).Plain()); err != nil {
		return g, err
	}
	if g.definitions, err = decodeSections(g.whole[definitionsSection]); err != nil {
		return g, err
	}
	if err := json.Unmarshal(g.whole[parametersSection], &g.parameters); err != nil {
		return g, fmt.Errorf("decode an OpenAPI document: %w", err)
	}
	return g, nil
}

// customV2 returns a CRD's addition to the generated document, in JSON.
func (d describer) customV2(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition, g generatedV2) (addition, error) {
	var specs []*openapispec.Swagger
	for _, version := range d.describedVersions(crd) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		s, err := builder.BuildOpenAPIV2(crd, version, builder.Options{V2: true, IncludeSelectableFields: true})
		if err != nil {
			d.leaveOut(crd.Name, version, err)
			continue
		}
		s.Definitions = handler.PruneDefaults(s.Definitions)
		specs = append(specs, s)
	}
	added, err := g.addition(specs)
	if err != nil {
		return nil, fmt.Errorf("add the OpenAPI of CustomResourceDefinition %s: %w", crd.Name, err)
	}
	return added, nil
}

// addition returns the addition of documents to the generated document. The added documents and the generated document
// may have a definition of the same name. If the two definitions are equal, upstream's merge keeps one; otherwise it
// renames the added definition. The merge gets only those generated definitions whose names the documents use too.
func (g generatedV2) addition(specs []*openapispec.Swagger) (addition, error) {
	shared, err := g.shared(specs)
	if err != nil {
		return nil, err
	}
	merged, err := builder.MergeSpecs(shared, specs...)
	if err != nil {
		return nil, fmt.Errorf("merge OpenAPI documents: %w", err)
	}
	for name := range shared.Definitions {
		delete(merged.Definitions, name)
	}
	for name := range shared.Parameters {
		delete(merged.Parameters, name)
	}
	encoded, err := json.Marshal(merged)
	if err != nil {
		return nil, fmt.Errorf("encode OpenAPI documents: %w", err)
	}
	more, err := decodeSections(encoded)
	if err != nil {
		return nil, err
	}
	added := addition{}
	for _, section := range []string{definitionsSection, parametersSection, pathsSection} {
		if more[section] == nil {
			continue
		}
		entries, err := decodeSections(more[section])
		if err != nil {
			return nil, err
		}
		added[section] = entries
	}
	return added, nil
}

// describedVersions returns the served versions of a CRD, or only the newest versions if there are very many.
func (d describer) describedVersions(crd *apiextensionsv1.CustomResourceDefinition) []string {
	var served []string
	for _, v := range crd.Spec.Versions {
		if v.Served {
			served = append(served, v.Name)
		}
	}
	if len(served) <= describedVersions {
		return served
	}
	d.logger.Warn("OpenAPI v2 describes only the newest versions of a CustomResourceDefinition", "name", crd.Name,
		"served", len(served), "described", describedVersions)
	slices.SortFunc(served, func(a, b string) int { return kubeversion.CompareKubeAwareVersionStrings(b, a) })
	return served[:describedVersions]
}

// shared returns the definitions of the generated document whose names the other documents use too, and all parameters
// of the generated document.
func (g generatedV2) shared(specs []*openapispec.Swagger) (*openapispec.Swagger, error) {
	shared := &openapispec.Swagger{}
	shared.Swagger = "2.0"
	shared.Paths = &openapispec.Paths{Paths: map[string]openapispec.PathItem{}}
	shared.Definitions = openapispec.Definitions{}
	shared.Parameters = maps.Clone(g.parameters)
	if err := json.Unmarshal(g.whole["info"], &shared.Info); err != nil {
		return nil, fmt.Errorf("decode an OpenAPI document: %w", err)
	}
	for _, s := range specs {
		for name := range s.Definitions {
			if _, known := shared.Definitions[name]; known || g.definitions[name] == nil {
				continue
			}
			var definition openapispec.Schema
			if err := json.Unmarshal(g.definitions[name], &definition); err != nil {
				return nil, fmt.Errorf("decode an OpenAPI document: %w", err)
			}
			shared.Definitions[name] = definition
		}
	}
	return shared, nil
}

func (g generatedV2) spliceJSON(added addition) ([]byte, error) {
	spliced := maps.Clone(g.whole)
	for section, entries := range added {
		all, err := decodeSections(g.whole[section])
		if err != nil {
			return nil, err
		}
		for name, content := range entries {
			if all[name] == nil {
				all[name] = content
			}
		}
		if spliced[section], err = json.Marshal(all); err != nil {
			return nil, fmt.Errorf("encode the OpenAPI of CRDs: %w", err)
		}
	}
	return json.Marshal(spliced)
}

// toProto converts an addition from JSON to protobuf.
func (a addition) toProto(g generatedV2) (addition, error) {
	document := map[string]any{"swagger": g.whole["swagger"], "info": g.whole["info"], pathsSection: struct{}{}}
	for section, entries := range a {
		document[section] = entries
	}
	encoded, err := json.Marshal(document)
	if err != nil {
		return nil, fmt.Errorf("encode the OpenAPI of CRDs: %w", err)
	}
	parsed, err := openapi_v2.ParseDocument(encoded)
	if err != nil {
		return nil, fmt.Errorf("convert the OpenAPI of CRDs to protobuf: %w", err)
	}
	added := addition{}
	alone := func(section, name string, d *openapi_v2.Document) {
		b, failed := proto.Marshal(d)
		err = errors.Join(err, failed)
		added.add(addition{section: {name: b}})
	}
	for _, definition := range parsed.GetDefinitions().GetAdditionalProperties() {
		only := &openapi_v2.Definitions{AdditionalProperties: []*openapi_v2.NamedSchema{definition}}
		alone(definitionsSection, definition.Name, &openapi_v2.Document{Definitions: only})
	}
	for _, parameter := range parsed.GetParameters().GetAdditionalProperties() {
		only := &openapi_v2.ParameterDefinitions{AdditionalProperties: []*openapi_v2.NamedParameter{parameter}}
		alone(parametersSection, parameter.Name, &openapi_v2.Document{Parameters: only})
	}
	for _, path := range parsed.GetPaths().GetPath() {
		alone(pathsSection, path.Name, &openapi_v2.Document{Paths: &openapi_v2.Paths{Path: []*openapi_v2.NamedPathItem{path}}})
	}
	return added, err
}

// spliceProto appends the additions to the generated document. If a message is written in parts, a protobuf decoder
// merges the parts.
func spliceProto(added addition) []byte {
	whole := spec.V2(spec.Proto).Plain()
	for _, section := range slices.Sorted(maps.Keys(added)) {
		for _, name := range slices.Sorted(maps.Keys(added[section])) {
			whole = append(whole, added[section][name]...)
		}
	}
	return whole
}
