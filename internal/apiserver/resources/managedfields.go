package resources

import (
	"sync"

	extensionsscheme "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kube-openapi/pkg/builder3"
	openapicommon "k8s.io/kube-openapi/pkg/common"
	openapiutil "k8s.io/kube-openapi/pkg/util"
	openapispec "k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/generated/openapi"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/logplane/logplane/internal/apiserver/description/spec"
)

// TypeConverters know the schema of a group's types, for managed fields. Upstream builds the schemas of every type of a
// group when it installs the group. Here the first write of a kind reads the generated schemas of that kind. Schemas do
// not depend on a cluster, so all servers of a process share the converters. TypeConverters are safe for concurrent
// use.
type TypeConverters struct {
	scheme *runtime.Scheme

	mu     sync.Mutex
	byKind map[schema.GroupVersionKind]managedfields.TypeConverter // by mu
}

// ConvertersOf returns the converters of a scheme of built-in types.
func ConvertersOf(scheme *runtime.Scheme) *TypeConverters {
	of, _ := convertersByScheme.LoadOrStore(scheme, &TypeConverters{scheme: scheme, byKind: map[schema.GroupVersionKind]managedfields.TypeConverter{}})
	return of.(*TypeConverters)
}

var convertersByScheme sync.Map

// ObjectToTyped uses the object's own kind, because an apply patch arrives unstructured.
func (c *TypeConverters) ObjectToTyped(obj runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	of, err := c.of(obj.GetObjectKind().GroupVersionKind())
	if err != nil {
		return nil, err
	}
	return of.ObjectToTyped(obj, opts...)
}

// TypedToObject is the same for every schema.
func (c *TypeConverters) TypedToObject(value *typed.TypedValue) (runtime.Object, error) {
	return managedfields.NewDeducedTypeConverter().TypedToObject(value)
}

func (c *TypeConverters) of(kind schema.GroupVersionKind) (managedfields.TypeConverter, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	converter, ok := c.byKind[kind]
	if ok {
		return converter, nil
	}
	schemas, ok := spec.Schemas(kind)
	if !ok {
		var err error
		if schemas, err = c.Build(kind); err != nil {
			return nil, err
		}
	}
	converter, err := managedfields.NewTypeConverter(schemas, false)
	if err != nil {
		return nil, err
	}
	c.byKind[kind] = converter
	return converter, nil
}

// Build makes the schemas of one of upstream's kinds from scratch. Build loads all types of every group, 6 MiB. It is
// needed only by the generator, and for kinds that the generator forgot.
func (c *TypeConverters) Build(kind schema.GroupVersionKind) (map[string]*openapispec.Schema, error) {
	example, err := c.scheme.New(kind)
	if err != nil {
		return nil, err
	}
	buildingSchemas.Lock()
	defer buildingSchemas.Unlock()
	return builder3.BuildOpenAPIDefinitionsForResources(definitions(), openapiutil.GetCanonicalTypeName(example))
}

// buildingSchemas guards definitions: upstream's builder writes to its input.
var buildingSchemas sync.Mutex

// definitions returns the Go-generated schemas of every built-in type.
var definitions = sync.OnceValue(func() *openapicommon.OpenAPIV3Config {
	return genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, openapinamer.NewDefinitionNamer(legacyscheme.Scheme, extensionsscheme.Scheme, aggregatorscheme.Scheme))
})
