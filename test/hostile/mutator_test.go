package hostile

import (
	"encoding/json"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"
)

// query is a request to send.
type query struct {
	method, path string
	header       map[string]string
	body         string
}

// prepared are the objects that requests refer to.
var prepared = []struct{ path, body string }{
	{"/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"a","labels":{"app":"x","tier":"y"}},"data":{"a":"b"}}`},
	{"/api/v1/namespaces/default/secrets", `{"metadata":{"name":"a"},"stringData":{"a":"b"}}`},
	{"/apis/apps/v1/namespaces/default/deployments", deployment},
	{"/api/v1/namespaces/default/services", `{"metadata":{"name":"a"},"spec":{"selector":{"a":"b"},"ports":[{"port":80,"name":"http"}]}}`},
	{"/api/v1/namespaces/default/pods", `{"metadata":{"name":"a"},"spec":{"containers":[{"name":"c","image":"i"}]}}`},
	{crds, crd},
}

const deployment = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a","annotations":{"a":"b"}},"spec":{"replicas":1,"selector":{"matchLabels":{"app":"a"}},` +
	`"template":{"metadata":{"labels":{"app":"a"}},"spec":{"containers":[{"name":"c","image":"i","ports":[{"containerPort":80}],"env":[{"name":"A","value":"b"}],"resources":{"limits":{"cpu":"100m","memory":"1Gi"}}}]}}}}`

const crd = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"things.fuzz.example.com"},"spec":{"group":"fuzz.example.com","scope":"Namespaced",` +
	`"names":{"plural":"things","singular":"thing","kind":"Thing","listKind":"ThingList","shortNames":["th"],"categories":["all"]},"versions":[{"name":"v1","served":true,"storage":true,` +
	`"subresources":{"status":{},"scale":{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas"}},"additionalPrinterColumns":[{"name":"N","type":"integer","jsonPath":".spec.replicas"}],` +
	`"selectableFields":[{"jsonPath":".spec.name"}],"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","required":["name"],"properties":{"name":{"type":"string","maxLength":20,"pattern":"^a*$"},` +
	`"replicas":{"type":"integer","default":1,"minimum":0},"any":{"x-kubernetes-preserve-unknown-fields":true,"type":"object"},"list":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k"],` +
	`"items":{"type":"object","required":["k"],"properties":{"k":{"type":"string"},"v":{"x-kubernetes-int-or-string":true}}}}},"x-kubernetes-validations":[{"rule":"self.replicas < 100","message":"too many"}]},` +
	`"status":{"type":"object","properties":{"replicas":{"type":"integer"}}}}}}}]}}`

func patch(path, kind, body string) query {
	return query{http.MethodPatch, path, map[string]string{"Content-Type": "application/" + kind + "+json"}, body}
}

func post(path, body string) query {
	return query{http.MethodPost, path, map[string]string{"Content-Type": "application/json"}, body}
}

func get(path string) query { return query{method: http.MethodGet, path: path} }

// corpus has the valid requests with which the mutator begins.
var corpus = []query{
	patch("/api/v1/namespaces/default/configmaps/a", "json-patch", `[{"op":"test","path":"/data/a","value":"b"},{"op":"add","path":"/data/b","value":"c"},{"op":"copy","from":"/data","path":"/data/c"},{"op":"move","from":"/data/b","path":"/data/d"},{"op":"remove","path":"/metadata/labels/app"},{"op":"replace","path":"/data/a","value":"z"}]`),
	patch("/api/v1/namespaces/default/configmaps/a", "merge-patch", `{"metadata":{"labels":{"app":null,"b":"c"},"finalizers":["a/b"]},"data":{"a":null,"x":"y"}}`),
	patch("/apis/apps/v1/namespaces/default/deployments/a", "strategic-merge-patch", `{"spec":{"template":{"spec":{"$setElementOrder/containers":[{"name":"d"},{"name":"c"}],"containers":[{"name":"d","image":"e"},{"$patch":"delete","name":"c"}],"$retainKeys":["containers"],"tolerations":[{"$patch":"replace"}]}}}}`),
	patch("/apis/apps/v1/namespaces/default/deployments/a?fieldManager=m&force=true", "apply-patch", deployment),
	patch("/api/v1/namespaces/default/configmaps/new?fieldManager=m", "apply-patch", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"new"},"data":{"a":"b"}}`),
	patch("/apis/apps/v1/namespaces/default/deployments/a/scale", "merge-patch", `{"spec":{"replicas":3}}`),
	patch("/apis/fuzz.example.com/v1/namespaces/default/things/a?fieldManager=m&force=true", "apply-patch", `{"apiVersion":"fuzz.example.com/v1","kind":"Thing","metadata":{"name":"a"},"spec":{"name":"a","list":[{"k":"a","v":1}]}}`),
	patch("/apis/fuzz.example.com/v1/namespaces/default/things/a", "merge-patch", `{"spec":{"replicas":5,"any":{"x":[1,2.5,null,true]}}}`),
	patch("/apis/fuzz.example.com/v1/namespaces/default/things/a/status", "json-patch", `[{"op":"add","path":"/status","value":{"replicas":1}}]`),
	post("/apis/fuzz.example.com/v1/namespaces/default/things", `{"apiVersion":"fuzz.example.com/v1","kind":"Thing","metadata":{"generateName":"a"},"spec":{"name":"aa","any":{"a":{"b":"c"}},"list":[{"k":"x","v":"1"}]}}`),
	post("/api/v1/namespaces/default/configmaps?fieldValidation=Strict&dryRun=All", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"c-","ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"a","uid":"u","controller":true}],"managedFields":[{"manager":"m","operation":"Apply","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:data":{"f:a":{}}}}]},"data":{"a":"b"},"binaryData":{"b":"AAEC"}}`),
	post("/api/v1/namespaces/default/services", `{"metadata":{"generateName":"s-"},"spec":{"type":"NodePort","ports":[{"port":80,"targetPort":"http","nodePort":30080,"protocol":"UDP"}],"clusterIP":"10.0.0.9","ipFamilyPolicy":"PreferDualStack"}}`),
	post("/api/v1/namespaces/default/pods", `{"metadata":{"generateName":"p-","labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i","resources":{"requests":{"cpu":"1"}},"livenessProbe":{"httpGet":{"path":"/","port":80}}}],"tolerations":[{"operator":"Exists"}],"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"a","operator":"In","values":["b"]}]}]}}}}}`),
	post("/api/v1/namespaces/default/pods/a/binding", `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"a"},"target":{"kind":"Node","name":"n"}}`),
	post("/api/v1/namespaces/default/pods/a/eviction", `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"a"},"deleteOptions":{"gracePeriodSeconds":1}}`),
	post("/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles", `{"metadata":{"generateName":"r-"},"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"],"resourceNames":["a"]}]}`),
	post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", `{"spec":{"resourceAttributes":{"namespace":"default","verb":"get","resource":"pods","labelSelector":{"requirements":[{"key":"a","operator":"In","values":["b"]}]}}}}`),
	post("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", `{"spec":{"namespace":"default"}}`),
	post("/apis/networking.k8s.io/v1/namespaces/default/networkpolicies", `{"metadata":{"generateName":"n-"},"spec":{"podSelector":{"matchExpressions":[{"key":"a","operator":"NotIn","values":["b"]}]},"ingress":[{"from":[{"ipBlock":{"cidr":"10.0.0.0/8","except":["10.1.0.0/16"]}}]}]}}`),
	post("/apis/networking.k8s.io/v1/namespaces/default/ingresses", `{"metadata":{"generateName":"i-"},"spec":{"rules":[{"host":"*.a.b","http":{"paths":[{"path":"/","pathType":"Prefix","backend":{"service":{"name":"a","port":{"number":80}}}}]}}]}}`),
	post("/apis/batch/v1/namespaces/default/cronjobs", `{"metadata":{"generateName":"c-"},"spec":{"schedule":"*/5 * * * *","timeZone":"Etc/UTC","jobTemplate":{"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}}}`),
	post("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies", `{"metadata":{"generateName":"p-"},"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["pods"]}]},"validations":[{"expression":"object.metadata.name.size() < 10","messageExpression":"'too long'"}],"variables":[{"name":"x","expression":"1+1"}]}}`),
	post("/apis/certificates.k8s.io/v1/certificatesigningrequests", `{"metadata":{"generateName":"c-"},"spec":{"request":"LS0t","signerName":"a.b/c","usages":["client auth"]}}`),
	post("/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas", `{"metadata":{"generateName":"f-"},"spec":{"priorityLevelConfiguration":{"name":"global-default"},"matchingPrecedence":1000,"rules":[{"subjects":[{"kind":"User","user":{"name":"a"}}],"nonResourceRules":[{"verbs":["*"],"nonResourceURLs":["*"]}]}]}}`),
	post("/apis/resource.k8s.io/v1/namespaces/default/resourceclaims", `{"metadata":{"generateName":"r-"},"spec":{"devices":{"requests":[{"name":"a","exactly":{"deviceClassName":"d","selectors":[{"cel":{"expression":"device.driver == 'a'"}}]}}]}}}`),
	post(crds, strings.ReplaceAll(crd, "fuzz.example.com", "more.example.com")),
	{http.MethodPut, crds + "/things.fuzz.example.com", map[string]string{"Content-Type": "application/json"}, crd},
	{http.MethodPut, "/api/v1/namespaces/default/configmaps/a", map[string]string{"Content-Type": "application/yaml"}, "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n  labels: &l {app: x}\n  annotations: *l\ndata:\n  a: |\n    text\n  ? b\n  : c\n"},
	{http.MethodDelete, "/api/v1/namespaces/default/configmaps?labelSelector=a%3Db&limit=3", map[string]string{"Content-Type": "application/json"}, `{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Foreground","preconditions":{"uid":"u","resourceVersion":"5"},"gracePeriodSeconds":0,"dryRun":["All"]}`},
	{http.MethodDelete, "/api/v1/namespaces/default/secrets/a?propagationPolicy=Orphan&gracePeriodSeconds=-1&ignoreStoreReadErrorWithClusterBreakingPotential=true", nil, ""},
	get("/api/v1/namespaces/default/configmaps?labelSelector=app%20in%20(x,y),tier!=z,!q&fieldSelector=metadata.name%3Da,metadata.namespace!%3Db&limit=2&resourceVersion=5&resourceVersionMatch=NotOlderThan"),
	get("/api/v1/configmaps?continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6NSwic3RhcnQiOiJhXHUwMDAwIn0&limit=1"),
	get("/api/v1/pods?fieldSelector=spec.nodeName%3Da,status.phase%3DRunning"),
	get("/apis/fuzz.example.com/v1/things?fieldSelector=spec.name%3Da&shardSelector=shardRange(object.metadata.uid,'0x0','0x8')"),
	get("/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"),
	get("/api/v1/watch/namespaces/default/configmaps/a?timeoutSeconds=1&resourceVersion=1"),
	{http.MethodGet, "/apis", map[string]string{"Accept": "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;q=0.5", "If-None-Match": `"x"`, "Accept-Encoding": "gzip;q=0.3, br"}, ""},
	{http.MethodGet, "/openapi/v2", map[string]string{"Accept": "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"}, ""},
	get("/openapi/v3/apis/fuzz.example.com/v1?hash=00"),
	get("/api/v1/namespaces/default/services/https:a:http/proxy/x?y=z"), get("/version"), get("/metrics"), get("/readyz?verbose&exclude=view"), get("/healthz/ping"), get("/livez"),
	{http.MethodGet, "/api/v1/namespaces/default/configmaps", map[string]string{"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json", "Range": "bytes=0-5"}, ""},
	{http.MethodGet, "/api/v1/namespaces/default/configmaps/a", map[string]string{"Accept": "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "Impersonate-User": "jane", "Impersonate-Group": "a", "Impersonate-Extra-scopes": "b", "Impersonate-Uid": "c"}, ""},
	{http.MethodGet, "/api/v1/namespaces/default/configmaps/a", map[string]string{"Accept": "application/cbor", "Audit-ID": "a", "Traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "X-Forwarded-For": "::1", "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Protocol": "base64url.bearer.authorization.k8s.io.YQ"}, ""},
	{http.MethodOptions, "/api/v1", map[string]string{"Origin": "http://a", "Access-Control-Request-Method": "POST"}, ""},
	{http.MethodHead, "/api/v1/namespaces/default/configmaps", nil, ""},
	{http.MethodPost, "/api/v1/namespaces", map[string]string{"Content-Type": "application/json"}, `{"metadata":{"generateName":"ns-","finalizers":["a/b"],"labels":{"pod-security.kubernetes.io/enforce":"restricted"}},"spec":{"finalizers":["kubernetes"]}}`},
	{http.MethodPut, "/api/v1/namespaces/default/finalize", map[string]string{"Content-Type": "application/json"}, `{"metadata":{"name":"default"},"spec":{"finalizers":["kubernetes"]}}`},
}

const ofTheGroup = "/apis/history.logplane.dev/v1"

// ofHistory are requests about the past, and plans that take changes back.
var ofHistory = []query{
	get(ofTheGroup + "/namespaces/default/versions?fieldSelector=object%3Dconfigmaps/a,include%3Dobject&limit=3"),
	get(ofTheGroup + "/namespaces/default/versions?fieldSelector=object%3Dthings.fuzz.example.com/a,at%3D1m"),
	get(ofTheGroup + "/changes?fieldSelector=from%3D5,to%3D1s,verb%3Dupdate,user%3Dadmin,manager%3Dm,resource%3Dconfigmaps&limit=2&include=object"),
	get(ofTheGroup + "/changes?watch=1&timeoutSeconds=1&resourceVersion=5"),
	get("/at/1s/api/v1/namespaces/default/configmaps?labelSelector=app%3Dx&limit=2"), get("/at/@5/api/v1/configmaps/a"), get("/at/yesterday/apis"), get("/at/2026-11-26T16:44/openapi/v3"),
	get("/at/9/apis/fuzz.example.com/v1/namespaces/default/things?watch=1"),
	post(ofTheGroup+"/transactions?dryRun=All", `{"operations":[{"verb":"create","object":{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"t","namespace":"default"}}},{"verb":"patch","patchType":"json","reference":{"apiVersion":"v1","kind":"ConfigMap","name":"t","namespace":"default"},"patch":[{"op":"add","path":"/data","value":{"a":"b"}}]}]}`),
	post(ofTheGroup+"/transactions", `{"operations":[{"verb":"update","object":{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"default"},"data":{"a":"c"}}},{"verb":"delete","propagationPolicy":"Orphan","reference":{"apiVersion":"v1","kind":"Secret","name":"a","namespace":"default"}},`+
		`{"verb":"apply","force":true,"fieldManager":"m","object":{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a","namespace":"default"},"spec":{"replicas":2}}}]}`),
	post(ofTheGroup+"/plans?dryRun=All", `{"spec":{"namespace":"default","undo":{"object":"configmaps/a"}}}`),
	post(ofTheGroup+"/plans", `{"spec":{"namespace":"default","undo":{"user":"admin","since":"5s"}},"status":{"changes":[{"object":{"resource":"configmaps","namespace":"default","name":"a"},"verb":"update","seen":"0"}]}}`),
	post(ofTheGroup+"/plans", `{"spec":{"namespace":"default","undelete":{"object":"secrets/a"}}}`),
	post(ofTheGroup+"/plans?dryRun=All", `{"spec":{"namespace":"default","restore":{"to":"3s","prune":true,"selector":"app in (x,y)"}}}`),
	post(ofTheGroup+"/plans?dryRun=All", `{"spec":{"restore":{"to":"@9"}}}`),
}

// encoded are requests with objects in the other encodings, as the server writes them.
func encoded(s *target) []query {
	s.t.Helper()
	var all []query
	for _, path := range []string{"/api/v1/namespaces/default/configmaps/a", "/apis/apps/v1/namespaces/default/deployments/a", "/api/v1/namespaces/default/services/a", crds + "/things.fuzz.example.com"} {
		for _, kind := range []string{"application/vnd.kubernetes.protobuf", "application/cbor", "application/yaml"} {
			r, err := http.NewRequest(http.MethodGet, s.URL()+path, nil)
			require.NoError(s.t, err)
			r.Header = http.Header{"Authorization": {"Bearer admin"}, "Accept": {kind}}
			response, err := client.Do(r)
			require.NoError(s.t, err)
			body := new(strings.Builder)
			_, err = io.Copy(body, response.Body)
			_ = response.Body.Close()
			require.NoError(s.t, err)
			require.Equal(s.t, http.StatusOK, response.StatusCode, body)
			all = append(all, query{http.MethodPut, path, map[string]string{"Content-Type": kind}, body.String()})
			if kind == "application/cbor" {
				all = append(all, query{http.MethodPatch, path + "?fieldManager=c&force=true", map[string]string{"Content-Type": "application/apply-patch+cbor"}, body.String()})
			}
		}
	}
	return all
}

// mutator makes new requests from known ones.
type mutator struct {
	*rand.Rand
	corpus []query
}

func (m *mutator) next() query {
	q := m.corpus[m.IntN(len(m.corpus))]
	q.header = maps.Clone(q.header)
	for range 1 + m.IntN(3) {
		switch m.IntN(10) {
		case 0, 1, 2, 3:
			q.body = m.structure(q.body)
		case 4, 5:
			q.body = m.bytes(q.body)
		case 6, 7:
			q.path = m.url(q.path)
		case 8:
			m.headers(&q)
		case 9:
			m.cross(&q)
		}
	}
	return q
}

// cross copies a part of another request into this one.
func (m *mutator) cross(q *query) {
	other := m.corpus[m.IntN(len(m.corpus))]
	switch m.IntN(4) {
	case 0:
		q.body = other.body
	case 1:
		q.path = other.path
	case 2:
		q.method = []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodHead, http.MethodOptions, "CONNECT", "TRACE", "get", "X"}[m.IntN(11)]
	case 3:
		q.header = maps.Clone(other.header)
	}
}

var (
	texts = []string{"", "a", "\x00", "\u202e", "null", "-1", "9223372036854775807", "18446744073709551616", "1e400", "NaN", "../../x", "/", ".", "..", "%", "%00", "*", "a/b", strings.Repeat("a", 300), strings.Repeat("é", 70_000),
		"2020-01-01T00:00:00Z", "10.0.0.1", "::1", "1Gi", "1e1000Ki", "0.0000000001n", "self.x", "[", "(?P<", "$patch", "\xff\xfe", "system:masters", "kubernetes.io/x", "{{", "🦄"}
	numbers = []any{0, -1, 1, 1 << 31, -1 << 31, json.Number("9223372036854775807"), json.Number("9223372036854775808"), json.Number("1e308"), json.Number("1e-400"), 0.5, json.Number("-0")}
	names   = []string{"metadata", "name", "namespace", "labels", "annotations", "managedFields", "fieldsV1", "ownerReferences", "finalizers", "deletionTimestamp", "creationTimestamp", "generateName", "resourceVersion", "uid", "spec", "status",
		"kind", "apiVersion", "$patch", "$setElementOrder/containers", "$deleteFromPrimitiveList/finalizers", "$retainKeys", "f:a", "k:{\"name\":\"a\"}", ".", "items", "data", "replicas", "versions", "schema", "$ref", "op", "path", "from", "value"}
)

// structure changes the JSON value in the text. If the text isn't JSON, it changes bytes.
func (m *mutator) structure(text string) string {
	var value any
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if d.Decode(&value) != nil {
		return m.bytes(text)
	}
	out, err := json.Marshal(m.value(value, 4))
	if err != nil {
		return text
	}
	return string(out)
}

// value changes the value, or a value in it.
func (m *mutator) value(v any, patience int) any {
	switch v := v.(type) {
	case map[string]any:
		if len(v) > 0 && (patience > 0 && m.IntN(4) > 0) {
			keys := slices.Sorted(maps.Keys(v))
			key := keys[m.IntN(len(keys))]
			v[key] = m.value(v[key], patience-1+m.IntN(2))
			return v
		}
		return m.object(v)
	case []any:
		if len(v) > 0 && m.IntN(3) > 0 {
			i := m.IntN(len(v))
			v[i] = m.value(v[i], patience)
			return v
		}
		return m.list(v)
	}
	return m.scalar()
}

func (m *mutator) object(v map[string]any) any {
	keys := slices.Sorted(maps.Keys(v))
	switch m.IntN(6) {
	case 0:
		v[names[m.IntN(len(names))]] = m.scalar()
	case 1:
		v[texts[m.IntN(len(texts))]] = m.scalar()
	case 2:
		if len(keys) > 0 {
			delete(v, keys[m.IntN(len(keys))])
		}
	case 3:
		if len(keys) > 0 {
			v[names[m.IntN(len(names))]] = v[keys[m.IntN(len(keys))]]
		}
	case 4:
		var deep any = v
		for range 1 << m.IntN(11) {
			if m.IntN(2) == 0 {
				deep = map[string]any{names[m.IntN(len(names))]: deep}
			} else {
				deep = []any{deep}
			}
		}
		return deep
	case 5:
		return m.scalar()
	}
	return v
}

func (m *mutator) list(v []any) any {
	switch m.IntN(5) {
	case 0:
		return append(v, m.scalar())
	case 1:
		if len(v) > 0 {
			return slices.Repeat(v, 1<<m.IntN(12))
		}
	case 2:
		return []any{}
	case 3:
		return m.scalar()
	case 4:
		return map[string]any{"a": v}
	}
	return v
}

func (m *mutator) scalar() any {
	switch m.IntN(6) {
	case 0:
		return nil
	case 1:
		return m.IntN(2) == 0
	case 2:
		return numbers[m.IntN(len(numbers))]
	case 3:
		return map[string]any{}
	case 4:
		return []any{}
	}
	return texts[m.IntN(len(texts))]
}

// bytes changes the text at random, whatever its format.
func (m *mutator) bytes(text string) string {
	if text == "" {
		return texts[m.IntN(len(texts))]
	}
	b := []byte(text)
	i, j := m.IntN(len(b)), m.IntN(len(b))
	i, j = min(i, j), max(i, j)
	switch m.IntN(6) {
	case 0:
		b[i] = byte(m.IntN(256))
	case 1:
		b[i] ^= 1 << m.IntN(8)
	case 2:
		return string(b[:i])
	case 3:
		return string(b[:j]) + string(b[i:])
	case 4:
		return string(b[:i]) + texts[m.IntN(len(texts))] + string(b[j:])
	case 5:
		return string(b[:i]) + strings.Repeat(string(b[i:j]), 1+1<<m.IntN(8)) + string(b[j:])
	}
	return string(b)
}

var parameters = []string{"labelSelector", "fieldSelector", "shardSelector", "limit", "continue", "resourceVersion", "resourceVersionMatch", "watch", "timeoutSeconds", "timeout", "sendInitialEvents", "allowWatchBookmarks", "dryRun", "fieldManager",
	"fieldValidation", "force", "pretty", "propagationPolicy", "gracePeriodSeconds", "orphanDependents", "exact", "export", "hash", "includeObject", "verbose"}

// url changes one segment of the path, or one parameter.
func (m *mutator) url(path string) string {
	path, parameter, _ := strings.Cut(path, "?")
	switch m.IntN(4) {
	case 0:
		segments := strings.Split(path, "/")
		segments[m.IntN(len(segments))] = escape(texts[m.IntN(len(texts))])
		path = strings.Join(segments, "/")
	case 1:
		parameter = m.bytes(parameter)
	default:
		value := texts[m.IntN(len(texts))]
		if m.IntN(3) == 0 {
			value = m.bytes("app in (x,y),a=b,!c,metadata.name=a")
		}
		parameter += "&" + parameters[m.IntN(len(parameters))] + "=" + escape(value)
	}
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	if parameter == "" {
		return clean(path)
	}
	return clean(path + "?" + parameter)
}

// escape leaves most characters as they are, so that the server gets characters that other clients never send.
func escape(s string) string {
	if len(s) > 2_000 {
		s = s[:2_000]
	}
	return strings.NewReplacer("?", "%3F", "#", "%23", "&", "%26").Replace(s)
}

// clean escapes the characters that must not be in the first line of a request.
func clean(path string) string {
	var out strings.Builder
	for _, c := range []byte(path) {
		if c <= ' ' || c >= 0x7f {
			out.WriteString("%" + strings.ToUpper(string("0123456789abcdef"[c>>4])+string("0123456789abcdef"[c&15])))
			continue
		}
		out.WriteByte(c)
	}
	return out.String()
}

var headers = []string{"Accept", "Content-Type", "Content-Encoding", "Accept-Encoding", "Impersonate-User", "Impersonate-Group", "Impersonate-Uid", "Impersonate-Extra-a", "User-Agent", "If-None-Match", "Range", "Origin", "Audit-ID", "Upgrade", "Connection",
	"X-Remote-User", "X-Stream-Protocol-Version", "Expect", "Transfer-Encoding", "X-HTTP-Method-Override"}

func (m *mutator) headers(q *query) {
	if q.header == nil {
		q.header = map[string]string{}
	}
	name := headers[m.IntN(len(headers))]
	value := texts[m.IntN(len(texts))]
	if old := q.header[name]; old != "" && m.IntN(2) == 0 {
		value = m.bytes(old)
	} else if m.IntN(2) == 0 {
		value = []string{"application/json", "application/yaml", "application/cbor", "application/cbor-seq", "application/vnd.kubernetes.protobuf", "application/merge-patch+json", "application/apply-patch+yaml", "text/plain", "*/*",
			"application/json;charset=utf-16", "application/json;as=Table;v=v1;g=meta.k8s.io", "application/json;as=Table;v=v9;g=meta.k8s.io", "gzip", "deflate", "SPDY/3.1", "websocket", "100-continue", "chunked"}[m.IntN(18)]
	}
	q.header[name] = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}, value[:min(len(value), 4_000)])
}
