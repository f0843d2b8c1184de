package apiserver

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/logplane/logplane/internal/apiserver/description/spec"
)

const (
	validatingWebhooks = registration + "validatingwebhookconfigurations"
	mutatingWebhooks   = registration + "mutatingwebhookconfigurations"
)

// says makes a webhook answer correctly, except for one change.
func says(change func(*admissionv1.AdmissionReview)) func(http.ResponseWriter, *admissionv1.AdmissionReview) {
	return func(out http.ResponseWriter, review *admissionv1.AdmissionReview) {
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		change(review)
		_ = json.NewEncoder(out).Encode(review)
	}
}

func writes(code int, body string) func(http.ResponseWriter, *admissionv1.AdmissionReview) {
	return func(out http.ResponseWriter, _ *admissionv1.AdmissionReview) {
		out.WriteHeader(code)
		_, _ = out.Write([]byte(body))
	}
}

// TestWebhooksThatLie: if a webhook's answer makes no sense, the webhook's failure policy decides, on every process. A
// patch that does not fit is always an error. Nothing of such an answer is in the object.
func TestWebhooksThatLie(t *testing.T) {
	one, other, _ := twoServers(t)
	require.NoError(t, one.Bootstrap(t.Context()))
	hook := newWebhookServer(t)
	json, merge := admissionv1.PatchTypeJSONPatch, admissionv1.PatchType("MergePatch")
	patch := []byte(`[{"op":"add","path":"/data/lie","value":"1"}]`)
	patched := func(text string) func(http.ResponseWriter, *admissionv1.AdmissionReview) {
		return says(func(r *admissionv1.AdmissionReview) {
			r.Response.Patch, r.Response.PatchType = []byte(text), &json
		})
	}
	type lie struct {
		answer func(http.ResponseWriter, *admissionv1.AdmissionReview)
		// failing and ignoring are the codes with the failure policies Fail and Ignore.
		failing, ignoring int
	}
	both := map[string]lie{
		"another's uid":       {says(func(r *admissionv1.AdmissionReview) { r.Response.UID = "another" }), 500, 201},
		"no uid":              {says(func(r *admissionv1.AdmissionReview) { r.Response.UID = "" }), 500, 201},
		"another kind":        {says(func(r *admissionv1.AdmissionReview) { r.Kind = "Status" }), 500, 201},
		"another version":     {says(func(r *admissionv1.AdmissionReview) { r.APIVersion = "admission.k8s.io/v1beta1" }), 500, 201},
		"no response":         {says(func(r *admissionv1.AdmissionReview) { r.Response = nil }), 500, 201},
		"500":                 {writes(500, "broken"), 500, 201},
		"404":                 {writes(404, "not here"), 500, 201},
		"no JSON":             {writes(200, "allowed: certainly"), 500, 201},
		"nothing":             {writes(200, ""), 500, 201},
		"more than is read":   {says(func(r *admissionv1.AdmissionReview) { r.Response.Warnings = []string{strings.Repeat("x", 9<<20)} }), 500, 201},
		"the end of the line": {func(http.ResponseWriter, *admissionv1.AdmissionReview) { panic(http.ErrAbortHandler) }, 500, 201},
		"no":                  {says(func(r *admissionv1.AdmissionReview) { r.Response.Allowed = false }), 400, 400},
		"no, but it went well": {says(func(r *admissionv1.AdmissionReview) {
			r.Response.Allowed, r.Response.Result = false, &metav1.Status{Code: 200}
		}), 400, 400},
		"no, with a reason": {says(func(r *admissionv1.AdmissionReview) {
			r.Response.Allowed, r.Response.Result = false, &metav1.Status{Code: 418, Reason: "Teapot"}
		}), 418, 418},
	}
	kinds := map[string]map[string]lie{
		validatingWebhooks: {"a patch": {patched(string(patch)), 500, 201}},
		mutatingWebhooks: {
			"a patch without a type":     {says(func(r *admissionv1.AdmissionReview) { r.Response.Patch = patch }), 500, 201},
			"a type without a patch":     {says(func(r *admissionv1.AdmissionReview) { r.Response.PatchType = &json }), 500, 201},
			"a patch of another type":    {says(func(r *admissionv1.AdmissionReview) { r.Response.Patch, r.Response.PatchType = patch, &merge }), 500, 201},
			"what is no patch":           {patched(`{"data":{"lie":"1"}}`), 500, 201},
			"a patch that does not fit":  {patched(`[{"op":"remove","path":"/data/missing"}]`), 500, 500},
			"a patch whose test fails":   {patched(`[{"op":"test","path":"/data/a","value":"2"},{"op":"add","path":"/data/lie","value":"1"}]`), 500, 500},
			"a patch that makes a list":  {patched(`[{"op":"replace","path":"","value":[]}]`), 500, 500},
			"a patch to another kind":    {patched(`[{"op":"replace","path":"/kind","value":"Secret"}]`), 500, 500},
			"a patch to what is invalid": {patched(`[{"op":"add","path":"/data/not~1valid","value":"1"}]`), 422, 422},
		},
	}
	for path, own := range kinds {
		for name, body := range map[string]string{"fail": hook.configuration("fail", ""), "ignore": hook.configuration("ignore", `,"failurePolicy":"Ignore"`)} {
			one.must(t, 201, request{method: "POST", path: path, body: body})
			for _, lies := range []map[string]lie{both, own} {
				for told, l := range lies {
					hook.answers(l.answer)
					code := l.failing
					if name == "ignore" {
						code = l.ignoring
					}
					for _, s := range []*Server{one, other} {
						got := request{method: "POST", path: configMaps, body: `{"metadata":{"generateName":"c-"},"data":{"a":"1"}}`}.do(t, s)
						require.Equal(t, code, got.code, "%s %s: %s", name, told, got.body)
						require.NotContains(t, got.body, `"lie"`)
					}
				}
			}
			one.must(t, 200, request{method: "DELETE", path: path + "/" + name})
		}
	}
	require.NotContains(t, other.must(t, 200, request{method: "GET", path: configMaps}).body, `"lie"`)
}

// TestWebhooksThatMoveAnObject: a patch may not move an object elsewhere, nor turn it into another object. But as in
// upstream, a new object gets the name that the patch gives it.
func TestWebhooksThatMoveAnObject(t *testing.T) {
	s := newServer(t)
	s.must(t, 201, request{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"other"}}`})
	before := s.must(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"old"},"data":{"a":"1"}}`}).object(t)
	hook := newWebhookServer(t)
	s.must(t, 201, request{method: "POST", path: mutatingWebhooks, body: strings.Replace(hook.configuration("m", ""), `["CREATE"]`, `["CREATE","UPDATE"]`, 1)})
	create := request{method: "POST", path: configMaps, body: `{"metadata":{"name":"new"},"data":{"a":"1"}}`}
	update := mergePatch(configMaps+"/old", `{"data":{"a":"2"}}`)
	for _, c := range []struct {
		patch            string
		created, updated int
	}{
		{`{"op":"replace","path":"/metadata/namespace","value":"other"}`, 400, 400},
		{`{"op":"add","path":"/metadata/resourceVersion","value":"1"}`, 400, 409},
		{`{"op":"replace","path":"/metadata/name","value":"moved"}`, 201, 422},
		{`{"op":"remove","path":"/metadata/name"}`, 422, 422},
		{`{"op":"add","path":"/metadata/uid","value":"mine"}`, 201, 422},
		{`{"op":"add","path":"/metadata/deletionTimestamp","value":"2020-01-01T00:00:00Z"}`, 201, 422},
		{`{"op":"add","path":"/metadata/creationTimestamp","value":"2020-01-01T00:00:00Z"}`, 201, 200},
		{`{"op":"add","path":"/metadata/generation","value":7}`, 201, 200},
	} {
		hook.decides(patching("[" + c.patch + "]"))
		made := create.do(t, s)
		require.Equal(t, c.created, made.code, "%s: %s", c.patch, made.body)
		if made.code == 201 {
			metadata := fieldOf(made.object(t), "metadata").(map[string]any)
			require.NotEqual(t, "mine", metadata["uid"])
			require.NotContains(t, metadata["creationTimestamp"], "2020")
			s.must(t, 200, request{method: "DELETE", path: configMaps + "/" + metadata["name"].(string)})
		}
		changed := update.do(t, s)
		require.Equal(t, c.updated, changed.code, "%s: %s", c.patch, changed.body)
	}
	after := s.must(t, 200, request{method: "GET", path: configMaps + "/old"}).object(t)
	for _, field := range []string{"name", "namespace", "uid", "creationTimestamp", "deletionTimestamp"} {
		require.Equal(t, fieldOf(before, "metadata."+field), fieldOf(after, "metadata."+field))
	}
	require.Empty(t, s.must(t, 200, request{method: "GET", path: "/api/v1/namespaces/other/configmaps"}).object(t)["items"])
}

// TestWebhooksThatMutateTwice: a webhook is asked a second time if its reinvocation policy says so and a later webhook
// has changed the object. No webhook is asked a third time, though each webhook changes the object whenever it is
// asked.
func TestWebhooksThatMutateTwice(t *testing.T) {
	s := newServer(t)
	first, second := newWebhookServer(t), newWebhookServer(t)
	appends := func(hook *webhookServer, word string) {
		hook.decides(func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			var object struct{ Data map[string]string }
			_ = json.Unmarshal(r.Object.Raw, &object)
			return patching(fmt.Sprintf(`[{"op":"replace","path":"/data/a","value":%q}]`, object.Data["a"]+word))(r)
		})
	}
	appends(first, "1")
	appends(second, "2")
	s.must(t, 201, request{method: "POST", path: mutatingWebhooks, body: first.configuration("a", "")})
	s.must(t, 201, request{method: "POST", path: mutatingWebhooks, body: second.configuration("b", "")})
	for _, c := range []struct {
		first, second string
		becomes       string
	}{{"Never", "Never", "12"}, {"IfNeeded", "Never", "121"}, {"IfNeeded", "IfNeeded", "1212"}, {"Never", "IfNeeded", "12"}} {
		for name, policy := range map[string]string{"a": c.first, "b": c.second} {
			s.must(t, 200, request{method: "PATCH", path: mutatingWebhooks + "/" + name, contentType: "application/json-patch+json", body: `[{"op":"replace","path":"/webhooks/0/reinvocationPolicy","value":"` + policy + `"}]`})
		}
		made := s.must(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"generateName":"c-"},"data":{"a":""}}`})
		require.Equal(t, c.becomes, fieldOf(made.object(t), "data.a"), "%v", c)
	}
}

// TestWhatWebhooksAreAskedAbout: conditions and selectors choose the requests. A change of a condition, a selector or
// the namespace's labels applies to the next request of another process.
func TestWhatWebhooksAreAskedAbout(t *testing.T) {
	one, other, _ := twoServers(t)
	require.NoError(t, one.Bootstrap(t.Context()))
	hook := newWebhookServer(t)
	hook.decides(allowed)
	create := func(labels string) {
		other.must(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"generateName":"c-","labels":{` + labels + `}},"data":{"a":"1"}}`})
	}
	for _, path := range []string{validatingWebhooks, mutatingWebhooks} {
		one.must(t, 201, request{method: "POST", path: path, body: hook.configuration("h", `,"objectSelector":{"matchLabels":{"ask":"yes"}}`)})
		change := func(patch string) {
			one.must(t, 200, request{method: "PATCH", path: path + "/h", contentType: "application/json-patch+json", body: "[" + patch + "]"})
		}
		asked := func(times int64, labels string) {
			t.Helper()
			require.Equal(t, times, hook.times(func() { create(labels) }), path)
		}
		asked(0, "")
		asked(1, `"ask":"yes"`)
		change(`{"op":"replace","path":"/webhooks/0/objectSelector","value":{}}`)
		asked(1, "")
		change(`{"op":"add","path":"/webhooks/0/namespaceSelector","value":{"matchLabels":{"ask":"yes"}}}`)
		asked(0, "")
		one.must(t, 200, mergePatch("/api/v1/namespaces/default", `{"metadata":{"labels":{"ask":"yes"}}}`))
		asked(1, "")
		one.must(t, 200, mergePatch("/api/v1/namespaces/default", `{"metadata":{"labels":{"ask":null}}}`))
		asked(0, "")
		change(`{"op":"replace","path":"/webhooks/0/namespaceSelector","value":{}},{"op":"add","path":"/webhooks/0/matchConditions","value":[{"name":"a","expression":"request.userInfo.username == 'nobody'"}]}`)
		asked(0, "")
		change(`{"op":"replace","path":"/webhooks/0/matchConditions/0/expression","value":"object.data.a == '1'"}`)
		asked(1, "")
		// If a condition fails, the failure policy decides without asking the webhook.
		change(`{"op":"replace","path":"/webhooks/0/matchConditions/0/expression","value":"object.data.missing == '1'"},{"op":"replace","path":"/webhooks/0/failurePolicy","value":"Ignore"}`)
		asked(0, "")
		change(`{"op":"replace","path":"/webhooks/0/failurePolicy","value":"Fail"}`)
		require.Zero(t, hook.times(func() {
			other.must(t, 403, request{method: "POST", path: configMaps, body: `{"metadata":{"generateName":"c-"},"data":{"a":"1"}}`})
		}))
		one.must(t, 200, request{method: "DELETE", path: path + "/h"})
		asked(0, "")

		for _, effects := range []string{"Some", "Unknown"} { // such a webhook could not be asked about a dry run
			one.must(t, 422, request{method: "POST", path: path, body: strings.Replace(hook.configuration("h", ""), `"sideEffects":"None"`, `"sideEffects":"`+effects+`"`, 1)})
		}
	}
}

// TestAWebhooksTimeIsTheRequests: if a webhook has more time than the request, the webhook notices the end of the
// request.
func TestAWebhooksTimeIsTheRequests(t *testing.T) {
	s := newServer(t)
	ended := make(chan struct{}, 2)
	slow := &webhookServer{Server: httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // once the body is read, the server notices when the client leaves
		<-r.Context().Done()
		ended <- struct{}{}
	}))}
	t.Cleanup(slow.Close)
	for _, path := range []string{validatingWebhooks, mutatingWebhooks} {
		s.must(t, 201, request{method: "POST", path: path, body: slow.configuration("slow", `,"timeoutSeconds":30,"failurePolicy":"Ignore"`)})
		late := request{method: "POST", path: configMaps + "?timeout=1s", body: `{"metadata":{"name":"never"}}`}.do(t, s)
		require.GreaterOrEqual(t, late.code, 500, late.body)
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			t.Fatal("the webhook was not told")
		}
		s.must(t, 200, request{method: "DELETE", path: path + "/slow"})
	}
	s.must(t, 404, request{method: "GET", path: configMaps + "/never"})
}

// TestWebhooksOfEquivalentResources: an Event can be written through two groups. A webhook or a policy for one group is
// asked about requests through the other, also in a process that has not served that group yet. No other resource is in
// two groups.
func TestWebhooksOfEquivalentResources(t *testing.T) {
	groups := spec.Groups()
	stores, shared := newServer(t).stores, map[string][]string{}
	for _, g := range groups {
		of := map[string]bool{}
		for _, v := range g.Versions {
			for _, r := range v.Resources {
				of[stores.Prefix(schema.GroupResource{Group: g.Name, Resource: r.Name})] = true
			}
		}
		for prefix := range of {
			shared[prefix] = append(shared[prefix], g.Name)
		}
	}
	maps.DeleteFunc(shared, func(_ string, groups []string) bool { return len(groups) < 2 })
	require.Len(t, shared, 1)
	require.ElementsMatch(t, []string{"", "events.k8s.io"}, shared[stores.Prefix(schema.GroupResource{Resource: "events"})])

	const old = `{"metadata":{"name":"a"},"involvedObject":{"kind":"Pod","namespace":"default","name":"x"},"reason":"r","type":"Normal"}`
	const now = `{"metadata":{"name":"b"},"regarding":{"kind":"Pod","namespace":"default","name":"x"},"reason":"r","type":"Normal","action":"a","reportingController":"c/d","reportingInstance":"i","eventTime":"2026-01-01T00:00:00.000000Z"}`
	for group, create := range map[string]request{
		"events.k8s.io": {method: "POST", path: "/api/v1/namespaces/default/events", body: old},
		"":              {method: "POST", path: "/apis/events.k8s.io/v1/namespaces/default/events", body: now},
	} {
		one, other, _ := twoServers(t)
		require.NoError(t, one.Bootstrap(t.Context()))
		hook := newWebhookServer(t)
		hook.decides(func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			return &admissionv1.AdmissionResponse{Allowed: r.Kind.Group == group && r.Kind.Kind == "Event"}
		})
		about := func(body string) string {
			return strings.ReplaceAll(strings.ReplaceAll(body, `"configmaps"`, `"events"`), `"apiGroups":[""]`, `"apiGroups":["`+group+`"]`)
		}
		one.must(t, 201, request{method: "POST", path: validatingWebhooks, body: about(hook.configuration("h", ""))})
		require.EqualValues(t, 1, hook.times(func() { other.must(t, 201, create) }), "'%s'", group)
		one.must(t, 200, request{method: "DELETE", path: validatingWebhooks + "/h"})
		one.must(t, 201, request{method: "POST", path: registration + "validatingadmissionpolicies", body: about(policyOf("p", "false", ""))})
		one.must(t, 201, request{method: "POST", path: registration + "validatingadmissionpolicybindings", body: bindingOf("p", "")})
		create.body = strings.Replace(create.body, `"name":"`, `"name":"again-`, 1)
		other.must(t, 422, create)
	}
}
