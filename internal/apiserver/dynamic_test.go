package apiserver

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/logplane/logplane/internal/apiserver/gate"
)

const registration = "/apis/admissionregistration.k8s.io/v1/"

// policyOf makes a policy that denies ConfigMaps which do not satisfy an expression.
func policyOf(name, expression, more string) string {
	return `{"metadata":{"name":"` + name + `"},"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE","UPDATE"],"resources":["configmaps"]}]},` +
		`"validations":[{"expression":"` + expression + `","message":"` + name + ` says no"}]` + more + `}}`
}

func bindingOf(name, more string) string {
	return `{"metadata":{"name":"` + name + `"},"spec":{"policyName":"` + name + `","validationActions":["Deny"]` + more + `}}`
}

// TestPoliciesDecideAtOnce: a policy, its binding and its params apply to the next request of another process.
func TestPoliciesDecideAtOnce(t *testing.T) {
	one, other, projector := twoServers(t)
	require.NoError(t, one.Bootstrap(t.Context()))
	n := 0
	create := func(code int) answer {
		n++
		return other.must(t, code, request{method: "POST", path: configMaps, body: fmt.Sprintf(`{"metadata":{"name":"c-%d"},"data":{"a":"1"}}`, n)})
	}
	post := func(resource, body string) {
		one.must(t, 201, request{method: "POST", path: registration + resource, body: body})
	}
	patch := func(resource, body string) {
		one.must(t, 200, request{method: "PATCH", path: registration + resource, body: body, contentType: "application/merge-patch+json"})
	}
	create(201)
	post("validatingadmissionpolicies", policyOf("p", "!has(object.data)", ""))
	create(201) // a policy without a binding decides nothing
	post("validatingadmissionpolicybindings", bindingOf("p", ""))
	require.Contains(t, create(422).body, "p says no")
	for i := range 10 {
		patch("validatingadmissionpolicies/p", `{"spec":{"validations":[{"expression":"has(object.data)"}]}}`)
		create(201)
		if i%3 == 0 {
			_, err := projector.Commit(t.Context())
			require.NoError(t, err)
		}
		patch("validatingadmissionpolicies/p", `{"spec":{"validations":[{"expression":"object.data.a != '1'"}]}}`)
		create(422)
	}
	patch("validatingadmissionpolicybindings/p", `{"spec":{"validationActions":["Warn"]}}`)
	require.Contains(t, create(201).header.Get("Warning"), "failed expression")
	one.must(t, 200, request{method: "DELETE", path: registration + "validatingadmissionpolicybindings/p"})
	require.Empty(t, create(201).header.Get("Warning"))

	// The params are of a built-in kind, and of a custom kind that is defined after the policy.
	one.must(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"limits"},"data":{"most":"1"}}`})
	post("validatingadmissionpolicies", policyOf("q", "object.metadata.name.startsWith('limits') || size(object.data) <= int(params.data.most)", `,"paramKind":{"apiVersion":"v1","kind":"ConfigMap"}`))
	post("validatingadmissionpolicybindings", bindingOf("q", `,"paramRef":{"name":"limits","namespace":"default","parameterNotFoundAction":"Deny"}`))
	create(201)
	one.must(t, 200, request{method: "PATCH", path: configMaps + "/limits", body: `{"data":{"most":"0"}}`, contentType: "application/merge-patch+json"})
	create(422)
	one.must(t, 200, request{method: "DELETE", path: registration + "validatingadmissionpolicybindings/q"})

	post("validatingadmissionpolicies", policyOf("r", "size(object.data) <= params.spec.most", `,"paramKind":{"apiVersion":"example.com/v1","kind":"Limit"}`))
	post("validatingadmissionpolicybindings", bindingOf("r", `,"paramRef":{"name":"l","parameterNotFoundAction":"Deny"}`))
	require.Contains(t, create(422).body, "paramKind")
	one.must(t, 201, request{method: "POST", path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body: `{"metadata":{"name":"limits.example.com"},"spec":{"group":"example.com","scope":"Cluster","names":{"plural":"limits","kind":"Limit"},` +
		`"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"most":{"type":"integer"}}}}}}}]}}`})
	require.Contains(t, create(422).body, "no params found")
	one.must(t, 201, request{method: "POST", path: "/apis/example.com/v1/limits", body: `{"apiVersion":"example.com/v1","kind":"Limit","metadata":{"name":"l"},"spec":{"most":1}}`})
	create(201)
	one.must(t, 200, request{method: "PATCH", path: "/apis/example.com/v1/limits/l", body: `{"spec":{"most":0}}`, contentType: "application/merge-patch+json"})
	create(422)
}

// TestPoliciesAreCompiledOnce: two policies and a webhook's condition are compiled once each in ten thousand
// evaluations, whatever else is written. Only a change makes them compile again.
func TestPoliciesAreCompiledOnce(t *testing.T) {
	const requests, validations, mutations = 500, 18, 2 // the bindings of each policy
	s := newServer(t)
	hook := newWebhookServer(t)
	hook.decides(allowed)
	post := func(resource, body string) {
		s.must(t, 201, request{method: "POST", path: registration + resource, body: body})
	}
	evaluated := func() float64 {
		return counted(t, legacyregistry.DefaultGatherer, "apiserver_validating_admission_policy_check_total") +
			counted(t, legacyregistry.DefaultGatherer, "apiserver_mutating_admission_policy_check_total")
	}
	create := func() {
		s.must(t, 201, request{method: "POST", path: configMaps + "?dryRun=All", body: `{"metadata":{"name":"c"},"data":{"a":"1"}}`})
	}
	compiled, before := s.dynamic.Compiled(), evaluated()
	post("validatingadmissionpolicies", policyOf("p", "object.data.a != '1'", `,"matchConditions":[{"name":"a","expression":"has(object.data)"}],"variables":[{"name":"b","expression":"object.data"}]`))
	post("mutatingadmissionpolicies", mutatingPolicyOf("q", "configmaps", "", applying("Object{data: {'b': '2'}}")))
	post("validatingwebhookconfigurations", hook.configuration("h", `,"matchConditions":[{"name":"a","expression":"!('a' in object.data)"}]`))
	audits := strings.Replace(bindingOf("p", ""), `"Deny"`, `"Audit"`, 1)
	for i := range validations {
		post("validatingadmissionpolicybindings", strings.Replace(audits, `"name":"p"`, fmt.Sprintf(`"name":"p-%d"`, i), 1))
	}
	for i := range mutations {
		post("mutatingadmissionpolicybindings", fmt.Sprintf(`{"metadata":{"name":"q-%d"},"spec":{"policyName":"q"}}`, i))
	}
	create()
	require.EqualValues(t, 3, s.dynamic.Compiled()-compiled)
	for i := range requests - 1 {
		switch i { // after these writes, the rules are made again
		case 100:
			post("validatingadmissionpolicybindings", strings.Replace(bindingOf("p", `,"matchResources":{"objectSelector":{"matchLabels":{"a":"b"}}}`), `"p"`, `"more"`, 1))
		case 200:
			s.must(t, 201, request{method: "POST", path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body: smallWidgets})
		case 300:
			s.must(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"generateName":"d-"}}`})
		case 400:
			s.must(t, 200, mergePatch("/api/v1/namespaces/default", `{"metadata":{"labels":{"a":"b"}}}`))
		}
		create()
	}
	require.GreaterOrEqual(t, evaluated()-before, float64((validations+mutations)*requests))
	require.EqualValues(t, 3, s.dynamic.Compiled()-compiled)
	require.EqualValues(t, 1, hook.asked.Load(), "only about the object without that key")
	s.must(t, 200, mergePatch(registration+"validatingadmissionpolicies/p", `{"metadata":{"labels":{"a":"b"}}}`))
	create()
	require.EqualValues(t, 4, s.dynamic.Compiled()-compiled)
}

// smallWidgets defines a custom kind.
const smallWidgets = `{"metadata":{"name":"widgets.example.com"},"spec":{"group":"example.com","scope":"Cluster",` +
	`"names":{"plural":"widgets","kind":"Widget"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"size":{"type":"string"}}}}}}}]}}`

// webhookServer answers admission reviews over HTTPS.
type webhookServer struct {
	*httptest.Server
	asked atomic.Int64

	mu     sync.Mutex
	answer func(http.ResponseWriter, *admissionv1.AdmissionReview) // guarded by mu
}

func newWebhookServer(t *testing.T) *webhookServer {
	w := &webhookServer{}
	w.Server = httptest.NewTLSServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		w.asked.Add(1)
		var review admissionv1.AdmissionReview
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = json.Unmarshal(body, &review)
		}
		if err != nil {
			http.Error(out, err.Error(), http.StatusBadRequest)
			return
		}
		w.mu.Lock()
		answer := w.answer
		w.mu.Unlock()
		answer(out, &review)
	}))
	t.Cleanup(w.Close)
	return w
}

func (w *webhookServer) decides(f func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse) {
	w.answers(func(out http.ResponseWriter, review *admissionv1.AdmissionReview) {
		review.Response = f(review.Request)
		review.Response.UID = review.Request.UID
		_ = json.NewEncoder(out).Encode(review)
	})
}

// answers sets the function that writes the webhook's answer, which may be wrong in any way.
func (w *webhookServer) answers(f func(http.ResponseWriter, *admissionv1.AdmissionReview)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answer = f
}

// times counts how often the webhook is asked while f runs.
func (w *webhookServer) times(f func()) int64 {
	before := w.asked.Load()
	f()
	return w.asked.Load() - before
}

// configuration is a configuration that asks the webhook about ConfigMaps.
func (w *webhookServer) configuration(name, more string) string {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.Certificate().Raw})
	return `{"metadata":{"name":"` + name + `"},"webhooks":[{"name":"` + name + `.example.com","sideEffects":"None","admissionReviewVersions":["v1"],` +
		`"clientConfig":{"url":"` + w.URL + `","caBundle":"` + base64.StdEncoding.EncodeToString(ca) + `"},` +
		`"rules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["configmaps"]}]` + more + `}]}`
}

func allowed(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	return &admissionv1.AdmissionResponse{Allowed: true}
}

func patching(patch string) func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	kind := admissionv1.PatchTypeJSONPatch
	return func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		return &admissionv1.AdmissionResponse{Allowed: true, Patch: []byte(patch), PatchType: &kind}
	}
}

// TestWebhooksDecideAtOnce: another process asks a webhook from its next request on, and stops once the webhook's
// configuration is deleted.
func TestWebhooksDecideAtOnce(t *testing.T) {
	one, other, _ := twoServers(t)
	require.NoError(t, one.Bootstrap(t.Context()))
	hook := newWebhookServer(t)
	hook.decides(allowed)
	n := 0
	create := func(code int) answer {
		n++
		return other.must(t, code, request{method: "POST", path: configMaps, body: fmt.Sprintf(`{"metadata":{"name":"c-%d"},"data":{"a":"1"}}`, n)})
	}
	asked := func(times int64, f func()) {
		t.Helper()
		require.Equal(t, times, hook.times(f))
	}
	const validating, mutating = registration + "validatingwebhookconfigurations", registration + "mutatingwebhookconfigurations"
	asked(0, func() { create(201) })
	one.must(t, 201, request{method: "POST", path: validating, body: hook.configuration("v", "")})
	asked(1, func() { create(201) })
	hook.decides(func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		return &admissionv1.AdmissionResponse{Warnings: []string{"beware"}}
	})
	refused := create(400)
	require.Contains(t, refused.body, "denied the request")
	require.Contains(t, refused.header.Get("Warning"), "beware")
	one.must(t, 200, request{method: "PATCH", path: validating + "/v", contentType: "application/json-patch+json", body: `[{"op":"replace","path":"/webhooks/0/rules/0/operations","value":["UPDATE"]}]`})
	asked(0, func() { create(201) })
	one.must(t, 200, request{method: "DELETE", path: validating + "/v"})

	hook.decides(patching(`[{"op":"add","path":"/data/more","value":"2"}]`))
	one.must(t, 201, request{method: "POST", path: mutating, body: hook.configuration("m", "")})
	asked(1, func() { require.Equal(t, "2", fieldOf(create(201).object(t), "data.more")) })
	again := newWebhookServer(t)
	again.decides(patching(`[{"op":"add","path":"/data/again","value":"3"}]`))
	one.must(t, 201, request{method: "POST", path: mutating, body: again.configuration("n", "")})
	one.must(t, 200, request{method: "PATCH", path: mutating + "/m", contentType: "application/json-patch+json", body: `[{"op":"replace","path":"/webhooks/0/reinvocationPolicy","value":"IfNeeded"}]`})
	asked(2, func() { require.Equal(t, "3", fieldOf(create(201).object(t), "data.again")) })
	one.must(t, 200, request{method: "DELETE", path: mutating + "/n"})

	for _, lie := range []string{`[{"op":"remove","path":"/data/missing"}]`, `not a patch`, `[{"op":"replace","path":"/metadata/labels","value":7}]`} {
		hook.decides(patching(lie))
		create(500)
	}
	hook.decides(patching(`[{"op":"replace","path":"/metadata/name","value":"NOT VALID"}]`))
	create(422)
	one.must(t, 200, request{method: "DELETE", path: mutating + "/m"})
	asked(0, func() { create(201) })
}

// TestWebhooksThatFail: if a webhook does not answer in its time, the webhook's failure policy decides. A webhook with
// side effects is not asked about a dry run.
func TestWebhooksThatFail(t *testing.T) {
	s := newServer(t)
	slow := newWebhookServer(t)
	release := make(chan struct{})
	slow.decides(func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse { <-release; return allowed(r) })
	defer close(release)
	const validating = registration + "validatingwebhookconfigurations"
	create := request{method: "POST", path: configMaps, body: `{"metadata":{"generateName":"c-"}}`}
	for _, c := range []struct {
		more string
		code int
	}{{`,"timeoutSeconds":1`, 500}, {`,"timeoutSeconds":1,"failurePolicy":"Ignore"`, 201}} {
		s.must(t, 201, request{method: "POST", path: validating, body: slow.configuration("slow", c.more)})
		s.must(t, c.code, create)
		s.must(t, 200, request{method: "DELETE", path: validating + "/slow"})
	}
	down := newWebhookServer(t)
	down.Close()
	for more, code := range map[string]int{"": 500, `,"failurePolicy":"Ignore"`: 201} {
		s.must(t, 201, request{method: "POST", path: validating, body: down.configuration("down", more)})
		s.must(t, code, create)
		s.must(t, 200, request{method: "DELETE", path: validating + "/down"})
	}
	effects := newWebhookServer(t)
	effects.decides(allowed)
	s.must(t, 201, request{method: "POST", path: validating, body: strings.Replace(effects.configuration("e", ""), `"sideEffects":"None"`, `"sideEffects":"NoneOnDryRun"`, 1)})
	dry := create
	dry.path += "?dryRun=All"
	s.must(t, 201, dry)
	require.EqualValues(t, 1, effects.asked.Load())
}

// TestASlowWebhookHoldsNoSeat: while one user waits for a webhook, other users are served, though there is only one
// seat.
func TestASlowWebhookHoldsNoSeat(t *testing.T) {
	s := newServer(t, withTokens(t), func(c *Config) { c.Requests = gate.RequestLimits{Mutating: 1, Timeout: 20 * time.Second} })
	slow := newWebhookServer(t)
	waiting, release := make(chan struct{}), make(chan struct{})
	slow.decides(func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		close(waiting)
		<-release
		return allowed(r)
	})
	s.must(t, 201, request{method: "POST", path: registration + "validatingwebhookconfigurations", body: slow.configuration("slow", `,"timeoutSeconds":20`)}.as("root"))
	done := make(chan int)
	go func() {
		done <- request{method: "POST", path: configMaps, body: `{"metadata":{"name":"a"}}`}.as("ann").do(t, s).code
	}()
	<-waiting
	s.must(t, 201, request{method: "POST", path: "/api/v1/namespaces/default/secrets", body: `{"metadata":{"name":"b"}}`}.as("bob"))
	close(release)
	require.Equal(t, 201, <-done)
}

// mutatingPolicyOf makes a policy that changes objects of a resource when they are created.
func mutatingPolicyOf(name, resource, group, mutation string) string {
	return `{"metadata":{"name":"` + name + `"},"spec":{"reinvocationPolicy":"Never","matchConstraints":{"resourceRules":[{"apiGroups":["` + group + `"],"apiVersions":["v1"],"operations":["CREATE"],"resources":["` + resource + `"]}]},` +
		`"mutations":[` + mutation + `]}}`
}

func applying(expression string) string {
	return `{"patchType":"ApplyConfiguration","applyConfiguration":{"expression":"` + expression + `"}}`
}

// TestMutatingPoliciesDecideAtOnce: a mutating policy changes objects in the next request of another process: built-in
// and custom objects, by a JSON patch and by an apply configuration. A new version of the policy applies at once, too.
func TestMutatingPoliciesDecideAtOnce(t *testing.T) {
	one, other, _ := twoServers(t)
	require.NoError(t, one.Bootstrap(t.Context()))
	n := 0
	create := func(path, body string) map[string]any {
		n++
		return other.must(t, 201, request{method: "POST", path: path, body: fmt.Sprintf(body, n)}).object(t)
	}
	const configMap = `{"metadata":{"name":"c-%d"},"data":{"a":"1"}}`
	post := func(resource, body string) {
		one.must(t, 201, request{method: "POST", path: registration + resource, body: body})
	}
	post("mutatingadmissionpolicies", mutatingPolicyOf("p", "configmaps", "", applying("Object{data: {'b': '2'}}")))
	require.Nil(t, fieldOf(create(configMaps, configMap), "data.b"), "a policy without a binding changes nothing")
	post("mutatingadmissionpolicybindings", `{"metadata":{"name":"p"},"spec":{"policyName":"p"}}`)
	require.Equal(t, "2", fieldOf(create(configMaps, configMap), "data.b"))
	compiled := other.dynamic.Compiled()
	for range 20 {
		create(configMaps, configMap)
	}
	require.Equal(t, compiled, other.dynamic.Compiled())
	one.must(t, 200, request{method: "PATCH", path: registration + "mutatingadmissionpolicies/p", contentType: "application/json-patch+json",
		body: `[{"op":"replace","path":"/spec/mutations/0","value":{"patchType":"JSONPatch","jsonPatch":{"expression":"[JSONPatch{op: 'add', path: '/data/c', value: '3'}]"}}}]`})
	changed := create(configMaps, configMap)
	require.Nil(t, fieldOf(changed, "data.b"))
	require.Equal(t, "3", fieldOf(changed, "data.c"))
	one.must(t, 200, request{method: "DELETE", path: registration + "mutatingadmissionpolicybindings/p"})
	require.Nil(t, fieldOf(create(configMaps, configMap), "data.c"))

	one.must(t, 201, request{method: "POST", path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body: smallWidgets})
	post("mutatingadmissionpolicies", mutatingPolicyOf("w", "widgets", "example.com", applying("Object{spec: Object.spec{size: 'small'}}")))
	post("mutatingadmissionpolicybindings", `{"metadata":{"name":"w"},"spec":{"policyName":"w"}}`)
	const widget = `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w-%d"},"spec":{}}`
	require.Equal(t, "small", fieldOf(create("/apis/example.com/v1/widgets", widget), "spec.size"))

	// The policy uses a field that an update adds to the kind.
	post("mutatingadmissionpolicies", mutatingPolicyOf("x", "widgets", "example.com", applying("Object{spec: Object.spec{shade: 'dark'}}")))
	post("mutatingadmissionpolicybindings", `{"metadata":{"name":"x"},"spec":{"policyName":"x"}}`)
	refused := request{method: "POST", path: "/apis/example.com/v1/widgets", body: fmt.Sprintf(widget, 0)}.do(t, other)
	require.NotEqual(t, 201, refused.code, refused.body)
	one.must(t, 200, request{method: "PATCH", path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com", contentType: "application/json-patch+json",
		body: `[{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/shade","value":{"type":"string"}}]`})
	require.Equal(t, "dark", fieldOf(create("/apis/example.com/v1/widgets", widget), "spec.shade"))
}

// TestDefaultClassesDecideAtOnce: if an update makes a class the default, or no longer the default, the update applies
// to the next request of another process.
func TestDefaultClassesDecideAtOnce(t *testing.T) {
	one, other, _ := twoServers(t)
	require.NoError(t, one.Bootstrap(t.Context()))
	const namespaced = "namespaces/default/"
	for _, c := range []struct{ classes, class, isDefault, objects, object, field string }{
		{"/apis/storage.k8s.io/v1/storageclasses", `"provisioner":"example.com/p"`, `{"metadata":{"annotations":{"storageclass.kubernetes.io/is-default-class":"%t"}}}`,
			"/api/v1/" + namespaced + "persistentvolumeclaims", `"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}`, "spec.storageClassName"},
		{"/apis/networking.k8s.io/v1/ingressclasses", `"spec":{"controller":"example.com/c"}`, `{"metadata":{"annotations":{"ingressclass.kubernetes.io/is-default-class":"%t"}}}`,
			"/apis/networking.k8s.io/v1/" + namespaced + "ingresses", `"spec":{"defaultBackend":{"service":{"name":"s","port":{"number":80}}}}`, "spec.ingressClassName"},
	} {
		for _, name := range []string{"a", "b"} {
			one.must(t, 201, request{method: "POST", path: c.classes, body: `{"metadata":{"name":"` + name + `"},` + c.class + `}`})
		}
		set := func(name string, isDefault bool) {
			one.must(t, 200, mergePatch(c.classes+"/"+name, fmt.Sprintf(c.isDefault, isDefault)))
		}
		gets := func(class any) {
			t.Helper()
			made := other.must(t, 201, request{method: "POST", path: c.objects, body: `{"metadata":{"generateName":"x-"},` + c.object + `}`})
			require.Equal(t, class, fieldOf(made.object(t), c.field), c.classes)
		}
		gets(nil)
		set("a", true)
		gets("a")
		set("a", false)
		set("b", true)
		gets("b")
		one.must(t, 200, request{method: "DELETE", path: c.classes + "/b"})
		gets(nil)
	}
}

// TestParamsDecideAtOnce: a binding selects params of a namespaced custom kind by labels. A creation, a change, a new
// label or a deletion of params applies to the next request of another process. The binding says what happens without
// params.
func TestParamsDecideAtOnce(t *testing.T) {
	one, other, projector := twoServers(t)
	require.NoError(t, one.Bootstrap(t.Context()))
	post := func(path, body string) { one.must(t, 201, request{method: "POST", path: path, body: body}) }
	post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `{"metadata":{"name":"limits.example.com"},"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"limits","kind":"Limit"},`+
		`"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"most":{"type":"integer"},"word":{"type":"string"}}}}}}}]}}`)
	const limits = "/apis/example.com/v1/namespaces/default/limits"
	const selects = `,"paramRef":{"selector":{"matchLabels":{"on":"yes"}},"parameterNotFoundAction":"`
	limit := func(name string, most int) string {
		return fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Limit","metadata":{"name":%q,"labels":{"on":"yes"}},"spec":{"most":%d,"word":%q}}`, name, most, name)
	}
	paramKind := `,"paramKind":{"apiVersion":"example.com/v1","kind":"Limit"}`
	create := func(code int) answer {
		return other.must(t, code, request{method: "POST", path: configMaps, body: `{"metadata":{"generateName":"c-"},"data":{"a":"1"}}`})
	}
	post(registration+"validatingadmissionpolicies", policyOf("v", "size(object.data) - 1 <= params.spec.most", paramKind))
	post(registration+"validatingadmissionpolicybindings", bindingOf("v", selects+`Deny"}`))
	mutates := mutatingPolicyOf("m", "configmaps", "", applying("Object{data: {'word': params.spec.word}}"))
	post(registration+"mutatingadmissionpolicies", strings.Replace(mutates, `"spec":{`, `"spec":{`+paramKind[1:]+",", 1))
	post(registration+"mutatingadmissionpolicybindings", `{"metadata":{"name":"m"},"spec":{"policyName":"m"`+selects+`Allow"}}}`)
	require.Contains(t, create(422).body, "no params found")
	compiled := int64(0)
	for round := range 3 {
		post(limits, limit("first", 1))
		require.Equal(t, "first", fieldOf(create(201).object(t), "data.word"))
		if round == 0 {
			compiled = other.dynamic.Compiled()
		}
		one.must(t, 200, mergePatch(limits+"/first", `{"spec":{"most":0,"word":"changed"}}`))
		create(422)
		one.must(t, 200, mergePatch(limits+"/first", `{"spec":{"most":2}}`))
		require.Equal(t, "changed", fieldOf(create(201).object(t), "data.word"))
		post(limits, limit("second", 0))
		create(422) // all selected params must allow the object
		one.must(t, 200, mergePatch(limits+"/second", `{"metadata":{"labels":{"on":"no"}}}`))
		create(201)
		_, err := projector.Commit(t.Context())
		require.NoError(t, err)
		for _, name := range []string{"first", "second"} {
			one.must(t, 200, request{method: "DELETE", path: limits + "/" + name})
		}
		require.Contains(t, create(422).body, "no params found")
	}
	require.Equal(t, compiled, other.dynamic.Compiled(), "params are no reason to compile")
	one.must(t, 200, mergePatch(registration+"validatingadmissionpolicybindings/v", `{"spec":{"paramRef":{"parameterNotFoundAction":"Allow"}}}`))
	require.Nil(t, fieldOf(create(201).object(t), "data.word"))
}

// TestPoliciesThatFail: if an expression fails while it is evaluated, the policy's failure policy decides. A change of
// the failure policy applies to the next request of another process.
func TestPoliciesThatFail(t *testing.T) {
	one, other, _ := twoServers(t)
	require.NoError(t, one.Bootstrap(t.Context()))
	create := func(code int) answer {
		return other.must(t, code, request{method: "POST", path: configMaps, body: `{"metadata":{"generateName":"c-"},"data":{"a":"1"}}`})
	}
	post := func(resource, body string) {
		one.must(t, 201, request{method: "POST", path: registration + resource, body: body})
	}
	fails := func(resource, policy string, code int) {
		one.must(t, 200, mergePatch(registration+resource+"/f", `{"spec":{"failurePolicy":"`+policy+`"}}`))
		create(code)
	}
	post("validatingadmissionpolicies", policyOf("f", "object.data.missing == '1'", ""))
	post("validatingadmissionpolicybindings", bindingOf("f", ""))
	require.Contains(t, create(422).body, "no such key: missing")
	fails("validatingadmissionpolicies", "Ignore", 201)
	fails("validatingadmissionpolicies", "Fail", 422)
	one.must(t, 200, request{method: "DELETE", path: registration + "validatingadmissionpolicybindings/f"})
	create(201)

	post("mutatingadmissionpolicies", mutatingPolicyOf("f", "configmaps", "", applying("Object{data: {'b': object.data.missing}}")))
	post("mutatingadmissionpolicybindings", `{"metadata":{"name":"f"},"spec":{"policyName":"f"}}`)
	require.Contains(t, create(403).body, "no such key: missing") // 403 and reason Invalid, as in upstream
	fails("mutatingadmissionpolicies", "Ignore", 201)
	fails("mutatingadmissionpolicies", "Fail", 403)

	// An expression that cannot be compiled is refused when the policy is written.
	one.must(t, 422, request{method: "POST", path: registration + "mutatingadmissionpolicies", body: mutatingPolicyOf("n", "configmaps", "", applying("Object{data: "))})
	one.must(t, 422, request{method: "POST", path: registration + "validatingadmissionpolicies", body: policyOf("n", "object.data.", "")})
}

// TestPoliciesKnowTheNewestRights: expressions see the authorizer and the namespace as the last write of another
// process left them.
func TestPoliciesKnowTheNewestRights(t *testing.T) {
	one, other, _ := twoServers(t, withTokens(t), func(c *Config) { c.Authorization.Mode = "RBAC" })
	require.NoError(t, one.Bootstrap(t.Context()))
	root := func(code int, r request) { one.must(t, code, r.as("root")) }
	post := func(path, body string) { root(201, request{method: "POST", path: path, body: body}) }
	create := func(code int) {
		t.Helper()
		other.must(t, code, request{method: "POST", path: configMaps, body: `{"metadata":{"generateName":"c-"}}`}.as("ann"))
	}
	post(clusterRolesPath, roleOf("writer", can("create", "", "configmaps")))
	post(clusterRolesPath, roleOf("reader", can("get", "", "secrets")))
	post(clusterRoleBindingsPath, boundTo("writer", "ClusterRole", "writer", "ann"))
	post(registration+"validatingadmissionpolicies", policyOf("p", "authorizer.group('').resource('secrets').namespace('default').check('get').allowed() && namespaceObject.metadata.?labels['open'].orValue('') == 'yes'", ""))
	post(registration+"validatingadmissionpolicybindings", bindingOf("p", ""))
	for range 3 {
		create(422)
		post(roleBindingsPath, boundTo("reader", "ClusterRole", "reader", "ann"))
		create(422)
		root(200, mergePatch("/api/v1/namespaces/default", `{"metadata":{"labels":{"open":"yes"}}}`))
		create(201)
		root(200, request{method: "DELETE", path: roleBindingsPath + "/reader"})
		create(422)
		root(200, mergePatch("/api/v1/namespaces/default", `{"metadata":{"labels":{"open":"no"}}}`))
	}
}
