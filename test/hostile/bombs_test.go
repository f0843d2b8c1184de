package hostile

import (
	"encoding/binary"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A bomb is small on the wire and large in memory.

// memoryAllowed is far more than a request of 3 MiB needs, and less than any of these bombs would take.
const memoryAllowed = 768 << 20

// TestAliasesAreNoBomb: YAML's aliases cost the parser nothing, but each alias is written out when the YAML is turned
// into JSON. On e14eff4 these 40 KB take 1.2 GiB, 90 KB take 4.9 GiB, and a megabyte kills the process.
func TestAliasesAreNoBomb(t *testing.T) {
	s := serve(t, "api")
	s.asOwner(tenant)
	strung := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: bomb}\nx: &a " + strings.Repeat("x", 30000) + "\ny: [" + strings.Repeat("*a,", 5000) + "*a]\n"
	listed := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: bomb}\na: &a [x,x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'h'; c++ {
		listed += fmt.Sprintf("%c: &%c [%s]\n", c, c, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*%c,", c-1), 10), ","))
	}
	for name, body := range map[string]string{"strings": strung, "lists": listed} {
		for contentType, path := range map[string]string{"application/yaml": configMaps, "application/apply-patch+yaml": configMaps + "/bomb?fieldManager=m"} {
			method := http.MethodPost
			if strings.Contains(contentType, "patch") {
				method = http.MethodPatch
			}
			a := s.do(tenant, method, path, contentType, body)
			require.Equal(t, http.StatusRequestEntityTooLarge, a.Code, "%s as %s: %s", name, contentType, a.Body)
		}
	}
	require.Less(t, s.memory(), uint64(memoryAllowed))
	a := s.do(tenant, http.MethodPost, configMaps, "application/yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: anchored, labels: &l {a: b}, annotations: *l}\n")
	require.Equal(t, http.StatusCreated, a.Code, "aliases that are no bomb are taken: %s", a.Body)
}

const protobuf = "application/vnd.kubernetes.protobuf"

// field is a protobuf field with a length.
func field(number uint64, content []byte) []byte {
	head := binary.AppendUvarint(nil, number<<3|2)
	return slices.Concat(binary.AppendUvarint(head, uint64(len(content))), content)
}

func sealed(version, kind string, raw []byte) string {
	return "k8s\x00" + string(slices.Concat(field(1, slices.Concat(field(1, []byte(version)), field(2, []byte(kind)))), field(2, raw)))
}

// TestEntriesOfMapsEndWhereTheySay: a map's entry may claim a value that is longer than the entry. Upstream's generated
// decoders read such a value up to the end of the message, and then continue right after the entry. So every entry's
// value can contain all the entries that follow. On e14eff4 these 150 KB decode to a gigabyte, and 500 KB need more
// memory than the machine has.
func TestEntriesOfMapsEndWhereTheySay(t *testing.T) {
	s := serve(t, "api")
	s.asOwner(tenant)
	var entries []byte // from the last to the first
	for i := range 12000 {
		entry := binary.AppendUvarint(slices.Concat(field(1, fmt.Appendf(nil, "%05d", i)), []byte{0x12}), uint64(len(entries)))
		entries = slices.Concat(field(2, entry), entries)
		if i%1000 == 0 {
			entries = slices.Clip(entries)
		}
	}
	bomb := slices.Concat(field(1, field(1, []byte("bomb"))), entries)
	a := s.do(tenant, http.MethodPost, configMaps, protobuf, sealed("v1", "ConfigMap", bomb))
	require.Equal(t, http.StatusBadRequest, a.Code, string(a.Body))
	require.Contains(t, a.status(t).Message, "not protobuf")
	require.Less(t, s.memory(), uint64(memoryAllowed))
	// An empty kind would be taken from the path.
	for _, version := range []string{"", "v1/x/y"} {
		a := s.do(tenant, http.MethodPost, configMaps, protobuf, sealed(version, "", bomb))
		require.Equal(t, http.StatusBadRequest, a.Code, string(a.Body))
		require.Contains(t, a.status(t).Message, "typeMeta")
	}
}

// TestProtobufNestsOnlySoDeep: the schema of a CRD contains schemas. On e14eff4 200,000 levels of schemas, a megabyte
// of protobuf, overflow the stack, which ends the process. An entry of 'properties' that reaches beyond its end is
// decoded twice, so that the decoding of a few hundred bytes never ends.
func TestProtobufNestsOnlySoDeep(t *testing.T) {
	s := serve(t, "api")
	crd := func(schema []byte) string {
		names := slices.Concat(field(1, []byte("foos")), field(3, []byte("foo")), field(4, []byte("Foo")))
		version := slices.Concat(field(1, []byte("v1")), []byte{2 << 3, 1, 3 << 3, 1}, field(4, field(1, schema)))
		spec := slices.Concat(field(1, []byte("x.example.com")), field(3, names), field(4, []byte("Namespaced")), field(7, version))
		return sealed("apiextensions.k8s.io/v1", "CustomResourceDefinition", slices.Concat(field(1, field(1, []byte("foos.x.example.com"))), field(2, spec)))
	}
	object := field(5, []byte("object"))
	deep := object
	for range 200 {
		deep = field(28, deep) // the schema's field 'not'
	}
	a := s.do(admin, http.MethodPost, crds, protobuf, crd(deep))
	require.Equal(t, http.StatusBadRequest, a.Code, string(a.Body))
	require.Contains(t, a.status(t).Message, "levels deep")

	json := slices.Concat(object, field(8, field(1, []byte(nested("[", "]", deeper))))) // the field 'default'
	a = s.do(admin, http.MethodPost, crds, protobuf, crd(json))
	require.Equal(t, http.StatusBadRequest, a.Code, string(a.Body))
	require.Contains(t, a.status(t).Message, "levels deep")

	twice := object
	for range 12 {
		head := slices.Concat(field(1, []byte("a")), binary.AppendUvarint([]byte{0x12}, uint64(len(twice))))
		twice = slices.Concat(field(29, head), twice) // the field 'properties'
	}
	a = s.do(admin, http.MethodPost, crds, protobuf, crd(twice))
	require.Equal(t, http.StatusBadRequest, a.Code, string(a.Body))
	require.Contains(t, a.status(t).Message, "not protobuf")

	a = s.do(admin, http.MethodPost, crds, protobuf, crd(object))
	require.Equal(t, http.StatusCreated, a.Code, string(a.Body))

	// The body is built from the inside out, because each level takes up to five bytes more than the level inside it.
	levels := make([][]byte, 0, 200000)
	size := len(object)
	for range 200000 {
		head := binary.AppendUvarint([]byte{0xe2, 0x01}, uint64(size))
		levels, size = append(levels, head), size+len(head)
	}
	slices.Reverse(levels)
	a = s.do(admin, http.MethodPost, crds, protobuf, crd(append(slices.Concat(levels...), object...)))
	require.Equal(t, http.StatusBadRequest, a.Code, string(a.Body))
}

// TestRolesAllowACountableLot: to check that users grant no more than they have, upstream lists every combination of
// verb, resource and group. On e14eff4 this role of 6 KB makes a million combinations, and a role of 18 KB makes a
// billion, which kills the process.
func TestRolesAllowACountableLot(t *testing.T) {
	s := serve(t, "api", "--authorization-mode", "RBAC")
	s.asOwner(tenant)
	list := func(letter string, n int) string {
		all := make([]string, n)
		for i := range all {
			all[i] = fmt.Sprintf("%q", fmt.Sprintf("%s%d", letter, i))
		}
		return "[" + strings.Join(all, ",") + "]"
	}
	rules := `"rules":[{"apiGroups":` + list("g", 100) + `,"resources":` + list("r", 100) + `,"verbs":` + list("v", 100) + `}]`
	roles := "/apis/rbac.authorization.k8s.io/v1/namespaces/tenant/roles"
	a := s.do(tenant, http.MethodPost, roles, "application/json", `{"metadata":{"name":"many"},`+rules+`}`)
	require.Equal(t, http.StatusUnprocessableEntity, a.Code, string(a.Body))
	require.Contains(t, a.status(t).Message, "combinations")
	s.must(tenant, http.MethodPost, roles, `{"metadata":{"name":"few"},"rules":[{"apiGroups":[""],"resources":["configmaps"],"verbs":["get"]}]}`)
	a = s.do(tenant, http.MethodPatch, roles+"/few", "application/merge-patch+json", `{`+rules+`}`)
	require.Equal(t, http.StatusUnprocessableEntity, a.Code, string(a.Body))
	require.Less(t, s.memory(), uint64(memoryAllowed))
}
