package admission

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/client-go/openapi"
	"k8s.io/kube-openapi/pkg/spec3"
)

// schemas has the types of the objects to which mutating policies apply configurations. Upstream polls OpenAPI for the
// types. Here the types belong to the rules of one revision, and rules are made again when a definition changes. So a
// type that was read once stays valid.
type schemas struct {
	builtin managedfields.TypeConverter
	openapi openapi.Client

	mu     sync.Mutex
	custom map[schema.GroupVersion]managedfields.TypeConverter // guarded by mu
}

var _ patch.TypeConverterManager = (*schemas)(nil)

// Run implements patch.TypeConverterManager. There is nothing to do in the background.
func (*schemas) Run(context.Context) {}

// GetTypeConverter implements patch.TypeConverterManager. It returns nil if the kind has no schema.
func (s *schemas) GetTypeConverter(kind schema.GroupVersionKind) managedfields.TypeConverter {
	example := &unstructured.Unstructured{}
	example.SetGroupVersionKind(kind)
	if _, err := s.builtin.ObjectToTyped(example); err == nil {
		return s.builtin
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	version := kind.GroupVersion()
	known, ok := s.custom[version]
	if ok {
		return known
	}
	made, err := s.read(version)
	if surely(err) != nil {
		return nil
	}
	s.custom[version] = made
	return made
}

func (s *schemas) read(version schema.GroupVersion) (managedfields.TypeConverter, error) {
	paths, err := s.openapi.Paths()
	if err != nil {
		return nil, err
	}
	document, ok := paths[strings.TrimSuffix("apis/"+version.String(), "/")]
	if !ok {
		return nil, fmt.Errorf("there is no schema of %s", version)
	}
	text, err := document.Schema(runtime.ContentTypeJSON)
	if err != nil {
		return nil, err
	}
	var parsed spec3.OpenAPI
	if err := json.Unmarshal(text, &parsed); err != nil {
		return nil, err
	}
	return managedfields.NewTypeConverter(parsed.Components.Schemas, false)
}
