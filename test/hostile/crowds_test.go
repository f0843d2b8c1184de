package hostile

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func repeated(n int, member func(i int) string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = member(i)
	}
	return strings.Join(all, ",")
}

// TestCrowdsAreRefused: managed fields are sorted by insertion. So on e14eff4 a ConfigMap of 200,000 keys takes 18 s of
// CPU, a list of 1.4 million numbers takes 450 MiB, and all these requests are answered 201.
func TestCrowdsAreRefused(t *testing.T) {
	s := serve(t, "api")
	s.asOwner(tenant)
	s.must(admin, http.MethodPost, crds, freeCRD("v1"))
	keys := func(n int) string {
		return `{"metadata":{"name":"crowd"},"data":{` + repeated(n, func(i int) string { return fmt.Sprintf(`"%d":""`, i) }) + `}}`
	}
	numbers := `{"apiVersion":"x.example.com/v1","kind":"Foo","metadata":{"name":"crowd"},"a":[` + strings.Repeat("[0,0,0,0,0,0,0,0,0],", 70000) + `0]}`
	for name, c := range map[string]struct{ path, contentType, body string }{
		"keys":            {configMaps, "application/json", keys(60000)},
		"keys in YAML":    {configMaps, "application/yaml", keys(60000)},
		"keys in CBOR":    {configMaps, "application/cbor", asCBOR(t, keys(60000))},
		"numbers":         {foos, "application/json", numbers},
		"numbers in CBOR": {foos, "application/cbor", asCBOR(t, numbers)},
	} {
		a := s.do(admin, http.MethodPost, c.path, c.contentType, c.body)
		require.Equal(t, http.StatusRequestEntityTooLarge, a.Code, "%s: %.300s", name, a.Body)
	}
	s.must(tenant, http.MethodPost, configMaps, keys(10000))
	s.must(admin, http.MethodPost, foos, `{"apiVersion":"x.example.com/v1","kind":"Foo","metadata":{"name":"many"},"a":[`+strings.Repeat("0,", 30000)+`0]}`)
}

// TestMistakesAreFew: upstream lists every mistake in an object, and the time to build that list grows with the square
// of its length. On e14eff4 these 80 KB take a core for more than a minute; the answer is 504 after 34 s.
func TestMistakesAreFew(t *testing.T) {
	s := serve(t, "api")
	s.asOwner(tenant)
	a := s.do(tenant, http.MethodPost, "/api/v1/namespaces/tenant/pods", "application/json",
		`{"metadata":{"name":"p"},"spec":{"containers":[`+strings.TrimSuffix(strings.Repeat("{},", 20000), ",")+`]}}`)
	require.Equal(t, http.StatusUnprocessableEntity, a.Code, "%.300s", a.Body)
	require.Less(t, len(a.Body), 100<<10)
	require.Contains(t, a.status(t).Message, "spec.containers[0].name: Required value")
	require.Contains(t, a.status(t).Message, "mistakes")

	s.must(tenant, http.MethodPost, configMaps, `{"metadata":{"name":"victim"}}`)
	labels := `{"metadata":{"labels":{` + repeated(30000, func(i int) string { return fmt.Sprintf(`"a!%d":"!"`, i) }) + `}}}`
	for _, contentType := range []string{"application/merge-patch+json", "application/strategic-merge-patch+json"} {
		a = s.do(tenant, http.MethodPatch, configMaps+"/victim", contentType, labels)
		require.Equal(t, http.StatusUnprocessableEntity, a.Code, "%.300s", a.Body)
		require.Less(t, len(a.Body), 100<<10)
	}
}

// TestPatchesAreAffordable: the code that applies a patch obeys no deadline. On e14eff4 the first patch looks for
// 10,000 members among 10,000, and the second moves 200,000 members 10,000 times. Both are answered 504 after 34 s, and
// run for a minute or more after that.
func TestPatchesAreAffordable(t *testing.T) {
	s := serve(t, "api")
	s.asOwner(tenant)
	deployments := "/apis/apps/v1/namespaces/tenant/deployments"
	env := func(prefix string, n int) string {
		return "[" + repeated(n, func(i int) string { return fmt.Sprintf(`{"name":"%s%d"}`, prefix, i) }) + "]"
	}
	s.must(tenant, http.MethodPost, deployments, `{"metadata":{"name":"victim"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},`+
		`"spec":{"containers":[{"name":"c","image":"i","env":`+env("a", 10000)+`}]}}}}`)
	strategic := func(n int) answer {
		return s.do(tenant, http.MethodPatch, deployments+"/victim", "application/strategic-merge-patch+json",
			`{"spec":{"template":{"spec":{"containers":[{"name":"c","env":`+env("b", n)+`}]}}}}`)
	}
	require.Equal(t, http.StatusRequestEntityTooLarge, strategic(10000).Code)
	require.Equal(t, http.StatusOK, strategic(100).Code)

	s.must(admin, http.MethodPost, crds, freeCRD("v1"))
	s.must(admin, http.MethodPost, foos, `{"apiVersion":"x.example.com/v1","kind":"Foo","metadata":{"name":"victim"},"a":[[`+strings.Repeat("0,", 30000)+`0]]}`)
	inserts := func(n int) answer {
		return s.do(admin, http.MethodPatch, foos+"/victim", "application/json-patch+json",
			"["+repeated(n, func(int) string { return `{"op":"add","path":"/a/0/0","value":0}` })+"]")
	}
	require.Equal(t, http.StatusRequestEntityTooLarge, inserts(10000).Code)
	require.Equal(t, http.StatusOK, inserts(100).Code)

	s.must(admin, http.MethodPost, foos, `{"apiVersion":"x.example.com/v1","kind":"Foo","metadata":{"name":"heavy"},"a":"`+strings.Repeat("x", 1<<20)+`"}`)
	a := s.do(admin, http.MethodPatch, foos+"/heavy", "application/json-patch+json",
		"["+repeated(400, func(int) string {
			return `{"op":"add","path":"/b","value":{}},{"op":"move","from":"/a","path":"/b/a"},{"op":"move","from":"/b","path":"/a"}`
		})+"]")
	require.Equal(t, http.StatusRequestEntityTooLarge, a.Code, "%.300s", a.Body)
}

// TestPatchesThatDoNotFit: these patches make upstream's code panic. On e14eff4 each gets a 500, and leaves a stack in
// the log.
func TestPatchesThatDoNotFit(t *testing.T) {
	s := serve(t, "api")
	s.asOwner(tenant)
	s.must(tenant, http.MethodPost, configMaps, `{"metadata":{"name":"victim"}}`)
	deployments := "/apis/apps/v1/namespaces/tenant/deployments"
	s.must(tenant, http.MethodPost, deployments, `{"metadata":{"name":"victim"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`)
	for patch, contentType := range map[string]string{
		`{"spec":{"strategy":{"$retainKeys":[{}]}}}`:                                                                         "application/strategic-merge-patch+json",
		`[{"op":"replace","path":""}]`:                                                                                       "application/json-patch+json",
		`[{"op":"add","path":"/z","value":[null]},{"op":"test","path":"/z","value":[null]}]`:                                 "application/json-patch+json",
		`[{"op":"add","path":"/z","value":null},{"op":"copy","from":"/z","path":"/y"},{"op":"add","path":"/y/k","value":1}]`: "application/json-patch+json",
	} {
		a := s.do(tenant, http.MethodPatch, deployments+"/victim", contentType, patch)
		require.Equal(t, http.StatusUnprocessableEntity, a.Code, "%s: %s", patch, a.Body)
	}
}

// TestQueriesAreShort: each term of a selector is compared with every object. On e14eff4 100,000 terms take 0.8 ms for
// each object.
func TestQueriesAreShort(t *testing.T) {
	s := serve(t, "api")
	s.asOwner(tenant)
	terms := func(n int) string { return "?labelSelector=" + strings.TrimSuffix(strings.Repeat("!a,", n), ",") }
	for _, path := range []string{configMaps, "/api/v1/watch/namespaces/tenant/configmaps", "/openapi/v2"} {
		a := s.do(tenant, http.MethodGet, path+terms(15_000), "", "")
		require.Equal(t, http.StatusRequestURITooLong, a.Code, "%s: %.300s", path, a.Body)
		require.Contains(t, a.status(t).Message, "fewer terms")
		a = s.do(tenant, http.MethodGet, path+terms(100_000), "", "")
		require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, a.Code, "%s: it is more than all headers may have", path)
	}
	s.must(tenant, http.MethodGet, configMaps+"?labelSelector=a+notin+("+repeated(500, func(i int) string { return fmt.Sprintf("value-of-some-length-%d", i) })+")", "")
}
