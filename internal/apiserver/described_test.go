package apiserver

import (
	"cmp"
	"maps"
	"reflect"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kube-openapi/pkg/common"
	openapispec "k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/logplane/logplane/internal/apiserver/clusters"
	"github.com/logplane/logplane/internal/apiserver/history"
)

// described builds OpenAPI definitions of the types of a group of ours from the types' fields, and from the comments on
// the fields. kube-openapi's generator does the same for upstream's types.
type described struct {
	from string // the package of the types
	here string // the prefix of their names
	ref  common.ReferenceCallback
	said map[string]map[string]string // by type and field; field "" is the type itself
	all  map[string]common.OpenAPIDefinition
}

func ourDefinitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	all := definitionsIn(ref, "history", history.Version{}, history.VersionList{}, history.Change{}, history.ChangeList{}, history.Transaction{}, history.Plan{})
	maps.Copy(all, definitionsIn(ref, "clusters", clusters.Cluster{}, clusters.ClusterList{}))
	return all
}

// definitionsIn returns the definitions of the types of a group, and of all types that they contain.
func definitionsIn(ref common.ReferenceCallback, group string, roots ...any) map[string]common.OpenAPIDefinition {
	d := described{
		reflect.TypeOf(roots[0]).PkgPath(), "dev.logplane." + group + ".v1.", ref,
		map[string]map[string]string{"TypeMeta": metav1.TypeMeta{}.SwaggerDoc()}, map[string]common.OpenAPIDefinition{},
	}
	types, err := runtime.ParseDocumentationFrom(group + "/types.go")
	if err != nil {
		panic(err)
	}
	for _, of := range types {
		name := of[0].Name
		d.said[name], of[0].Name = map[string]string{}, ""
		for _, field := range of {
			d.said[name][field.Name], _ = strconv.Unquote(`"` + field.Doc + `"`)
		}
	}
	for _, o := range roots {
		d.name(reflect.TypeOf(o))
	}
	return d.all
}

// name returns the name of a type, and defines the type and all types that it contains.
func (d *described) name(t reflect.Type) string {
	if t.PkgPath() != d.from {
		return reflect.Zero(t).Interface().(interface{ OpenAPIModelName() string }).OpenAPIModelName()
	}
	name := d.here + t.Name()
	if _, known := d.all[name]; !known {
		out := common.OpenAPIDefinition{Schema: openapispec.Schema{SchemaProps: openapispec.SchemaProps{
			Description: d.said[t.Name()][""], Type: []string{"object"}, Properties: map[string]openapispec.Schema{},
		}}}
		d.all[name] = out
		d.fields(t, &out)
		d.all[name] = out
	}
	return name
}

func (d *described) fields(t reflect.Type, out *common.OpenAPIDefinition) {
	for i := range t.NumField() {
		field := t.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" { // the fields are inline
			d.fields(field.Type, out)
			continue
		}
		schema := d.schema(field.Type, out)
		schema.Description = cmp.Or(d.said[t.Name()][name], schema.Description)
		if !strings.Contains(options, "omit") {
			out.Schema.Required = append(out.Schema.Required, name)
			if field.Type.Kind() == reflect.Int32 {
				schema.Default = 0
			}
		}
		out.Schema.Properties[name] = schema
	}
}

func (d *described) schema(t reflect.Type, of *common.OpenAPIDefinition) (s openapispec.Schema) {
	switch {
	case t == reflect.TypeFor[*runtime.RawExtension]():
		s.Description = "Any JSON value."
	case t.Kind() == reflect.Pointer:
		s = d.schema(t.Elem(), of)
		s.Default = nil
	case t.Kind() == reflect.Struct:
		name := d.name(t)
		of.Dependencies = append(of.Dependencies, name)
		s.Ref, s.Default = d.ref(name), map[string]any{}
	case t.Kind() == reflect.Slice:
		item := d.schema(t.Elem(), of)
		s.Type, s.Items = []string{"array"}, &openapispec.SchemaOrArray{Schema: &item}
	case t.Kind() == reflect.Int32:
		s.Type, s.Format = []string{"integer"}, "int32"
	case t.Kind() == reflect.Int64:
		s.Type, s.Format = []string{"integer"}, "int64"
	case t.Kind() == reflect.Bool:
		s.Type = []string{"boolean"}
	default:
		s.Type = []string{"string"}
	}
	return s
}
