package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// discovery asks for the groups and resources, at every path that either server lists.
func discovery(c *client) {
	for _, path := range []string{"/", "/index.html", "/version", "/version/", "/healthz", "/livez", "/readyz", "/healthz/ping", "/api", "/apis"} {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH"} {
			c.do(request{method: method, path: path})
		}
	}
	for _, path := range []string{"/.well-known/openid-configuration", "/openid/v1/jwks", "/openid/v1/jwks/"} {
		for _, method := range []string{"GET", "HEAD", "POST"} {
			c.do(request{method: method, path: path, accept: "*/*", summarize: anyKey})
		}
		c.do(request{method: "GET", path: path, accept: "application/jwk-set+json", summarize: anyKey})
		c.do(request{method: "GET", path: path, summarize: anyKey})
	}
	for _, path := range []string{"/api/", "/apis/", "/nothing", "/nothing/at/all", "/api/v2", "/api/v1/", "/apis/none.example", "/apis/none.example/v1", "/apis/apps/v7", "/apis/apps/", "/apis/apps/v1/", "//api", "/healthz/nothing", "/api/v1/nothing", "/apis/apps/v1/nothing", "/favicon.ico"} {
		c.get(path)
	}
	for _, path := range apiPaths(c) {
		for _, accept := range []string{"", asYAML, asProtobuf, asCBOR, "text/html", "*/*", "text/html, */*"} {
			c.getAs(accept, path)
		}
	}
	for _, path := range []string{"/api", "/apis"} {
		for _, accept := range []string{aggregated, strings.Replace(aggregated, "v=v2", "v=v2beta1", 1), aggregated + ",application/json", strings.Replace(aggregated, "json", "cbor", 1), strings.Replace(aggregated, "application/json", asProtobuf, 1)} {
			c.getAs(accept, path)
		}
	}
}

// anyKey blanks the public keys, so that only their number is compared.
func anyKey(document any) any {
	set, _ := document.(map[string]any)
	keys, _ := set["keys"].([]any)
	for _, k := range keys {
		if key, ok := k.(map[string]any); ok {
			key["kid"], key["x"], key["y"] = "", "", ""
		}
	}
	return document
}

// apiPaths returns the groups and versions that the server lists.
func apiPaths(c *client) []string {
	listed, _ := c.do(request{method: "GET", path: "/", quiet: true}).document.(map[string]any)
	all, _ := listed["paths"].([]any)
	paths := []string{"/api", "/api/v1", "/apis"}
	for _, p := range all {
		path, _ := p.(string)
		if strings.HasPrefix(path, "/apis/") && path != "/apis/" {
			paths = append(paths, path)
		}
	}
	return paths
}

// openapi compares documents path by path and type by type, each by its hash.
func openapi(c *client) {
	for _, path := range apiPaths(c) {
		if strings.Count(path, "/") == 3 || path == "/api/v1" || path == "/api" || path == "/apis" {
			c.do(request{method: "GET", path: "/openapi/v3" + path, summarize: hashed})
		}
	}
	for _, path := range []string{"/.well-known/openid-configuration", "/openid/v1/jwks", "/version"} {
		c.do(request{method: "GET", path: "/openapi/v3" + path, summarize: hashed})
	}
	c.do(request{method: "GET", path: "/openapi/v3", summarize: hashed})
	c.do(request{method: "GET", path: "/openapi/v3/apis/none/v1"})
	c.do(request{method: "GET", path: "/openapi/v2", summarize: hashed})
	c.do(request{method: "HEAD", path: "/openapi/v2"})
	c.do(request{method: "GET", path: "/openapi/v2", accept: "application/com.github.proto-openapi.spec.v2@v1.0+protobuf", summarize: func(any) any { return "protobuf" }})
	c.do(request{method: "POST", path: "/openapi/v2"})
	c.do(request{method: "GET", path: "/openapi"})
}

// hashed keeps the names of paths, definitions and schemas, and replaces their content by a hash.
func hashed(document any) any {
	out := map[string]any{}
	top, ok := document.(map[string]any)
	if !ok {
		return document
	}
	for name, value := range top {
		inner, ok := value.(map[string]any)
		if name == "components" {
			inner, ok = inner["schemas"].(map[string]any)
		}
		if !ok || name == "info" {
			out[name] = value
			continue
		}
		hashes := map[string]any{}
		for key, v := range inner {
			text, _ := json.Marshal(withoutOurs(v))
			hashes[key] = fmt.Sprintf("%x", sha256.Sum256(text))[:12]
		}
		out[name] = hashes
	}
	return out
}

// withoutOurs removes Logplane's own groups from the groups that share a definition.
func withoutOurs(definition any) any {
	const kinds = "x-kubernetes-group-version-kind"
	d, _ := definition.(map[string]any)
	if all, ok := d[kinds].([]any); ok {
		d[kinds] = slices.DeleteFunc(all, func(kind any) bool {
			k, _ := kind.(map[string]any)
			group, _ := k["group"].(string)
			return strings.HasSuffix(group, ".logplane.dev")
		})
	}
	return definition
}

// bootstrap reads the objects that exist before any client has written.
func bootstrap(c *client) {
	for _, path := range []string{
		"/api/v1/namespaces", "/api/v1/services", "/api/v1/serviceaccounts", "/api/v1/configmaps", "/api/v1/secrets", "/api/v1/nodes", "/api/v1/endpoints",
		"/apis/rbac.authorization.k8s.io/v1/clusterroles", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
		"/apis/rbac.authorization.k8s.io/v1/roles", "/apis/rbac.authorization.k8s.io/v1/rolebindings",
		"/apis/scheduling.k8s.io/v1/priorityclasses", "/apis/networking.k8s.io/v1/servicecidrs", "/apis/networking.k8s.io/v1/ipaddresses",
		"/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas", "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations",
		"/apis/apiregistration.k8s.io/v1/apiservices", "/apis/coordination.k8s.io/v1/leases", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
	} {
		c.get(path)
	}
	c.post("/api/v1/namespaces", `{"metadata":{"name":"compare"}}`)
	// Without this service account, no Pod is admitted. Logplane creates it with its namespace; with upstream,
	// kube-controller-manager would create it later.
	c.do(request{method: "POST", path: home + "/serviceaccounts", body: `{"metadata":{"name":"default"}}`, quiet: true})
}

// everyResource sends the same requests for each resource in discovery. These requests show the answer of an empty
// collection, and which requests are refused before anything is stored.
func everyResource(c *client) {
	for _, group := range apiPaths(c) {
		found, _ := c.do(request{method: "GET", path: group, quiet: true}).document.(map[string]any)
		resources, _ := found["resources"].([]any)
		for _, r := range resources {
			resource, _ := r.(map[string]any)
			name, _ := resource["name"].(string)
			base := group + "/"
			if namespaced, _ := resource["namespaced"].(bool); namespaced {
				base += "namespaces/compare/"
			}
			main, sub, isSub := strings.Cut(name, "/")
			switch {
			case isSub:
				one := base + main + "/missing/" + sub
				for _, method := range []string{"GET", "PUT", "POST", "DELETE"} {
					c.do(request{method: method, path: one, body: "{}"})
				}
				c.patch(mergePatch, one, `{"metadata":{"labels":{"a":"b"}}}`)
			case fmt.Sprint(resource["verbs"]) == "[create]":
				c.post(base+name, "{}")
				c.get(base + name)
			default:
				refused(c, base+name)
			}
		}
	}
}

func refused(c *client, collection string) {
	one := collection + "/missing"
	c.getAs(asTable, collection)
	c.getAs(asPartials, collection)
	c.get(collection + "?limit=1&labelSelector=none%3Dsuch")
	c.get(collection + "?fieldSelector=metadata.name%3Dmissing")
	c.get(collection + "?fieldSelector=no.such%3Dfield")
	c.get(collection + "?labelSelector=%2C%2C")
	c.get(one)
	c.getAs(asTable, one)
	c.post(collection, `{}`)
	c.post(collection, `{"metadata":{"name":"Not_Valid","labels":{"a b":"c"}},"spec":{}}`)
	c.post(collection, `{"apiVersion":"v1","kind":"Wrong","metadata":{"name":"x"}}`)
	c.put(one, `{"metadata":{"name":"other"}}`)
	c.patch(mergePatch, one, `{"metadata":{"labels":{"a":"b"}}}`)
	c.patch(applyYAML, one+"?fieldManager=a", `{}`)
	c.delete(one, "")
	c.delete(collection+"?labelSelector=none%3Dsuch", "")
	c.do(request{method: "GET", path: collection + "?watch=1&timeoutSeconds=1&resourceVersion=1x"})
}
