package apiserver

import (
	"bufio"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/internal/apiserver/clusters"
	"github.com/logplane/logplane/projection"
)

const clustersPath = "/apis/clusters.logplane.dev/v1/clusters"

// branchOf is a Cluster as a client writes it.
func branchOf(name, more string) string {
	return `{"apiVersion":"clusters.logplane.dev/v1","kind":"Cluster","metadata":{"name":"` + name + `"},"spec":{"from":{"cluster":"main"}` + more + `}}`
}

// branches returns the names of the branches' rows.
func (s *Server) branches(t *testing.T) (all []string) {
	t.Helper()
	v, err := s.config.Cell.Consistent(t.Context())
	require.NoError(t, err)
	start := projection.BranchKey("").RowKey()
	for row, err := range v.Scan(t.Context(), start, projection.PrefixEnd(start), v.Revision()) {
		require.NoError(t, err)
		all = append(all, row.ID.Name)
	}
	return all
}

// TestClusters: the branch's row exists exactly as long as the Cluster.
func TestClusters(t *testing.T) {
	s := newServer(t, withTokens(t), func(c *Config) { c.Authorization.Mode = "RBAC" })
	made := s.must(t, 201, request{method: "POST", path: clustersPath, body: branchOf("a", `,"ttl":"2h"`)}.as("root")).object(t)
	uid := strings.ReplaceAll(fieldOf(made, "metadata.uid").(string), "-", "")
	key := "a." + uid[:12]
	require.Equal(t, key, fieldOf(made, "status.key"))
	require.Equal(t, "main", fieldOf(made, "status.source"))
	require.Equal(t, "root", fieldOf(made, "status.creator"))
	require.Positive(t, fieldOf(made, "status.revision"))
	require.Equal(t, 1.0, fieldOf(made, "metadata.generation"))
	require.NotContains(t, fmt.Sprint(fieldOf(made, "metadata.managedFields")), "status", "nobody manages the status")
	require.Equal(t, []string{key}, s.branches(t))
	v, err := s.config.Cell.Consistent(t.Context())
	require.NoError(t, err)
	branch, err := v.Branch(t.Context(), key)
	require.NoError(t, err)
	require.Equal(t, "main", branch.Source)
	require.EqualValues(t, fieldOf(made, "status.revision"), branch.At)

	get := request{method: "GET", path: clustersPath + "/a"}.as("root")
	require.Equal(t, made, s.must(t, 200, get).object(t))
	s.must(t, 409, request{method: "POST", path: clustersPath, body: branchOf("a", "")}.as("root"))
	list := s.must(t, 200, request{method: "GET", path: clustersPath}.as("root")).object(t)
	require.Equal(t, "ClusterList", list["kind"])
	require.Len(t, list["items"], 1)
	require.Nil(t, list["items"].([]any)[0].(map[string]any)["kind"], "row 34")
	table := request{method: "GET", path: clustersPath, accept: "application/json;as=Table;v=v1;g=meta.k8s.io"}.as("root")
	columns, rows := []any{}, s.must(t, 200, table).object(t)
	for _, column := range rows["columnDefinitions"].([]any) {
		columns = append(columns, column.(map[string]any)["name"])
	}
	require.Equal(t, []any{"Name", "From", "At", "TTL", "Age", "Key"}, columns)
	cells := rows["rows"].([]any)[0].(map[string]any)["cells"].([]any)
	require.Equal(t, []any{"a", "main", fieldOf(made, "status.revision"), "2h0m0s", cells[4], key}, cells)

	s.must(t, 200, request{method: "DELETE", path: clustersPath + "/a"}.as("root"))
	s.must(t, 404, get)
	require.Empty(t, s.branches(t))
	again := s.must(t, 201, request{method: "POST", path: clustersPath, body: branchOf("a", "")}.as("root")).object(t)
	require.NotEqual(t, key, fieldOf(again, "status.key"))
	s.must(t, 201, request{method: "POST", path: clustersPath, body: branchOf("b", "")}.as("root"))
	require.Len(t, s.branches(t), 2)
	s.must(t, 403, request{method: "GET", path: clustersPath}.as("ann"))
	s.must(t, 200, request{method: "DELETE", path: clustersPath}.as("root"))
	require.Empty(t, s.branches(t))
}

// TestGeneratedNames: the server also completes names of Clusters (row 9).
func TestGeneratedNames(t *testing.T) {
	s := newServer(t)
	body := strings.Replace(branchOf("", ""), `"name":""`, `"generateName":"try-"`, 1)
	made := s.must(t, 201, request{method: "POST", path: clustersPath, body: body}).object(t)
	require.Regexp(t, `^try-[a-z0-9]{5}\.[0-9a-f]{12}$`, fieldOf(made, "status.key"))
	require.Equal(t, []string{fieldOf(made, "status.key").(string)}, s.branches(t))
}

// TestBranchLivesUntilTheLastFinalizer: the deletion of a Cluster with a finalizer does not end the branch.
func TestBranchLivesUntilTheLastFinalizer(t *testing.T) {
	s := newServer(t)
	held := strings.Replace(branchOf("a", ""), `"name"`, `"finalizers":["example.com/hold"],"name"`, 1)
	s.must(t, 201, request{method: "POST", path: clustersPath, body: held})
	s.must(t, 200, request{method: "DELETE", path: clustersPath + "/a"})
	require.Len(t, s.branches(t), 1)
	s.must(t, 200, merging("PATCH", clustersPath+"/a", `{"metadata":{"finalizers":null}}`))
	require.Empty(t, s.branches(t))
}

// TestClusterIsImmutable: only the ttl of a Cluster can be changed, and its metadata. The status is the server's.
func TestClusterIsImmutable(t *testing.T) {
	s := newServer(t)
	lie := strings.Replace(branchOf("a", ""), `"spec"`, `"status":{"key":"main","source":"x","revision":9,"creator":"x"},"spec"`, 1)
	made := s.must(t, 201, request{method: "POST", path: clustersPath, body: lie}).object(t)
	require.Regexp(t, `^a\.[0-9a-f]{12}$`, fieldOf(made, "status.key"))
	for _, from := range []string{`null`, `{"cluster":"other"}`, `{"at":"1"}`} {
		refused := s.must(t, 422, merging("PATCH", clustersPath+"/a", `{"spec":{"from":`+from+`}}`))
		require.Contains(t, refused.body, "spec.from: Invalid value")
	}
	changed := s.must(t, 200, merging("PATCH", clustersPath+"/a", `{"spec":{"ttl":"1h"},"status":{"key":"main"}}`)).object(t)
	require.Equal(t, "1h0m0s", fieldOf(changed, "spec.ttl"))
	require.Equal(t, fieldOf(made, "status"), fieldOf(changed, "status"))
	require.Equal(t, 2.0, fieldOf(changed, "metadata.generation"))
	require.Len(t, s.branches(t), 1)
	s.must(t, 404, merging("PATCH", clustersPath+"/a/status", `{"status":{"key":"main"}}`))
}

func TestInvalidClusters(t *testing.T) {
	s := newServer(t)
	for body, why := range map[string]string{
		branchOf("main", ""):                     "every cell has a cluster of this name",
		branchOf("A", ""):                        "RFC 1123 label",
		branchOf("a.b", ""):                      "must not contain dots",
		branchOf(strings.Repeat("a", 41), ""):    "no more than 40",
		branchOf("a", `,"ttl":"0s"`):             "spec.ttl",
		branchOf("a", `,"ttl":"-1h"`):            "spec.ttl",
		fromOf(`{"cluster":""}`):                 "spec.from.cluster: Required",
		fromOf(`{"cluster":"main","at":"soon"}`): "is not a valid moment",
	} {
		refused := s.must(t, 422, request{method: "POST", path: clustersPath, body: body})
		require.Contains(t, refused.body, why, body)
	}
	s.must(t, 404, request{method: "POST", path: clustersPath, body: fromOf(`{"cluster":"other"}`)})
	s.must(t, 201, request{method: "POST", path: clustersPath, body: branchOf(strings.Repeat("a", 40), "")})
	require.Len(t, s.branches(t), 1)
}

func fromOf(from string) string {
	return `{"metadata":{"name":"a"},"spec":{"from":` + from + `}}`
}

// TestDryRunOfClusters: a dry run shows the Cluster, and leaves nothing.
func TestDryRunOfClusters(t *testing.T) {
	s := newServer(t)
	dry := s.must(t, 201, request{method: "POST", path: clustersPath + "?dryRun=All", body: branchOf("a", "")})
	require.Equal(t, "main", fieldOf(dry.object(t), "status.source"))
	apply := appliedBy(clustersPath+"/a", "one", branchOf("a", ""))
	apply.path += "&dryRun=All"
	require.Equal(t, "main", fieldOf(s.must(t, 201, apply).object(t), "status.source"))
	s.must(t, 404, request{method: "GET", path: clustersPath + "/a"})
	require.Empty(t, s.branches(t))
	s.must(t, 201, request{method: "POST", path: clustersPath, body: branchOf("a", "")})
	s.must(t, 200, request{method: "DELETE", path: clustersPath + "/a?dryRun=All"})
	require.Len(t, s.branches(t), 1)
}

// appliedBy is a server-side apply.
func appliedBy(path, manager, body string) request {
	return request{method: "PATCH", path: path + "?fieldManager=" + manager, body: body, contentType: "application/apply-patch+yaml"}
}

// TestApplyOfClusters: an apply creates a Cluster, and managers own its fields.
func TestApplyOfClusters(t *testing.T) {
	s := newServer(t)
	made := s.must(t, 201, appliedBy(clustersPath+"/a", "one", branchOf("a", `,"ttl":"1h"`))).object(t)
	require.Equal(t, []string{fieldOf(made, "status.key").(string)}, s.branches(t))
	s.must(t, 409, appliedBy(clustersPath+"/a", "two", branchOf("a", `,"ttl":"2h"`)))
	changed := s.must(t, 200, appliedBy(clustersPath+"/a", "one", branchOf("a", ""))).object(t)
	require.Nil(t, fieldOf(changed, "spec.ttl"), "a field that its only manager no longer applies is removed")
	s.must(t, 400, appliedBy(clustersPath+"/b", "one", branchOf("b", `,"color":"red"`)))
}

func TestWatchOfClusters(t *testing.T) {
	s := newServer(t, withFeed(t))
	listener := httptest.NewServer(s)
	t.Cleanup(listener.Close)
	r, err := http.NewRequestWithContext(t.Context(), "GET", listener.URL+clustersPath+"?watch=1&timeoutSeconds=30", nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer response.Body.Close()
	require.Equal(t, 200, response.StatusCode)
	s.must(t, 201, request{method: "POST", path: clustersPath, body: branchOf("a", "")})
	s.must(t, 200, merging("PATCH", clustersPath+"/a", `{"spec":{"ttl":"1h"}}`))
	s.must(t, 200, request{method: "DELETE", path: clustersPath + "/a"})
	lines := bufio.NewReader(response.Body)
	for _, want := range []string{"ADDED", "MODIFIED", "DELETED"} {
		line, err := lines.ReadString('\n')
		require.NoError(t, err)
		event := answer{body: line}.object(t)
		require.Equal(t, want, event["type"])
		require.Equal(t, "Cluster", fieldOf(event, "object.kind"))
		require.Equal(t, "main", fieldOf(event, "object.status.source"))
	}
}

// TestOnlyMainHasClusters: the server of another cluster neither serves nor describes the group. Its OpenAPI v2, which
// is one document, is as the one of main.
func TestOnlyMainHasClusters(t *testing.T) {
	main := newServer(t)
	other := newServer(t, func(c *Config) { c.Cell = main.config.Cell; c.Cell.Cluster = "other" })
	const group, document = "/apis/" + clusters.GroupName, "/openapi/v3/apis/" + clusters.GroupName + "/v1"
	for _, path := range []string{group, group + "/v1", clustersPath, document} {
		main.must(t, 200, request{method: "GET", path: path})
		other.must(t, 404, request{method: "GET", path: path})
	}
	unknown := request{method: "GET", path: "/apis/unknown.logplane.dev/v1/clusters"}
	require.Equal(t, other.must(t, 404, unknown).body, other.must(t, 404, request{method: "GET", path: clustersPath}).body)
	other.must(t, 404, request{method: "POST", path: clustersPath, body: branchOf("a", "")})
	for _, ask := range []request{
		{path: "/"}, {path: "/apis"}, {path: "/openapi/v3"},
		{path: "/apis", accept: "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"},
	} {
		ask.method = "GET"
		require.Contains(t, main.must(t, 200, ask).body, clusters.GroupName, ask.path)
		body := other.must(t, 200, ask).body
		require.NotContains(t, body, clusters.GroupName, ask.path)
		require.Contains(t, body, "history.logplane.dev", ask.path)
	}
	require.Empty(t, main.branches(t))
	past := request{method: "GET", path: historyPath + "/versions?fieldSelector=object%3Dclusters/a"}
	main.must(t, 200, past)
	require.Contains(t, other.must(t, 400, past).body, "there is no resource 'clusters'")
}

// TestPastOfClusters: the past and the history of Clusters can be read like those of other objects.
func TestPastOfClusters(t *testing.T) {
	s := newArchive(t)
	made := s.must(t, 201, request{method: "POST", path: clustersPath, body: branchOf("a", "")}.as("root")).object(t)
	s.must(t, 200, merging("PATCH", clustersPath+"/a", `{"spec":{"ttl":"1h"}}`).as("root"))
	s.must(t, 200, request{method: "DELETE", path: clustersPath + "/a"}.as("root"))
	past := request{method: "GET", path: fmt.Sprintf("/at/%v%s/a", fieldOf(made, "metadata.resourceVersion"), clustersPath)}
	require.Equal(t, made, s.must(t, 200, past.as("root")).object(t))
	list := s.versions(t, 200, "root", historyPath+"/versions?fieldSelector=object%3Dclusters.clusters.logplane.dev/a")
	require.Equal(t, []string{"delete", "update", "create"}, []string{list.Items[0].Verb, list.Items[1].Verb, list.Items[2].Verb})
	require.Equal(t, []string{"spec.ttl"}, list.Items[1].Changed)
}
