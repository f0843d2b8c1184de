package cost

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/fxamacker/cbor/v2"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"sigs.k8s.io/yaml"

	"github.com/logplane/logplane/internal/apiserver/answers"
	"github.com/logplane/logplane/internal/apiserver/cost/shape"
)

var quantityType = reflect.TypeFor[resource.Quantity]()

// checkQuantities refuses quantities that would take long to parse, before a decoder parses them. Another text, such as
// the hash of a commit, may look like such a quantity. So checkQuantities checks only values that the body's type
// declares as quantities.
func (m *Meter) checkQuantities(r *http.Request, body []byte) error {
	info, _ := apirequest.RequestInfoFrom(r.Context())
	media := mediaOf(r.Header.Get("Content-Type"))
	if !m.config.Builtin(info.APIGroup) || strings.Contains(media, "protobuf") { // protobuf was checked already
		return nil
	}
	if media == string(types.JSONPatchType) {
		return m.checkPatchQuantities(info, body)
	}
	// YAML and CBOR have many ways to write a text: escapes, folded lines, base64, chunks. So the body is first
	// decoded, in the same way as in upstream, and then searched for numbers.
	switch {
	case strings.Contains(media, "cbor"):
		var v any
		err := direct.Unmarshal(body, &v)
		if malformed(err) {
			return nil // upstream reports the error
		}
		if err == nil {
			body, err = json.Marshal(v)
		}
		if err != nil { // upstream may decode the body nevertheless, without the faulty part
			return apierrors.NewBadRequest(fmt.Sprintf("the body cannot be read as CBOR: %v", err))
		}
	case strings.Contains(media, "yaml") && !json.Valid(body): // clients send apply patches in JSON
		converted, err := yaml.YAMLToJSON(body)
		if err != nil {
			return nil // upstream reports the error
		}
		body = converted
	}
	if !shape.HasLongNumberInJSON(body) {
		return nil
	}
	root, err := m.rootTypes(info, kindsAt(body))
	if err != nil {
		return err
	}
	return walkQuantities(body, root)
}

// malformed reports whether an error means that the CBOR is not well-formed. Decoders first check the form of the whole
// CBOR, so no decoder reads any part of malformed CBOR.
func malformed(err error) bool {
	var syntax *cbor.SyntaxError
	var extraneous *cbor.ExtraneousDataError
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &syntax) || errors.As(err, &extraneous)
}

// maxKinds bounds how many kinds one body may name. A body needs one kind; a merge patch may spell the key 'kind' in
// two ways.
const maxKinds = 2

// rootTypes are the types that a body may be decoded to. Upstream decodes a body as the kind that the body names, and
// only then checks whether the path has the same kind.
func (m *Meter) rootTypes(info *apirequest.RequestInfo, kinds sets.Set[string]) ([]reflect.Type, error) {
	if len(kinds) > maxKinds {
		return nil, answers.Unfit(fmt.Sprintf("it names %d kinds: name one", len(kinds)))
	}
	root := sets.New(m.typesOf(info)...)
	root.Insert(typesNamed(kinds.UnsortedList()...)...)
	return root.UnsortedList(), nil
}

// kindsAt are the kinds that an object names. Upstream ignores the case of the key 'kind', and takes the last such key.
func kindsAt(object []byte) sets.Set[string] {
	kinds := sets.New[string]()
	tokens := json.NewDecoder(bytes.NewReader(object))
	if first, err := tokens.Token(); err != nil || first != json.Delim('{') {
		return kinds
	}
	for tokens.More() {
		key, err := tokens.Token()
		name, ok := key.(string)
		if err != nil || !ok {
			return kinds
		}
		var value json.RawMessage
		if tokens.Decode(&value) != nil {
			return kinds
		}
		var kind string
		if strings.EqualFold(name, "kind") && json.Unmarshal(value, &kind) == nil && kind != "" {
			kinds.Insert(kind)
		}
	}
	return kinds
}

// checkPatchQuantities checks each value that a JSON patch writes against the types at its path. The patch may not move
// a value of another type to a path with quantities, since that value was not checked as a quantity.
func (m *Meter) checkPatchQuantities(info *apirequest.RequestInfo, body []byte) error {
	operations, err := jsonpatch.DecodePatch(body)
	if err != nil {
		return nil // upstream reports the error
	}
	kinds, err := kindsOf(operations)
	if err != nil {
		return err
	}
	root, err := m.rootTypes(info, kinds)
	if err != nil {
		return err
	}
	for _, o := range operations {
		path, _ := o.Path()
		segments := strings.Split(path, "/")[1:]
		at := typesAt(root, segments)
		last := ""
		if len(segments) > 0 {
			last = unescaped(segments[len(segments)-1])
		}
		annotates := strings.HasPrefix(last, shape.ParsedAnnotations)
		switch value := o["value"]; {
		case o.Kind() == "move" || o.Kind() == "copy":
			from, _ := o.From()
			source := typesAt(root, strings.Split(from, "/")[1:])
			if annotates || holdQuantities(at) && !reflect.DeepEqual(at, source) {
				return answers.Unfit("'" + o.Kind() + "' to '" + path + "' is refused: there are quantities there, and something else at '" + from + "'")
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

// kindsOf are the kinds that a JSON patch writes. Upstream decodes the patched object as the kind that the patched
// object names.
func kindsOf(operations jsonpatch.Patch) (sets.Set[string], error) {
	kinds := sets.New[string]()
	for _, o := range operations {
		path, _ := o.Path()
		value := o["value"]
		switch {
		case o.Kind() == "test" || o.Kind() == "remove":
		case strings.EqualFold(path, "/kind"):
			var kind string
			if value == nil || json.Unmarshal(*value, &kind) != nil {
				return nil, answers.Unfit("'" + o.Kind() + "' to '" + path + "' is refused: a patch does not change an object's kind")
			}
			kinds.Insert(kind)
		case path == "" && value != nil:
			kinds = kinds.Union(kindsAt(*value))
		}
	}
	return kinds, nil
}

func refusedQuantity() error {
	return apierrors.NewBadRequest("the body is refused: " + shape.ErrQuantity.Error())
}

// typesByKind are all versioned types, by the names of their kinds.
var typesByKind = sync.OnceValue(func() map[string][]reflect.Type {
	named := map[string][]reflect.Type{}
	for kind, t := range legacyscheme.Scheme.AllKnownTypes() {
		if kind.Version != runtime.APIVersionInternal {
			if !slices.Contains(named[kind.Kind], t) { // many groups share the types of options
				named[kind.Kind] = append(named[kind.Kind], t)
			}
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

// walkQuantities checks every quantity in a JSON text, even a quantity that a later member of the same name replaces.
func walkQuantities(text []byte, at []reflect.Type) error {
	tokens := json.NewDecoder(bytes.NewReader(text))
	tokens.UseNumber()
	if err := walk(tokens, at, false); err != errNoJSON {
		return err
	}
	return nil // upstream reports that the text is not JSON
}

// errNoJSON ends a walk at text that is not JSON.
var errNoJSON = errors.New("it is not JSON")

// walk checks one value. annotates says that the value is an annotation which upstream parses as JSON.
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
				next, below = step(at, name), strings.HasPrefix(name, shape.ParsedAnnotations)
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

// typesAt are the types at a path of a JSON patch. The segments are the parts of the path.
func typesAt(at []reflect.Type, segments []string) []reflect.Type {
	for _, segment := range segments {
		at = step(at, unescaped(segment))
	}
	return at
}

func unescaped(segment string) string {
	return strings.ReplaceAll(strings.ReplaceAll(segment, "~1", "/"), "~0", "~")
}

// step returns the types of a member of the given types, without pointers.
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

// fieldsByType caches, by struct type, the types of the struct's members by their names in JSON.
var fieldsByType sync.Map

func fieldsOf(t reflect.Type, name string) []reflect.Type {
	known, ok := fieldsByType.Load(t)
	if !ok {
		fields := map[string][]reflect.Type{}
		addFields(fields, t)
		known, _ = fieldsByType.LoadOrStore(t, fields)
	}
	return known.(map[string][]reflect.Type)[name]
}

func addFields(fields map[string][]reflect.Type, t reflect.Type) {
	for i := range t.NumField() {
		f := t.Field(i)
		member := bare(f.Type)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name != "":
			fields[name] = append(fields[name], member)
		case (f.Anonymous || strings.Contains(options, "inline")) && member.Kind() == reflect.Struct:
			addFields(fields, member)
		}
	}
}

func bare(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

// holdersByType caches, by type, whether the type contains quantities.
var holdersByType sync.Map

func holdQuantities(at []reflect.Type) bool {
	return slices.ContainsFunc(at, func(t reflect.Type) bool {
		known, ok := holdersByType.Load(t)
		if !ok {
			known, _ = holdersByType.LoadOrStore(t, holds(t, map[reflect.Type]bool{}))
		}
		return known.(bool)
	})
}

// holds looks for a quantity in a type. It visits each type once, since a type may contain itself.
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

// typesOf are the versioned types of the objects that a request is about.
func (m *Meter) typesOf(info *apirequest.RequestInfo) []reflect.Type {
	example := m.config.Example(info)
	if example == nil {
		return nil // and the body is not decoded either
	}
	kinds, _, err := legacyscheme.Scheme.ObjectKinds(example)
	if err != nil {
		return nil // types of other schemes have no quantities
	}
	var names []string
	for _, kind := range kinds {
		names = append(names, kind.Kind)
	}
	return typesNamed(names...)
}
