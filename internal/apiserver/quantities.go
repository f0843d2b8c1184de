package apiserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"strings"
	"sync"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/types"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"sigs.k8s.io/yaml"

	"github.com/logplane/logplane/internal/apiserver/shape"
)

// hpaAnnotations begin the names of annotations that upstream parses, with quantities in them, as a part of an
// autoscaling/v1 object.
const hpaAnnotations = "autoscaling.alpha.kubernetes.io/"

var quantityType = reflect.TypeFor[resource.Quantity]()

// checkQuantities refuses quantities that would take long, before a decoder meets them. Anywhere else a text may look
// like such a number: the hash of a commit, for example. So what a body's types make of it decides.
func (s *Server) checkQuantities(r *http.Request, body []byte) error {
	info, _ := apirequest.RequestInfoFrom(r.Context())
	media := mediaOf(r.Header.Get("Content-Type"))
	if s.groups[info.APIGroup] == nil || strings.Contains(media, "protobuf") { // in protobuf they were seen already
		return nil
	}
	if media == string(types.JSONPatchType) {
		return s.checkPatchQuantities(info, body)
	}
	if strings.Contains(media, "cbor") {
		var v any
		if !shape.HasLongNumber(body) || direct.Unmarshal(body, &v) != nil {
			return nil
		}
		body, _ = json.Marshal(v) // what cannot be JSON is none of upstream's objects
	} else if !shape.HasLongNumber(body) {
		return nil
	} else if strings.Contains(media, "yaml") {
		converted, err := yaml.YAMLToJSON(body)
		if err != nil {
			return nil // upstream says so
		}
		body = converted
	}
	var named []string
	for tokens := json.NewDecoder(bytes.NewReader(body)); ; { // every 'kind' in it, however it is written
		token, err := tokens.Token()
		if err != nil {
			break
		}
		if key, ok := token.(string); ok && strings.EqualFold(key, "kind") {
			if kind, err := tokens.Token(); err == nil {
				if name, ok := kind.(string); ok {
					named = append(named, name)
				}
			}
		}
	}
	return walkQuantities(body, append(s.typesOf(info), typesNamed(named...)...))
}

// checkPatchQuantities looks at what a JSON patch writes where. It may not move something of another type to where
// quantities are: nobody has looked at that.
func (s *Server) checkPatchQuantities(info *apirequest.RequestInfo, body []byte) error {
	operations, err := jsonpatch.DecodePatch(body)
	if err != nil {
		return nil // upstream says so
	}
	root := s.typesOf(info)
	for _, o := range operations {
		path, _ := o.Path()
		segments := strings.Split(path, "/")[1:]
		at := typesAt(root, segments)
		last := ""
		if len(segments) > 0 {
			last = unescaped(segments[len(segments)-1])
		}
		annotates := strings.HasPrefix(last, hpaAnnotations)
		switch value := o["value"]; {
		case o.Kind() == "move" || o.Kind() == "copy":
			from, _ := o.From()
			source := typesAt(root, strings.Split(from, "/")[1:])
			if annotates || holdQuantities(at) && !reflect.DeepEqual(at, source) {
				return unfit("'" + o.Kind() + "' to '" + path + "' is refused: there are quantities there, and something else at '" + from + "'")
			}
		case value == nil || !shape.HasLongNumber(*value):
		case annotates:
			return refusedQuantity()
		default:
			if err := walkQuantities(*value, at); err != nil {
				return err
			}
		}
	}
	return nil
}

func refusedQuantity() error {
	return apierrors.NewBadRequest("the body is refused: " + shape.ErrQuantity.Error())
}

// typesOf are the versioned types of what a request is about.
func (s *Server) typesOf(info *apirequest.RequestInfo) []reflect.Type {
	built, err := s.groups[info.APIGroup].get()
	if err != nil {
		return nil // and it is not decoded either
	}
	name := info.Resource
	if info.Subresource != "" {
		name += "/" + info.Subresource
	}
	storage := built.info.VersionedResourcesStorageMap[info.APIVersion][name]
	if storage == nil {
		return nil
	}
	kinds, _, err := legacyscheme.Scheme.ObjectKinds(storage.New())
	if err != nil {
		return nil // of another scheme, none of whose types has quantities
	}
	var names []string
	for _, kind := range kinds {
		names = append(names, kind.Kind)
	}
	return typesNamed(names...)
}

// typesByKind are all versioned types that hold quantities, by the names of their kinds.
var typesByKind = sync.OnceValue(func() map[string][]reflect.Type {
	named := map[string][]reflect.Type{}
	for kind, t := range legacyscheme.Scheme.AllKnownTypes() {
		if kind.Version != runtime.APIVersionInternal {
			named[kind.Kind] = append(named[kind.Kind], t)
		}
	}
	return named
})

func typesNamed(kinds ...string) (all []reflect.Type) {
	for _, kind := range kinds {
		all = append(all, typesByKind()[kind]...)
	}
	return all
}

// walkQuantities looks at every quantity in a JSON text, also at one that a later member of the same name replaces.
func walkQuantities(text []byte, at []reflect.Type) error {
	tokens := json.NewDecoder(bytes.NewReader(text))
	tokens.UseNumber()
	if err := walk(tokens, at, false); err != errNoJSON {
		return err
	}
	return nil // upstream says so
}

// errNoJSON ends a walk: what follows is no JSON.
var errNoJSON = errors.New("it is not JSON")

// walk reads one value, which annotates if upstream parses it as JSON.
func walk(tokens *json.Decoder, at []reflect.Type, annotates bool) error {
	token, err := tokens.Token()
	if err != nil {
		return errNoJSON
	}
	text := ""
	switch token := token.(type) {
	case json.Delim:
		for tokens.More() {
			next, below := step(at, ""), false
			if token == '{' {
				key, err := tokens.Token()
				name, ok := key.(string)
				if err != nil || !ok {
					return errNoJSON
				}
				next, below = step(at, name), strings.HasPrefix(name, hpaAnnotations)
			}
			if err := walk(tokens, next, below); err != nil {
				return err
			}
		}
		_, _ = tokens.Token()
		return nil
	case string:
		text = token
	case json.Number:
		text = token.String()
	}
	if annotates && shape.HasLongNumber([]byte(text)) {
		return refusedQuantity()
	}
	for _, t := range at {
		if t == quantityType && !shape.IsQuantity([]byte(text)) {
			return refusedQuantity()
		}
	}
	return nil
}

// typesAt are the types at a path of a JSON patch, as its segments.
func typesAt(at []reflect.Type, segments []string) []reflect.Type {
	for _, segment := range segments {
		at = step(at, unescaped(segment))
	}
	return at
}

func unescaped(segment string) string {
	return strings.ReplaceAll(strings.ReplaceAll(segment, "~1", "/"), "~0", "~")
}

// step goes from types to those of a member, without pointers.
func step(at []reflect.Type, name string) (members []reflect.Type) {
	for _, t := range at {
		switch t.Kind() {
		case reflect.Map, reflect.Slice:
			members = append(members, bare(t.Elem()))
		case reflect.Struct:
			members = append(members, fieldsOf(t, name)...)
		}
	}
	return members
}

func fieldsOf(t reflect.Type, name string) (found []reflect.Type) {
	for i := range t.NumField() {
		f := t.Field(i)
		tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case tag == name && name != "":
			found = append(found, bare(f.Type))
		case tag == "" && (f.Anonymous || strings.Contains(options, "inline")) && bare(f.Type).Kind() == reflect.Struct:
			found = append(found, fieldsOf(bare(f.Type), name)...)
		}
	}
	return found
}

func bare(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

func holdQuantities(at []reflect.Type) bool {
	for _, t := range at {
		if holds(t, map[reflect.Type]bool{}) {
			return true
		}
	}
	return false
}

// holds looks for a quantity in a type, each type once: a type may hold itself.
func holds(t reflect.Type, seen map[reflect.Type]bool) bool {
	t = bare(t)
	if t == quantityType || seen[t] {
		return t == quantityType
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Map, reflect.Slice:
		return holds(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if holds(t.Field(i).Type, seen) {
				return true
			}
		}
	}
	return false
}
