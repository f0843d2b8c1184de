package apiserver

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace/noop"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/conversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/generic"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/logplane/logplane/internal/kubestore/kubestoretest"
	"github.com/logplane/logplane/projection"
)

// brokenHooks are ways in which a webhook fails for every request. Each way is the path of such a webhook. The last
// three webhooks never answer.
var brokenHooks = []string{"reset", "cut", "500", "busy", "garbage", "nothing", "moved", "found", "large", "slow", "refused", "misnamed"}

// unlikeUpstream are the faults for which upstream gives clients another answer, because upstream reads any answer and
// follows redirects.
var unlikeUpstream = map[string]string{"large": "too large", "moved": "none is followed", "found": "none is followed"}

// lyingHooks are ways in which an admission webhook gives a senseless answer, or denies.
var lyingHooks = map[string]func(*admissionv1.AdmissionReview){
	"stranger": func(r *admissionv1.AdmissionReview) { r.Response.UID = "another" },
	"denied": func(r *admissionv1.AdmissionReview) {
		r.Response.Allowed, r.Response.Result = false, &metav1.Status{Code: 418, Reason: "Teapot", Message: "tea only", Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: "T", Field: "f"}}}}
	},
	"later": func(r *admissionv1.AdmissionReview) {
		r.Response.Allowed, r.Response.Result = false, &metav1.Status{Code: 429, Reason: metav1.StatusReasonTooManyRequests, Message: "come again", Details: &metav1.StatusDetails{RetryAfterSeconds: 7}}
	},
	"unfit": func(r *admissionv1.AdmissionReview) {
		kind := admissionv1.PatchTypeJSONPatch
		r.Response.Patch, r.Response.PatchType = []byte(`[{"op":"remove","path":"/metadata/missing"}]`), &kind
	},
	"allowed": func(*admissionv1.AdmissionReview) {},
}

// breaks answers as the named broken webhook, and returns false if there is no broken webhook of that name.
func breaks(how string, w http.ResponseWriter, r *http.Request) bool {
	_, _ = io.Copy(io.Discard, r.Body)
	switch how {
	case "reset":
		conn, _, _ := http.NewResponseController(w).Hijack()
		_, _ = conn.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"))
		_ = conn.(interface{ NetConn() net.Conn }).NetConn().(*net.TCPConn).SetLinger(0)
		_ = conn.(interface{ NetConn() net.Conn }).NetConn().Close()
	case "cut":
		w.Header().Set("Content-Length", "1000")
		_, _ = io.WriteString(w, `{"response":`)
	case "500":
		http.Error(w, "broken", http.StatusInternalServerError)
	case "busy":
		w.Header().Set("Retry-After", "0")
		http.Error(w, "busy", http.StatusServiceUnavailable)
	case "garbage":
		_, _ = io.WriteString(w, "certainly")
	case "nothing":
	case "moved":
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	case "found":
		http.Redirect(w, r, "/elsewhere", http.StatusFound)
	case "large":
		_, _ = io.WriteString(w, `{"kind":`+strings.Repeat(" ", 9<<20)+`}`)
	case "slow":
		<-r.Context().Done()
		panic(http.ErrAbortHandler) // a normal return could still answer a client that is about to close
	default:
		return false
	}
	return true
}

// newFaultyHooks serves webhooks, one at each path. clientConfig returns the clientConfig of one webhook.
func newFaultyHooks(t *testing.T) (clientConfig func(fault string) string) {
	served := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		how := strings.Trim(r.URL.Path, "/")
		var review admissionv1.AdmissionReview
		err := json.NewDecoder(r.Body).Decode(&review)
		if breaks(how, w, r) {
			return
		}
		lie := lyingHooks[how]
		if err != nil || lie == nil {
			http.Error(w, "there is nothing at "+how, http.StatusNotFound)
			return
		}
		says(lie)(w, &review)
	}))
	t.Cleanup(served.Close)
	return clientConfigOf(t, served)
}

// clientConfigOf returns the clientConfig of a server's webhook, or of a webhook that does not exist.
func clientConfigOf(t *testing.T, served *httptest.Server) func(fault string) string {
	closed := httptest.NewTLSServer(http.NotFoundHandler())
	closed.Close()
	authority := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: served.Certificate().Raw}))
	return func(fault string) string {
		at := served.URL
		switch fault {
		case "refused":
			at = closed.URL
		case "misnamed": // the certificate is for the address
			at = strings.Replace(served.URL, "127.0.0.1", "localhost", 1)
		}
		return `{"url":"` + at + `/` + fault + `","caBundle":"` + authority + `"}`
	}
}

// newUpstreamWebhooks makes upstream's plug-ins, as kube-apiserver does.
func newUpstreamWebhooks(t *testing.T, s *Server, objects ...runtime.Object) []admission.Interface {
	client := fake.NewClientset(objects...)
	factory := informers.NewSharedInformerFactory(client, 0)
	mutating, err := mutatingwebhook.NewMutatingWebhook(nil)
	require.NoError(t, err)
	validating, err := validatingwebhook.NewValidatingAdmissionWebhook(nil)
	require.NoError(t, err)
	for _, w := range []*generic.Webhook{mutating.Webhook, validating.Webhook} {
		w.SetExternalKubeClientSet(client)
		w.SetExternalKubeInformerFactory(factory)
		w.SetUnconditionalAuthorizer(s.generic.Authorization.Authorizer)
		w.SetServiceResolver(webhookutil.NewDefaultServiceResolver())
		w.SetAuthenticationInfoResolverWrapper(webhookutil.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, s.loopback, noop.NewTracerProvider()))
		require.NoError(t, w.ValidateInitialization())
	}
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	t.Cleanup(factory.Shutdown)
	return []admission.Interface{mutating, validating}
}

// newPeers makes two servers of a cell. The second asks webhooks through upstream's plug-ins.
func newPeers(t *testing.T) (ours, theirs *Server, wire func(objects ...runtime.Object)) {
	cell := kubestoretest.Cell(t, projection.Config{})
	serve := func(a Admission) *Server {
		s, err := New(Config{Cell: cell, Admission: a})
		require.NoError(t, err)
		s.initialized.Store(true)
		return s
	}
	ours, theirs = serve(Admission{}), serve(Admission{Disable: []string{mutatingwebhook.PluginName, validatingwebhook.PluginName}})
	return ours, theirs, func(objects ...runtime.Object) {
		chain := append([]admission.Interface{theirs.generic.AdmissionControl}, newUpstreamWebhooks(t, theirs, objects...)...)
		theirs.generic.AdmissionControl = admission.NewChainHandler(chain...)
		theirs.groups = newGroups(theirs)
		theirs.crds = newCustomResources(theirs)
	}
}

// hookVerbs are requests about an object. The object exists before, unless the request makes it.
var hookVerbs = []struct {
	name  string
	makes bool
	ask   func(k hookKind, in, name, made, labelled string) request
}{
	{"create", true, func(k hookKind, in, _, _, labelled string) request {
		return request{method: "POST", path: k.in(in), body: labelled}
	}},
	{"apply", true, func(k hookKind, in, name, _, labelled string) request {
		return request{method: "PATCH", path: k.in(in) + "/" + name + "?fieldManager=m", body: labelled, contentType: "application/apply-patch+yaml"}
	}},
	{"update", false, func(k hookKind, in, name, made, _ string) request {
		return request{method: "PUT", path: k.in(in) + "/" + name, body: annotated(made)}
	}},
	{"patch", false, func(k hookKind, in, name, _, _ string) request {
		return mergePatch(k.in(in)+"/"+name, `{"metadata":{"annotations":{"b":"2"}}}`)
	}},
	{"status", false, func(k hookKind, in, name, _, _ string) request {
		return mergePatch(k.in(in)+"/"+name+"/status", `{"status":{"observedGeneration":7}}`)
	}},
	{"delete", false, func(k hookKind, in, name, _, _ string) request {
		return request{method: "DELETE", path: k.in(in) + "/" + name}
	}},
	{"deletecollection", false, func(k hookKind, in, name, _, _ string) request {
		return request{method: "DELETE", path: k.in(in) + "?labelSelector=of%3D" + name}
	}},
}

// hookKind is a kind that webhooks are asked about.
type hookKind struct{ name, collection, object string }

func (k hookKind) in(namespace string) string { return fmt.Sprintf(k.collection, namespace) }

var hookKinds = []hookKind{
	{"built-in", "/apis/apps/v1/namespaces/%s/deployments", outageDeployment},
	{"custom", "/apis/ex.com/v1/namespaces/%s/things", outageCustom},
}

// hookCase is one request, and the webhook that fails when the server asks about this request.
type hookCase struct {
	fault, policy, hook, verb string
	kind                      hookKind
	dry                       bool
	makes                     bool
	ask                       func(k hookKind, in, name, made, labelled string) request
}

func (c hookCase) name() string {
	return strings.ToLower(strings.Join([]string{c.hook, c.policy, c.fault, c.verb}, "-"))
}

// of is the label of the objects about which this case's webhook is asked.
func (c hookCase) of() string { return strings.ToLower(c.hook + "-" + c.policy + "-" + c.fault) }

func (c hookCase) labelled() string {
	labels := `"labels":{"asks":"` + c.of() + `","of":"` + c.name() + `"}`
	object := strings.Replace(fmt.Sprintf(c.kind.object, c.name()), `,"labels":{"a":"b"}`, "", 1)
	return strings.Replace(object, `"metadata":{`, `"metadata":{`+labels+`,`, 1)
}

func (c hookCase) request(in, made string) request {
	r := c.ask(c.kind, in, c.name(), made, c.labelled())
	if c.dry {
		r.path += map[bool]string{true: "&", false: "?"}[strings.Contains(r.path, "?")] + "dryRun=All"
	}
	return r
}

// hookCases combine each fault with each policy, kind of webhook and verb. Kinds of objects and dry runs alternate, so
// that each kind and each choice of dry run occurs with all the others.
func hookCases() (all []hookCase) {
	faults := slices.Clone(brokenHooks)
	for fault := range lyingHooks {
		faults = append(faults, fault)
	}
	slices.Sort(faults)
	for f, fault := range faults {
		for p, policy := range []string{"Fail", "Ignore"} {
			for h, hook := range []string{"mutating", "validating"} {
				for v, verb := range hookVerbs {
					if fault == "large" && v > 2 { // such an answer has eight megabytes
						continue
					}
					all = append(all, hookCase{fault, policy, hook, verb.name, hookKinds[(f+h+v)%2], (f+p+v)%2 == 1, verb.makes, verb.ask})
				}
			}
		}
	}
	return all
}

// hookConfiguration makes a configuration with a webhook for each label.
func hookConfiguration(hook string, cases []hookCase, clientConfig func(string) string) string {
	var webhooks []string
	seen := map[string]bool{}
	for _, c := range cases {
		if c.hook != hook || seen[c.of()] {
			continue
		}
		seen[c.of()] = true
		seconds := "30"
		if c.fault == "slow" {
			seconds = "1"
		}
		webhooks = append(webhooks, `{"name":"`+c.of()+`.example.com","sideEffects":"None","admissionReviewVersions":["v1"],"matchPolicy":"Equivalent","timeoutSeconds":`+seconds+
			`,"failurePolicy":"`+c.policy+`","clientConfig":`+clientConfig(c.fault)+`,"namespaceSelector":{},"objectSelector":{"matchLabels":{"asks":"`+c.of()+`"}},`+
			`"rules":[{"apiGroups":["*"],"apiVersions":["*"],"operations":["*"],"resources":["*/*"],"scope":"*"}]}`)
	}
	return `{"metadata":{"name":"faulty"},"webhooks":[` + strings.Join(webhooks, ",") + `]}`
}

var (
	anyAddress = regexp.MustCompile(`127\.0\.0\.1:\d+|\[::1\]:\d+`)
	// anyReset matches errors of a connection that was reset before or after the answer's header was read.
	anyReset = regexp.MustCompile(`(unexpected error when reading response body[^:]*: |Post \\?"[^"]*": )read tcp address->address: read: connection reset by peer`)
	anyUID   = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
)

func masked(text string) string {
	text = anyUID.ReplaceAllString(anyAddress.ReplaceAllString(text, "address"), "uid")
	return anyReset.ReplaceAllString(text, "reset")
}

// saysOf returns the contents of an answer, without parts in which two servers must differ.
func saysOf(t *testing.T, a answer) map[string]any {
	said := map[string]any{"code": a.code, "Retry-After": a.header.Get("Retry-After"), "Warning": a.header.Values("Warning")}
	body := strings.ReplaceAll(masked(a.body), "theirs", "ours")
	if a.code >= 400 {
		said["status"] = answer{body: body}.object(t)
	}
	return said
}

// TestFaultyWebhooks asks each failing webhook through this server's plug-ins and through upstream's plug-ins, and
// compares the answers: code, reason, message, details and headers. A refused request writes nothing, and an allowed
// request writes one event.
func TestFaultyWebhooks(t *testing.T) {
	t.Parallel() // slow webhooks
	ours, theirs, wire := newPeers(t)
	for _, name := range []string{"ours", "theirs"} {
		ours.must(t, 201, request{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"` + name + `"}}`})
	}
	ours.must(t, 201, request{method: "POST", path: crdPath, body: fmt.Sprintf(outageCRD, "thing", "Thing")})
	cases, made := hookCases(), map[string]string{}
	for _, c := range cases {
		for _, in := range []string{"ours", "theirs"} {
			if !c.makes {
				made[in+c.name()] = ours.must(t, 201, request{method: "POST", path: c.kind.in(in), body: c.labelled()}).body
			}
		}
	}
	var changed []string
	for _, c := range cases {
		if c.verb == "create" && slices.Contains([]string{"500", "reset", "stranger", "denied", "unfit", "allowed"}, c.fault) {
			changed = append(changed, "undo-"+c.of())
			ours.must(t, 201, request{method: "POST", path: configMapsIn("ours"), body: `{"metadata":{"name":"undo-` + c.of() + `","labels":{"asks":"` + c.of() + `"}}}`})
		}
	}
	since := ours.head(t)
	for _, name := range changed {
		ours.must(t, 200, mergePatch(configMapsIn("ours")+"/"+name+"?fieldManager=robot", `{"data":{"a":"1"}}`))
	}
	clientConfig := newFaultyHooks(t)
	var objects []runtime.Object
	for _, name := range []string{"default", "ours", "theirs"} {
		objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	mutating, validating := &admissionregistrationv1.MutatingWebhookConfiguration{}, &admissionregistrationv1.ValidatingWebhookConfiguration{}
	for path, into := range map[string]runtime.Object{mutatingWebhooks: mutating, validatingWebhooks: validating} {
		hook := map[string]string{mutatingWebhooks: "mutating", validatingWebhooks: "validating"}[path]
		kept := ours.must(t, 201, request{method: "POST", path: path, body: hookConfiguration(hook, cases, clientConfig)})
		require.NoError(t, json.Unmarshal([]byte(kept.body), into))
		objects = append(objects, into)
	}
	wire(objects...)

	counts := newTally("answers")
	both := func(c hookCase) (our, their answer) {
		return c.request("ours", made["ours"+c.name()]).do(t, ours), c.request("theirs", made["theirs"+c.name()]).do(t, theirs)
	}
	compare := func(c hookCase, our, their answer) (writes int) {
		what := fmt.Sprintf("%s %s dry=%v: %s", c.name(), c.kind.name, c.dry, our.body)
		counts.add(fmt.Sprintf("%s/%s %d", c.fault, c.policy, our.code))
		unlike := unlikeUpstream[c.fault]
		if unlike != "" {
			their.code = map[string]int{"Fail": 500, "Ignore": their.code}[c.policy]
		}
		if got, want := saysOf(t, our), saysOf(t, their); unlike == "" || their.code < 400 {
			require.Equal(t, want, got, what)
		} else {
			require.Equal(t, their.code, our.code, what)
			require.Contains(t, our.body, unlike)
		}
		if our.code >= 400 || c.dry {
			return 0
		}
		return 1
	}
	var slow sync.WaitGroup
	var waited []hookCase
	events := 0
	for _, c := range cases {
		if c.fault == "slow" {
			waited = append(waited, c)
			continue
		}
		before := ours.head(t)
		our := c.request("ours", made["ours"+c.name()]).do(t, ours)
		between := ours.head(t)
		their := c.request("theirs", made["theirs"+c.name()]).do(t, theirs)
		writes := compare(c, our, their)
		require.EqualValues(t, writes, between-before, "%s: %s", c.name(), our.body)
		require.EqualValues(t, writes, ours.head(t)-between, "%s: %s", c.name(), their.body)
		events += writes
	}
	before, writes := ours.head(t), 0
	answers := make([][2]answer, len(waited))
	for i, c := range waited {
		slow.Go(func() { answers[i][0], answers[i][1] = both(c) })
	}
	slow.Wait()
	for i, c := range waited {
		writes += 2 * compare(c, answers[i][0], answers[i][1])
	}
	require.EqualValues(t, writes, ours.head(t)-before)
	pairs := map[string]bool{}
	for _, c := range cases {
		of := []string{c.fault, c.policy, c.hook, c.verb, c.kind.name, fmt.Sprint("dry ", c.dry)}
		for i, one := range of {
			for _, other := range of[i+1:] {
				pairs[one+" with "+other] = true
			}
		}
	}
	faults := len(brokenHooks) + len(lyingHooks)
	require.Len(t, pairs, faults*(2+2+7+2+2)-4+2*(2+7+2+2)+2*(7+2+2)+7*(2+2)+2*2, "all but four verbs of what is large")
	ours.transactFaulty(t, cases, counts)
	ours.undoFaulty(t, since, changed)
	t.Logf("%d requests to each, %d pairs, %d events of ours: %v", len(cases), len(pairs), events+writes/2, counts)
}

// undoFaulty undoes, by a plan, a change of objects about which a webhook fails. The plan's answer names the refused
// steps, and the other steps are written.
func (s *Server) undoFaulty(t *testing.T, since projection.Revision, objects []string) {
	refused := map[string]bool{}
	for _, name := range objects {
		alone := mergePatch(configMapsIn("ours")+"/"+name+"?dryRun=All", `{"data":null}`).do(t, s)
		refused[name] = alone.code >= 300
	}
	before, failed := s.head(t), 0
	done := s.planned(t, fmt.Sprintf(`{"namespace":"ours","undo":{"manager":"robot","since":"%d"}}`, since), false, nil)
	require.Len(t, done.Status.Changes, len(objects))
	for _, c := range done.Status.Changes {
		require.Equal(t, refused[c.Object.Name], c.Failed, "%s: %s", c.Object.Name, c.Left)
		if c.Failed {
			failed++
			require.NotEmpty(t, c.Left)
		}
	}
	require.EqualValues(t, len(objects)-failed, s.head(t)-before)
	t.Logf("a plan of %d changes, %d of them refused", len(objects), failed)
}

func configMapsIn(namespace string) string { return "/api/v1/namespaces/" + namespace + "/configmaps" }

// transactFaulty creates, in a transaction, an object about which a webhook fails. The transaction then writes nothing,
// and its answer is the answer of the refused operation.
func (s *Server) transactFaulty(t *testing.T, cases []hookCase, counts *tally) {
	for _, c := range cases {
		if c.verb != "create" || c.fault == "slow" {
			continue
		}
		what := c.name() + " in a transaction"
		c.verb = "transaction" // this verb has an object of its own
		in := func(object string) string {
			return strings.Replace(object, `"metadata":{`, `"metadata":{"namespace":"ours",`, 1)
		}
		alone := request{method: "POST", path: c.kind.in("ours"), body: c.labelled()}
		alone.path += "?dryRun=All"
		want, before := alone.do(t, s), s.head(t)
		got := transaction(creating(strings.ReplaceAll(configMap("next-to-"+c.name(), "1"), `"default"`, `"ours"`)), creating(in(c.labelled()))).do(t, s)
		counts.add(fmt.Sprint("transaction ", got.code))
		if want.code < 300 {
			require.Equal(t, 201, got.code, "%s: %s", what, got.body)
			require.EqualValues(t, 2, s.head(t)-before, what)
			continue
		}
		require.Equal(t, want.code, got.code, "%s: %s", what, got.body)
		require.Equal(t, want.header.Get("Retry-After"), got.header.Get("Retry-After"), what)
		require.Equal(t, want.object(t)["reason"], got.object(t)["reason"], what)
		require.Contains(t, masked(got.object(t)["message"].(string)), masked(want.object(t)["message"].(string)), what)
		require.Equal(t, before, s.head(t), what)
	}
}

// convertedCRD is a CRD with two versions and a conversion webhook.
func convertedCRD(name, clientConfig string) string {
	crd := fmt.Sprintf(outageCRD, name, strings.ToUpper(name[:1])+name[1:])
	crd = strings.Replace(crd, `"spec":{`, `"spec":{"conversion":{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v1"],"clientConfig":`+clientConfig+`}},`, 1)
	v1 := crd[strings.Index(crd, `{"name":"v1"`):strings.LastIndex(crd, `]}}`)]
	return strings.Replace(crd, v1, v1+","+strings.NewReplacer(`"v1"`, `"v2"`, `"storage":true`, `"storage":false`).Replace(v1), 1)
}

// lyingConversions are ways in which a conversion webhook gives a senseless answer, or refuses.
var lyingConversions = map[string]func(*apiextensionsv1.ConversionReview){
	"stranger": func(r *apiextensionsv1.ConversionReview) { r.Response.UID = "another" },
	"denied": func(r *apiextensionsv1.ConversionReview) {
		r.Response.Result = metav1.Status{Status: metav1.StatusFailure, Code: 418, Reason: "Teapot", Message: "tea only"}
	},
	"fewer": func(r *apiextensionsv1.ConversionReview) { r.Response.ConvertedObjects = nil },
	"unfit": func(r *apiextensionsv1.ConversionReview) {
		r.Response.ConvertedObjects[0].Raw = []byte(`{"apiVersion":"ex.com/v3","kind":"Thing","metadata":{}}`)
	},
	"renamed": func(r *apiextensionsv1.ConversionReview) {
		r.Response.ConvertedObjects[0].Raw = regexp.MustCompile(`"name":"[^"]*"`).ReplaceAll(r.Response.ConvertedObjects[0].Raw, []byte(`"name":"other"`))
	},
}

// convert answers a ConversionReview. The label 'asks' of an object may say how the answer is wrong.
func convert(w http.ResponseWriter, r *http.Request, faulty map[string]func(*apiextensionsv1.ConversionReview)) {
	var review apiextensionsv1.ConversionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	review.Response = &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
	how := ""
	for _, raw := range review.Request.Objects {
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(raw.Raw); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		how = u.GetLabels()["asks"]
		u.SetAPIVersion(review.Request.DesiredAPIVersion)
		u.Object["converted"] = review.Request.DesiredAPIVersion
		converted, err := u.MarshalJSON()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		review.Response.ConvertedObjects = append(review.Response.ConvertedObjects, runtime.RawExtension{Raw: converted})
	}
	if faulty != nil && breaks(how, w, r) {
		return
	}
	if lie := faulty[how]; lie != nil {
		lie(&review)
	}
	_ = json.NewEncoder(w).Encode(review)
}

// TestFaultyConversions: if a conversion webhook fails, the answer to any request that needs the conversion has the
// message of upstream's converter. Nothing is written. A slow webhook may use up the time of the request.
func TestFaultyConversions(t *testing.T) {
	s := newServer(t)
	served := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { convert(w, r, lyingConversions) }))
	t.Cleanup(func() {
		served.CloseClientConnections() // slow webhooks wait on these connections
		served.Close()
	})
	clientConfig := clientConfigOf(t, served)
	crds, upstream := map[string]*apiextensionsv1.CustomResourceDefinition{}, map[string]runtime.ObjectConvertor{}
	factory, err := conversion.NewCRConverterFactory(webhookutil.NewDefaultServiceResolver(), webhookutil.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, s.loopback, noop.NewTracerProvider()))
	require.NoError(t, err)
	for _, name := range []string{"thing", "refused", "misnamed"} {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		kept := s.must(t, 201, request{method: "POST", path: crdPath, body: convertedCRD(name, clientConfig(name))})
		require.NoError(t, json.Unmarshal([]byte(kept.body), crd))
		crds[name] = crd
		_, upstream[name], err = factory.NewConverter(crd)
		require.NoError(t, err)
	}
	faults := slices.Clone(brokenHooks)
	for fault := range lyingConversions {
		faults = append(faults, fault)
	}
	slices.Sort(faults)
	counts := newTally("answers")
	for _, fault := range faults {
		name := "thing"
		if crds[fault] != nil {
			name = fault
		}
		s.must(t, 201, request{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"in-` + fault + `"}}`})
		kind := hookKind{collection: "/apis/ex.com/v2/namespaces/%s/" + name + "s", object: strings.NewReplacer("Thing", crds[name].Spec.Names.Kind, `"metadata":{`, `"metadata":{"labels":{"asks":"`+fault+`"},`).Replace(outageCustom)}
		made := s.must(t, 201, request{method: "POST", path: strings.Replace(kind.in("in-"+fault), "/v2/", "/v1/", 1), body: fmt.Sprintf(kind.object, "old")}).body
		second := func(object string) string { return strings.Replace(object, `ex.com/v1`, `ex.com/v2`, 1) }
		said := map[string]bool{}
		for _, object := range []string{"old", "new"} {
			for from, to := range map[string]string{"v1": "v2", "v2": "v1"} {
				if fault == "slow" { // upstream's converter would wait for 30 s here
					continue
				}
				u := &unstructured.Unstructured{}
				require.NoError(t, u.UnmarshalJSON([]byte(strings.NewReplacer("ex.com/v1", "ex.com/"+from, `"name":"old"`, `"name":"`+object+`"`).Replace(made))))
				_, err = upstream[name].ConvertToVersion(u, schema.GroupVersion{Group: "ex.com", Version: to})
				require.True(t, err != nil || fault == "large", fault)
				said[masked(fmt.Sprint(err))] = true
			}
		}
		requests := map[string]request{
			"get": {method: "GET", path: kind.in("in-"+fault) + "/old"}, "list": {method: "GET", path: kind.in("in-" + fault)},
			"table": {method: "GET", path: kind.in("in-" + fault), accept: "application/json;as=Table;v=v1;g=meta.k8s.io"},
		}
		for _, verb := range []string{"get", "list", "table"} {
			r := requests[verb]
			r.path = fmt.Sprintf("/at/%d%s", s.head(t), r.path)
			requests[verb+", then"] = r
		}
		for _, v := range hookVerbs {
			object := "old"
			if v.makes {
				object = "new"
			}
			r := v.ask(kind, "in-"+fault, object, second(made), second(fmt.Sprintf(kind.object, object)))
			r.path = strings.TrimSuffix(r.path, "?labelSelector=of%3Dold")
			requests[v.name] = r
			r.path += map[bool]string{true: "&", false: "?"}[strings.Contains(r.path, "?")] + "dryRun=All"
			requests[v.name+", dry"] = r
		}
		before := s.head(t)
		if fault == "slow" {
			s.askSlowly(t, requests, counts)
			served.CloseClientConnections() // otherwise the calls would last for the webhook's time
			continue
		}
		for verb, r := range requests {
			got := r.do(t, s)
			what := fmt.Sprintf("%s, %s: %s", fault, verb, got.body)
			counts.add(fmt.Sprint(fault, " ", got.code))
			require.Equal(t, 500, got.code, what)
			require.Empty(t, got.header.Get("Retry-After"), what)
			status := got.object(t)
			require.Contains(t, status["message"], "conversion webhook for ex.com/v", what)
			if unlike := unlikeUpstream[fault]; unlike != "" {
				require.Contains(t, status["message"], unlike, what)
			} else {
				require.Contains(t, said, masked(status["message"].(string)), what)
				require.Nil(t, status["reason"], what)
			}
			require.Equal(t, before, s.head(t), what)
		}
	}
	t.Log(counts)
}

// askSlowly sends requests that end at their own deadline, all at the same time.
func (s *Server) askSlowly(t *testing.T, requests map[string]request, counts *tally) {
	listener := httptest.NewServer(s)
	t.Cleanup(listener.Close)
	var all sync.WaitGroup
	before := s.head(t)
	for verb, r := range requests {
		path := r.path + map[bool]string{true: "&", false: "?"}[strings.Contains(r.path, "?")] + "timeout=1s"
		all.Go(func() {
			sent, err := http.NewRequest(r.method, listener.URL+path, strings.NewReader(r.body))
			if err != nil {
				t.Error(err)
				return
			}
			sent.Header.Set("Content-Type", cmp.Or(r.contentType, "application/json"))
			got, err := http.DefaultClient.Do(sent)
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = got.Body.Close() }()
			body, _ := io.ReadAll(got.Body)
			counts.add(fmt.Sprint("slow ", got.StatusCode))
			if got.StatusCode != 504 || !strings.Contains(string(body), `"reason":"Timeout"`) {
				t.Errorf("%s: %d %s", verb, got.StatusCode, body)
			}
		})
	}
	all.Wait()
	require.Equal(t, before, s.head(t))
}
