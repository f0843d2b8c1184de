package lifecycle

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver"
	"github.com/logplane/logplane/internal/apiserver/access"
	"github.com/logplane/logplane/internal/apiserver/history"
)

// persons is a cell with RBAC and an audit log. People use the cell over HTTP, and each person is an administrator.
type persons struct {
	*cluster
	url, audit string
}

func newPersons(t *testing.T) *persons {
	t.Helper()
	p := &persons{cluster: newCluster(t)}
	folder := t.TempDir()
	tokens, policy := filepath.Join(folder, "tokens"), filepath.Join(folder, "policy")
	p.audit = filepath.Join(folder, "audit")
	require.NoError(t, os.WriteFile(tokens, []byte("alice,alice,,system:masters\nbob,bob,,system:masters\n"), 0o600))
	require.NoError(t, os.WriteFile(policy, []byte(`{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": [{"level": "Metadata", "verbs": ["delete", "deletecollection"]}]}`), 0o600))
	server, err := apiserver.New(apiserver.Config{Cell: p.cell, Authentication: access.Authentication{TokenFile: tokens},
		Authorization: access.Authorization{Mode: "RBAC"}, Audit: access.Audit{PolicyFile: policy, LogPath: p.audit}})
	require.NoError(t, err)
	p.server = server
	p.restart()
	front := httptest.NewServer(server)
	t.Cleanup(front.Close)
	p.url = front.URL
	return p
}

// as returns the client configuration of a person, who may impersonate another person.
func (p *persons) as(person string, another ...string) *rest.Config {
	return &rest.Config{Host: p.url, BearerToken: person, QPS: -1, UserAgent: "test", WarningHandler: rest.NoWarnings{},
		Impersonate: rest.ImpersonationConfig{UserName: strings.Join(another, ""), Groups: slices.Repeat([]string{"system:masters"}, len(another))}}
}

func (p *persons) objects(person string) dynamic.Interface {
	client, err := dynamic.NewForConfig(p.as(person))
	require.NoError(p, err)
	return client
}

// make creates an object from YAML.
func (p *persons) make(person string, of schema.GroupVersionResource, namespace, name, text string) *unstructured.Unstructured {
	p.Helper()
	object := &unstructured.Unstructured{}
	require.NoError(p, yaml.Unmarshal([]byte(text), &object.Object))
	object.SetName(name)
	if namespace == "" {
		made, err := p.objects(person).Resource(of).Create(p.Context(), object, metav1.CreateOptions{})
		require.NoError(p, err, text)
		return made
	}
	made, err := p.objects(person).Resource(of).Namespace(namespace).Create(p.Context(), object, metav1.CreateOptions{})
	require.NoError(p, err, text)
	return made
}

// list lists versions or changes that match a field selector.
func (p *persons) list(resource, namespace, selector string) []history.Version {
	p.Helper()
	path := "/apis/" + history.GroupVersion.String()
	if namespace != "" {
		path += "/namespaces/" + namespace
	}
	body, err := discovery.NewDiscoveryClientForConfigOrDie(p.as("bob")).RESTClient().Get().AbsPath(path+"/"+resource).Param("fieldSelector", selector).DoRaw(p.Context())
	require.NoError(p, err, string(body))
	var list history.VersionList
	require.NoError(p, json.Unmarshal(body, &list))
	require.Empty(p, list.Continue)
	return list.Items
}

// last returns the newest version of an object.
func (p *persons) last(of schema.GroupResource, namespace, name string) history.Version {
	p.Helper()
	versions := p.list("versions", namespace, "object="+of.String()+"/"+name)
	require.NotEmpty(p, versions, "%s %s", of, name)
	return versions[0]
}

// work makes the lifecycle do all the work that there is.
func (p *persons) work() {
	p.Helper()
	left, err := p.Once(p.Context())
	require.NoError(p, err)
	require.Empty(p, left)
}

// namespaced are all built-in kinds that have a namespace and can be created, each with a body.
var namespaced = map[string]string{
	"configmaps": `{}`,
	"endpoints":  `{}`,
	"podcertificaterequests.certificates.k8s.io": podCertificateRequest(),
	"events":                                 `{involvedObject: {namespace: "n", name: x}}`,
	"limitranges":                            `{}`,
	"persistentvolumeclaims":                 `{spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}`,
	"pods":                                   `{spec: {containers: [{name: c, image: i}]}}`,
	"podtemplates":                           `{template: {spec: {containers: [{name: c, image: i}]}}}`,
	"replicationcontrollers":                 `{spec: {replicas: 0, selector: {a: b}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}`,
	"resourcequotas":                         `{spec: {hard: {pods: 10}}}`,
	"secrets":                                `{stringData: {a: b}}`,
	"serviceaccounts":                        `{}`,
	"services":                               `{spec: {ports: [{port: 80}]}}`,
	"controllerrevisions.apps":               `{revision: 1, data: {}}`,
	"daemonsets.apps":                        `{spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}`,
	"deployments.apps":                       `{spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}`,
	"replicasets.apps":                       `{spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}`,
	"statefulsets.apps":                      `{spec: {serviceName: s, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}`,
	"horizontalpodautoscalers.autoscaling":   `{spec: {maxReplicas: 2, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: x}}}`,
	"cronjobs.batch":                         `{spec: {schedule: "@daily", jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}}}`,
	"jobs.batch":                             `{spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}`,
	"leases.coordination.k8s.io":             `{}`,
	"endpointslices.discovery.k8s.io":        `{addressType: IPv4, endpoints: []}`,
	"ingresses.networking.k8s.io":            `{spec: {defaultBackend: {service: {name: s, port: {number: 80}}}}}`,
	"networkpolicies.networking.k8s.io":      `{spec: {podSelector: {}}}`,
	"poddisruptionbudgets.policy":            `{spec: {minAvailable: 1, selector: {matchLabels: {a: b}}}}`,
	"roles.rbac.authorization.k8s.io":        `{rules: []}`,
	"rolebindings.rbac.authorization.k8s.io": `{roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}}`,
	"resourceclaims.resource.k8s.io":         `{spec: {}}`,
	"resourceclaimtemplates.resource.k8s.io": `{spec: {spec: {}}}`,
	"csistoragecapacities.storage.k8s.io":    `{storageClassName: s}`,
}

// podCertificateRequest is a request that validation accepts: it is signed with its own key.
func podCertificateRequest() string {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		panic(err)
	}
	stub, err := x509.CreateCertificateRequest(nil, &x509.CertificateRequest{}, key)
	if err != nil {
		panic(err)
	}
	return `{spec: {signerName: example.com/x, podName: x, podUID: "1", serviceAccountName: default, serviceAccountUID: "1", nodeName: x, nodeUID: "1",
		stubPKCS10Request: ` + base64.StdEncoding.EncodeToString(stub) + `}}`
}

// TestNamespaceNamesWhoDeletedIt: the history of every object that was in a namespace, built-in or custom, names the
// person who deleted the namespace. Lists of that person's changes contain these deletions, too. Audits and policies
// see these deletions as made by the namespace controller.
func TestNamespaceNamesWhoDeletedIt(t *testing.T) {
	p := newPersons(t)
	const kinds = 50
	p.createNamespace("n")
	p.make("bob", schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicies"}, "", "keep",
		`{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicy, spec: {matchConstraints: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: "n"}}, resourceRules: [{apiGroups: ["*"], apiVersions: ["*"], operations: [DELETE], resources: ["*"]}]},
		matchConditions: [{name: content, expression: 'request.resource.resource != "namespaces"'}],
		validations: [{expression: 'request.userInfo.username in ["system:serviceaccount:kube-system:namespace-controller", "system:serviceaccount:kube-system:pvc-protection-controller"] &&
			request.userInfo.groups.exists_one(g, g == "system:serviceaccounts") && request.userInfo.groups.exists_one(g, g == "system:serviceaccounts:kube-system") &&
			request.userInfo.groups.exists_one(g, g == "system:authenticated") && request.userInfo.groups.size() == 3'}]}}`)
	p.make("bob", schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicybindings"}, "", "keep",
		`{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicyBinding, spec: {policyName: keep, validationActions: [Deny]}}`)
	client := discovery.NewDiscoveryClientForConfigOrDie(p.as("bob"))
	lists, err := client.ServerPreferredNamespacedResources()
	require.NoError(t, err)
	made := map[schema.GroupResource]bool{}
	lists = discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"create", "delete"}}, lists)
	served, err := discovery.GroupVersionResources(lists)
	require.NoError(t, err)
	for of := range served {
		if of.Group == "events.k8s.io" { // the same objects as in the core group
			continue
		}
		body, ok := namespaced[of.GroupResource().String()]
		require.True(t, ok, "%s has no body here: add one", of)
		p.make("bob", of, "n", "x", kindOf(lists, of)+body[1:])
		made[of.GroupResource()] = true
	}
	require.Len(t, made, len(namespaced))
	for i := len(made); i < kinds; i++ {
		plural, kind := fmt.Sprintf("widget%ds", i), fmt.Sprintf("Widget%d", i)
		p.createDefinitionOf(plural, kind)
		of := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: plural}
		p.make("bob", of, "n", "x", "{apiVersion: example.com/v1, kind: "+kind+"}")
		made[of.GroupResource()] = true
	}
	err = p.objects("alice").Resource(corev1.SchemeGroupVersion.WithResource("configmaps")).Namespace("n").Delete(t.Context(), "x", metav1.DeleteOptions{})
	require.True(t, apierrors.IsForbidden(err) || apierrors.IsInvalid(err), "the policy is in force: %v", err)

	client2, err := kubernetes.NewForConfig(p.as("alice", "carol"))
	require.NoError(t, err)
	require.NoError(t, client2.CoreV1().Namespaces().Delete(t.Context(), "n", metav1.DeleteOptions{}))
	began := p.last(corev1.Resource("namespaces"), "", "n")
	require.Equal(t, []string{"update", "alice", "carol"}, []string{began.Verb, began.User, began.ActingAs})
	require.Nil(t, began.Cause)
	p.work()
	require.Zero(t, p.allRows("n", func(eventlog.Key) bool { return true }))

	want := &history.Cause{User: "alice", ActingAs: "carol", Revision: began.Name}
	made[corev1.Resource("serviceaccounts")] = true
	for of := range made {
		v := p.last(of, "n", "x")
		require.Equal(t, "delete", v.Verb, of)
		require.Equal(t, want, v.Cause, of)
		require.Equal(t, "system:logplane:lifecycle", v.User, of)
		require.True(t, strings.HasPrefix(v.ActingAs, "system:serviceaccount:kube-system:"), v.ActingAs)
	}
	require.Equal(t, want, p.last(corev1.Resource("serviceaccounts"), "n", "default").Cause)
	gone := p.last(corev1.Resource("namespaces"), "", "n")
	require.Equal(t, "delete", gone.Verb)
	require.Equal(t, want, gone.Cause)
	for _, who := range []string{"alice", "carol"} {
		found := map[schema.GroupResource]bool{}
		for _, v := range p.list("changes", "n", "verb=delete,user="+who) {
			found[schema.GroupResource{Group: v.Object.Group, Resource: v.Object.Resource}] = true
		}
		require.Equal(t, made, found, "changes of %s", who)
	}
	require.Equal(t, []string{"system:serviceaccount:kube-system:namespace-controller"}, p.deleters("n", "alice"))
}

// kindOf is the beginning of a body, with its version and kind.
func kindOf(lists []*metav1.APIResourceList, of schema.GroupVersionResource) string {
	for _, list := range lists {
		for _, r := range list.APIResources {
			if list.GroupVersion == of.GroupVersion().String() && r.Name == of.Resource {
				return "{apiVersion: " + list.GroupVersion + ", kind: " + r.Kind + ", "
			}
		}
	}
	return "{"
}

// deleters are the users whose deletions in a namespace are in the audit log, except the user 'without'.
func (p *persons) deleters(namespace, without string) []string {
	p.Helper()
	file, err := os.Open(p.audit)
	require.NoError(p, err)
	defer file.Close()
	users := map[string]bool{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var e auditv1.Event
		require.NoError(p, json.Unmarshal(lines.Bytes(), &e))
		if e.ObjectRef.Namespace == namespace && e.ObjectRef.Resource != "namespaces" && e.User.Username != without {
			require.Nil(p, e.ImpersonatedUser)
			users[e.User.Username] = true
		}
	}
	return slices.Sorted(maps.Keys(users))
}

// TestOwnersNameWhoDeletedThem: every deleted and every orphaned object names the deletion of its owner and the person
// who deleted the owner. This holds for every deletion policy, with other writers of the objects, and with long chains
// of owners.
func TestOwnersNameWhoDeletedThem(t *testing.T) {
	for _, policy := range []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan} {
		t.Run(string(policy), func(t *testing.T) {
			p := newPersons(t)
			p.createNamespace("n")
			configs := corev1.SchemeGroupVersion.WithResource("configmaps")
			alice, bob := p.objects("alice").Resource(configs).Namespace("n"), p.objects("bob").Resource(configs).Namespace("n")
			owner := p.own("n", "owner")
			child := p.own("n", "child", ownerOf(owner, true))
			grandchild := p.own("n", "grandchild", ownerOf(child, true))
			p.own("n", "last", ownerOf(grandchild, false))
			hold := func(finalizers string) {
				_, err := bob.Patch(t.Context(), "owner", types.MergePatchType, []byte(`{"metadata":{"finalizers":`+finalizers+`}}`), metav1.PatchOptions{})
				require.NoError(t, err)
			}
			hold(`["example.com/hold"]`)
			require.NoError(t, alice.Delete(t.Context(), "owner", metav1.DeleteOptions{PropagationPolicy: &policy}))
			began := p.last(configs.GroupResource(), "n", "owner").Name
			_, err := bob.Patch(t.Context(), "owner", types.MergePatchType, []byte(`{"data":{"touched":"by bob"}}`), metav1.PatchOptions{})
			require.NoError(t, err)
			_, err = p.Once(t.Context())
			require.NoError(t, err)
			_, err = bob.Patch(t.Context(), "owner", types.JSONPatchType, []byte(`[{"op":"replace","path":"/metadata/finalizers","value":[]}]`), metav1.PatchOptions{})
			require.NoError(t, err)
			p.work()
			require.False(t, p.has("n", "owner"))
			_ = p.own("n", "owner") // another owner of the same name does not count

			want := &history.Cause{User: "alice", Revision: began}
			verb, names := "delete", []string{"child", "grandchild", "last"}
			if policy == metav1.DeletePropagationOrphan {
				verb, names = "update", names[:1]
			}
			for _, name := range names {
				v := p.last(configs.GroupResource(), "n", name)
				require.Equal(t, verb, v.Verb, name)
				require.Equal(t, want, v.Cause, name)
				require.Equal(t, "system:serviceaccount:kube-system:generic-garbage-collector", v.ActingAs)
			}
			if verb == "delete" {
				require.Contains(t, p.deleters("n", "alice"), "system:serviceaccount:kube-system:generic-garbage-collector")
			}
		})
	}
}

// TestDefinitionNamesWhoDeletedIt: the objects of a definition, and the objects that they own, name the person who
// deleted the definition.
func TestDefinitionNamesWhoDeletedIt(t *testing.T) {
	p := newPersons(t)
	p.createNamespace("n")
	p.createDefinition()
	widget := p.make("bob", widgets, "n", "w", "{apiVersion: example.com/v1, kind: Widget}")
	p.own("n", "child", metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Widget", Name: "w", UID: widget.GetUID()})
	definitions := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	require.NoError(t, p.objects("alice").Resource(definitions).Delete(t.Context(), "widgets.example.com", metav1.DeleteOptions{}))
	began := p.last(definitions.GroupResource(), "", "widgets.example.com").Name
	p.work()
	want := &history.Cause{User: "alice", Revision: began}
	require.Equal(t, want, p.last(definitions.GroupResource(), "", "widgets.example.com").Cause)
	require.Equal(t, want, p.last(corev1.Resource("configmaps"), "n", "child").Cause)
	p.createDefinition() // the history of a resource can be read only while the resource is served
	require.Equal(t, want, p.last(widgets.GroupResource(), "n", "w").Cause)
}

// TestNobodyForgesACause: a cause that a request claims is ignored, whichever user sends the request.
func TestNobodyForgesACause(t *testing.T) {
	p := newPersons(t)
	config := p.as("alice", "system:logplane:lifecycle")
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return tripper(func(r *http.Request) (*http.Response, error) {
			r.Header.Set("Logplane-Cause", "1\tbob")
			return next.RoundTrip(r)
		})
	})
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	_, err = client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	v := p.last(corev1.Resource("configmaps"), "default", "c")
	require.Nil(t, v.Cause)
	require.Equal(t, []string{"alice", "system:logplane:lifecycle"}, []string{v.User, v.ActingAs})
}

// TestOwnerInAnotherNamespace: if an object names an owner in another namespace, one Event reports it, as with
// upstream's collector. If the owner is gone, or never existed, there is no such Event.
func TestOwnerInAnotherNamespace(t *testing.T) {
	p := newPersons(t)
	p.createNamespace("n")
	p.createNamespace("m")
	owner := p.own("n", "owner")
	p.own("m", "wrong", ownerOf(owner, false))
	gone := p.own("n", "gone")
	p.own("n", "child", ownerOf(gone, false))
	p.own("n", "dangling", metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: "nobody"})
	p.make("bob", schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"}, "", "wide",
		fmt.Sprintf(`{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: owner, uid: %s}]}}`, owner.UID))
	p.deleteConfigMap("n", "gone", metav1.DeletePropagationBackground)
	p.work()
	p.restart()
	p.work()
	require.True(t, p.isGone("m", "wrong") && p.isGone("n", "child") && p.isGone("n", "dangling"))
	events, err := p.client.CoreV1().Events("").List(context.Background(), metav1.ListOptions{})
	require.NoError(t, err)
	said := map[string]string{}
	for _, e := range events.Items {
		require.Equal(t, []string{"OwnerRefInvalidNamespace", "Warning", "garbage-collector-controller"}, []string{e.Reason, e.Type, e.Source.Component})
		said[e.Namespace+" "+e.InvolvedObject.Kind+" "+e.InvolvedObject.Name] = e.Message
	}
	of := func(namespace string) string {
		return fmt.Sprintf("ownerRef [v1/ConfigMap, namespace: %s, name: owner, uid: %s] does not exist in namespace %q", namespace, owner.UID, namespace)
	}
	require.Equal(t, map[string]string{"m ConfigMap wrong": of("m"), "default ClusterRole wide": of("")}, said)
	require.Len(t, events.Items, 2)
}
