package apiserver

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// A version in which objects are stored cannot be dropped, unless the CRD's status declares that there are no such
// objects. If such an object exists nevertheless, the answer to a request for the object is a 500 that names the object
// and the remedy. kube-apiserver answers 500, too.
func TestDroppedStoredVersion(t *testing.T) {
	s := newServer(t, withFeed(t))
	const crds, name = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "things.example.com"
	const v1, v2 = "/apis/example.com/v1/namespaces/default/things", "/apis/example.com/v2/namespaces/default/things"
	version := func(name string, served, stored bool) string {
		return fmt.Sprintf(`{"name":%q,"served":%t,"storage":%t,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}`, name, served, stored)
	}
	merge := func(path, body string) request {
		return request{method: "PATCH", path: path, body: body, contentType: "application/merge-patch+json"}
	}
	s.must(t, 201, request{method: "POST", path: crds, body: `{"metadata":{"name":"` + name + `"},"spec":{"group":"example.com","scope":"Namespaced",
		"names":{"plural":"things","kind":"Thing"},"versions":[` + version("v1", true, true) + `]}}`})
	s.must(t, 201, request{method: "POST", path: v1, body: `{"apiVersion":"example.com/v1","kind":"Thing","metadata":{"name":"x"}}`})
	s.must(t, 201, request{method: "POST", path: v1, body: `{"apiVersion":"example.com/v1","kind":"Thing","metadata":{"name":"gone"}}`})
	created := fieldOf(s.must(t, 200, request{method: "GET", path: v1}).object(t), "metadata.resourceVersion").(string)
	s.must(t, 200, request{method: "DELETE", path: v1 + "/gone"})
	s.must(t, 200, merge(crds+"/"+name, `{"spec":{"versions":[`+version("v1", true, false)+`,`+version("v2", true, true)+`]}}`))

	drop := merge(crds+"/"+name, `{"spec":{"versions":[`+version("v2", true, true)+`]}}`)
	require.Contains(t, s.must(t, 422, drop).body, "must remain in spec.versions until a storage migration")
	s.must(t, 200, merge(crds+"/"+name+"/status", `{"status":{"storedVersions":["v2"]}}`))
	s.must(t, 200, drop)
	for _, ask := range []request{{method: "GET", path: v2}, {method: "GET", path: v2 + "/x"}, {method: "DELETE", path: v2 + "/x"}, merge(v2+"/x", `{"a":1}`)} {
		status := s.must(t, 500, ask).object(t)
		require.Equal(t, map[bool]string{true: "StorageReadError", false: "InternalError"}[ask.path == v2], status["reason"])
		for _, said := range []string{"/example.com/things/default/x", "example.com/v1", "add it to the `spec.versions`"} {
			require.Contains(t, status["message"], said)
		}
	}

	before := fieldOf(s.must(t, 200, request{method: "GET", path: crds + "/" + name}).object(t), "metadata.resourceVersion").(string)

	// The message's advice works.
	s.must(t, 200, merge(crds+"/"+name, `{"spec":{"versions":[`+version("v1", false, false)+`,`+version("v2", true, true)+`]}}`))
	s.must(t, 200, merge(v2+"/x", `{"a":1}`))
	s.must(t, 200, merge(crds+"/"+name+"/status", `{"status":{"storedVersions":["v2"]}}`))
	s.must(t, 200, drop)
	require.Len(t, fieldOf(s.must(t, 200, request{method: "GET", path: v2}).object(t), "items"), 1)

	// The objects as they were then cannot be shown any more. Clients that want to continue from that revision must
	// list again.
	s.must(t, 410, request{method: "GET", path: v2 + "?resourceVersionMatch=Exact&resourceVersion=" + before})
	for _, query := range []string{"1", "1&labelSelector=x%3Dy", created} {
		ended := s.must(t, 200, request{method: "GET", path: v2 + "?watch=1&timeoutSeconds=60&resourceVersion=" + query}).body
		require.Contains(t, ended, `"code":410`)
	}
}
