package main

import (
	"fmt"
	"strings"
)

const crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

func crd(plural, kind, more, versions string) string {
	return fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%s.compare.example"},
"spec":{"group":"compare.example","names":{"plural":%q,"kind":%q%s},"scope":"Namespaced","versions":[%s]}}`, plural, plural, kind, more, versions)
}

const gadgetSchema = `"schema":{"openAPIV3Schema":{"type":"object","properties":{
"spec":{"type":"object","required":["size"],"properties":{"size":{"type":"integer","minimum":1,"maximum":9},"color":{"type":"string","default":"red","enum":["red","blue"]},"open":{"type":"object","x-kubernetes-preserve-unknown-fields":true},
"parts":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["name"],"items":{"type":"object","required":["name"],"properties":{"name":{"type":"string"},"n":{"type":"integer"}}}},"replicas":{"type":"integer"}},
"x-kubernetes-validations":[{"rule":"self.size < 9 || self.color == 'blue'","message":"large ones are blue"}]},
"status":{"type":"object","properties":{"phase":{"type":"string"},"replicas":{"type":"integer"},"selector":{"type":"string"}}}}}}`

const gadgetMore = `,"subresources":{"status":{},"scale":{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas","labelSelectorPath":".status.selector"}},
"additionalPrinterColumns":[{"name":"Size","type":"integer","jsonPath":".spec.size"},{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}],"selectableFields":[{"jsonPath":".spec.color"}]`

// customResources creates, changes and deletes definitions and their objects.
func customResources(c *client) {
	const objects = "/apis/compare.example/v1/namespaces/compare/gadgets"
	v1 := `{"name":"v1","served":true,"storage":true,` + gadgetSchema + gadgetMore + `}`
	// The schema differs, because upstream refuses selectable fields if all versions have the same schema.
	v2 := `{"name":"v2","served":true,"storage":false,` + strings.Replace(gadgetSchema, `"maximum":9`, `"maximum":99`, 1) + `}`
	c.get(objects)
	for _, broken := range []string{
		crd("gadgets", "Gadget", "", ""), crd("gadgets", "Gadget", "", `{"name":"v1","served":true,"storage":true}`),
		crd("gadgets", "", "", v1), crd("gadgets", "Gadget", `,"singular":"Bad Name"`, v1), crd("gadgets", "Gadget", "", v1+","+v1),
		crd("gadgets", "Gadget", "", `{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"string","properties":{"a":{}}}}}`),
		`{"metadata":{"name":"wrong"},"spec":{"group":"compare.example"}}`, `{"metadata":{"name":"pods.k8s.io"},"spec":{"group":"k8s.io","scope":"Namespaced","names":{"plural":"pods","kind":"Pod"},"versions":[` + v2 + `]}}`,
	} {
		c.post(crds, broken)
	}
	c.post(crds+"?dryRun=All", crd("gadgets", "Gadget", `,"shortNames":["gd"],"categories":["all"]`, v1+","+v2))
	c.post(crds, crd("gadgets", "Gadget", `,"shortNames":["gd"],"categories":["all"]`, v1+","+v2))
	c.until(200, request{method: "GET", path: objects, quiet: true})
	c.until(200, request{method: "GET", path: "/apis/compare.example/v1", quiet: true})
	c.until(200, request{method: "GET", path: "/openapi/v3/apis/compare.example/v1", quiet: true})
	for _, accept := range []string{"", asTable, asProtobuf} {
		c.getAs(accept, crds+"/gadgets.compare.example")
	}
	c.post(crds, crd("clashes", "Gadget", `,"shortNames":["gd"]`, v1))
	c.do(request{method: "GET", path: "/apis/compare.example"})
	c.do(request{method: "GET", path: "/apis/compare.example/v1"})
	c.do(request{method: "GET", path: "/apis/compare.example/v2"})
	c.do(request{method: "GET", path: "/apis/compare.example/v3"})
	c.do(request{method: "GET", path: "/openapi/v3/apis/compare.example/v1", summarize: hashed})
	gadget := func(name, spec string) string {
		return fmt.Sprintf(`{"apiVersion":"compare.example/v1","kind":"Gadget","metadata":{"name":%q,"labels":{"part":"gadgets"}},"spec":{%s}}`, name, spec)
	}
	for _, spec := range []string{`"size":3`, `"size":0`, `"size":"x"`, `"size":9`, `"size":9,"color":"blue"`, `"size":3,"color":"green"`, `"size":3,"unknown":1`, `"size":3,"open":{"a":{"b":[1]}}`, `"size":3,"parts":[{"name":"a"},{"name":"a"}]`, `"size":3,"parts":[{"n":1}]`, ``} {
		for _, validation := range []string{"", "?fieldValidation=Strict", "?fieldValidation=Warn"} {
			c.post(objects+validation, gadget("validated", spec))
			c.do(request{method: "DELETE", path: objects + "/validated", quiet: true})
		}
	}
	for _, body := range []string{`{}`, `{"kind":"Gadget"}`, `{"apiVersion":"compare.example/v2","kind":"Gadget","metadata":{"name":"x"},"spec":{"size":1}}`, `{"apiVersion":"compare.example/v1","kind":"Widget","metadata":{"name":"x"}}`, `{`, `[]`} {
		c.post(objects, body)
	}
	c.do(request{method: "POST", path: objects, body: "apiVersion: compare.example/v1\nkind: Gadget\nmetadata: {name: from-yaml}\nspec: {size: 1, parts: [{name: a}]}\n", contentType: asYAML})
	c.do(request{method: "POST", path: objects, body: gadget("proto", `"size":1`), contentType: asProtobuf})
	live(c, sample{objects, "Gadget", "compare.example/v1", `"spec":{"size":2,"parts":[{"name":"a","n":1}]}`, []string{"status", "scale"}})
	for _, accept := range []string{"", asYAML, asCBOR, asProtobuf, asTable, asPartial} {
		c.getAs(accept, objects+"/from-yaml")
		c.getAs(accept, "/apis/compare.example/v2/namespaces/compare/gadgets/from-yaml")
		c.getAs(accept, objects)
	}
	c.patch(strategicPatch, objects+"/from-yaml", `{"spec":{"size":2}}`)
	c.patch(applyYAML, objects+"/from-yaml?fieldManager=a", `{"apiVersion":"compare.example/v1","kind":"Gadget","metadata":{"name":"from-yaml"},"spec":{"size":1,"parts":[{"name":"b","n":2}]}}`)
	c.patch(applyYAML, objects+"/from-yaml?fieldManager=b", `{"apiVersion":"compare.example/v1","kind":"Gadget","metadata":{"name":"from-yaml"},"spec":{"parts":[{"name":"b","n":3}]}}`)
	c.patch(applyYAML, objects+"/applied?fieldManager=b", `{"apiVersion":"compare.example/v1","kind":"Gadget","metadata":{"name":"applied"},"spec":{"size":4}}`)
	for _, selector := range []string{"spec.color=red", "spec.color!=red", "spec.size=1", "metadata.name=applied"} {
		c.get(objects + "?fieldSelector=" + escape(selector))
	}
	from := c.get(objects).at("metadata.resourceVersion")
	c.patch(mergePatch, objects+"/applied", `{"spec":{"color":"blue"},"status":{"phase":"ignored"}}`)
	c.patch(mergePatch, objects+"/applied/status", `{"spec":{"size":5},"status":{"phase":"set"}}`)
	c.watch(objects + "?resourceVersion=" + from)
	c.getAs(asTable, objects+"?watch=1&timeoutSeconds=1&resourceVersion="+from)
	c.watch(objects + "?resourceVersion=" + from + "&fieldSelector=spec.color%3Dred")
	c.delete(objects+"?labelSelector=part%3Dnone", "")
	current := c.get(crds + "/gadgets.compare.example")
	c.put(crds+"/gadgets.compare.example", current.json(label("changed", "yes")))
	c.put(crds+"/gadgets.compare.example", current.json(label("changed", "again")))
	c.patch(mergePatch, crds+"/gadgets.compare.example", `{"spec":{"scope":"Cluster"}}`)
	c.patch(mergePatch, crds+"/gadgets.compare.example", `{"spec":{"group":"other.example"}}`)
	c.patch(mergePatch, crds+"/gadgets.compare.example/status", `{"status":{"storedVersions":["v2"]}}`)
	c.delete(crds+"/gadgets.compare.example?dryRun=All", "")
	c.delete(crds+"/gadgets.compare.example", "")
	c.until(404, request{method: "GET", path: crds + "/gadgets.compare.example"})
	c.until(404, request{method: "GET", path: objects + "/from-yaml"})
	c.until(404, request{method: "GET", path: "/apis/compare.example/v2", quiet: true})
	// The other definition gets the names first; after its deletion this definition gets them.
	c.await(request{method: "GET", path: crds + "/clashes.compare.example"}, condition("Established", "True"))
	c.post(crds, crd("gadgets", "Gadget", "", v1))
	c.await(request{method: "GET", path: crds + "/gadgets.compare.example"}, condition("NamesAccepted", "False"))
	c.get(objects)
	c.delete(crds+"/clashes.compare.example", "")
	c.await(request{method: "GET", path: crds + "/gadgets.compare.example"}, condition("Established", "True"))
	c.until(200, request{method: "GET", path: objects})
	c.delete(crds+"/gadgets.compare.example", "")
	c.until(404, request{method: "GET", path: crds + "/gadgets.compare.example"})
}

// condition returns a check that one of a definition's conditions has the status.
func condition(kind, status string) func(answer) bool {
	return func(a answer) bool {
		for _, one := range a.conditions() {
			if c, _ := one.(map[string]any); c["type"] == kind {
				return c["status"] == status
			}
		}
		return false
	}
}

// namespaces deletes namespaces with and without finalizers. kube-apiserver by itself does not empty a namespace.
func namespaces(c *client) {
	const all = "/api/v1/namespaces"
	c.post(all, `{"metadata":{"name":"Bad_Name"}}`)
	c.post(all, `{"metadata":{"name":"doomed","finalizers":["example.com/keep"]}}`)
	c.post(all, `{"metadata":{"name":"doomed"}}`)
	c.post(all+"/doomed/configmaps", configMap("inside", ""))
	c.patch(mergePatch, all+"/doomed", `{"spec":{"finalizers":[]}}`)
	c.put(all+"/doomed/finalize", `{"metadata":{"name":"other"},"spec":{}}`)
	c.patch(mergePatch, all+"/doomed/status", `{"status":{"phase":"Terminating"}}`)
	c.delete(all+"/doomed?dryRun=All", "")
	c.delete(all+"/doomed", `{"preconditions":{"uid":"11111111-2222-3333-4444-555555555555"}}`)
	c.delete(all+"/doomed", "")
	c.post(all+"/doomed/configmaps", configMap("late", ""))
	c.post(all+"/doomed/configmaps?dryRun=All", configMap("late", ""))
	c.delete(all+"/default", "")
	c.delete(all+"/kube-system", "")
	c.getAs(asTable, all+"/compare")
}

// access compares the answers to users without rights, and the answers of reviews about such users.
func access(c *client) {
	for _, user := range []string{"stranger", "unknown", "nobody"} {
		for _, path := range []string{"/", "/api", "/apis/apps", "/apis/apps/v1", "/version", "/healthz", "/readyz", "/metrics", "/openapi/v3/apis/apps/v1", home + "/configmaps", "/api/v1/nodes", "/api/v1/namespaces/compare", "/apis/none.example/v1/things", "/nothing", crds} {
			c.do(request{method: "GET", path: path, user: user, summarize: hashed})
		}
		c.do(request{method: "POST", path: home + "/configmaps", body: configMap("x", ""), user: user})
		c.do(request{method: "DELETE", path: home + "/configmaps/x", user: user})
		c.do(request{method: "DELETE", path: home + "/configmaps", user: user})
		c.do(request{method: "GET", path: home + "/configmaps?watch=1", user: user})
		c.do(request{method: "GET", path: home + "/pods/x/log", user: user})
		c.do(request{method: "POST", path: "/apis/authentication.k8s.io/v1/selfsubjectreviews", body: `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`, user: user})
		c.do(request{method: "POST", path: "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", body: `{"spec":{"namespace":"compare"}}`, user: user})
		c.do(request{method: "POST", path: "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body: `{"spec":{"resourceAttributes":{"namespace":"compare","verb":"get","resource":"pods"}}}`, user: user})
	}
	const rbac = "/apis/rbac.authorization.k8s.io/v1"
	c.post(rbac+"/clusterroles", `{"metadata":{"name":"worker"},"rules":[{"apiGroups":[""],"resources":["configmaps","secrets","pods"],"verbs":["*"]}]}`)
	c.post(rbac+"/namespaces/compare/rolebindings", `{"metadata":{"name":"viewer"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"worker"},"subjects":[{"kind":"User","name":"stranger","apiGroup":"rbac.authorization.k8s.io"}]}`)
	as := func(method, path, body string) {
		c.do(request{method: method, path: path, body: body, user: "stranger"})
	}
	c.until(200, request{method: "GET", path: home + "/configmaps?labelSelector=none", user: "stranger"})
	as("POST", home+"/configmaps", configMap("granted", ""))
	as("GET", home+"/configmaps/granted", "")
	as("DELETE", home+"/configmaps/granted", "")
	as("GET", "/api/v1/configmaps", "")
	as("GET", home+"/secrets?labelSelector=none", "")
	as("POST", rbac+"/namespaces/compare/roles", `{"metadata":{"name":"r"},"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]}`)
	as("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", `{"spec":{"namespace":"compare"}}`)
	c.post(rbac+"/clusterroles", `{"metadata":{"name":"granter"},"rules":[{"apiGroups":["rbac.authorization.k8s.io"],"resources":["roles","rolebindings"],"verbs":["create","update","get"]}]}`)
	c.post(rbac+"/namespaces/compare/rolebindings", `{"metadata":{"name":"granter"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"granter"},"subjects":[{"kind":"User","name":"stranger","apiGroup":"rbac.authorization.k8s.io"}]}`)
	c.until(404, request{method: "GET", path: rbac + "/namespaces/compare/roles/none", user: "stranger"})
	as("POST", rbac+"/namespaces/compare/roles", `{"metadata":{"name":"less"},"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]}`)
	as("POST", rbac+"/namespaces/compare/roles", `{"metadata":{"name":"more"},"rules":[{"apiGroups":[""],"resources":["nodes"],"verbs":["*"]}]}`)
	as("POST", rbac+"/namespaces/compare/rolebindings", `{"metadata":{"name":"up"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"}}`)
	c.patch(mergePatch, rbac+"/namespaces/compare/rolebindings/viewer", `{"roleRef":{"name":"admin"}}`)
	for _, body := range []string{
		`{"spec":{"user":"stranger","resourceAttributes":{"namespace":"compare","verb":"get","resource":"configmaps"}}}`,
		`{"spec":{"user":"stranger","resourceAttributes":{"verb":"get","resource":"nodes"}}}`,
		`{"spec":{"user":"stranger","nonResourceAttributes":{"path":"/metrics","verb":"get"}}}`,
		`{"spec":{"user":"x","groups":["system:masters"],"nonResourceAttributes":{"path":"/metrics","verb":"get"}}}`,
		`{"spec":{"user":"stranger"}}`, `{"spec":{}}`, `{"spec":{"resourceAttributes":{"verb":"get"},"nonResourceAttributes":{"path":"/"}}}`,
	} {
		c.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
		c.post("/apis/authorization.k8s.io/v1/namespaces/compare/localsubjectaccessreviews", body)
	}
	for _, token := range []string{c.users["stranger"], "nonsense", ""} {
		c.do(request{method: "POST", path: "/apis/authentication.k8s.io/v1/tokenreviews", body: `{"spec":{"token":"` + token + `"}}`, secret: c.users["stranger"]})
	}
	for _, header := range []map[string]string{{"Impersonate-User": "stranger"}, {"Impersonate-User": "somebody", "Impersonate-Group": "system:masters"}, {"Impersonate-Group": "x"}, {"Impersonate-User": "system:serviceaccount:compare:default"}, {"Impersonate-Uid": "1"}} {
		c.do(request{method: "GET", path: home + "/configmaps?labelSelector=none", header: header})
		c.do(request{method: "GET", path: "/api/v1/nodes?labelSelector=none", header: header})
		c.do(request{method: "POST", path: "/apis/authentication.k8s.io/v1/selfsubjectreviews", body: `{}`, header: header})
	}
	c.do(request{method: "GET", path: home + "/configmaps?labelSelector=none", header: map[string]string{"Impersonate-User": "x"}, user: "stranger"})
	c.do(request{method: "POST", path: home + "/serviceaccounts/default/token", body: `{"spec":{}}`})
}
