// Package spec holds the generated descriptions of the built-in API: OpenAPI v2 and v3, discovery, and the schemas of
// each kind that is written.
//
// A test in internal/apiserver generates the descriptions from the registries that serve (go generate there), and fails
// when the descriptions no longer match. Building them at run time would cost 360 ms and 150 MiB. So the descriptions
// ship compressed in the binary, and none is decoded at start. Clients that accept gzip get the files as they are. A
// description that cannot be read causes a panic: the descriptions are constants, and that test reads all of them.
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

// KubernetesVersion is the version whose API is served. OpenAPI documents name this version.
const KubernetesVersion = "v1.37.2"

// Format is the encoding of an OpenAPI document.
type Format string

// The two encodings that upstream serves.
const (
	JSON  Format = "json"
	Proto Format = "pb"
)

// Index names every document and its ETag. As in upstream, both formats of a document have the same ETag.
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

// Document is a generated file, or a document that was made of such files, compressed with gzip by this program.
type Document struct{ Gzip []byte }

// Plain returns the document decompressed. Each call decompresses it again.
func (d Document) Plain() []byte {
	return must(io.ReadAll(must(gzip.NewReader(bytes.NewReader(d.Gzip)))))
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(fmt.Errorf("read a generated document: %w", err))
	}
	return value
}

// V2 is the OpenAPI v2 document of all groups.
func V2(f Format) Document { return File(FileV2(f)) }

// V3 is the OpenAPI v3 document of one path of the index.
func V3(path string, f Format) Document { return File(FileV3(path, f)) }

// Builtin returns the index of the generated documents; the index must not be changed.
var Builtin = sync.OnceValue(func() Index { return decode[Index](FileIndex) })

// Groups returns the built-in groups as discovery shows them; the groups must not be changed.
var Groups = sync.OnceValue(func() []Group { return decode[[]Group](FileDiscovery) })

// Versions returns the versions of a built-in group in the order of preference, or none for a group that is not built
// in. They must not be changed.
func Versions(group string) []Version {
	if group != "" && !named()[group] {
		return nil // without decoding the documents of other groups
	}
	for _, g := range Groups() {
		if g.Name == group {
			return g.Versions
		}
	}
	return nil
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
func HasResource(group, resource string) bool {
	for _, v := range Versions(group) {
		for i := range v.Resources {
			if v.Resources[i].Name == resource {
				return true
			}
		}
	}
	return false
}

// Schemas returns the schemas of a kind and of the types of its fields, by name and without descriptions. It returns
// false if the kind has no schemas.
func Schemas(kind schema.GroupVersionKind) (map[string]*openapi.Schema, bool) {
	name := FileSchemas(kind)
	if _, err := fs.Stat(files, "data/"+name); err != nil {
		return nil, false
	}
	return decode[map[string]*openapi.Schema](name), true
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
func File(name string) Document { return Document{must(files.ReadFile("data/" + name))} }

func decode[T any](name string) (decoded T) {
	if err := json.Unmarshal(File(name).Plain(), &decoded); err != nil {
		panic(fmt.Errorf("decode %s: %w", name, err))
	}
	return decoded
}
