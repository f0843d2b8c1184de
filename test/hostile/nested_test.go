package hostile

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/fxamacker/cbor/v2"
	"github.com/stretchr/testify/require"
)

// deeper is more levels than any bound allows, but upstream's parsers accept so many.
const deeper = 9000

func nested(open, close string, levels int) string {
	return strings.Repeat(open, levels) + "1" + strings.Repeat(close, levels)
}

// freeCRD returns the CRD foos.x.example.com with these versions, whose schema names no field.
func freeCRD(versions ...string) string {
	var all []string
	for i, v := range versions {
		all = append(all, fmt.Sprintf(`{"name":%q,"served":true,"storage":%t,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}`, v, i == 0))
	}
	return `{"metadata":{"name":"foos.x.example.com"},"spec":{"group":"x.example.com","scope":"Namespaced",` +
		`"names":{"plural":"foos","singular":"foo","kind":"Foo","listKind":"FooList"},"versions":[` + strings.Join(all, ",") + `]}}`
}

const (
	crds       = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	foos       = "/apis/x.example.com/v1/namespaces/tenant/foos"
	configMaps = "/api/v1/namespaces/tenant/configmaps"
)

// TestBodiesNestOnlySoDeep: a merge patch is applied level by level, and every level copies everything below it. On
// e14eff4 a patch of 60 KB and 9,990 levels is applied (200), and takes 7.7 s and 1.1 GiB. A patch of 1 MB is answered
// 504 after 34 s, and the server continues its work after the answer. All bodies here are accepted on e14eff4, or
// refused only for their content.
func TestBodiesNestOnlySoDeep(t *testing.T) {
	s := serve(t, "api")
	s.asOwner(tenant)
	s.must(tenant, http.MethodPost, configMaps, `{"metadata":{"name":"victim"}}`)
	s.must(admin, http.MethodPost, crds, freeCRD("v1"))
	s.must(admin, http.MethodPost, foos, `{"apiVersion":"x.example.com/v1","kind":"Foo","metadata":{"name":"victim"}}`)

	object := func(kind, version, field string) string {
		return fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":"deep"},"data":%s}`, version, kind, field)
	}
	deep := nested(`{"a":`, "}", deeper)
	block := strings.Builder{}
	block.WriteString("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: deep}\ndata:")
	for i := range 1000 {
		fmt.Fprintf(&block, "\n%sa:", strings.Repeat(" ", i+1))
	}
	for name, c := range map[string]struct{ method, path, contentType, body string }{
		"merge patch":                  {http.MethodPatch, configMaps + "/victim", "application/merge-patch+json", deep},
		"merge patch, with parameters": {http.MethodPatch, configMaps + "/victim", "application/merge-patch+json;charset=utf-8; x=y", deep},
		"merge patch of a list":        {http.MethodPatch, foos + "/victim", "application/merge-patch+json", `{"a":` + nested("[", "]", deeper) + `}`},
		"strategic merge patch":        {http.MethodPatch, configMaps + "/victim", "application/strategic-merge-patch+json", deep},
		"JSON patch":                   {http.MethodPatch, foos + "/victim", "application/json-patch+json", `[{"op":"add","path":"/a","value":` + deep + `}]`},
		"apply patch":                  {http.MethodPatch, foos + "/deep?fieldManager=m", "application/apply-patch+yaml", object("Foo", "x.example.com/v1", deep)},
		"apply patch in CBOR":          {http.MethodPatch, foos + "/deep?fieldManager=m", "application/apply-patch+cbor", asCBOR(t, object("Foo", "x.example.com/v1", deep))},
		"JSON":                         {http.MethodPost, configMaps, "application/json", object("ConfigMap", "v1", deep)},
		"no content type":              {http.MethodPost, configMaps, "", object("ConfigMap", "v1", deep)},
		"JSON of a custom resource":    {http.MethodPost, foos, "Application/JSON; charset=utf-8", object("Foo", "x.example.com/v1", deep)},
		"update":                       {http.MethodPut, foos + "/victim", "application/json", object("Foo", "x.example.com/v1", deep)},
		"YAML in flow style":           {http.MethodPost, configMaps, "application/yaml", object("ConfigMap", "v1", nested(`{a: `, "}", deeper))},
		"YAML in block style":          {http.MethodPost, configMaps, "application/yaml", block.String()},
		"CBOR":                         {http.MethodPost, foos, "application/cbor", asCBOR(t, object("Foo", "x.example.com/v1", deep))},
		"options to delete":            {http.MethodDelete, configMaps + "/nothing", "application/json", `{"kind":"DeleteOptions","apiVersion":"v1","a":` + deep + `}`},
		"options to delete a list":     {http.MethodDelete, configMaps + "?fieldSelector=metadata.name=nothing", "application/json", `{"kind":"DeleteOptions","apiVersion":"v1","a":` + deep + `}`},
		"managed fields":               {http.MethodPost, configMaps, "application/json", `{"metadata":{"name":"deep","managedFields":[{"fieldsType":"FieldsV1","fieldsV1":` + nested(`{"f:a":`, "}", deeper) + `}]}}`},
	} {
		t.Run(name, func(t *testing.T) {
			a := s.do(admin, c.method, c.path, c.contentType, c.body)
			require.Equal(t, http.StatusBadRequest, a.Code, string(a.Body))
			require.Contains(t, a.status(t).Message, "levels deep")
		})
	}
}

// TestDeepObjectsAreServed: objects that nest as deep as any object in real use are still accepted, read and written
// back, in every encoding. No sequence of patches makes an object nest deeper than a body may.
func TestDeepObjectsAreServed(t *testing.T) {
	s := serve(t, "api")
	s.asOwner(tenant)
	s.must(admin, http.MethodPost, crds, freeCRD("v1"))
	object := `{"apiVersion":"x.example.com/v1","kind":"Foo","metadata":{"name":"%s"},"spec":` + nested(`{"[{\"":`, "}", 100) + `}`
	for name, c := range map[string]struct{ method, path, contentType, body string }{
		"json":  {http.MethodPost, foos, "application/json", fmt.Sprintf(object, "json")},
		"yaml":  {http.MethodPost, foos, "application/yaml", fmt.Sprintf(object, "yaml")},
		"cbor":  {http.MethodPost, foos, "application/cbor", asCBOR(t, fmt.Sprintf(object, "cbor"))},
		"apply": {http.MethodPatch, foos + "/apply?fieldManager=m", "application/apply-patch+yaml", fmt.Sprintf(object, "apply")},
	} {
		a := s.do(admin, c.method, c.path, c.contentType, c.body)
		require.Equal(t, http.StatusCreated, a.Code, "%s: %s", name, a.Body)
		whole := s.must(admin, http.MethodGet, foos+"/"+name, "")
		s.must(admin, http.MethodPut, foos+"/"+name, string(whole.Body))
	}
	s.must(admin, http.MethodGet, foos, "")

	path := strings.Repeat("/a", 100)
	s.must(admin, http.MethodPut, foos+"/json", strings.Replace(string(s.must(admin, http.MethodGet, foos+"/json", "").Body), nested(`{"[{\"":`, "}", 100), nested(`{"a":`, "}", 100), 1))
	a := s.do(admin, http.MethodPatch, foos+"/json", "application/json-patch+json", `[{"op":"add","path":"/spec`+path+`","value":`+nested(`{"a":`, "}", 100)+`}]`)
	require.Equal(t, http.StatusRequestEntityTooLarge, a.Code, string(a.Body))
	require.Contains(t, a.status(t).Message, "levels deep")
	s.must(admin, http.MethodDelete, foos+"/json", "")
}

func asCBOR(t *testing.T, text string) string {
	t.Helper()
	var v any
	require.NoError(t, json.Unmarshal([]byte(text), &v))
	b, err := cbor.Marshal(v)
	require.NoError(t, err)
	return string(b)
}
