package apiserver

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/logplane/logplane/internal/apiserver/clusters"
	"github.com/logplane/logplane/internal/apiserver/description/spec"
	"github.com/logplane/logplane/internal/apiserver/history"
)

const aggregatedJSON = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// Plain and aggregated discovery agree with each other, in every representation (rows 8 and 49).
func TestDiscovery(t *testing.T) {
	s := newServer(t)
	createWidgetCRD(t, s)
	for _, path := range []string{"/api", "/apis", "/api/v1", "/apis/apps", "/apis/apps/v1", "/apis/example.com", "/apis/example.com/v1", "/apis/example.com/v1/"} {
		for _, accept := range []string{"application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "application/cbor, application/json;q=0.9", "text/html, */*"} {
			require.Equal(t, 200, request{method: "GET", path: path, accept: accept}.do(t, s).code, "%s as %s", path, accept)
		}
		require.Equal(t, 406, request{method: "GET", path: path, accept: "text/html"}.do(t, s).code)
		require.Equal(t, 405, request{method: "POST", path: path, body: "{}"}.do(t, s).code)
	}
	for _, path := range []string{"/apis/nope", "/apis/nope/v1", "/apis/apps/v9", "/api/v9", "/apis/example.com/v9"} {
		a := request{method: "GET", path: path}.do(t, s)
		require.Equal(t, 404, a.code, path)
		require.Equal(t, "Status", a.object(t)["kind"], path)
	}
	var groups metav1.APIGroupList
	require.NoError(t, json.Unmarshal([]byte(request{method: "GET", path: "/apis"}.do(t, s).body), &groups))
	all := aggregatedAt(t, s, "/apis")
	require.Len(t, all.Items, len(groups.Groups))
	require.Equal(t, "example.com", groups.Groups[len(groups.Groups)-1].Name)
	for i, g := range groups.Groups {
		require.Equal(t, g.Name, all.Items[i].Name)
		require.Equal(t, g.PreferredVersion, g.Versions[0])
		for j, v := range g.Versions {
			require.Equal(t, v.Version, all.Items[i].Versions[j].Version)
			requireSameResources(t, s, "/apis/"+v.GroupVersion, all.Items[i].Versions[j])
		}
	}
	requireSameResources(t, s, "/api/v1", aggregatedAt(t, s, "/api").Items[0].Versions[0])
}

// If discovery says that a resource can be listed and watched, its objects can be deleted. Programs that mirror a
// cluster keep every such object. Changes are not deleted, so such a program would keep changes for ever, and each
// write of the program would be one more change. So the watch of changes is served, but discovery does not name it (row
// 73).
func TestOnlyObjectsAreMirrored(t *testing.T) {
	s := newServer(t)
	createWidgetCRD(t, s)
	seen := false
	for _, path := range []string{"/api", "/apis"} {
		for _, group := range aggregatedAt(t, s, path).Items {
			for _, version := range group.Versions {
				for _, r := range version.Resources {
					if slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "watch") {
						require.Contains(t, r.Verbs, "delete", "%s of %s", r.Resource, group.Name)
					}
					if group.Name == history.GroupName && r.Resource == "changes" {
						seen = true
						require.Equal(t, []string{"list"}, r.Verbs)
					}
				}
			}
		}
	}
	require.True(t, seen)
}

// Plain discovery states its kind and version as kube-apiserver does: '/api' has no version, and groups have no
// addresses.
func TestDiscoveryKinds(t *testing.T) {
	s := newServer(t)
	createWidgetCRD(t, s)
	for path, want := range map[string]string{
		"/api": "/APIVersions", "/apis": "v1/APIGroupList", "/api/v1": "/APIResourceList", "/apis/apps": "v1/APIGroup", "/apis/apps/v1": "v1/APIResourceList",
		"/apis/apiregistration.k8s.io": "v1/APIGroup", "/apis/example.com": "v1/APIGroup", "/apis/example.com/v1": "v1/APIResourceList",
	} {
		object := request{method: "GET", path: path}.do(t, s).object(t)
		version, _ := object["apiVersion"].(string)
		require.Equal(t, want, version+"/"+object["kind"].(string), path)
		require.Equal(t, path == "/api", object["serverAddressByClientCIDRs"] != nil, path)
	}
	groups := request{method: "GET", path: "/apis"}.do(t, s).object(t)["groups"].([]any)
	for _, g := range groups {
		require.NotContains(t, g, "serverAddressByClientCIDRs")
		require.NotContains(t, g, "kind")
	}
}

// Aggregated discovery omits the group and version of a built-in kind if they equal the group and version of the list.
// For custom resources, it states the group and version. kube-apiserver does the same.
func TestAggregatedKinds(t *testing.T) {
	s := newServer(t)
	createWidgetCRD(t, s)
	for _, g := range aggregatedAt(t, s, "/apis").Items {
		for _, v := range g.Versions {
			for _, r := range v.Resources {
				switch kind := *r.ResponseKind; {
				case g.Name == "example.com":
					require.Equal(t, metav1.GroupVersionKind{Group: g.Name, Version: v.Version, Kind: "Widget"}, kind)
				case r.Resource == "deployments":
					require.Equal(t, metav1.GroupVersionKind{Kind: "Deployment"}, kind)
					require.Equal(t, metav1.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"}, *r.Subresources[0].ResponseKind)
				}
			}
		}
	}
}

// On paths that allow only GET, other methods are answered 405 in kube-apiserver's words. Answers about the process
// must not be cached.
func TestWhatDescribesTheProcess(t *testing.T) {
	s := newServer(t)
	for _, path := range []string{"/version", "/version/", "/metrics", "/apis", "/apis/apps", "/"} {
		a := request{method: "POST", path: path, body: "{}"}.do(t, s)
		require.Equal(t, 405, a.code, path)
		require.Equal(t, "the server does not allow this method on the requested resource", a.object(t)["message"])
		require.Empty(t, a.object(t)["details"])
	}
	for _, path := range []string{"/healthz", "/livez", "/readyz", "/version"} {
		require.Equal(t, "no-cache, private", request{method: "GET", path: path}.do(t, s).header.Get("Cache-Control"), path)
	}
}

// '/' lists every path that a client can request without knowing a resource.
func TestIndex(t *testing.T) {
	s := newServer(t)
	createWidgetCRD(t, s)
	for _, path := range []string{"/", "/index.html"} {
		a := request{method: "GET", path: path}.do(t, s)
		require.Equal(t, 200, a.code, a.body)
		require.Equal(t, "application/json", a.header.Get("Content-Type"))
		var index metav1.RootPaths
		require.NoError(t, json.Unmarshal([]byte(a.body), &index))
		require.True(t, slices.IsSorted(index.Paths))
		for _, listed := range []string{"/api", "/api/v1", "/apis", "/apis/apps", "/apis/apps/v1", "/apis/example.com", "/apis/example.com/v1", "/healthz", "/livez/ping", "/metrics", "/openapi/v2", "/openapi/v3", "/readyz", "/statusz", "/version"} {
			require.Contains(t, index.Paths, listed)
		}
		require.NotContains(t, index.Paths, "")
		for _, listed := range index.Paths {
			require.Equal(t, 200, request{method: "GET", path: listed, accept: "application/json, text/plain"}.do(t, s).code, listed)
		}
	}
}

// '/version' says which version is served and which versions it is compatible with. No placeholder of upstream's is
// left.
func TestVersion(t *testing.T) {
	s := newServer(t)
	version := request{method: "GET", path: "/version"}.do(t, s).object(t)
	for field, want := range map[string]string{
		"gitVersion": spec.KubernetesVersion, "major": "1", "minor": "37", "emulationMajor": "1", "emulationMinor": "37",
		"minCompatibilityMajor": "1", "minCompatibilityMinor": "36",
	} {
		require.Equal(t, want, version[field], field)
	}
	require.NotContains(t, version["gitCommit"], "$")
	require.NotContains(t, version["gitTreeState"], "$")
}

func aggregatedAt(t *testing.T, s *Server, path string) (list apidiscoveryv2.APIGroupDiscoveryList) {
	t.Helper()
	a := request{method: "GET", path: path, accept: aggregatedJSON + ",application/json"}.do(t, s)
	require.Equal(t, aggregatedJSON, a.header.Get("Content-Type"))
	require.NoError(t, json.Unmarshal([]byte(a.body), &list))
	require.Equal(t, "APIGroupDiscoveryList", list.Kind)
	same := request{method: "GET", path: path, accept: aggregatedJSON, header: http.Header{"If-None-Match": {a.header.Get("Etag")}}}.do(t, s)
	require.Equal(t, 304, same.code)
	return list
}

func requireSameResources(t *testing.T, s *Server, path string, version apidiscoveryv2.APIVersionDiscovery) {
	t.Helper()
	var plain metav1.APIResourceList
	require.NoError(t, json.Unmarshal([]byte(request{method: "GET", path: path}.do(t, s).body), &plain))
	var want, got []string
	for _, r := range plain.APIResources {
		want = append(want, r.Name+" "+r.Kind+" "+strings.Join(r.Verbs, ","))
	}
	for _, r := range version.Resources {
		require.NotNil(t, r.ResponseKind)
		got = append(got, r.Resource+" "+r.ResponseKind.Kind+" "+strings.Join(r.Verbs, ","))
		for _, sub := range r.Subresources {
			got = append(got, r.Resource+"/"+sub.Subresource+" "+sub.ResponseKind.Kind+" "+strings.Join(sub.Verbs, ","))
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if path == "/api/v1" { // plain discovery lists a subresource without its resource, aggregated discovery puts it under an empty resource
		got = slices.DeleteFunc(got, func(r string) bool { return strings.HasSuffix(strings.Fields(r)[1], ",") })
	}
	require.Equal(t, want, got, path)
}

// The built-in groups are those that kube-apiserver serves by default, with the same resources and the same paths.
// Kubernetes' source lists everything that kube-apiserver serves if everything is switched on.
func TestSpecIsUpstreams(t *testing.T) {
	if testing.Short() {
		t.Skip("parses large documents")
	}
	folder, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil || strings.TrimSpace(string(folder)) == "" {
		t.Skip("the source of Kubernetes is not here")
	}
	published := filepath.Join(strings.TrimSpace(string(folder)), "api")
	groups := spec.Groups()
	index := spec.Builtin()
	for _, g := range groups {
		if g.Name == history.GroupName || g.Name == clusters.GroupName { // these groups are ours
			continue
		}
		for _, v := range g.Versions {
			path := "apis/" + g.Name + "/" + v.Name
			if g.Name == "" {
				path = "api/" + v.Name
			}
			file := strings.ReplaceAll(path, "/", "__")
			var list metav1.APIResourceList
			readJSON(t, filepath.Join(published, "discovery", file+".json"), &list)
			require.Equal(t, describeAll(list.APIResources), describeAll(v.Resources), path)

			require.Contains(t, index.V3, path)
			var want, got struct{ Paths map[string]json.RawMessage }
			require.NoError(t, json.Unmarshal(spec.V3(path, spec.JSON).Plain(), &got))
			readJSON(t, filepath.Join(published, "openapi-spec", "v3", file+"_openapi.json"), &want)
			for name, description := range want.Paths {
				require.JSONEq(t, string(description), string(got.Paths[name]), name)
			}
			require.Len(t, got.Paths, len(want.Paths), path)
		}
	}
}

func readJSON(t *testing.T, path string, into any) {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, into))
}

func describeAll(resources []metav1.APIResource) map[string]metav1.APIResource {
	all := map[string]metav1.APIResource{}
	for _, r := range resources {
		all[r.Name] = r
	}
	return all
}
