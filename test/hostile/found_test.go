package hostile

import (
	"bufio"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// managers returns n entries of managed fields.
func managers(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(`{"manager":"m%d","operation":"Apply","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:data":{"f:x%d":{}}}}`, i, i))
	}
	return "[" + strings.Join(all, ",") + "]"
}

// configMapOf returns a ConfigMap with a name and other metadata.
func configMapOf(name, metadata string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,%s}}`, name, metadata)
}

// TestFieldManagersAreFew: each field manager of an object costs a conversion of the whole object. On 1dc6c4a a patch
// of an object with 1,500 managers takes 9 s of processor time, half of that time after the answer (504).
func TestFieldManagersAreFew(t *testing.T) {
	s := serve(t, "watcher")
	s.asOwner(owner)
	s.must(owner, http.MethodPost, ownConfigMaps, configMapOf("few", `"managedFields":`+managers(99)))
	applied := s.do(owner, http.MethodPatch, ownConfigMaps+"/few?fieldManager=another&force=true", "application/apply-patch+yaml", configMapOf("few", `"labels":{"a":"b"}`))
	require.Equal(t, http.StatusOK, applied.Code, string(applied.Body))

	for _, c := range []struct{ method, path, contentType, body string }{
		{"POST", ownConfigMaps, "application/json", configMapOf("many", `"managedFields":`+managers(101))},
		{"POST", ownConfigMaps, "application/json", configMapOf("many", `"managed\u0046ields":`+managers(101))},
		{"POST", ownConfigMaps, "application/yaml", "metadata:\n  name: many\n  managedFields: " + managers(101)},
		{"PUT", ownConfigMaps + "/few", "application/json", configMapOf("few", `"managedFields":`+managers(101))},
		{"PATCH", ownConfigMaps + "/few", "application/merge-patch+json", configMapOf("few", `"managedFields":`+managers(101))},
		{"PATCH", ownConfigMaps + "/few", "application/strategic-merge-patch+json", configMapOf("few", `"managedFields":`+managers(101))},
		{"PATCH", ownConfigMaps + "/few", "application/json-patch+json", `[{"op":"replace","path":"/metadata","value":{"name":"few","managedFields":` + managers(101) + `}}]`},
		{"PATCH", ownConfigMaps + "/few", "application/json-patch+json", `[{"op":"add","path":"/metadata/managedFields","value":` + managers(101) + `}]`},
		{"PATCH", ownConfigMaps + "/few", "application/json-patch+json", "[" + strings.Repeat(`{"op":"copy","from":"/metadata/managedFields/0","path":"/metadata/managedFields/-"},`, 101) + `{"op":"test","path":"/kind","value":"ConfigMap"}]`},
	} {
		a := s.do(owner, c.method, c.path, c.contentType, c.body)
		require.Equal(t, http.StatusRequestEntityTooLarge, a.Code, "%s %s %s: %s", c.method, c.contentType, c.body[:80], a.Body)
	}

	var last answer
	for i := range 3 {
		path := fmt.Sprintf("%s/few?fieldManager=more-%d&force=true", ownConfigMaps, i)
		last = s.do(owner, http.MethodPatch, path, "application/apply-patch+yaml", configMapOf("few", fmt.Sprintf(`"labels":{"l%d":"b"}`, i)))
	}
	require.Equal(t, http.StatusRequestEntityTooLarge, last.Code, string(last.Body))
	require.Contains(t, last.status(t).Message, "field managers")
}

// TestOwnersAreFew: upstream compares each owner reference with all others, before any plugin or index looks at the
// references. On fc78e1c a create with 10,000 references takes 43 s of the processor, and 2,000 references to one uid
// are stored.
func TestOwnersAreFew(t *testing.T) {
	s := serve(t, "watcher")
	s.asOwner(owner)
	owners := func(n int) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","name":"o%d","uid":"one"}`, i))
		}
		return `"ownerReferences":[` + strings.Join(all, ",") + "]"
	}
	s.must(owner, http.MethodPost, ownConfigMaps, configMapOf("few", owners(100)))
	for _, c := range []struct{ method, path, contentType, body string }{
		{"POST", ownConfigMaps, "application/json", configMapOf("many", owners(201))},
		{"POST", ownConfigMaps, "application/json", configMapOf("many", strings.Replace(owners(201), "References", `\u0052eferences`, 1))},
		{"POST", ownConfigMaps, "application/yaml", "metadata:\n  name: many\n  ownerReferences: " + strings.TrimPrefix(owners(201), `"ownerReferences":`)},
		{"PUT", ownConfigMaps + "/few", "application/json", configMapOf("few", owners(201))},
		{"PATCH", ownConfigMaps + "/few", "application/merge-patch+json", configMapOf("few", owners(201))},
		{"PATCH", ownConfigMaps + "/few", "application/json-patch+json", "[" + strings.Repeat(`{"op":"copy","from":"/metadata/ownerReferences/0","path":"/metadata/ownerReferences/-"},`, 101) + `{"op":"test","path":"/kind","value":"ConfigMap"}]`},
	} {
		a := s.do(owner, c.method, c.path, c.contentType, c.body)
		require.Contains(t, []int{http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity}, a.Code, "%s %s %s", c.method, c.contentType, c.body[:80])
		require.Contains(t, a.status(t).Message, "ownerReferences")
	}
}

// TestLongSelectorsCount: a watch keeps its selectors. On 1dc6c4a 600 watches with selectors of 32 KB take 1.1 GiB.
func TestLongSelectorsCount(t *testing.T) {
	s := serve(t, "watcher", "--max-watches-per-user", "25")
	s.asOwner(owner)
	path := ownConfigMaps + "?watch=1&timeoutSeconds=1&labelSelector=" + strings.TrimSuffix(strings.Repeat("!a,", 5000), ",")
	a := s.do(owner, http.MethodGet, path, "", "")
	require.Equal(t, http.StatusOK, a.Code, string(a.Body))
	a = s.do(owner, http.MethodGet, path+strings.Repeat(",!a", 5000), "", "")
	require.Equal(t, http.StatusTooManyRequests, a.Code, string(a.Body))
	require.Contains(t, a.status(t).Message, "each KiB of its query")
}

// TestHeadersAreShort: a connection holds its request's headers in memory before the server knows whose request it is.
// On 1dc6c4a the headers take up to a megabyte for each connection.
func TestHeadersAreShort(t *testing.T) {
	s := serve(t, "watcher")
	conn, err := net.Dial("tcp", s.Address)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(requestTimeout)))
	go func() {
		_, _ = fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: a\r\n")
		for i := range 10 {
			_, _ = fmt.Fprintf(conn, "X-%d: %s\r\n", i, strings.Repeat("a", 8000))
		}
	}()
	line, err := bufio.NewReader(conn).ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, "431")
}

// TestManyNodePorts: each port is an event, and a write may have a thousand events. On 1dc6c4a the answer is a 500 that
// says that the outcome is unknown.
func TestManyNodePorts(t *testing.T) {
	s := serve(t, "api")
	s.asOwner(owner)
	var ports []string
	for i := range 1100 {
		ports = append(ports, fmt.Sprintf(`{"name":"p%d","port":%d}`, i, i+1))
	}
	a := s.do(owner, http.MethodPost, "/api/v1/namespaces/owner/services", "application/json", `{"metadata":{"name":"many"},"spec":{"type":"NodePort","ports":[`+strings.Join(ports, ",")+`]}}`)
	require.Equal(t, http.StatusRequestEntityTooLarge, a.Code, string(a.Body))
}

// TestANameIsNotGenerated: a user who sends a taken name is told that the name is taken, even if the object has a
// generateName, too. On 1dc6c4a the user is told to try again.
func TestANameIsNotGenerated(t *testing.T) {
	s := serve(t, "api")
	s.asOwner(owner)
	body := `{"metadata":{"name":"x1","generateName":"x"}}`
	s.must(owner, http.MethodPost, ownConfigMaps, body)
	a := s.do(owner, http.MethodPost, ownConfigMaps, "application/json", body)
	require.Equal(t, http.StatusConflict, a.Code, string(a.Body))
}

// TestWhatIsNotText: upstream stores some bytes that are not valid text unchanged. On 1dc6c4a, if a default that is not
// UTF-8 is in a CRD's schema, every request for OpenAPI fails with 500.
func TestWhatIsNotText(t *testing.T) {
	s := serve(t, "api")
	definition := strings.Replace(definitionOf("things", "fuzz.example.com", "v1"), `"type":"object"`, `"type":"object","properties":{"a":{"type":"string","default":"`+"\xff"+`"}}`, 1)
	a := s.do(admin, http.MethodPost, crds, "application/json", definition)
	require.Equal(t, http.StatusBadRequest, a.Code, string(a.Body))
	require.Contains(t, a.status(t).Message, "UTF-8")
	s.must(admin, http.MethodGet, "/openapi/v2", "")
}

// TestTextOfOtherEncodings: decoders of CBOR and protobuf do not check strings. On d450d6c a description that is not
// UTF-8 is stored, and makes every request for OpenAPI fail with 500.
func TestTextOfOtherEncodings(t *testing.T) {
	s := serve(t, "api")
	const text, noText = "a text", "a te\xfft"
	described := strings.Replace(definitionOf("things", "fuzz.example.com", "v1"), `"type":"object"`, `"type":"object","description":"`+text+`"`, 1)
	s.must(admin, http.MethodPost, crds, described)
	for _, kind := range []string{"application/cbor", "application/vnd.kubernetes.protobuf"} {
		body := s.as(admin, crds+"/things.fuzz.example.com", kind)
		require.Contains(t, body, text, kind)
		a := s.do(admin, http.MethodPut, crds+"/things.fuzz.example.com", kind, strings.ReplaceAll(body, text, noText))
		require.Equal(t, http.StatusBadRequest, a.Code, "%s: %s", kind, a.Body)
		require.Contains(t, string(a.Body), "UTF-8", kind)
		s.must(admin, http.MethodGet, "/openapi/v2", "")
		s.must(admin, http.MethodGet, "/openapi/v3/apis/fuzz.example.com/v1", "")
	}
}

// TestLongMistakes: an answer is the same whether or not upstream compresses it. On 1dc6c4a this answer is 500,
// although the mistake is in the patch.
func TestLongMistakes(t *testing.T) {
	s := serve(t, "api")
	s.asOwner(owner)
	victim(s)
	long := strings.Repeat("é", 100<<10)
	a := s.do(owner, http.MethodPatch, ownConfigMaps+"/victim", "application/strategic-merge-patch+json", `{"$patch":false,"data":{"a":"`+long+`"}}`)
	require.Equal(t, http.StatusBadRequest, a.Code, string(a.Body[:200]))
}

// TestAPatchThatTakesTheKindAway: a patch may not remove the kind and version of a custom resource. On 1dc6c4a the
// answer to such a patch is 500.
func TestAPatchThatTakesTheKindAway(t *testing.T) {
	s := serve(t, "api")
	s.must(admin, http.MethodPost, crds, definitionOf("things", "fuzz.example.com", "v1"))
	s.must(admin, http.MethodPost, "/apis/fuzz.example.com/v1/things", `{"apiVersion":"fuzz.example.com/v1","kind":"One","metadata":{"name":"a"}}`)
	for _, field := range []string{"apiVersion", "kind"} {
		a := s.do(admin, http.MethodPatch, "/apis/fuzz.example.com/v1/things/a", "application/merge-patch+json", `{"`+field+`":null,"spec":{}}`)
		require.Contains(t, []int{http.StatusBadRequest, http.StatusUnprocessableEntity}, a.Code, string(a.Body))
	}
}

// TestManyExpressions: each CEL expression is compiled when the object is written. On d450d6c the first object takes 14
// s of a processor, the second takes 1.3 GiB, and none is refused.
func TestManyExpressions(t *testing.T) {
	s := serve(t, "api")
	many := func(n int, entry string) string { return strings.TrimSuffix(strings.Repeat(entry+",", n), ",") }
	numbered := func(n int, entry string) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf(entry, i))
		}
		return strings.Join(all, ",")
	}
	policy := func(variables, validations string) string {
		return `{"metadata":{"generateName":"p-"},"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["pods"]}]},` +
			`"variables":[` + variables + `],"validations":[` + validations + `]}}`
	}
	const registration = "/apis/admissionregistration.k8s.io/v1"
	const validation, variable = `{"expression":"object.metadata.name.size() < 10"}`, `{"name":"x%d","expression":"1"}`
	webhooks := func(n int) string {
		return `{"metadata":{"generateName":"w-"},"webhooks":[` + numbered(n, `{"name":"w%d.example.com","clientConfig":{"url":"https://example.com"},"admissionReviewVersions":["v1"],"sideEffects":"None",`+
			`"matchConditions":[`+many(50, `{"name":"a","expression":"true"}`)+`]}`) + `]}`
	}
	rules := func(n int) string {
		return strings.Replace(definitionOf("things", "rules.example.com", "v1"), `"type":"object"`,
			`"type":"object","properties":{"a":{"type":"object","properties":{"b":{"type":"string","x-kubernetes-validations":[`+many(n, `{"rule":"self.size() < 10"}`)+`]}}}}`, 1)
	}
	for _, c := range []struct{ path, body string }{
		{registration + "/validatingadmissionpolicies", policy("", many(28_000, validation))},
		{registration + "/validatingadmissionpolicies", policy(numbered(20_000, variable), validation)},
		{registration + "/validatingwebhookconfigurations", webhooks(50)},
		{registration + "/mutatingwebhookconfigurations", webhooks(50)},
		{crds, rules(3000)},
	} {
		a := s.do(admin, http.MethodPost, c.path, "application/json", c.body)
		require.Equal(t, http.StatusUnprocessableEntity, a.Code, "%s: %.300s", c.path, a.Body)
		require.Contains(t, string(a.Body), "CEL expressions", c.path)
	}
	s.must(admin, http.MethodPost, registration+"/validatingadmissionpolicies", policy(numbered(500, variable), many(500, validation)))
	s.must(admin, http.MethodPost, crds, rules(1000))
}

// TestQuantitiesAreShort: upstream computes the power of ten that a quantity names. On d450d6c, and in kube-apiserver,
// each of these quantities keeps a processor busy for seconds or minutes, even after its request has ended. Values that
// only look like such numbers are accepted.
func TestQuantitiesAreShort(t *testing.T) {
	s := serve(t, "api")
	s.asOwner(owner)
	const core = "/api/v1/namespaces/" + owner
	claim := func(metadata, storage string) string {
		return `{"kind":"PersistentVolumeClaim","apiVersion":"v1","metadata":` + metadata + `,"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{` + storage + `}}}}`
	}
	s.must(owner, http.MethodPost, core+"/persistentvolumeclaims", claim(`{"name":"a","annotations":{"a":"1e-2000000000"}}`, `"storage":"1234567891"`))
	s.must(owner, http.MethodPost, core+"/configmaps", `{"metadata":{"name":"a","labels":{"value":"1e1234567"}},"data":{"value":"1e2000000000","limits":"1e-2000000000"}}`)
	s.must(owner, http.MethodPost, core+"/pods", `{"metadata":{"name":"a"},"spec":{"containers":[{"name":"a","image":"a","env":[{"name":"REVISION","value":"1e2000000000"}],"resources":{"limits":{"cpu":"1e3","memory":"1e009"}}}]}}`)
	const long = `"storage":"1e-2000000000"`
	const one = core + "/persistentvolumeclaims/a"
	yaml := func(quantity string) string {
		return "kind: PersistentVolumeClaim\napiVersion: v1\nmetadata: {name: b}\nspec: {resources: {requests: {storage: " + quantity + "}}}"
	}
	cbor := func(besides string) string { // the quantity is a text of several chunks
		text := func(s string) string { return string([]byte{byte(0x60 + len(s))}) + s }
		return "\xd9\xd9\xf7" + besides + text("kind") + text("PersistentVolumeClaim") + text("apiVersion") + text("v1") + text("metadata") + "\xa1" + text("name") + text("b") +
			text("spec") + "\xa1" + text("resources") + "\xa1" + text("requests") + "\xa1" + text("storage") + "\x7f" + text("1e-") + text("2000000000") + "\xff"
	}
	for name, c := range map[string]struct{ method, path, kind, body string }{
		"negative":                  {http.MethodPost, core + "/persistentvolumeclaims", "application/json", claim(`{"name":"b"}`, long)},
		"positive":                  {http.MethodPost, core + "/persistentvolumeclaims", "application/json", claim(`{"name":"b"}`, `"storage":"1e2000000000"`)},
		"a number":                  {http.MethodPost, core + "/persistentvolumeclaims", "application/json", claim(`{"name":"b"}`, `"storage":1e-2000000000`)},
		"an escape":                 {http.MethodPut, one, "application/json", claim(`{"name":"a"}`, `"storage":"1\u0065-2000000000"`)},
		"digits":                    {http.MethodPost, core + "/persistentvolumeclaims", "application/json", claim(`{"name":"b"}`, `"storage":"`+strings.Repeat("9", 2_000_000)+`.1"`)},
		"no kind":                   {http.MethodPost, core + "/persistentvolumeclaims", "application/json", strings.Replace(claim(`{"name":"b"}`, long), `"kind":"PersistentVolumeClaim","apiVersion":"v1",`, "", 1)},
		"another kind's path":       {http.MethodPost, core + "/configmaps", "application/json", claim(`{"name":"b"}`, long)},
		"given twice":               {http.MethodPost, core + "/persistentvolumeclaims", "application/json", claim(`{"name":"b"}`, long+`,"storage":"1"`)},
		"YAML":                      {http.MethodPost, core + "/persistentvolumeclaims", "application/yaml", yaml("'1e-2000000000'")},
		"an escape of YAML":         {http.MethodPost, core + "/persistentvolumeclaims", "application/yaml", yaml(`"1\x65-2000000000"`)},
		"lines that are joined":     {http.MethodPost, core + "/persistentvolumeclaims", "application/yaml", yaml("\"1e\\\n  -2000000000\"")},
		"base64 in YAML":            {http.MethodPost, core + "/persistentvolumeclaims", "application/yaml", yaml("!!binary MWUtMjAwMDAwMDAwMA==")},
		"a tag by its name":         {http.MethodPost, core + "/persistentvolumeclaims", "application/yaml", yaml("!<tag:yaml.org,2002:binary> MWUtMjAwMDAwMDAwMA==")},
		"chunks of CBOR":            {http.MethodPost, core + "/persistentvolumeclaims", "application/cbor", cbor("\xa4")},
		"a merge patch":             {http.MethodPatch, one, "application/merge-patch+json", `{"spec":{"resources":{"requests":{` + long + `}}}}`},
		"a strategic patch":         {http.MethodPatch, one, "application/strategic-merge-patch+json", `{"spec":{"resources":{"requests":{` + long + `}}}}`},
		"an apply patch":            {http.MethodPatch, one + "?fieldManager=a&force=true", "application/apply-patch+yaml", "kind: PersistentVolumeClaim\napiVersion: v1\nspec: {resources: {requests: {storage: '1e-2000000000'}}}"},
		"an escape that is applied": {http.MethodPatch, core + "/persistentvolumeclaims/b?fieldManager=a&force=true", "application/apply-patch+yaml", yaml(`"1\x65-2000000000"`)},
		"a JSON patch":              {http.MethodPatch, one, "application/json-patch+json", `[{"op":"add","path":"/spec/resources/requests/storage","value":"1e-2000000000"}]`},
		"a JSON patch of more":      {http.MethodPatch, one, "application/json-patch+json", `[{"op":"replace","path":"/spec","value":{"resources":{"requests":{` + long + `}}}}]`},
		"a JSON patch's copy":       {http.MethodPatch, one, "application/json-patch+json", `[{"op":"copy","from":"/metadata/annotations/a","path":"/spec/resources/requests/storage"}]`},
		"a JSON patch's detour":     {http.MethodPatch, one, "application/json-patch+json", `[{"op":"add","path":"/x","value":{` + long + `}},{"op":"move","from":"/x","path":"/spec/resources/requests"}]`},
		"a merge patch's kind":      {http.MethodPatch, one, "application/merge-patch+json", `{"kind":"Pod","spec":{"overhead":{"cpu":"1e-2000000000"}}}`},
		"a JSON patch's kind":       {http.MethodPatch, one, "application/json-patch+json", `[{"op":"add","path":"/spec/overhead","value":{"cpu":"1e-2000000000"}},{"op":"replace","path":"/kind","value":"Pod"}]`},
		"a volume's size":           {http.MethodPost, core + "/pods", "application/json", `{"metadata":{"name":"b"},"spec":{"containers":[{"name":"a","image":"a"}],"volumes":[{"name":"a","emptyDir":{"sizeLimit":"1e10000000"}}]}}`},
		"an annotation that is parsed": {http.MethodPost, "/apis/autoscaling/v1/namespaces/" + owner + "/horizontalpodautoscalers", "application/json", `{"metadata":{"name":"a","annotations":{"autoscaling.alpha.kubernetes.io/metrics":` +
			`"[{\"type\":\"Resource\",\"resource\":{\"name\":\"cpu\",\"targetAverageValue\":\"1e-2000000000\"}}]"}},"spec":{"maxReplicas":1,"scaleTargetRef":{"kind":"a","name":"a"}}}`},
	} {
		begun := time.Now()
		a := s.do(owner, c.method, c.path, c.kind, c.body)
		require.Contains(t, []int{http.StatusBadRequest, http.StatusUnprocessableEntity}, a.Code, "%s: %.300s", name, a.Body)
		require.Contains(t, string(a.Body), "quantit", name)
		require.Less(t, time.Since(begun), 20*time.Second, name)
	}
	// next to a value that is not a number
	a := s.do(owner, http.MethodPost, core+"/persistentvolumeclaims", "application/cbor", cbor("\xa5\x61x\xf9\x7e\x00"))
	require.Equal(t, http.StatusBadRequest, a.Code, "%.300s", a.Body)
	kinds := strings.Builder{}
	for i := range 10_000 { // each entry was searched for in each member
		fmt.Fprintf(&kinds, `"kind":"Pod","kind":"Kind%d",`, i)
	}
	a = s.do(owner, http.MethodPost, core+"/pods", "application/json", `{`+kinds.String()+`"metadata":{"name":"1e-2000000000"}}`)
	require.Equal(t, http.StatusUnprocessableEntity, a.Code, "%.300s", a.Body)
	require.Contains(t, string(a.Body), "names 10001 kinds")
	for _, kind := range []string{"application/cbor", "application/vnd.kubernetes.protobuf"} {
		body := s.as(owner, one, kind)
		require.Contains(t, body, "1234567891", kind)
		a := s.do(owner, http.MethodPut, one, kind, strings.Replace(body, "1234567891", "1e99999999", 1))
		require.Equal(t, http.StatusBadRequest, a.Code, "%s: %.300s", kind, a.Body)
		require.Contains(t, string(a.Body), "quantity", kind)
	}
}

// as returns an object in the representation of a media type.
func (s *target) as(user, path, kind string) string {
	s.t.Helper()
	r, err := http.NewRequest(http.MethodGet, s.URL()+path, nil)
	require.NoError(s.t, err)
	r.Header = http.Header{"Authorization": {"Bearer " + user}, "Accept": {kind}}
	response, err := client.Do(r)
	require.NoError(s.t, err)
	body, err := io.ReadAll(response.Body)
	require.NoError(s.t, errors.Join(err, response.Body.Close()))
	require.Equal(s.t, http.StatusOK, response.StatusCode, string(body))
	return string(body)
}

// TestWhatIsComparedOrCompiled: on d450d6c none of these requests is refused, and each takes seconds, minutes or
// gigabytes.
func TestWhatIsComparedOrCompiled(t *testing.T) {
	s := serve(t, "api")
	s.asOwner(owner)
	const core = "/api/v1/namespaces/" + owner
	many := func(n int, format string) string {
		var all []string
		for i := range n {
			all = append(all, strings.ReplaceAll(format, "%d", fmt.Sprint(i)))
		}
		return strings.Join(all, ",")
	}
	claim := func(n int) string {
		return `{"metadata":{"name":"a"},"spec":{"devices":{"requests":[{"name":"a","exactly":{"deviceClassName":"a","selectors":[` +
			many(n, `{"cel":{"expression":"\"0\".matches(\"`+strings.Repeat("a{1000}", 1000)+`\")"}}`) + `]}}]}}}`
	}
	crd := func(properties, columns string) string {
		body := strings.Replace(definitionOf("things", "costly.example.com", "v1"), `"type":"object"`, `"type":"object","properties":{`+properties+`}`, 1)
		return strings.Replace(body, `"storage":true`, `"storage":true,"additionalPrinterColumns":[`+columns+`]`, 1)
	}
	review := `{"resourceAttributes":{"verb":"get","resource":"pods","namespace":"` + owner + `","labelSelector":{"requirements":[` + many(20_000, `{"key":"!!","operator":"X","values":[]}`) + `]}}}`
	const signingRequests = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
	const patterned = `"a":{"type":"string","pattern":"`
	for name, c := range map[string]struct{ user, path, body string }{
		"tolerations":         {owner, core + "/pods", `{"metadata":{"name":"a"},"spec":{"containers":[{"name":"a","image":"a"}],"tolerations":[` + many(6000, `{"key":"k%d","operator":"Exists"}`) + `]}}`},
		"regular expressions": {owner, "/apis/resource.k8s.io/v1/namespaces/" + owner + "/resourceclaims", claim(4)},
		"scopes":              {admin, core + "/resourcequotas", `{"metadata":{"name":"a"},"spec":{"hard":{` + many(8000, `"count/a%d.b":"1"`) + `},"scopes":[` + many(8000, `"NotTerminating"`) + `]}}`},
		"a pattern":           {admin, crds, crd(patterned+strings.Repeat("a{1000}", 3000)+`"}`, "")},
		"a pattern of a unit": {admin, crds, crd(patterned+"("+strings.Repeat("a", 3000)+`){1000}"}`, "")},
		"long expressions":    {admin, crds, crd(`"a":{"type":"string","maxLength":10,"x-kubernetes-validations":[`+many(60, `{"rule":"`+strings.TrimSuffix(strings.Repeat("self!='a'&&", 2000), "&&")+`"}`)+`]}`, "")},
		"topologies":          {admin, "/apis/storage.k8s.io/v1/storageclasses", `{"metadata":{"name":"a"},"provisioner":"a","allowedTopologies":[` + many(4000, `{"matchLabelExpressions":[{"key":"k%d","values":["v"]}]}`) + `]}`},
		"a review":            {"stranger", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", `{"spec":` + review + `}`},
		"a local review":      {owner, "/apis/authorization.k8s.io/v1/namespaces/" + owner + "/localsubjectaccessreviews", `{"metadata":{"namespace":"` + owner + `"},"spec":{"user":"a",` + review[1:] + `}`},
		"anybody's review":    {admin, "/apis/authorization.k8s.io/v1/subjectaccessreviews", `{"spec":{"user":"a",` + review[1:] + `}`},
		"a large RSA key":     {admin, signingRequests, signingRequest(t, 60_000*8)},
		"an RSA key":          {admin, signingRequests, signingRequest(t, 20_000)},
		"usages":              {admin, signingRequests, strings.Replace(signingRequest(t, 2048), `"usages":[`, `"usages":[`+many(16_000, `"u%d"`)+",", 1)},
		"columns":             {admin, crds, crd(`"a":{"type":"string"}`, many(1000, `{"name":"a%d","type":"string","jsonPath":".spec.a"}`))},
		"a column":            {admin, crds, crd(`"a":{"type":"string"}`, `{"name":"a","type":"string","jsonPath":"..a..a"}`)},
	} {
		a := s.do(c.user, http.MethodPost, c.path, "application/json", c.body)
		require.Equal(t, http.StatusUnprocessableEntity, a.Code, "%s: %.500s", name, a.Body)
	}
	s.must(owner, http.MethodPost, "/apis/resource.k8s.io/v1/namespaces/"+owner+"/resourceclaims", strings.ReplaceAll(claim(2), "{1000}", "{0,63}"))
	s.must(admin, http.MethodPost, crds, crd(patterned+`^([a-z0-9]([-a-z0-9]*[a-z0-9])?){1,253}$"}`, many(20, `{"name":"a%d","type":"string","jsonPath":"..a"}`)))
}

// signingRequest returns a certificate signing request with an RSA key of that many bits, and a wrong signature.
func signingRequest(t *testing.T, bits int) string {
	t.Helper()
	modulus := new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), uint(bits)), big.NewInt(1))
	type algorithm struct {
		OID        asn1.ObjectIdentifier
		Parameters asn1.RawValue
	}
	key, err := asn1.Marshal(struct {
		N *big.Int
		E int
	}{modulus, 1<<31 - 1})
	require.NoError(t, err)
	type publicKey struct {
		Algorithm algorithm
		Key       asn1.BitString
	}
	type info struct {
		Version    int
		Subject    pkix.RDNSequence
		Key        publicKey
		Attributes []asn1.RawValue `asn1:"tag:0"`
	}
	der, err := asn1.Marshal(struct {
		Info      info
		Algorithm algorithm
		Signature asn1.BitString
	}{
		info{Key: publicKey{algorithm{asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 1}, asn1.NullRawValue}, asn1.BitString{Bytes: key, BitLength: 8 * len(key)}}},
		algorithm{asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 11}, asn1.NullRawValue},
		asn1.BitString{Bytes: make([]byte, bits/8), BitLength: bits},
	})
	require.NoError(t, err)
	request := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	return `{"metadata":{"generateName":"c-"},"spec":{"signerName":"example.com/x","usages":["client auth"],"request":"` + base64.StdEncoding.EncodeToString(request) + `"}}`
}

// TestManagersOfManyFields: managers are compared with each other, field by field. On d05578b the last apply takes 12 s
// of a processor.
func TestManagersOfManyFields(t *testing.T) {
	s := serve(t, "api")
	s.asOwner(owner)
	var fields []string
	for i := range 1000 {
		fields = append(fields, fmt.Sprintf(`"k%d":"a"`, i))
	}
	body := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"shared"},"data":{` + strings.Join(fields, ",") + `}}`
	refused := 0
	for n := range 99 {
		a := s.do(owner, http.MethodPatch, fmt.Sprintf("%s/shared?fieldManager=m%d", ownConfigMaps, n), "application/apply-patch+yaml", body)
		if a.Code == http.StatusRequestEntityTooLarge {
			require.Contains(t, string(a.Body), "field managers")
			refused++
			break
		}
		require.Contains(t, []int{http.StatusOK, http.StatusCreated}, a.Code, string(a.Body))
	}
	require.Equal(t, 1, refused)
	s.must(owner, http.MethodGet, ownConfigMaps+"/shared", "")
}

// TestManyLimitRanges: each limit range is applied to each container. On d05578b this Pod takes 6 s of a processor.
func TestManyLimitRanges(t *testing.T) {
	s := serve(t, "api")
	s.asOwner(owner)
	const core = "/api/v1/namespaces/" + owner
	for n := range 600 {
		s.must(admin, http.MethodPost, core+"/limitranges", fmt.Sprintf(`{"metadata":{"name":"l%d"},"spec":{"limits":[{"type":"Container","max":{"cpu":"%d"}}]}}`, n, n+1))
	}
	pod := func(containers int) string {
		var all []string
		for n := range containers {
			all = append(all, fmt.Sprintf(`{"name":"c%d","image":"a"}`, n))
		}
		return `{"metadata":{"generateName":"p-"},"spec":{"containers":[` + strings.Join(all, ",") + `]}}`
	}
	a := s.do(owner, http.MethodPost, core+"/pods", "application/json", pod(4000))
	require.Equal(t, http.StatusForbidden, a.Code, "%.300s", a.Body)
	require.Contains(t, string(a.Body), "600 LimitRanges")
	s.must(owner, http.MethodPost, core+"/pods", pod(2))
}

// TestEvictionOfAnother: an eviction of a Pod that has been replaced is refused at once. On d05578b the server tries
// the eviction again for 10 s, and the request holds a seat meanwhile.
func TestEvictionOfAnother(t *testing.T) {
	s := serve(t, "api")
	s.asOwner(owner)
	const pods = "/api/v1/namespaces/" + owner + "/pods"
	s.must(owner, http.MethodPost, pods, `{"metadata":{"name":"a"},"spec":{"containers":[{"name":"a","image":"a"}]}}`)
	begun := time.Now()
	a := s.do(owner, http.MethodPost, pods+"/a/eviction", "application/json", `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"a"},"deleteOptions":{"preconditions":{"uid":"b"}}}`)
	require.Equal(t, http.StatusConflict, a.Code, string(a.Body))
	require.Less(t, time.Since(begun), 9*time.Second) // upstream's twenty tries take longer
	s.must(owner, http.MethodPost, pods+"/a/eviction", `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"a"}}`)
}
