package description

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/spec3"

	"github.com/logplane/logplane/internal/apiserver/customresources"
	"github.com/logplane/logplane/internal/apiserver/description/spec"
	"github.com/logplane/logplane/internal/apiserver/listers"
)

// documentBytes bounds the finished documents that one process keeps, compressed. Built-in documents do not count.
const documentBytes = 32 << 20

// described is one OpenAPI document in both formats.
type described struct {
	etag string
	// encode returns the document compressed.
	encode func(context.Context, spec.Format) (spec.Document, error)
}

// describer makes the documents. It omits a CRD that it cannot describe, and logs the omission, as upstream does. It is
// safe for concurrent use.
type describer struct {
	logger      *slog.Logger
	definitions Definitions
	documents   *madeOnce[documentKey, spec.Document]
	// additions has, for each state of a CRD, the CRD's addition to OpenAPI v2 (v2.go).
	additions *madeOnce[additionKey, folded]
	// splicing is a semaphore: only one OpenAPI v2 document is made at a time, because making it takes much memory.
	splicing chan struct{}
}

// documentKey names a finished document. path is 'v2' or 'v3/…'.
type documentKey struct {
	path, etag string
	format     spec.Format
}

func newDescriber(logger *slog.Logger, definitions Definitions) describer {
	return describer{
		logger: logger, definitions: definitions,
		documents: newMadeOnce[documentKey](documentBytes, func(d spec.Document) int { return len(d.Gzip) }),
		additions: newMadeOnce[additionKey](additionBytes, func(f folded) int { return len(f) }),
		splicing:  make(chan struct{}, 1),
	}
}

// overview lists the documents that are served for one set of CRDs. Documents are made on request. Their ETags come
// from the CRDs, so an overview is made without the documents.
type overview struct {
	served []customresources.Summary
	v3     map[string]*described // of CRDs, by path
}

func (d describer) overview(builtin spec.Index, set customresources.Set) *overview {
	var served []customresources.Summary
	custom := map[schema.GroupVersion][]customresources.Summary{}
	for _, crd := range set.Definitions {
		if !apihelpers.IsCRDConditionTrue(crd.CustomResourceDefinition, apiextensionsv1.Established) {
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
	o := &overview{served: served, v3: map[string]*described{}}
	for gv, crds := range custom {
		path := "apis/" + gv.String()
		if _, ok := builtin.V3[path]; !ok {
			o.v3[path] = d.v3(gv, crds)
		}
	}
	return o
}

// etagOfCRDs derives a document's ETag from the CRDs in the document and from the version of the code that makes the
// document.
func etagOfCRDs(crds []customresources.Summary) string {
	sum := sha512.New()
	fmt.Fprintln(sum, spec.KubernetesVersion)
	for _, crd := range crds {
		fmt.Fprintln(sum, crd.UID, crd.ResourceVersion)
	}
	return fmt.Sprintf("%X", sum.Sum(nil))
}

// v3 returns the document of one version of the CRDs' group.
func (d describer) v3(gv schema.GroupVersion, crds []customresources.Summary) *described {
	key := documentKey{path: "v3/apis/" + gv.String(), etag: etagOfCRDs(crds)}
	asJSON := func(ctx context.Context) (spec.Document, error) {
		return d.documents.get(ctx, key.in(spec.JSON), func(ctx context.Context) (spec.Document, error) { return compress(d.customV3(ctx, gv, crds)) })
	}
	asProto := func(ctx context.Context) (spec.Document, error) {
		document, err := asJSON(ctx)
		if err != nil {
			return spec.Document{}, err
		}
		return compress(handler3.ToV3ProtoBinary(document.Plain()))
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

func (d describer) customV3(ctx context.Context, gv schema.GroupVersion, crds []customresources.Summary) ([]byte, error) {
	var specs []*spec3.OpenAPI
	for _, crd := range crds {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		full, err := d.definitions.Full(ctx, crd)
		if listers.IsUndecodable(err) {
			d.leaveOut(crd.Name, gv.Version, err)
			continue
		}
		if err != nil {
			return nil, err
		}
		s, err := builder.BuildOpenAPIV3(full, gv.Version, builder.Options{IncludeSelectableFields: true})
		if err == nil && len(crds) > 1 { // a CRD that cannot be encoded must not make the other CRDs fail
			_, err = json.Marshal(s)
		}
		if err != nil {
			d.leaveOut(crd.Name, gv.Version, err)
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

// v2 returns the one document of all groups.
func (d describer) v2(builtin spec.Index, served []customresources.Summary, remotes []remoteV2) *described {
	if len(served) == 0 && len(remotes) == 0 {
		return &described{builtin.V2, func(_ context.Context, f spec.Format) (spec.Document, error) { return spec.V2(f), nil }}
	}
	key := documentKey{path: "v2", etag: etagOfCRDs(served)}
	if len(remotes) > 0 {
		sum := sha512.New()
		fmt.Fprintln(sum, key.etag)
		for _, r := range remotes {
			fmt.Fprintln(sum, r.service.Name, r.document.Etag)
		}
		key.etag = fmt.Sprintf("%X", sum.Sum(nil))
	}
	return &described{key.etag, func(ctx context.Context, f spec.Format) (spec.Document, error) {
		return d.documents.get(ctx, key.in(f), func(ctx context.Context) (spec.Document, error) { return compress(d.spliced(ctx, served, remotes, f)) })
	}}
}

// indexOf lists the OpenAPI v3 documents with their URLs. Each URL has the hash of its document. remote has the URLs of
// remote documents, by path. All URLs begin with the root.
func (o *overview) indexOf(builtin spec.Index, remote map[string]string, root string) ([]byte, error) {
	index := handler3.OpenAPIV3Discovery{Paths: map[string]handler3.OpenAPIV3DiscoveryGroupVersion{}}
	add := func(path, location string) {
		index.Paths[path] = handler3.OpenAPIV3DiscoveryGroupVersion{ServerRelativeURL: root + location}
	}
	for path, etag := range builtin.V3 {
		add(path, hashed("v3/"+path, etag))
	}
	for path, d := range o.v3 {
		add(path, hashed("v3/"+path, d.etag))
	}
	for path, location := range remote {
		add(path, location)
	}
	encoded, err := json.Marshal(index)
	if err != nil {
		return nil, fmt.Errorf("encode the OpenAPI index: %w", err)
	}
	return encoded, nil
}

func hashed(path, etag string) string {
	return (&url.URL{Path: "/openapi/" + path, RawQuery: url.Values{"hash": {etag}}.Encode()}).String()
}
