package main

import (
	"fmt"
	"strings"
)

func configMap(name string, more string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q%s}}`, name, more)
}

// reading compares revisions, pages, selectors and representations, on a few ConfigMaps.
func reading(c *client) {
	const maps = home + "/configmaps"
	for i := range 7 {
		c.post(maps, fmt.Sprintf(`{"metadata":{"name":"page-%d","labels":{"set":"pages","odd":"%t"}},"data":{"n":"%d"}}`, i, i%2 == 1, i))
	}
	list := c.get(maps + "?labelSelector=set%3Dpages")
	revision := list.at("metadata.resourceVersion")
	first := c.get(maps + "?limit=3")
	next := first.at("metadata.continue")
	second := c.get(maps + "?limit=3&continue=" + escape(next))
	c.get(maps + "?limit=30&continue=" + escape(second.at("metadata.continue")))
	c.get(maps + "?continue=" + escape(next))
	c.get(maps + "?limit=3&resourceVersion=5&continue=" + escape(next))
	c.get(maps + "?limit=3&resourceVersionMatch=Exact&continue=" + escape(next))
	c.get(maps + "?limit=3&continue=nonsense")
	c.get(maps + "?limit=3&continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6LTEsInN0YXJ0IjoieHgifQ")
	for _, limit := range []string{"0", "-1", "x", "1000"} {
		c.get(maps + "?labelSelector=set%3Dpages&limit=" + limit)
	}
	for _, accept := range []string{asTable, asPartials, asProtobuf, asCBOR, asYAML, "text/csv", "application/json;as=Nothing;v=v1;g=meta.k8s.io", "application/json;as=Table;v=v2;g=meta.k8s.io", "application/xml", "application/json;stream=watch", asTable + ",application/json", "application/xml, application/json;q=0.5", "*/*", "application/*", ""} {
		c.getAs(accept, maps+"?limit=2")
		c.getAs(accept, maps+"/page-1")
	}
	for _, match := range []string{"", "Exact", "NotOlderThan", "Wrong"} {
		for _, at := range []string{"", "0", revision, "1", "999999999", "-1", "x"} {
			query := maps + "?labelSelector=set%3Dpages"
			if match != "" {
				query += "&resourceVersionMatch=" + match
			}
			if at != "" {
				query += "&resourceVersion=" + at
			}
			if at != "999999999" || match == "NotOlderThan" { // each such request waits for three seconds
				c.get(query)
			}
		}
	}
	for _, at := range []string{"0", revision, "1", "x", "999999999"} {
		c.get(maps + "/page-1?resourceVersion=" + at)
	}
	for _, selector := range []string{"set=pages,odd=true", "set in (pages,none)", "!set", "set", "odd!=true", "odd notin (true)", "n>1", "a==b==c", "set in", "=", "x=" + strings.Repeat("y", 64)} {
		c.get(maps + "?labelSelector=" + escape(selector))
	}
	for _, selector := range []string{"metadata.name=page-1", "metadata.name!=page-1", "metadata.namespace=compare", "data.n=1", "metadata.name", "metadata.name=page-1,metadata.namespace=other"} {
		c.get(maps + "?fieldSelector=" + escape(selector))
	}
	for _, query := range []string{"includeObject=None", "includeObject=Metadata", "includeObject=Object", "includeObject=Wrong"} {
		c.getAs(asTable, maps+"?labelSelector=set%3Dpages&"+query)
	}
	for _, query := range []string{"pretty=1", "export=true", "timeoutSeconds=x", "timeout=1s", "timeout=nonsense", "allowWatchBookmarks=true", "sendInitialEvents=true", "shardSelector=x", "unknown=1"} {
		c.get(maps + "?labelSelector=none&" + query)
	}
	c.get("/api/v1/configmaps?labelSelector=set%3Dpages")
	c.getAs(asTable, "/api/v1/configmaps?labelSelector=set%3Dpages")
	c.do(request{method: "HEAD", path: maps})
	c.do(request{method: "HEAD", path: maps + "/page-1"})
	c.do(request{method: "OPTIONS", path: maps})
	c.do(request{method: "TRACE", path: maps})
	c.get("/api/v1/watch/namespaces/compare/configmaps/page-1?timeoutSeconds=1")
	c.get("/api/v1/namespaces/missing/configmaps")
	c.get("/api/v1/namespaces/compare")
	c.get("/api/v1/namespaces/compare/nothing")
	c.get("/api/v1/componentstatuses")
	c.get("/api/v1/componentstatuses/scheduler")
}

// writing compares creates, updates, patches and deletes that are not trivial.
func writing(c *client) {
	const maps = home + "/configmaps"
	one := maps + "/w"
	c.post(maps, `{"metadata":{"generateName":"generated-"}}`)
	c.post(maps, `{"metadata":{"generateName":"Bad_"}}`)
	c.post(maps, `{"metadata":{}}`)
	c.post(maps, `{"metadata":{"name":"w","namespace":"other"}}`)
	c.post(maps, `{"metadata":{"name":"w","resourceVersion":"5"}}`)
	c.post(maps, `{"metadata":{"name":"w","uid":"11111111-2222-3333-4444-555555555555","creationTimestamp":"2020-01-01T00:00:00Z","generation":7,"selfLink":"/x","deletionTimestamp":"2020-01-01T00:00:00Z"}}`)
	c.delete(one, "")
	for _, validation := range []string{"Ignore", "Warn", "Strict", "Wrong"} {
		body := `{"metadata":{"name":"w","unknown":1},"dta":{},"data":{"a":"1","a":"2"}}`
		c.post(maps+"?dryRun=All&fieldValidation="+validation, body)
		c.do(request{method: "POST", path: maps + "?dryRun=All&fieldValidation=" + validation, body: "metadata: {name: w, unknown: 1}\ndata: {a: '1', a: '2'}\n", contentType: asYAML})
	}
	c.post(maps+"?dryRun=Some", configMap("w", ""))
	c.post(maps+"?dryRun=", configMap("dry-empty", ""))
	c.post(maps+"?fieldManager="+strings.Repeat("x", 200), configMap("w", ""))
	// the owner must exist: an object whose owners are all gone is collected
	owner := c.post(maps, configMap("owner", "")).at("metadata.uid")
	c.post(maps+"?pretty=true", configMap("w", `,"finalizers":["example.com/keep"],"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"owner","uid":"`+owner+`"}]`))
	c.put(maps+"/created-by-put", configMap("created-by-put", ""))
	c.put("/apis/coordination.k8s.io/v1/namespaces/compare/leases/by-put", `{"metadata":{"name":"by-put"},"spec":{}}`)
	c.put(one, configMap("other", ""))
	c.put(one, `{"metadata":{"name":"w","namespace":"other"}}`)
	c.put(one, `{"metadata":{"name":"w","uid":"11111111-2222-3333-4444-555555555555"}}`)
	c.put(one, `{"metadata":{"name":"w","resourceVersion":"x"}}`)
	c.put(one, `{"metadata":{"name":"w","resourceVersion":"0"}}`)
	c.put(one, `{"metadata":{"name":"w","finalizers":["example.com/keep"]},"immutable":true,"data":{"a":"b"}}`)
	c.put(one, `{"metadata":{"name":"w","finalizers":["example.com/keep"]},"immutable":false,"data":{"a":"c"}}`)
	for _, kind := range []string{jsonPatch, mergePatch, strategicPatch, applyYAML, "application/apply-patch+cbor", "application/json", "text/plain", ""} {
		for _, body := range []string{`{}`, `[]`, `nonsense`, `"x"`, ``, `null`, `{"metadata":{"name":"other"}}`, `[{"op":"replace","path":"/metadata/name","value":"x"}]`, `[{"op":"wrong","path":"/data"}]`, `[{"op":"copy","from":"/data","path":"/data2"}]`} {
			c.patch(kind, one+"?fieldManager=m", body)
		}
	}
	c.patch(jsonPatch, one, `[`+strings.TrimSuffix(strings.Repeat(`{"op":"test","path":"/kind","value":"ConfigMap"},`, 10001), ",")+`]`)
	c.patch(mergePatch, one, `{"metadata":{"managedFields":[]}}`)
	c.get(one)
	c.patch(mergePatch, one, `{"metadata":{"managedFields":[{"manager":"x"}]}}`)
	c.patch(applyYAML, one+"?fieldManager=m&force=maybe", configMap("w", ""))
	c.patch(applyYAML, one+"?fieldManager=m", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"w","managedFields":[{"manager":"x"}]}}`)
	c.patch(applyYAML, one+"?fieldManager=m", `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"w"}}`)
	c.patch(applyYAML, one+"?fieldManager=m", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"w"},"nothing":1}`)
	c.patch(mergePatch, one+"?force=true", `{}`)
	c.patch(applyYAML, maps+"/applied?fieldManager=m", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"applied","uid":"11111111-2222-3333-4444-555555555555"}}`)
	c.patch(applyYAML, maps+"/applied?fieldManager=m", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: applied}\ndata: {a: b}\n")
	c.patch(applyYAML, maps+"/applied?fieldManager=n", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: applied}\ndata: {a: b, c: d}\n")
	c.patch(applyYAML, maps+"/applied?fieldManager=m", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: applied}\n")
	c.get(maps + "/applied")
	c.post(appHome+"/deployments", `{"metadata":{"name":"patched"},"spec":{`+template+`}}`)
	for _, body := range []string{
		`{"spec":{"template":{"spec":{"containers":[{"name":"d","image":"j"}]}}}}`,
		`{"spec":{"template":{"spec":{"containers":[{"$patch":"delete","name":"d"}]}}}}`,
		`{"spec":{"template":{"spec":{"containers":[{"$patch":"replace"},{"name":"e","image":"k"}]}}}}`,
		`{"spec":{"template":{"spec":{"containers":[{"image":"nameless"}]}}}}`,
		`{"spec":{"strategy":{"$retainKeys":["type"],"type":"Recreate"}}}`,
		`{"spec":{"selector":{"matchLabels":{"app":"other"}}}}`,
		`{"spec":{"replicas":"three"}}`, `{"spec":{"replicas":-1}}`, `{"spec":{"unknown":1}}`,
	} {
		c.patch(strategicPatch, appHome+"/deployments/patched", body)
		c.patch(mergePatch, appHome+"/deployments/patched?fieldValidation=Strict", body)
	}
	// This dependent stays, so that the deletion of its owner waits for it.
	c.do(request{method: "POST", path: maps, quiet: true, body: configMap("dependent", `,"finalizers":["example.com/keep"],"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"w","blockOwnerDeletion":true,"uid":"`+c.get(one).at("metadata.uid")+`"}]`)})
	c.delete(one, `{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Foreground"}`)
	c.get(one)
	c.put(one, configMap("w", `,"finalizers":["example.com/keep","example.com/late"]`))
	c.patch(mergePatch, one, `{"metadata":{"deletionTimestamp":null,"labels":{"still":"here"}}}`)
	c.delete(one, "")
	c.patch(mergePatch, one, `{"metadata":{"finalizers":null}}`)
	c.get(one)
	c.vanish(maps + "/dependent")
	for _, body := range []string{`{"orphanDependents":true,"propagationPolicy":"Orphan"}`, `{"orphanDependents":true}`, `{"gracePeriodSeconds":-1}`, `{"gracePeriodSeconds":"x"}`, `{"dryRun":["All"]}`, `{"dryRun":["Some"]}`, `{"unknown":1}`, `nonsense`, `{"kind":"ConfigMap","apiVersion":"v1"}`, `{"ignoreStoreReadErrorWithClusterBreakingPotential":true}`} {
		c.post(maps, configMap("d", ""))
		c.delete(maps+"/d", body)
		// kube-apiserver by itself does not orphan dependents, and Logplane soon does
		if !strings.Contains(body, "orphan") {
			c.get(maps + "/d")
		}
		c.vanish(maps + "/d")
	}
	c.post(home+"/pods", `{"metadata":{"name":"graceful"},"spec":{"nodeName":"n","containers":[{"name":"c","image":"i"}]}}`)
	c.delete(home+"/pods/graceful", "")
	c.delete(home+"/pods/graceful?gracePeriodSeconds=5", "")
	c.get(home + "/pods/graceful")
	c.delete(home+"/pods/graceful?gracePeriodSeconds=0", "")
	c.post(home+"/pods", `{"metadata":{"name":"bound"},"spec":`+podSpec+`}`)
	c.post(home+"/pods/bound/binding", `{"target":{"kind":"Node","name":"n"}}`)
	c.post(home+"/pods/bound/binding", `{"target":{"kind":"Node","name":"m"}}`)
	c.post(home+"/pods/bound/eviction?dryRun=All", `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"bound"}}`)
	c.post(home+"/pods/bound/eviction", `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"other"}}`)
	c.post(home+"/pods/bound/eviction", `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"bound"}}`)
	c.post(home+"/pods", `{"metadata":{"name":"prioritized"},"spec":{"priorityClassName":"none-such","containers":[{"name":"c","image":"i"}]}}`)
	for _, collection := range []string{"?labelSelector=set%3Dpages&dryRun=All", "?labelSelector=set%3Dpages&limit=2", "?labelSelector=set%3Dpages", "?fieldSelector=metadata.name%3Dnone"} {
		c.delete(maps+collection, "")
	}
	c.getAs(asPartials, maps)
	c.post("/api/v1/namespaces/missing/configmaps", configMap("x", ""))
	c.post(home, `{}`)
	c.delete("/api/v1/namespaces", "")
}

// badInput sends requests that no client should send.
func badInput(c *client) {
	const maps = home + "/configmaps"
	for _, body := range []string{``, `{`, `[]`, `"x"`, `1`, `null`, `{"kind":"ConfigMap"}`, `{"kind":"ConfigMap","apiVersion":"v2"}`, `{"kind":"ConfigMap","apiVersion":"apps/v1"}`, `{"metadata":"x"}`, `{"metadata":{"name":5}}`, `{"metadata":{"name":"x"},"data":{"a":1}}`, `{"metadata":{"name":"x"},"data":{"":"x"}}`, `{"metadata":{"name":"x"},"binaryData":{"a":"***"}}`, `{"metadata":{"name":"x","labels":{"a":"` + strings.Repeat("b", 64) + `"}}}`, `{"metadata":{"name":"x","annotations":{"a":"` + strings.Repeat("b", 300000) + `"}}}`, `{"metadata":{"name":"x"},"data":{"a":"` + strings.Repeat("b", 1100000) + `"}}`, `{"metadata":{"name":"` + strings.Repeat("n", 254) + `"}}`, `{"metadata":{"name":"x"},"data":{"a":"` + strings.Repeat("b", 4000000) + `"}}`, strings.Repeat(`{"a":`, 20000) + "1" + strings.Repeat("}", 20000), "\xff\xfe"} {
		c.post(maps, body)
		c.put(maps+"/x", body)
	}
	for _, kind := range []string{"text/plain", "application/xml", asProtobuf, asCBOR, asYAML, "application/json; charset=utf-8", "nonsense", "application/json;;", "multipart/form-data"} {
		c.do(request{method: "POST", path: maps, body: configMap("typed", ""), contentType: kind})
		c.do(request{method: "DELETE", path: maps + "/typed", body: `{"propagationPolicy":"Background"}`, contentType: kind})
	}
	for _, path := range []string{"/api/v1/namespaces//configmaps", "/api/v1/namespaces/compare/configmaps/", "/api/v1/namespaces/compare/configmaps/a/b/c", "/api/v1/namespaces/compare/configmaps/..", "/api/v1/namespaces/compare/configmaps/%2e%2e", "/api/v1/namespaces/compare/configmaps/a%2fb", "/api/v1/namespaces/COMPARE/configmaps", "/api/v1/namespaces/compare/ConfigMaps", "/api/v1/configmaps/x", "/api/v1/nodes/x/y", "/apis/apps/v1/namespaces/compare/deployments/x/nothing", "/apis/v1/pods", "/api/apps/v1/deployments", "/api/v1/watch", "/api/v1/watch/", "/api/v1/proxy/x", "/api/v1/namespaces/compare/pods/x/log", "/api/v1/namespaces/compare/pods/x/exec", "/api/v1/namespaces/compare/pods/x/proxy", "/api/v1/nodes/x/proxy", "/api/v1/namespaces/compare/services/x/proxy"} {
		for _, method := range []string{"GET", "POST", "PUT", "DELETE"} {
			c.do(request{method: method, path: path, body: map[bool]string{true: "{}"}[method != "GET"]})
		}
	}
	for _, method := range []string{"PUT", "PATCH"} {
		c.do(request{method: method, path: maps, body: "{}"})
	}
	c.post(maps+"/x", "{}")
	c.do(request{method: "BREW", path: maps})
	c.do(request{method: "GET", path: maps, header: map[string]string{"Accept-Encoding": "nonsense"}})
	c.do(request{method: "GET", path: maps, header: map[string]string{"X-HTTP-Method-Override": "DELETE"}})
}

// watches compares watches of past events, which end by themselves.
func watches(c *client) {
	const maps = home + "/configmaps"
	c.post(maps, `{"metadata":{"name":"watched","labels":{"in":"yes"}},"data":{"n":"0"}}`)
	from := c.get(maps + "?labelSelector=in").at("metadata.resourceVersion")
	c.patch(mergePatch, maps+"/watched", `{"data":{"n":"1"}}`)
	c.patch(mergePatch, maps+"/watched", `{"metadata":{"labels":{"in":"no"}}}`)
	c.patch(mergePatch, maps+"/watched", `{"metadata":{"labels":{"in":"yes"}}}`)
	c.post(maps, `{"metadata":{"name":"watched-too","labels":{"in":"yes"}}}`)
	c.delete(maps+"/watched-too", "")
	var all []request
	ask := func(accept, path string) { all = append(all, request{method: "GET", path: path, accept: accept}) }
	for _, query := range []string{"", "&labelSelector=in%3Dyes", "&labelSelector=in%3Dno", "&fieldSelector=metadata.name%3Dwatched", "&fieldSelector=metadata.name%3Dnone", "&allowWatchBookmarks=true", "&resourceVersionMatch=NotOlderThan", "&sendInitialEvents=true", "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan", "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", "&sendInitialEvents=false&resourceVersionMatch=NotOlderThan", "&limit=1", "&continue=x"} {
		ask(asJSON, maps+"?watch=1&timeoutSeconds=1&resourceVersion="+from+query)
	}
	for _, accept := range []string{asTable, asPartial, asYAML, asCBOR, "application/cbor-seq", asProtobuf, "application/json;stream=watch", asProtobuf + ";stream=watch"} {
		ask(accept, maps+"?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3Dwatched&resourceVersion="+from)
	}
	for _, at := range []string{"", "0", "1", "x", "-1", "999999999"} {
		ask(asJSON, maps+"?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3Dwatched&resourceVersion="+at)
	}
	for _, query := range []string{"watch=true", "watch=TRUE", "watch=0", "watch=yes", "watch=1&timeoutSeconds=0x", "watch=1&labelSelector=%2C"} {
		ask(asJSON, maps+"?timeoutSeconds=1&fieldSelector=metadata.name%3Dwatched&resourceVersion="+from+"&"+query)
	}
	ask(asJSON, "/api/v1/watch/namespaces/compare/configmaps?timeoutSeconds=1&resourceVersion="+from)
	ask(asJSON, "/api/v1/watch/configmaps?timeoutSeconds=1&resourceVersion="+from)
	ask(asJSON, maps+"/watched?watch=1&timeoutSeconds=1&resourceVersion="+from)
	c.together(len(all), func(c *client, i int) { c.do(all[i]) })
}

// services creates Services that compete for addresses and ports.
func services(c *client) {
	const all = home + "/services"
	post := func(name, spec string) { c.post(all, fmt.Sprintf(`{"metadata":{"name":%q},"spec":{%s}}`, name, spec)) }
	post("plain", `"ports":[{"port":80}]`)
	post("fixed", `"clusterIP":"10.96.0.77","ports":[{"port":80}]`)
	post("same", `"clusterIP":"10.96.0.77","ports":[{"port":80}]`)
	post("outside", `"clusterIP":"10.200.0.1","ports":[{"port":80}]`)
	for i, ip := range []string{"10.96.0.0", "10.111.255.255", "10.112.0.0", "10.95.255.255", "::ffff:10.96.0.81", "fd00::7"} {
		post(fmt.Sprint("foreign-", i), fmt.Sprintf(`"clusterIP":%q,"ports":[{"port":80}]`, ip))
	}
	for _, dry := range [][2]string{{"first", "10.96.0.0"}, {"last", "10.111.255.255"}, {"beyond", "10.112.0.0"}, {"far", "10.200.0.1"}, {"six", "fd00::7"}, {"free", "10.96.0.80"}, {"taken", "10.96.0.77"}, {"any", ""}} {
		c.post(all+"?dryRun=All", fmt.Sprintf(`{"metadata":{"name":"dry-%s"},"spec":{"clusterIP":%q,"ports":[{"port":80}]}}`, dry[0], dry[1]))
	}
	post("nonsense", `"clusterIP":"nonsense","ports":[{"port":80}]`)
	post("headless", `"clusterIP":"None","ports":[{"port":80}]`)
	post("none", `"clusterIP":"None"`)
	post("noports", ``)
	post("dual", `"ipFamilyPolicy":"RequireDualStack","ports":[{"port":80}]`)
	post("prefer", `"ipFamilyPolicy":"PreferDualStack","ports":[{"port":80}]`)
	post("six", `"ipFamilies":["IPv6"],"ports":[{"port":80}]`)
	post("node", `"type":"NodePort","ports":[{"port":80,"nodePort":30077}]`)
	post("node-same", `"type":"NodePort","ports":[{"port":80,"nodePort":30077}]`)
	post("node-both", `"type":"NodePort","ports":[{"name":"a","port":80,"nodePort":30078},{"name":"b","port":80,"protocol":"UDP","nodePort":30078}]`)
	post("node-out", `"type":"NodePort","ports":[{"port":80,"nodePort":80}]`)
	post("balanced", `"type":"LoadBalancer","ports":[{"port":80}]`)
	post("local", `"type":"LoadBalancer","externalTrafficPolicy":"Local","healthCheckNodePort":30079,"ports":[{"port":80}]`)
	post("balanced-free", `"type":"LoadBalancer","allocateLoadBalancerNodePorts":false,"ports":[{"port":80}]`)
	post("external", `"type":"ExternalName","externalName":"example.com"`)
	post("external-ip", `"type":"ExternalName","externalName":"example.com","clusterIP":"10.96.0.78"`)
	post("wrong", `"type":"Wrong","ports":[{"port":80}]`)
	post("port", `"ports":[{"port":99999}]`)
	post("dup", `"ports":[{"port":80},{"port":80}]`)
	post("affine", `"sessionAffinity":"ClientIP","ports":[{"port":80}]`)
	c.post(all+"?dryRun=All", `{"metadata":{"name":"dry"},"spec":{"type":"NodePort","ports":[{"port":80}]}}`)
	from := c.get(all).at("metadata.resourceVersion")
	c.getAs(asTable, all)
	for _, name := range []string{"plain", "node", "headless", "balanced", "external", "local"} {
		for _, spec := range []string{
			`"type":"NodePort"`, `"type":"ExternalName","externalName":"example.org"`, `"type":"ClusterIP"`, `"type":"LoadBalancer"`,
			`"clusterIP":"10.96.0.99"`, `"clusterIP":""`, `"clusterIP":"None"`, `"ports":[{"port":81}]`, `"ports":[]`, `"externalTrafficPolicy":"Local"`, `"selector":null`,
		} {
			c.patch(mergePatch, all+"/"+name, `{"spec":{`+spec+`}}`)
		}
	}
	c.patch(mergePatch, all+"/fixed", `{"spec":{"type":"ExternalName","externalName":"example.org","clusterIP":null,"clusterIPs":null}}`)
	c.put(all+"/node", `{"metadata":{"name":"node"},"spec":{"type":"NodePort","ports":[{"port":80}]}}`)
	c.get("/apis/networking.k8s.io/v1/ipaddresses/10.96.0.77")
	post("same-again", `"clusterIP":"10.96.0.77","ports":[{"port":80}]`)
	c.get("/apis/networking.k8s.io/v1/ipaddresses/10.96.0.77")
	c.patch(mergePatch, all+"/same-again/status", `{"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.1"}]}}}`)
	c.delete(all+"/same-again", "")
	c.get("/apis/networking.k8s.io/v1/ipaddresses/10.96.0.77")
	c.watch(all + "?resourceVersion=" + from)
	c.getAs(asTable, "/apis/networking.k8s.io/v1/servicecidrs")
	c.delete(all+"?labelSelector=none", "")
	c.delete("/api/v1/namespaces/default/services/kubernetes?dryRun=All", "")
}
