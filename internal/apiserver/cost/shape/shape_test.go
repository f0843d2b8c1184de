package shape

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/fxamacker/cbor/v2"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

func nested(open, close string, n int) string {
	return strings.Repeat(open, n) + "1" + strings.Repeat(close, n)
}

// A document at the limit of depth is accepted, and a document that is a level deeper is refused, in every encoding and
// style.
func TestDepth(t *testing.T) {
	cborOf := func(text string) []byte {
		var v any
		require.NoError(t, json.Unmarshal([]byte(text), &v))
		b, err := cbor.Marshal(v)
		require.NoError(t, err)
		return b
	}
	for name, c := range map[string]struct {
		measure func([]byte) (Shape, error)
		of      func(levels int) []byte
	}{
		"JSON objects":  {JSON, func(n int) []byte { return []byte(nested(`{"a":`, "}", n)) }},
		"JSON lists":    {JSON, func(n int) []byte { return []byte(nested("[", "]", n)) }},
		"JSON, unended": {JSON, func(n int) []byte { return []byte(strings.Repeat("[", n)) }},
		"JSON with brackets in strings": {JSON, func(n int) []byte {
			return []byte(nested(`{"]}\"]}\\":[`, "]}", n/2))
		}},
		"YAML that is JSON": {YAML, func(n int) []byte { return []byte(nested(`{"a":`, "}", n)) }},
		"YAML flow style":   {YAML, func(n int) []byte { return []byte(nested("{a: ", "}", n)) }},
		"YAML block style": {YAML, func(n int) []byte {
			var b strings.Builder
			for i := range n {
				fmt.Fprintf(&b, "\n%sa:", strings.Repeat(" ", i))
			}
			return []byte(b.String() + " 1")
		}},
		"YAML sequences on one line": {YAML, func(n int) []byte { return []byte(strings.Repeat("- ", n) + "a") }},
		"YAML complex keys":          {YAML, func(n int) []byte { return []byte(strings.Repeat("? ", n) + "a") }},
		"YAML aliases": {YAML, func(n int) []byte {
			return []byte("a: &a [[1]]\n" + "b: " + nested("[", "]", n-3)[:n-3] + "*a" + strings.Repeat("]", n-3))
		}},
		"CBOR maps":  {CBOR, func(n int) []byte { return cborOf(nested(`{"a":`, "}", n)) }},
		"CBOR lists": {CBOR, func(n int) []byte { return append([]byte(selfDescribed), cborOf(nested("[", "]", n))...) }},
		"CBOR of indefinite length": {CBOR, func(n int) []byte {
			return append(append(bytes.Repeat([]byte{0x9f}, n), 1), bytes.Repeat([]byte{0xff}, n)...)
		}},
		"CBOR tags": {CBOR, func(n int) []byte { return append(bytes.Repeat([]byte{0xc1}, n), 1) }},
		"protobuf":  {messageOf(t, apiextensionsv1.JSONSchemaProps{}).Protobuf, nots},
		"JSON in protobuf": {messageOf(t, apiextensionsv1.JSONSchemaProps{}).Protobuf, func(n int) []byte {
			return encoded(t, &apiextensionsv1.JSONSchemaProps{Default: &apiextensionsv1.JSON{Raw: []byte(nested("[", "]", n-2))}})
		}},
		"CBOR in protobuf": {messageOf(t, apiextensionsv1.JSONSchemaProps{}).Protobuf, func(n int) []byte {
			raw := append([]byte(selfDescribed), cborOf(nested("[", "]", n-2))...)
			return encoded(t, &apiextensionsv1.JSONSchemaProps{Default: &apiextensionsv1.JSON{Raw: raw}})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := c.measure(c.of(maxDepth))
			require.NoError(t, err)
			require.Equal(t, maxDepth, s.Depth)
			more := maxDepth + 1
			if len(c.of(more)) == len(c.of(maxDepth)) {
				more++ // two levels at a time
			}
			_, err = c.measure(c.of(more))
			require.ErrorIs(t, err, ErrDepth)
			_, err = c.measure(c.of(9990))
			require.ErrorIs(t, err, ErrDepth)
		})
	}
}

// nots returns a schema of that many levels, whose innermost message is empty.
func nots(levels int) []byte {
	b := []byte{}
	for range levels - 1 {
		b = append(appendHead(nil, 28, len(b)), b...)
	}
	return b
}

func appendHead(dst []byte, number, length int) []byte {
	for _, v := range []int{number<<3 | 2, length} {
		for ; v > 127; v >>= 7 {
			dst = append(dst, byte(v)|128)
		}
		dst = append(dst, byte(v))
	}
	return dst
}

func encoded(t testing.TB, m interface{ Marshal() ([]byte, error) }) []byte {
	t.Helper()
	b, err := m.Marshal()
	require.NoError(t, err)
	return b
}

var raw = map[reflect.Type]bool{
	reflect.TypeFor[apiextensionsv1.JSON](): true,
	reflect.TypeFor[metav1.FieldsV1]():      true,
}

func messageOf(t testing.TB, of any) *Message {
	t.Helper()
	m, err := Describe(reflect.TypeOf(of), raw)
	require.NoError(t, err)
	return m
}

func TestLimits(t *testing.T) {
	list := func(n int) string { return "[" + strings.Repeat("0,", n-1) + "0]" }
	for name, c := range map[string]struct {
		measure func([]byte) (Shape, error)
		text    string
		want    error
	}{
		"as many members as there may be": {JSON, list(1 << 15), nil},
		"one more":                        {JSON, list(1<<15 + 1), errPairs},
		"several lists":                   {JSON, "[" + list(1<<14) + "," + list(1<<14) + "," + list(1<<14) + "," + list(1<<14) + "]", errPairs},
		"a map in CBOR":                   {CBOR, "\xb9\xff\xff" + strings.Repeat("\x61a\x01", 0xffff), errPairs},
		"a length beyond all CBOR":        {CBOR, "\x9b\xff\xff\xff\xff\xff\xff\xff\xff\x01", errValues},
		"values":                          {JSON, "[" + strings.Repeat(list(1000)+",", 300) + "0]", errValues},
		"weight":                          {JSON, nested("[", "]", 100)[:100] + `"` + strings.Repeat("x", 1<<20) + `"` + strings.Repeat("]", 100), errWeight},
		"a bomb of lists": {YAML, "a: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\n" +
			"d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]", errValues},
		"a bomb of strings":          {YAML, "a: &a " + strings.Repeat("x", 1<<20) + "\nb: [*a,*a,*a]", errExpanded},
		"an alias within itself":     {YAML, "a: &a [*a]", ErrDepth},
		"aliases that are no bomb":   {YAML, "a: &a {x: 1}\nb: *a\nc:\n  <<: *a", nil},
		"an alias of nothing":        {YAML, "a: *a", &Error{}},
		"what is no YAML":            {YAML, "a: [", &Error{}},
		"brackets in block scalars":  {YAML, "a: |\n  " + strings.Repeat("[", 1000) + "\nb: 'it''s " + strings.Repeat("{", 1000) + "'", nil},
		"UTF-16":                     {YAML, "\xff\xfe" + utf16(nested("[", "]", 1000)), ErrDepth},
		"nothing":                    {JSON, "", nil},
		"closed before it is opened": {JSON, "]]}}" + nested("[", "]", 1000), ErrDepth},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.measure([]byte(c.text))
			var failed *Error
			switch {
			case c.want == nil:
				require.NoError(t, err)
			case errors.As(c.want, &failed) && failed.message == "":
				require.ErrorAs(t, err, &failed)
				require.True(t, failed.Malformed)
			default:
				require.ErrorIs(t, err, c.want)
			}
		})
	}
}

func utf16(text string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		b.WriteByte(c)
		b.WriteByte(0)
	}
	return b.String()
}

// Entries of maps that only a generated decoder accepts are malformed: entries that reach beyond their own end, and
// entries with another wire type.
func TestEntriesOfMaps(t *testing.T) {
	m := messageOf(t, corev1.ConfigMap{})
	good := encoded(t, &corev1.ConfigMap{Data: map[string]string{"a": "b", "c": ""}, BinaryData: map[string][]byte{"d": {0xff}}})
	_, err := m.Protobuf(good)
	require.NoError(t, err)
	entry := func(content string) []byte { return append(appendHead(nil, 2, len(content)), content...) }
	for name, b := range map[string][]byte{
		"beyond its end":         append(entry("\x0a\x01a\x12\x05"), "zzzzz"...),
		"another wire type":      entry("\x0a\x01a\x10\x01"),
		"a field of no entry":    entry("\x0a\x01a\x1a\x01a"),
		"a group":                {0x0b, 0x0c},
		"beyond the message":     {0x0a, 0x7f},
		"metadata as a number":   {0x08, 0x01},
		"a length beyond a long": append([]byte{0x0a}, bytes.Repeat([]byte{0xff}, 11)...),
	} {
		_, err := m.Protobuf(b)
		var failed *Error
		require.ErrorAs(t, err, &failed, name)
		require.True(t, failed.Malformed, name)
	}
}

// reference returns the depth and the number of values of a decoded JSON text.
func reference(v any) (depth, values int) {
	var children []any
	switch v := v.(type) {
	case map[string]any:
		for _, child := range v {
			children = append(children, child)
		}
	case []any:
		children = v
	default:
		return 0, 0
	}
	values = 1 + max(1, len(children)) // JSON counts one member in an empty container
	for _, child := range children {
		d, n := reference(child)
		depth, values = max(depth, d), values+n
	}
	return depth + 1, values
}

// FuzzJSON compares the measured depth with the depth that a parser finds. The measured depth is exact, whatever the
// strings contain.
func FuzzJSON(f *testing.F) {
	for _, seed := range []string{`{}`, `[]`, `[[1,2],{"a":[{}]}]`, `{"\\":"\"[","}":{"]":null}}`, `"["`, `{"a":"\\"}`, ` [ "\u005b" , [ ] ] `, nested("[", "]", 129), nested(`{"\"":`, "}", 128)} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := JSON(text)
		var v any
		if json.Unmarshal(text, &v) != nil {
			return // the parser refuses the text
		}
		depth, values := reference(v)
		if depth > maxDepth {
			require.ErrorIs(t, err, ErrDepth)
			return
		}
		if err == nil {
			require.Equal(t, depth, s.Depth)
			require.GreaterOrEqual(t, s.Values, values)
		} else {
			require.NotErrorIs(t, err, ErrDepth)
		}
		if y, err := YAML(text); err == nil { // JSON is YAML
			require.Equal(t, depth, y.Depth)
		}
	})
}

// FuzzYAML compares with upstream's decoder, whose result must not be deeper than measured.
func FuzzYAML(f *testing.F) {
	for _, seed := range []string{"a: [b, {c: d}]", "- - - a", "? ? a\n: b", "a: &x {b: [1]}\nc: *x", "a: |\n  [[[\nb: \"[\"", "%YAML 1.1\n---\na: 1\n...\n---\n[[[1]]]", "<<: {a: b}", "a: !!binary aGk=", "&a a: *a", "- &a [1]\n- *a", "\ufeffa: 1", "a:\n- b\n-\n  - c", "{a: 1, ? [x] : y}", "a: 'it''s [ok'", "a: b # [", "\xff\xfe[\x00]\x00"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := YAML(text)
		var failed *Error
		if errors.As(err, &failed) {
			return
		}
		converted, err := yaml.YAMLToJSON(text)
		if err != nil {
			return
		}
		var v any
		require.NoError(t, json.Unmarshal(converted, &v))
		depth, values := reference(v)
		require.LessOrEqual(t, depth, s.Depth, "%s", converted)
		require.LessOrEqual(t, values, 2*s.Values+2, "%s", converted)
	})
}

// FuzzCBOR compares with the decoder: items that the decoder accepts are measured exactly, except that tags count as
// levels here.
func FuzzCBOR(f *testing.F) {
	for _, seed := range []string{"\x80", "\xa1\x61a\x81\x01", "\x9f\x01\x9f\xff\xff", "\xbf\x61a\xa0\xff", "\xc1\x81\x01", selfDescribed + "\xa0", "\x7f\x61a\x61b\xff", "\x5b\xff\xff\xff\xff\xff\xff\xff\xff", "\xfb\x40\x00\x00\x00\x00\x00\x00\x00", "\x81\x81\x81", "\xf8\x20"} {
		f.Add([]byte(seed))
	}
	decode, err := cbor.DecOptions{ // as in upstream
		MaxNestedLevels: 10000, MaxArrayElements: 1 << 30, MaxMapPairs: 1 << 30, IntDec: cbor.IntDecConvertSignedOrFail, BignumTag: cbor.BignumTagForbidden, DupMapKey: cbor.DupMapKeyEnforcedAPF,
	}.DecMode()
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, item []byte) {
		s, err := CBOR(item)
		var v any
		if decode.Unmarshal(item, &v) != nil {
			return
		}
		depth := cborDepth(v)
		if err == nil {
			require.LessOrEqual(t, depth, s.Depth, "%#v", v)
			require.LessOrEqual(t, s.Depth, depth+bytes.Count(item, []byte(selfDescribed)), "%#v", v) // the decoder skips these tags
			requireCBORText(t, v)
		} else if depth <= maxDepth {
			require.NotErrorIs(t, err, ErrDepth)
		}
	})
}

// requireCBORText checks all byte strings that become text.
func requireCBORText(t *testing.T, v any) {
	switch v := v.(type) {
	case map[any]any:
		for key, child := range v {
			requireCBORText(t, key)
			requireCBORText(t, child)
		}
	case []any:
		for _, child := range v {
			requireCBORText(t, child)
		}
	case cbor.Tag:
		if v.Number < firstDataTag || v.Number > lastDataTag {
			requireCBORText(t, v.Content)
		}
	case cbor.ByteString:
		require.True(t, utf8.ValidString(string(v)), "%q", v)
	case []byte:
		require.True(t, utf8.Valid(v), "%q", v)
	}
}

func cborDepth(v any) int {
	deepest := 0
	switch v := v.(type) {
	case map[any]any:
		for key, child := range v {
			deepest = max(deepest, cborDepth(key), cborDepth(child))
		}
	case []any:
		for _, child := range v {
			deepest = max(deepest, cborDepth(child))
		}
	case cbor.Tag:
		deepest = cborDepth(v.Content)
	case time.Time: // decoded from a tag
	default:
		return 0
	}
	return deepest + 1
}

// FuzzProtobuf decodes messages that were not refused. The decoded message must not be larger or deeper than measured.
func FuzzProtobuf(f *testing.F) {
	crd := apiextensionsv1.JSONSchemaProps{Properties: map[string]apiextensionsv1.JSONSchemaProps{"a": {Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &apiextensionsv1.JSONSchemaProps{Type: "b"}}}},
		Default: &apiextensionsv1.JSON{Raw: []byte(`{"a":[1]}`)}, Dependencies: apiextensionsv1.JSONSchemaDependencies{"x": {Property: []string{"y"}}}}
	f.Add(encoded(f, &crd))
	f.Add(nots(130))
	f.Add([]byte("\xea\x01\x05\x0a\x01a\x12\x05zzzzz"))
	m := messageOf(f, crd)
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := m.Protobuf(b)
		if err != nil {
			return
		}
		var decoded apiextensionsv1.JSONSchemaProps
		if decoded.Unmarshal(b) != nil {
			return
		}
		require.LessOrEqual(t, schemaDepth(reflect.ValueOf(decoded)), s.Depth)
		require.LessOrEqual(t, decoded.Size(), 16*len(b)+64)
		requireText(t, reflect.ValueOf(decoded))
	})
}

// requireText checks all strings of a value.
func requireText(t *testing.T, v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		require.True(t, utf8.ValidString(v.String()), "%q", v.String())
	case reflect.Pointer:
		if !v.IsNil() {
			requireText(t, v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			requireText(t, v.Field(i))
		}
	case reflect.Slice:
		for i := range v.Len() {
			requireText(t, v.Index(i))
		}
	case reflect.Map:
		for entries := v.MapRange(); entries.Next(); {
			requireText(t, entries.Key())
			requireText(t, entries.Value())
		}
	}
}

// Text must be UTF-8, wherever a decoder looks for text.
func TestText(t *testing.T) {
	for name, item := range map[string]string{
		"a byte string": "\x41\xff", "a key": "\xa1\x41\xff\x01", "a text": "\x61\xff", "in a tag of time": "\xc0\x41\xff", "of several chunks": "\x5f\x41\xc3\x41\xff\xff",
		"next to bytes": "\x82\xd6\x41\xff\x41\xff",
	} {
		_, err := CBOR([]byte(item))
		require.ErrorIs(t, err, errNotUTF8, name)
	}
	for name, item := range map[string]string{
		"text": "\x42\xc3\xa9", "bytes for base64": "\xd6\x41\xff", "bytes for base16": "\xd7\x41\xff", "a character in two chunks": "\x5f\x41\xc3\x41\xa9\xff",
	} {
		_, err := CBOR([]byte(item))
		require.NoError(t, err, name)
	}
	m := messageOf(t, corev1.Secret{})
	for name, secret := range map[string]corev1.Secret{
		"a scalar": {Type: "\xff"}, "a value": {StringData: map[string]string{"a": "\xff"}}, "a key": {Data: map[string][]byte{"\xff": nil}}, "in a message": {ObjectMeta: metav1.ObjectMeta{Name: "\xff"}},
		"in a list": {ObjectMeta: metav1.ObjectMeta{Finalizers: []string{"a", "\xff"}}},
	} {
		_, err := m.Protobuf(encoded(t, &secret))
		require.ErrorIs(t, err, errNotUTF8, name)
	}
	_, err := m.Protobuf(encoded(t, &corev1.Secret{Data: map[string][]byte{"a": []byte("\xff")}, StringData: map[string]string{"é": "é"}}))
	require.NoError(t, err)
}

// schemaDepth is how deep messages nest in a value.
func schemaDepth(v reflect.Value) int {
	deepest := 0
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			return schemaDepth(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			deepest = max(deepest, schemaDepth(v.Field(i)))
		}
		return deepest + 1
	case reflect.Slice:
		for i := range v.Len() {
			deepest = max(deepest, schemaDepth(v.Index(i)))
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			deepest = max(deepest, schemaDepth(v.MapIndex(key)))
		}
	}
	return deepest
}

// An object in memory measures roughly the same as its JSON.
func TestValue(t *testing.T) {
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "n", Finalizers: []string{"a/b", "c/d"}, CreationTimestamp: metav1.Now(),
		ManagedFields: []metav1.ManagedFieldsEntry{{FieldsV1: metav1.NewFieldsV1(nested(`{"a":`, "}", 20))}}}, Data: map[string]string{"a": strings.Repeat("b", 1000)}}
	text, err := json.Marshal(object)
	require.NoError(t, err)
	want, err := JSON(text)
	require.NoError(t, err)
	got := Value(object, raw)
	require.InDelta(t, want.Depth, got.Depth, 1)
	require.InDelta(t, want.Values, got.Values, 5)
	require.Equal(t, want.Items, got.Items)
	require.InEpsilon(t, want.Bytes, got.Bytes, 0.2)
	deep := map[string]any{}
	for range 2 * maxDepth {
		deep = map[string]any{"a": deep}
	}
	s := Value(deep, raw)
	require.ErrorIs(t, s.Exceeds(got), ErrDepth)
	require.NoError(t, s.Exceeds(s), "what was so before may stay so")
}

// BenchmarkShape measures the cost of measuring bodies, by size.
func BenchmarkShape(b *testing.B) {
	small := &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Name: "small", Namespace: "default", Labels: map[string]string{"app": "demo", "tier": "backend"}}, Data: map[string]string{}}
	for i := range 8 {
		small.Data[fmt.Sprintf("key-%d", i)] = strings.Repeat("value ", 16)
	}
	text, err := json.Marshal(small)
	require.NoError(b, err)
	item, err := cbor.Marshal(map[string]any{"a": []any{map[string]any{"b": strings.Repeat("x", 900)}, 1, 2, 3}})
	require.NoError(b, err)
	crd := deepSchema(b)
	dense := []byte(`{"a":[` + strings.Repeat(`{"b":[1,2],"c":{}},`, 10000) + `0]}`)
	for _, c := range []struct {
		name    string
		measure func([]byte) (Shape, error)
		body    []byte
	}{
		{"json/configmap", JSON, text}, {"json/crd", JSON, crd}, {"json/dense", JSON, dense},
		{"apply/configmap", YAML, text}, {"cbor/object", CBOR, item},
		{"value/configmap", func([]byte) (Shape, error) { return Value(small, raw), nil }, text},
		{"protobuf/configmap", messageOf(b, corev1.ConfigMap{}).Protobuf, encoded(b, small)},
	} {
		b.Run(fmt.Sprintf("%s/%d", c.name, len(c.body)), func(b *testing.B) {
			b.SetBytes(int64(len(c.body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.measure(c.body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// deepSchema is a CRD's schema, with descriptions and forty levels.
func deepSchema(b *testing.B) []byte {
	b.Helper()
	schema := apiextensionsv1.JSONSchemaProps{Type: "object", Description: strings.Repeat("what it is for ", 8)}
	for range 20 {
		properties := map[string]apiextensionsv1.JSONSchemaProps{}
		for i := range 3 {
			properties[fmt.Sprintf("field%d", i)] = apiextensionsv1.JSONSchemaProps{Type: "string", Description: strings.Repeat("another word ", 10)}
		}
		properties["nested"] = schema
		schema = apiextensionsv1.JSONSchemaProps{Type: "object", Properties: properties, Description: strings.Repeat("and more ", 10)}
	}
	text, err := json.Marshal(schema)
	require.NoError(b, err)
	return text
}

func TestNumbers(t *testing.T) {
	long := strings.Repeat("9", maxDigits+1)
	for text, ok := range map[string]bool{
		"": true, "1": true, "100m": true, "1Gi": true, "12e6": true, "1E": true, "1e-999": true, "1e000000001": true, "+1.5e+009": true, strings.Repeat("9", maxDigits): true,
		"1e1000": false, "1e-2000000000": false, "1E+0002000": false, ".5e99999": false, long: false, "1." + long: false,
	} {
		require.Equal(t, ok, IsQuantity([]byte(text)), text)
		require.Equal(t, !ok, HasLongNumber([]byte(`{"a":"`+text+`"}`)) && len(text) != maxDigits, text)
		require.Equal(t, !ok, HasLongNumberInJSON([]byte(`{"a":"`+text+`"}`)) && len(text) != maxDigits, text)
	}
	for text, has := range map[string]bool{`1\u0065-99999`: true, `\u003c`: false, `\u0031e`: true, `é\u00e9`: false, `abcde9999`: false, `\`: false, `\u00`: false, "1e": false, "6e8912": true} {
		require.Equal(t, has, HasLongNumber([]byte(text)), text)
	}
	for text, has := range map[string]bool{
		`"7a5e48230-0"`: false, `"07-1e45-5e48230"`: false, `"a5e48230"`: false, `"a.-5e48230"`: true, `"5e48230"`: true, `"-5e48230"`: true, `" 5e48230"`: true,
		`{"a":5e48230}`: true, `[1,-5e48230]`: true, `[1,+5e48230]`: true, "5e48230": true, "-5e48230": true, `"{\"a\":\n5e48230}"`: true, `"{\"a\":\"5e48230\"}"`: true,
		`"{\"a\"\u003a5e48230}"`: true, `"\u000a5e48230"`: true, `"a` + long + `"`: true,
	} {
		require.Equal(t, has, HasLongNumberInJSON([]byte(text)), text)
	}
}

// FuzzNumbers: if HasLongNumber is false for a text, IsQuantity holds for every number in the text. If
// HasLongNumberInJSON is false for a JSON text, IsQuantity holds for every number in the text, and for every string
// that begins like a number. This includes the numbers and strings inside a string that is itself JSON.
func FuzzNumbers(f *testing.F) {
	for _, seed := range []string{"1e-2000000000", "1.5E+0001000", `{"a":"1e9999"}`, "12345678901234567890"} {
		f.Add([]byte(seed))
	}
	for _, seed := range []string{`"7a5e48230-0"`, `{"a":"[{\"b\":\n-5e48230}]"}`, `{"a":"{\"b\"\u003a5e48230}"}`, `{"a":"\\u000a5e48230"}`} {
		f.Add([]byte(seed))
	}
	number := regexp.MustCompile(`[0-9.]+(?:[eE][+-]?[0-9]+)?`)
	begins := regexp.MustCompile(`^\s*[+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?`)
	var look func(t *testing.T, text string, nested bool)
	look = func(t *testing.T, text string, nested bool) {
		tokens := json.NewDecoder(strings.NewReader(text))
		tokens.UseNumber()
		for token, err := tokens.Token(); err == nil; token, err = tokens.Token() {
			switch token := token.(type) {
			case json.Number:
				require.True(t, IsQuantity([]byte(token)), "%s", token)
			case string:
				require.True(t, IsQuantity([]byte(begins.FindString(token))), "%s", token)
				if !nested {
					look(t, token, true)
				}
			}
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if !HasLongNumberInJSON(text) {
			look(t, string(text), false)
		}
		if HasLongNumber(text) {
			return
		}
		for _, n := range number.FindAll(text, -1) {
			require.True(t, IsQuantity(n), "%s", n)
		}
	})
}

func BenchmarkHasLongNumber(b *testing.B) {
	text := bytes.Repeat([]byte(`{"name":"REVISION","value":"1b2c3d4"},`), 1<<10)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if HasLongNumber(text) {
			b.Fatal()
		}
	}
}
