package apiserver

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/kubernetes/plugin/pkg/admission/serviceaccount"

	"github.com/logplane/logplane/internal/apiserver/cost"
	"github.com/logplane/logplane/internal/apiserver/description/spec"
	"github.com/logplane/logplane/internal/kubestore/kubestoretest"
	"github.com/logplane/logplane/projection"
)

const pods = "/api/v1/namespaces/default/pods"

func pod(name, more string) request {
	return request{method: "POST", path: pods, body: `{"metadata":{"name":"` + name + `"},"spec":{"containers":[{"name":"c","image":"i"}]` + more + `}}`}
}

// Admission sees the changes of the last write, even without a pause after the write.
func TestAdmission(t *testing.T) {
	s := newServer(t)
	missing := s.must(t, 404, request{method: "POST", path: "/api/v1/namespaces/nowhere/configmaps", body: `{"metadata":{"name":"x"}}`})
	require.Equal(t, `namespaces "nowhere" not found`, fieldOf(missing.object(t), "message"))
	s.must(t, 403, request{method: "DELETE", path: "/api/v1/namespaces/default"})

	s.must(t, 201, pod("plain", ""))
	s.must(t, 201, request{method: "POST", path: "/api/v1/namespaces/default/limitranges", body: `{"metadata":{"name":"x"},"spec":{"limits":[{"type":"Container","default":{"cpu":"1"},"max":{"cpu":"2"}}]}}`})
	require.Contains(t, s.must(t, 201, pod("limited", "")).body, `"cpu":"1"`)
	s.must(t, 200, request{method: "DELETE", path: "/api/v1/namespaces/default/limitranges/x"})
	require.NotContains(t, s.must(t, 201, pod("unlimited", "")).body, `"cpu":"1"`)

	s.must(t, 403, pod("urgent", `,"priorityClassName":"urgent"`))
	s.must(t, 201, request{method: "POST", path: "/apis/scheduling.k8s.io/v1/priorityclasses", body: `{"metadata":{"name":"urgent"},"value":7}`})
	require.EqualValues(t, 7, fieldOf(s.must(t, 201, pod("urgent", `,"priorityClassName":"urgent"`)).object(t), "spec.priority"))

	s.must(t, 201, request{method: "POST", path: "/apis/storage.k8s.io/v1/storageclasses", body: `{"metadata":{"name":"fast","annotations":{"storageclass.kubernetes.io/is-default-class":"true"}},"provisioner":"example.com/p"}`})
	claim := s.must(t, 201, request{method: "POST", path: "/api/v1/namespaces/default/persistentvolumeclaims", body: `{"metadata":{"name":"x"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}`})
	require.Equal(t, "fast", fieldOf(claim.object(t), "spec.storageClassName"))
}

// Row 6: nothing can be created in a namespace that is terminating.
func TestTerminatingNamespace(t *testing.T) {
	s := newServer(t)
	s.must(t, 201, request{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"leaving"}}`})
	s.must(t, 201, request{method: "POST", path: "/api/v1/namespaces/leaving/configmaps", body: `{"metadata":{"name":"x"}}`})
	s.must(t, 200, request{method: "DELETE", path: "/api/v1/namespaces/leaving"})
	refused := s.must(t, 403, request{method: "POST", path: "/api/v1/namespaces/leaving/configmaps", body: `{"metadata":{"name":"y"}}`})
	require.Contains(t, refused.body, "NamespaceTerminating")
	s.must(t, 200, request{method: "PUT", path: "/api/v1/namespaces/leaving/configmaps/x", body: `{"metadata":{"name":"x"},"data":{"still":"here"}}`})
}

// Two clusters of one cell do not see each other's objects.
func TestClustersAreApart(t *testing.T) {
	one := newServer(t)
	cell := one.config.Cell
	cell.Cluster = "other"
	other, err := New(Config{Cell: cell})
	require.NoError(t, err)
	one.must(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"x"}}`})
	other.must(t, 404, request{method: "GET", path: configMaps + "/x"})
	other.must(t, 404, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"x"}}`})
	other.must(t, 201, request{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"default"}}`})
	other.must(t, 201, request{method: "POST", path: configMaps, body: `{"metadata":{"name":"x"}}`})
	require.Len(t, one.must(t, 200, request{method: "GET", path: "/api/v1/configmaps"}).object(t)["items"], 1)
}

// TestAdmissionIsChosen: the flags switch plugins on and off, and the file configures them.
func TestAdmissionIsChosen(t *testing.T) {
	const pods = "/api/v1/namespaces/default/pods"
	pod := request{method: "POST", path: pods, body: `{"metadata":{"generateName":"p-"},"spec":{"hostNetwork":true,"containers":[{"name":"c","image":"i","imagePullPolicy":"Never"}]}}`}
	file := filepath.Join(t.TempDir(), "admission.yaml")
	require.NoError(t, os.WriteFile(file, []byte(`
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: PodSecurity
  configuration:
    apiVersion: pod-security.admission.config.k8s.io/v1
    kind: PodSecurityConfiguration
    defaults: {enforce: baseline}
- name: ResourceQuota
  configuration:
    apiVersion: apiserver.config.k8s.io/v1
    kind: ResourceQuotaConfiguration
    limitedResources:
    - {resource: secrets, matchContains: [count/secrets]}
`), 0o600))
	made := newServer(t).must(t, 201, pod)
	require.Contains(t, made.body, `"imagePullPolicy":"Never"`)
	s := newServer(t, func(c *Config) {
		c.Admission.Enable, c.Admission.Disable = []string{"AlwaysPullImages"}, []string{"ServiceAccount"}
	})
	made = s.must(t, 201, pod)
	require.Contains(t, made.body, `"imagePullPolicy":"Always"`)
	require.NotContains(t, made.body, "serviceAccountName")
	s = newServer(t, func(c *Config) { c.Admission.ConfigFile = file })
	require.Contains(t, s.must(t, 403, pod).body, "PodSecurity")
	refused := s.must(t, 403, request{method: "POST", path: "/api/v1/namespaces/default/secrets", body: `{"metadata":{"name":"a"}}`})
	require.Contains(t, refused.body, "insufficient quota to consume: count/secrets")

	for _, c := range []struct {
		admission Admission
		says      string
	}{
		{Admission{Enable: []string{"NoSuchPlugin"}}, "'NoSuchPlugin' is not known here"},
		{Admission{Disable: []string{cost.PluginName}}, "is not known here"},
		{Admission{Enable: []string{"PodSecurity"}, Disable: []string{"PodSecurity"}}, "both enabled and disabled"},
		{Admission{ConfigFile: file + ".missing"}, "no such file"},
	} {
		_, err := New(Config{Cell: kubestoretest.Cell(t, projection.Config{}), Admission: c.admission})
		require.ErrorContains(t, err, c.says)
	}
}

// unread are the attributes of a request for a resource that plugins must not look into.
type unread struct {
	admission.Attributes
	t      testing.TB
	plugin string
}

func (u unread) GetObject() runtime.Object    { return u.refuse() }
func (u unread) GetOldObject() runtime.Object { return u.refuse() }
func (u unread) refuse() runtime.Object {
	u.t.Helper()
	u.t.Errorf("plugin %s looks at %s of %v", u.plugin, u.GetOperation(), u.GetResource())
	return nil
}

// A plugin would ignore every request that sparing keeps from the plugin, without even looking into the request.
func TestPluginsJudgeNothingElse(t *testing.T) {
	s := newServer(t)
	groups := spec.Groups()
	plugins := admission.NewPlugins()
	plugins.Register(serviceaccount.PluginName, func(io.Reader) (admission.Interface, error) {
		return &serviceAccounts{serviceaccount.NewServiceAccount(), nil}, nil
	})
	for _, p := range admissionPlugins {
		judged, ok := judges[p.name]
		if !ok {
			continue
		}
		if p.register != nil {
			p.register(plugins)
		}
		chain, err := plugins.NewFromPlugins([]string{p.name}, noConfiguration{}, s.initializer(), nil)
		require.NoError(t, err)
		for _, g := range groups {
			for _, v := range g.Versions {
				for _, r := range v.Resources {
					name, subresource, _ := strings.Cut(r.Name, "/")
					resource := schema.GroupVersionResource{Group: g.Name, Version: v.Name, Resource: name}
					if slices.Contains(judged, resource.GroupResource()) {
						continue
					}
					kind := resource.GroupVersion().WithKind(r.Kind)
					for _, operation := range []admission.Operation{admission.Create, admission.Update, admission.Delete, admission.Connect} {
						a := unread{admission.NewAttributesRecord(nil, nil, kind, "ns", "x", resource, subresource, operation, nil, false, &user.DefaultInfo{}), t, p.name}
						require.NoError(t, chain.(admission.MutationInterface).Admit(t.Context(), a, nil), p.name)
						require.NoError(t, chain.(admission.ValidationInterface).Validate(t.Context(), a, nil), p.name)
					}
				}
			}
		}
	}
}

type noConfiguration struct{}

func (noConfiguration) ConfigFor(string) (io.Reader, error) { return nil, nil }
