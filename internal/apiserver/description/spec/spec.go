// Package spec holds the generated descriptions of the built-in API: OpenAPI v2 and v3, discovery, and the schemas of
// each kind that is written.
//
// A test in internal/apiserver generates them from the registries that serve (go generate there), and fails when they
// no longer match. Building them at run time would cost 360 ms and 150 MiB. So they ship compressed in the binary, and
// none is decoded at start. Clients that accept gzip get the files as they are.
package spec

import (
	"bytes"
	"compress/gzip"
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	openapi "k8s.io/kube-openapi/pkg/validation/spec"
)

//go:embed data
var files embed.FS

// KubernetesVersion is the version whose API is served. OpenAPI documents carry it.
const KubernetesVersion = "v1.36.3"

// Format is the encoding of an OpenAPI document.
type Format string

// The two encodings that upstream serves.
const (
	JSON  Format = "json"
	Proto Format = "pb"
)

// Index names every document and its ETag, which is the same for both formats, as in upstream.
type Index struct {
	V2 string `json:"v2"`
	// V3 by path, for example 'apis/apps/v1'.
	V3 map[string]string `json:"v3"`
}

// Group is a built-in group as discovery shows it; groups and versions come in the order of preference.
type Group struct {
	Name     string    `json:"name"`
	Versions []Version `json:"versions"`
}

// Version of a group.
type Version struct {
	Name      string               `json:"name"`
	Resources []metav1.APIResource `json:"resources"`
}

// Document is one generated file, compressed with gzip.
type Document struct{ Gzip []byte }

// Plain returns the document decompressed. Each call decompresses it again.
func (d Document) Plain() ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(d.Gzip))
	if err != nil {
		return nil, fmt.Errorf("open a generated document: %w", err)
	}
	plain, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("decompress a generated document: %w", err)
	}
	return plain, nil
}

// V2 is the OpenAPI v2 document of all groups.
func V2(f Format) (Document, error) { return File(FileV2(f)) }

// V3 is the OpenAPI v3 document of one path of the index.
func V3(path string, f Format) (Document, error) { return File(FileV3(path, f)) }

// Builtin returns the index of the generated documents; it must not be changed.
var Builtin = sync.OnceValues(func() (Index, error) { return decode[Index](FileIndex) })

// Groups returns what discovery shows of the built-in groups; it must not be changed.
var Groups = sync.OnceValues(func() ([]Group, error) { return decode[[]Group](FileDiscovery) })

// Versions returns the versions of a built-in group in the order of preference, or none for a group that is not built
// in. They must not be changed.
func Versions(group string) ([]Version, error) {
	if group != "" && !named()[group] {
		return nil, nil // without decoding the documents of other groups
	}
	all, err := Groups()
	if err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].Name == group {
			return all[i].Versions, nil
		}
	}
	return nil, nil
}

// named has the groups that have a name, read from the names of their documents. It is a map because looking for a file
// costs more.
var named = sync.OnceValue(func() map[string]bool {
	before, after, _ := strings.Cut("data/"+FileV3("apis/*", JSON), "*")
	documents, _ := fs.Glob(files, before+"*"+after) // fails only for a bad pattern
	groups := make(map[string]bool, len(documents))
	for _, document := range documents {
		groups[strings.TrimSuffix(strings.TrimPrefix(document, before), after)] = true
	}
	return groups
})

// HasResource reports whether a resource is built in, in any version of its group.
func HasResource(group, resource string) (bool, error) {
	versions, err := Versions(group)
	for _, v := range versions {
		for i := range v.Resources {
			if v.Resources[i].Name == resource {
				return true, nil
			}
		}
	}
	return false, err
}

// Schemas returns the schemas of a kind and of the types in it, by name and without descriptions. It returns false if
// there are none.
func Schemas(kind schema.GroupVersionKind) (map[string]*openapi.Schema, bool, error) {
	name := FileSchemas(kind)
	if _, err := fs.Stat(files, "data/"+name); err != nil {
		return nil, false, nil
	}
	schemas, err := decode[map[string]*openapi.Schema](name)
	return schemas, true, err
}

// Names of the generated files, below the folder 'data'.
const (
	FileIndex     = "index.json.gz"
	FileDiscovery = "discovery.json.gz"
)

// FileV2 names the file of the OpenAPI v2 document.
func FileV2(f Format) string { return fmt.Sprintf("openapi-v2.%s.gz", f) }

// FileV3 names the file of an OpenAPI v3 document.
func FileV3(path string, f Format) string {
	return fmt.Sprintf("openapi-v3.%s.%s.gz", strings.ReplaceAll(path, "/", "__"), f)
}

// FileSchemas names the file of a kind's schemas.
func FileSchemas(kind schema.GroupVersionKind) string {
	return fmt.Sprintf("schemas.%s.%s.%s.json.gz", kind.Group, kind.Version, kind.Kind)
}

// File returns a generated file.
func File(name string) (Document, error) {
	b, err := files.ReadFile("data/" + name)
	if err != nil {
		return Document{}, fmt.Errorf("read a generated document: %w", err)
	}
	return Document{b}, nil
}

func decode[T any](name string) (decoded T, err error) {
	d, err := File(name)
	if err != nil {
		return decoded, err
	}
	plain, err := d.Plain()
	if err != nil {
		return decoded, err
	}
	if err := json.Unmarshal(plain, &decoded); err != nil {
		return decoded, fmt.Errorf("decode %s: %w", name, err)
	}
	return decoded, nil
}
