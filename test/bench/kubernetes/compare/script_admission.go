package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

func pod(name, spec string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q,"labels":{"part":"pods"}},"spec":{"containers":[{"name":"c","image":"i"%s}]}}`, name, spec)
}

// admission creates every kind of admission rule that is kept in objects, and sends requests that the rules refuse or
// change.
func admission(c *client) {
	const (
		ruled    = "/api/v1/namespaces/ruled"
		policies = "/apis/admissionregistration.k8s.io/v1/"
	)
	c.post("/api/v1/namespaces", `{"metadata":{"name":"ruled","labels":{"pod-security.kubernetes.io/enforce":"restricted","pod-security.kubernetes.io/warn":"restricted"}}}`)
	c.post("/api/v1/namespaces", `{"metadata":{"name":"misruled","labels":{"pod-security.kubernetes.io/enforce":"wrong","pod-security.kubernetes.io/warn-version":"v0"}}}`)
	c.do(request{method: "POST", path: ruled + "/serviceaccounts", body: `{"metadata":{"name":"default"}}`, quiet: true})
	refusedUntil := func(r request) { // refusedUntil repeats the request until the rule is in force
		dry := r
		dry.path, dry.quiet = r.path+"?dryRun=All", true
		c.await(dry, func(a answer) bool { return a.status >= 400 })
		c.do(r)
	}
	refusedUntil(request{method: "POST", path: ruled + "/pods", body: pod("refused", "")})
	safe := `,"securityContext":{"allowPrivilegeEscalation":false,"runAsNonRoot":true,"capabilities":{"drop":["ALL"]},"seccompProfile":{"type":"RuntimeDefault"}}`
	c.post("/apis/apps/v1/namespaces/ruled/deployments", `{"metadata":{"name":"warned"},"spec":{`+template+`}}`)
	c.post(ruled+"/pods", pod("safe", safe))
	c.post(ruled+"/pods", strings.Replace(pod("nobodys", safe), `"spec":{`, `"spec":{"serviceAccountName":"none",`, 1))
	c.patch(mergePatch, ruled, `{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"privileged","pod-security.kubernetes.io/warn":null}}}`)
	c.await(request{method: "POST", path: ruled + "/pods?dryRun=All", body: pod("refused", ""), quiet: true}, func(a answer) bool { return a.status == 201 })

	c.post(ruled+"/limitranges", `{"metadata":{"name":"l"},"spec":{"limits":[{"type":"Container","default":{"cpu":"2"},"defaultRequest":{"cpu":"1"},"max":{"cpu":"3"},"min":{"cpu":"100m"}},{"type":"Pod","max":{"cpu":"4"}}]}}`)
	refusedUntil(request{method: "POST", path: ruled + "/pods", body: pod("large", `,"resources":{"limits":{"cpu":"5"}}`)})
	c.post(ruled+"/pods", pod("small", `,"resources":{"requests":{"cpu":"1m"}}`))
	c.post(ruled+"/pods", pod("defaulted", ""))
	c.post(ruled+"/limitranges", `{"metadata":{"name":"wrong"},"spec":{"limits":[{"type":"Container","min":{"cpu":"3"},"max":{"cpu":"1"}},{"type":"Container"}]}}`)
	c.delete(ruled+"/limitranges/l", "")

	c.post("/apis/scheduling.k8s.io/v1/priorityclasses", `{"metadata":{"name":"urgent"},"value":7,"preemptionPolicy":"Never"}`)
	c.post("/apis/scheduling.k8s.io/v1/priorityclasses", `{"metadata":{"name":"system-own"},"value":2000000001}`)
	c.post("/apis/scheduling.k8s.io/v1/priorityclasses", `{"metadata":{"name":"huge"},"value":1000000001}`)
	urgent := strings.Replace(pod("urgent", ""), `"spec":{`, `"spec":{"priorityClassName":"urgent",`, 1)
	c.await(request{method: "POST", path: ruled + "/pods?dryRun=All", body: urgent, quiet: true}, func(a answer) bool { return a.status == 201 })
	c.post(ruled+"/pods", urgent)
	c.post(ruled+"/pods", strings.Replace(urgent, `"spec":{`, `"spec":{"priority":3,`, 1))
	c.post("/apis/node.k8s.io/v1/runtimeclasses", `{"metadata":{"name":"boxed"},"handler":"h","overhead":{"podFixed":{"cpu":"10m"}},"scheduling":{"nodeSelector":{"a":"b"}}}`)
	boxed := strings.Replace(pod("boxed", ""), `"spec":{`, `"spec":{"runtimeClassName":"boxed",`, 1)
	c.await(request{method: "POST", path: ruled + "/pods?dryRun=All", body: boxed, quiet: true}, func(a answer) bool { return a.status == 201 })
	c.post(ruled+"/pods", boxed)
	c.post(ruled+"/pods", strings.Replace(boxed, "boxed", "boxless", 2))
	c.post("/apis/storage.k8s.io/v1/storageclasses", `{"metadata":{"name":"usual","annotations":{"storageclass.kubernetes.io/is-default-class":"true"}},"provisioner":"example.com/p"}`)
	claim := `{"metadata":{"name":"claim"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}`
	c.await(request{method: "POST", path: ruled + "/persistentvolumeclaims?dryRun=All", body: claim, quiet: true}, func(a answer) bool { return a.at("spec.storageClassName") != "" })
	c.post(ruled+"/persistentvolumeclaims", claim)
	c.patch(mergePatch, ruled+"/persistentvolumeclaims/claim", `{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}`)
	c.patch(mergePatch, ruled+"/persistentvolumeclaims/claim", `{"spec":{"accessModes":["ReadOnlyMany"]}}`)
	c.delete("/apis/storage.k8s.io/v1/storageclasses/usual", "")
	c.post("/apis/networking.k8s.io/v1/ingressclasses", `{"metadata":{"name":"usual","annotations":{"ingressclass.kubernetes.io/is-default-class":"true"}},"spec":{"controller":"example.com/c"}}`)
	ingress := `{"metadata":{"name":"i"},"spec":{"defaultBackend":{"service":{"name":"s","port":{"number":80}}}}}`
	const ingresses = "/apis/networking.k8s.io/v1/namespaces/ruled/ingresses"
	c.await(request{method: "POST", path: ingresses + "?dryRun=All", body: ingress, quiet: true}, func(a answer) bool { return a.at("spec.ingressClassName") != "" })
	c.post(ingresses, ingress)

	rules := `"matchConstraints":{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"ruled"}},"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE","UPDATE"],"resources":["configmaps"]}]}`
	for _, body := range []string{
		`{"metadata":{"name":"p"},"spec":{` + rules + `,"validations":[{"expression":"!has(object.data) || !('no' in object.data)","message":"no is not wanted","reason":"Forbidden"},{"expression":"object.metadata.name != 'bad'","messageExpression":"'not ' + object.metadata.name"}],"auditAnnotations":[{"key":"k","valueExpression":"'v'"}]}}`,
		`{"metadata":{"name":"broken"},"spec":{` + rules + `,"validations":[{"expression":"object.("},{"expression":"1"},{"expression":"object.nothing == 1","reason":"Odd"}]}}`,
		`{"metadata":{"name":"empty"},"spec":{}}`,
	} {
		c.post(policies+"validatingadmissionpolicies", body)
	}
	c.post(policies+"validatingadmissionpolicybindings", `{"metadata":{"name":"b"},"spec":{"policyName":"p","validationActions":["Deny"]}}`)
	c.post(policies+"validatingadmissionpolicybindings", `{"metadata":{"name":"wrong"},"spec":{"policyName":"p","validationActions":["Deny","Warn"]}}`)
	refusedUntil(request{method: "POST", path: ruled + "/configmaps", body: `{"metadata":{"name":"x"},"data":{"no":"1"}}`})
	c.post(ruled+"/configmaps", configMap("bad", ""))
	c.post(ruled+"/configmaps", configMap("good", ""))
	c.patch(mergePatch, ruled+"/configmaps/good", `{"data":{"no":"1"}}`)
	c.patch(mergePatch, policies+"validatingadmissionpolicybindings/b", `{"spec":{"validationActions":["Warn","Audit"]}}`)
	c.await(request{method: "POST", path: ruled + "/configmaps?dryRun=All", body: configMap("bad", ""), quiet: true}, func(a answer) bool { return a.status == 201 })
	c.post(ruled+"/configmaps", configMap("bad", ""))
	c.delete(policies+"validatingadmissionpolicybindings/b", "")
	c.post(policies+"mutatingadmissionpolicies", `{"metadata":{"name":"m"},"spec":{`+rules+`,"reinvocationPolicy":"Never","mutations":[{"patchType":"ApplyConfiguration","applyConfiguration":{"expression":"Object{metadata: Object.metadata{labels: {'mutated': 'yes'}}}"}}]}}`)
	c.post(policies+"mutatingadmissionpolicybindings", `{"metadata":{"name":"m"},"spec":{"policyName":"m"}}`)
	c.await(request{method: "POST", path: ruled + "/configmaps?dryRun=All", body: configMap("mutated", ""), quiet: true}, func(a answer) bool { return a.at("metadata.labels.mutated") != "" })
	c.post(ruled+"/configmaps", configMap("mutated", ""))
	c.delete(policies+"mutatingadmissionpolicybindings/m", "")
	for _, kind := range []string{"validating", "mutating"} {
		hook := func(name, more string) string {
			return `{"metadata":{"name":"` + name + `"},"webhooks":[{"name":"hook.example.com","sideEffects":"None","admissionReviewVersions":["v1"],"clientConfig":{"url":"https://127.0.0.1:1/x"},"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"ruled"}},"rules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["secrets"]}]` + more + `}]}`
		}
		all := policies + kind + "webhookconfigurations"
		c.post(all, hook("closed", ""))
		c.post(all, hook("wrong", `,"timeoutSeconds":99,"matchPolicy":"Sometimes","failurePolicy":"Maybe"`))
		c.post(all, hook("conditional", `,"matchConditions":[{"name":"c","expression":"object."}]`))
		c.post(all, `{"metadata":{"name":"old"},"webhooks":[{"name":"short","sideEffects":"Some","admissionReviewVersions":["v1beta1"],"clientConfig":{"url":"http://u:p@x?y#z"}}]}`)
		refusedUntil(request{method: "POST", path: ruled + "/secrets", body: `{"metadata":{"name":"hooked"}}`})
		c.delete(all+"/closed", "")
		c.await(request{method: "POST", path: ruled + "/secrets?dryRun=All", body: `{"metadata":{"name":"hooked"}}`, quiet: true}, func(a answer) bool { return a.status == 201 })
	}
	c.post(ruled+"/resourcequotas", `{"metadata":{"name":"q"},"spec":{"hard":{"configmaps":"0","requests.cpu":"1"},"scopes":["BestEffort"]}}`)
	c.post(ruled+"/resourcequotas", `{"metadata":{"name":"q"},"spec":{"hard":{"secrets":"1","count/configmaps":"1x"}}}`)
}

// tokens requests tokens of service accounts, with different lifetimes and bound to different objects.
func tokens(c *client) {
	const token = home + "/serviceaccounts/default/token"
	bound := c.post(home+"/secrets", `{"metadata":{"name":"bound"}}`).at("metadata.uid")
	for _, spec := range []string{
		`"expirationSeconds":1`, `"expirationSeconds":600`, `"expirationSeconds":8589934592`, `"expirationSeconds":"x"`, `"audiences":["a","b"]`, `"audiences":[""]`,
		`"boundObjectRef":{"kind":"Secret","apiVersion":"v1","name":"bound","uid":"` + bound + `"}`, `"boundObjectRef":{"kind":"Secret","apiVersion":"v1","name":"bound","uid":"11111111-2222-3333-4444-555555555555"}`,
		`"boundObjectRef":{"kind":"Secret","apiVersion":"v1","name":"none"}`, `"boundObjectRef":{"kind":"Pod","apiVersion":"v1","name":"none"}`, `"boundObjectRef":{"kind":"Node","apiVersion":"v1","name":"none"}`,
		`"boundObjectRef":{"kind":"ConfigMap","apiVersion":"v1","name":"w"}`, `"boundObjectRef":{"kind":"Secret","apiVersion":"v1"}`,
	} {
		c.post(token, `{"spec":{`+spec+`}}`)
	}
	c.post(token+"?dryRun=All", `{"spec":{}}`)
	c.post(token, `{"metadata":{"name":"other"},"spec":{}}`)
	c.post(token, `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","spec":{}}`)
	c.post(home+"/serviceaccounts/none/token", `{"spec":{}}`)
	c.get(token)
	issued := c.do(request{method: "POST", path: token, body: `{"spec":{}}`, quiet: true}).at("status.token")
	for _, audiences := range []string{``, `"https://kubernetes.default.svc"`, `"elsewhere"`} {
		c.do(request{method: "POST", path: "/apis/authentication.k8s.io/v1/tokenreviews", body: `{"spec":{"token":"` + issued + `","audiences":[` + audiences + `]}}`, secret: issued})
	}
	c.users["account"] = issued
	c.do(request{method: "POST", path: "/apis/authentication.k8s.io/v1/selfsubjectreviews", body: `{}`, user: "account"})
	c.do(request{method: "GET", path: home + "/secrets", user: "account"})
}

// selecting uses the fields by which lists can select objects.
func selecting(c *client) {
	fields := map[string][]string{
		"/api/v1/pods":                   {"spec.nodeName=n", "status.phase!=Pending", "spec.restartPolicy=Always", "spec.schedulerName=x", "spec.serviceAccountName=default", "spec.hostNetwork=false", "status.podIP=1.2.3.4", "status.nominatedNodeName=", "spec.none=x"},
		"/api/v1/nodes":                  {"spec.unschedulable=true", "metadata.name=sample", "status.phase=x"},
		"/api/v1/namespaces":             {"status.phase=Active", "metadata.name=default", "name=default"},
		"/api/v1/secrets":                {"type=Opaque", "type!=Opaque", "data.a=b"},
		"/api/v1/events":                 {"involvedObject.kind=Pod", "reason=Because", "source=x", "reportingComponent=x", "type=Normal", "involvedObject.uid="},
		"/apis/events.k8s.io/v1/events":  {"regarding.kind=Pod", "reason=Because", "reportingController=x", "type=Normal"},
		"/api/v1/services":               {"spec.clusterIP=None", "spec.type=NodePort", "spec.none=x"},
		"/api/v1/replicationcontrollers": {"status.replicas=0", "spec.replicas=1"},
		"/apis/apps/v1/replicasets":      {"status.replicas=0", "spec.replicas=1"},
		"/apis/apps/v1/deployments":      {"metadata.namespace=compare", "spec.replicas=1"},
		"/apis/batch/v1/jobs":            {"status.successful=0", "status.failed=0"},
		"/apis/certificates.k8s.io/v1/certificatesigningrequests": {"spec.signerName=example.com/s", "spec.username=x"},
		"/api/v1/persistentvolumeclaims":                          {"metadata.name=claim", "name=claim"},
		"/apis/resource.k8s.io/v1/resourceslices":                 {"spec.nodeName=n", "spec.driver=d", "spec.none=x"},
		crds: {"metadata.name=x", "spec.group=x"},
	}
	for _, path := range slices.Sorted(maps.Keys(fields)) {
		for _, field := range fields[path] {
			c.getAs(asPartials, path+"?limit=5&fieldSelector="+escape(field))
		}
	}
}

// caching asks whether a document has changed, by its ETag.
func caching(c *client) {
	for _, path := range []string{"/openapi/v3/apis/apps/v1", "/openapi/v2", "/api", "/apis", "/version", "/api/v1"} {
		for _, accept := range []string{"", aggregated} {
			brief := func(any) any { return nil }
			etag := c.do(request{method: "GET", path: path, accept: accept, quiet: true}).header.Get("Etag")
			if etag == "" {
				continue
			}
			for _, header := range []string{etag, `W/` + etag, `"other"`, "*", `"other", ` + etag, strings.Trim(etag, `"`)} {
				c.do(request{method: "GET", path: path, accept: accept, header: map[string]string{"If-None-Match": header}, summarize: brief, secret: strings.Trim(etag, `"`)})
			}
		}
	}
	for _, path := range []string{"/openapi/v3/apis/apps/v1?hash=0123", "/openapi/v3/apis/apps", "/openapi/v3/", "/openapi/v2?x=y", "/openapi/v3/api/v1/"} {
		c.do(request{method: "GET", path: path, summarize: func(any) any { return nil }})
	}
}

// pods changes Pods through each of their subresources.
func pods(c *client) {
	const one = home + "/pods/p"
	c.post(home+"/pods", pod("p", `,"resources":{"requests":{"cpu":"1"},"limits":{"cpu":"1"}}`))
	for _, sub := range []string{"", "/status", "/resize", "/ephemeralcontainers"} {
		for _, body := range []string{
			`{"spec":{"containers":[{"name":"c","image":"j"}]}}`, `{"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":"500m"}}}]}}`,
			`{"spec":{"ephemeralContainers":[{"name":"e","image":"e"}]}}`, `{"spec":{"activeDeadlineSeconds":5}}`, `{"spec":{"tolerations":[{"key":"k","operator":"Exists"}]}}`,
			`{"spec":{"nodeName":"m"}}`, `{"spec":{"terminationGracePeriodSeconds":1}}`, `{"spec":{"schedulingGates":[{"name":"g"}]}}`,
			`{"status":{"conditions":[{"type":"Ready","status":"True"}],"podIP":"192.0.2.9"}}`, `{"status":{"podIPs":[{"ip":"nonsense"}]}}`,
			`{"status":{"containerStatuses":[{"name":"c","image":"j","imageID":"","ready":true,"restartCount":1,"state":{"running":{}}}],"phase":"Running","qosClass":"Guaranteed"}}`,
		} {
			c.patch(strategicPatch, one+sub, body)
		}
	}
	for _, accept := range []string{asTable, asProtobuf, asPartial} {
		c.getAs(accept, one)
	}
	for _, body := range []string{`{"target":{"kind":"Node","name":"n"}}`, `{"target":{"kind":"Wrong","name":"n"}}`, `{"target":{"name":""}}`, `{"metadata":{"name":"p","uid":"11111111-2222-3333-4444-555555555555"},"target":{"name":"n"}}`} {
		c.post(one+"/binding", body)
		c.post(home+"/bindings", strings.Replace(body, `{"target"`, `{"metadata":{"name":"p"},"target"`, 1))
	}
	const budgets = "/apis/policy/v1/namespaces/compare/poddisruptionbudgets"
	c.post(budgets, `{"metadata":{"name":"b"},"spec":{"minAvailable":1,"selector":{"matchLabels":{"part":"pods"}}}}`)
	eviction := `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"p"}%s}`
	for _, more := range []string{``, `,"deleteOptions":{"dryRun":["All"]}`, `,"deleteOptions":{"preconditions":{"uid":"11111111-2222-3333-4444-555555555555"}}`} {
		c.post(one+"/eviction", fmt.Sprintf(eviction, more))
	}
	c.patch(mergePatch, budgets+"/b/status", `{"status":{"observedGeneration":1,"disruptionsAllowed":1,"currentHealthy":2,"desiredHealthy":1,"expectedPods":2}}`)
	c.post(one+"/eviction", fmt.Sprintf(eviction, `,"deleteOptions":{"gracePeriodSeconds":25}`))
	c.get(one)
	c.get(budgets + "/b")
	c.delete(one+"?gracePeriodSeconds=0", "")
	for _, spec := range []string{
		`{}`, `{"containers":[]}`, `{"containers":[{"name":"c"}]}`, `{"containers":[{"name":"C","image":"i"}]}`, `{"containers":[{"name":"c","image":"i"},{"name":"c","image":"i"}]}`,
		`{"restartPolicy":"Sometimes","containers":[{"name":"c","image":"i"}]}`, `{"containers":[{"name":"c","image":"i","ports":[{"containerPort":0},{"containerPort":80,"hostPort":99999}]}]}`,
		`{"containers":[{"name":"c","image":"i","volumeMounts":[{"name":"v","mountPath":"/x"}]}]}`, `{"volumes":[{"name":"v"},{"name":"v","emptyDir":{}}],"containers":[{"name":"c","image":"i"}]}`,
		`{"containers":[{"name":"c","image":"i","resources":{"requests":{"cpu":"2"},"limits":{"cpu":"1"}}}]}`, `{"containers":[{"name":"c","image":"i","resources":{"requests":{"cpu":"-1"}}}]}`,
		`{"containers":[{"name":"c","image":"i","resources":{"requests":{"cpu":"one"}}}]}`, `{"containers":[{"name":"c","image":"i","env":[{"name":"a","value":"b","valueFrom":{"fieldRef":{"fieldPath":"spec.x"}}},{"name":"a"},{"name":"a"}]}]}`,
		`{"hostNetwork":true,"hostUsers":false,"containers":[{"name":"c","image":"i","livenessProbe":{"httpGet":{"port":"x"}}}]}`, `{"schedulingGates":[{"name":"a"}],"nodeName":"n","containers":[{"name":"c","image":"i"}]}`,
		`{"topologySpreadConstraints":[{"maxSkew":0,"topologyKey":"","whenUnsatisfiable":"x"}],"containers":[{"name":"c","image":"i"}]}`, `{"nodeSelector":{"beta.kubernetes.io/arch":"x"},"containers":[{"name":"c","image":"i"}]}`,
		`{"securityContext":{"runAsUser":-1,"sysctls":[{"name":"a b"}]},"initContainers":[{"name":"i","image":"i","restartPolicy":"Always"}],"containers":[{"name":"c","image":"i"}]}`,
	} {
		c.post(home+"/pods?dryRun=All", `{"metadata":{"name":"made"},"spec":`+spec+`}`)
	}
}

// updates changes fields that are immutable, and fields that change the generation.
func updates(c *client) {
	for _, s := range samples {
		if s.kind == "Event" || s.kind == "FlowSchema" || s.kind == "PriorityLevelConfiguration" || s.kind == "APIService" {
			continue
		}
		name := s.name()
		if name == "sample" {
			name = "updated"
		}
		one := s.path + "/" + name
		c.do(request{method: "POST", path: s.path, body: s.object(name), quiet: true})
		for _, body := range []string{
			`{"spec":null}`, `{"spec":{"selector":{"matchLabels":{"app":"b"}},"replicas":2}}`, `{"spec":{"template":{"metadata":{"labels":{"app":"b"}}}}}`, `{"metadata":{"generation":9,"uid":"x"}}`,
			`{"metadata":{"creationTimestamp":null,"namespace":"other"}}`, `{"metadata":{"ownerReferences":[{"kind":"x"}]}}`, `{"metadata":{"finalizers":["nodomain"]}}`, `{"metadata":{"labels":{"-":"x"},"annotations":{"a/b/c":"d"}}}`,
			`{"spec":{"serviceName":"t","podManagementPolicy":"Parallel","completions":3,"parallelism":2,"suspend":true,"schedule":"wrong"}}`, `{"type":"t","immutable":true,"provisioner":"x","driverName":"x","handler":"y","value":9}`,
			`{"roleRef":{"name":"edit"}}`, `{"webhooks":[{}]}`, `{"rules":[{}]}`, `{"addressType":"IPv6","subsets":[{}]}`, `{"kind":"Other"}`,
		} {
			c.patch(mergePatch, one+"?dryRun=All", body)
		}
		c.patch(mergePatch, one, `{"metadata":{"labels":{"counted":"no"}}}`)
		c.getAs(asTable, one)
		c.vanish(one)
	}
}
