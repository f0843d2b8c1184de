package main

import (
	"fmt"
	"strings"
)

// sample is an object of a kind, as small as possible, that the script creates, changes and deletes.
type sample struct {
	path, kind string
	version    string
	spec       string // the object without kind and name
	sub        []string
}

const podSpec = `{"containers":[{"name":"c","image":"i"}]}`

const template = `"selector":{"matchLabels":{"app":"a"}},"template":{"metadata":{"labels":{"app":"a"}},"spec":` + podSpec + `}`

var samples = []sample{
	{home + "/configmaps", "ConfigMap", "v1", `"data":{"a":"b"},"binaryData":{"c":"AAEC"}`, nil},
	{home + "/secrets", "Secret", "v1", `"stringData":{"a":"b"}`, nil},
	{home + "/pods", "Pod", "v1", `"spec":` + podSpec, []string{"status", "ephemeralcontainers", "resize"}},
	{home + "/services", "Service", "v1", `"spec":{"ports":[{"port":80}],"selector":{"app":"a"}}`, []string{"status"}},
	{home + "/endpoints", "Endpoints", "v1", `"subsets":[{"addresses":[{"ip":"192.0.2.1"}],"ports":[{"port":80}]}]`, nil},
	{home + "/serviceaccounts", "ServiceAccount", "v1", `"automountServiceAccountToken":false`, nil},
	{home + "/persistentvolumeclaims", "PersistentVolumeClaim", "v1", `"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}`, []string{"status"}},
	{home + "/limitranges", "LimitRange", "v1", `"spec":{"limits":[{"type":"PersistentVolumeClaim","max":{"storage":"9Gi"}}]}`, nil},
	{home + "/resourcequotas", "ResourceQuota", "v1", `"spec":{"hard":{"count/widgets.example.com":"5"}}`, []string{"status"}},
	{home + "/replicationcontrollers", "ReplicationController", "v1", `"spec":{"selector":{"app":"a"},"template":{"metadata":{"labels":{"app":"a"}},"spec":` + podSpec + `}}`, []string{"status", "scale"}},
	{home + "/podtemplates", "PodTemplate", "v1", `"template":{"metadata":{"labels":{"app":"a"}},"spec":` + podSpec + `}`, nil},
	{home + "/events", "Event", "v1", `"involvedObject":{"namespace":"compare","kind":"Pod","name":"p"},"reason":"Because","message":"m","type":"Normal","firstTimestamp":"2026-01-01T00:00:00Z","lastTimestamp":"2026-01-01T00:00:00Z"`, nil},
	{"/api/v1/nodes", "Node", "v1", `"spec":{"unschedulable":true}`, []string{"status"}},
	{"/api/v1/persistentvolumes", "PersistentVolume", "v1", `"spec":{"capacity":{"storage":"1Gi"},"accessModes":["ReadWriteOnce"],"hostPath":{"path":"/tmp/x"}}`, []string{"status"}},
	{"/api/v1/namespaces", "Namespace", "v1", `"spec":{"finalizers":["example.com/keep"]}`, []string{"status", "finalize"}},
	{appHome + "/deployments", "Deployment", "apps/v1", `"spec":{` + template + `}`, []string{"status", "scale"}},
	{appHome + "/replicasets", "ReplicaSet", "apps/v1", `"spec":{` + template + `}`, []string{"status", "scale"}},
	{appHome + "/statefulsets", "StatefulSet", "apps/v1", `"spec":{"serviceName":"s",` + template + `}`, []string{"status", "scale"}},
	{appHome + "/daemonsets", "DaemonSet", "apps/v1", `"spec":{` + template + `}`, []string{"status"}},
	{appHome + "/controllerrevisions", "ControllerRevision", "apps/v1", `"data":{"a":1},"revision":1`, nil},
	{"/apis/batch/v1/namespaces/compare/jobs", "Job", "batch/v1", `"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}`, []string{"status"}},
	{"/apis/batch/v1/namespaces/compare/cronjobs", "CronJob", "batch/v1", `"spec":{"schedule":"* * * * *","jobTemplate":{"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}}`, []string{"status"}},
	{"/apis/networking.k8s.io/v1/namespaces/compare/ingresses", "Ingress", "networking.k8s.io/v1", `"spec":{"defaultBackend":{"service":{"name":"s","port":{"number":80}}}}`, []string{"status"}},
	{"/apis/networking.k8s.io/v1/namespaces/compare/networkpolicies", "NetworkPolicy", "networking.k8s.io/v1", `"spec":{"podSelector":{}}`, nil},
	{"/apis/networking.k8s.io/v1/ingressclasses", "IngressClass", "networking.k8s.io/v1", `"spec":{"controller":"example.com/c"}`, nil},
	{"/apis/autoscaling/v2/namespaces/compare/horizontalpodautoscalers", "HorizontalPodAutoscaler", "autoscaling/v2", `"spec":{"maxReplicas":3,"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"d"}}`, []string{"status"}},
	{"/apis/autoscaling/v1/namespaces/compare/horizontalpodautoscalers", "HorizontalPodAutoscaler", "autoscaling/v1", `"spec":{"maxReplicas":3,"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"d"}}`, []string{"status"}},
	{"/apis/policy/v1/namespaces/compare/poddisruptionbudgets", "PodDisruptionBudget", "policy/v1", `"spec":{"minAvailable":1,"selector":{"matchLabels":{"app":"a"}}}`, []string{"status"}},
	{"/apis/coordination.k8s.io/v1/namespaces/compare/leases", "Lease", "coordination.k8s.io/v1", `"spec":{"holderIdentity":"me","leaseDurationSeconds":5}`, nil},
	{"/apis/discovery.k8s.io/v1/namespaces/compare/endpointslices", "EndpointSlice", "discovery.k8s.io/v1", `"addressType":"IPv4","endpoints":[{"addresses":["192.0.2.1"]}],"ports":[{"port":80}]`, nil},
	{"/apis/events.k8s.io/v1/namespaces/compare/events", "Event", "events.k8s.io/v1", `"eventTime":"2026-01-01T00:00:00.000000Z","reportingController":"example.com/c","reportingInstance":"i","action":"Do","reason":"Because","type":"Normal","regarding":{"namespace":"compare","kind":"Pod","name":"p"}`, nil},
	{"/apis/rbac.authorization.k8s.io/v1/namespaces/compare/roles", "Role", "rbac.authorization.k8s.io/v1", `"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]`, nil},
	{"/apis/rbac.authorization.k8s.io/v1/namespaces/compare/rolebindings", "RoleBinding", "rbac.authorization.k8s.io/v1", `"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"view"},"subjects":[{"kind":"User","name":"somebody","apiGroup":"rbac.authorization.k8s.io"}]`, nil},
	{"/apis/rbac.authorization.k8s.io/v1/clusterroles", "ClusterRole", "rbac.authorization.k8s.io/v1", `"rules":[{"nonResourceURLs":["/metrics"],"verbs":["get"]}]`, nil},
	{"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", "ClusterRoleBinding", "rbac.authorization.k8s.io/v1", `"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"view"},"subjects":[{"kind":"Group","name":"some","apiGroup":"rbac.authorization.k8s.io"}]`, nil},
	{"/apis/storage.k8s.io/v1/storageclasses", "StorageClass", "storage.k8s.io/v1", `"provisioner":"example.com/p"`, nil},
	{"/apis/storage.k8s.io/v1/csidrivers", "CSIDriver", "storage.k8s.io/v1", `"spec":{}`, nil},
	{"/apis/storage.k8s.io/v1/csinodes", "CSINode", "storage.k8s.io/v1", `"spec":{"drivers":[]}`, nil},
	{"/apis/storage.k8s.io/v1/volumeattachments", "VolumeAttachment", "storage.k8s.io/v1", `"spec":{"attacher":"example.com/a","nodeName":"n","source":{"persistentVolumeName":"v"}}`, []string{"status"}},
	{"/apis/storage.k8s.io/v1/volumeattributesclasses", "VolumeAttributesClass", "storage.k8s.io/v1", `"driverName":"example.com/d","parameters":{"a":"b"}`, nil},
	{"/apis/storage.k8s.io/v1/namespaces/compare/csistoragecapacities", "CSIStorageCapacity", "storage.k8s.io/v1", `"storageClassName":"s"`, nil},
	{"/apis/scheduling.k8s.io/v1/priorityclasses", "PriorityClass", "scheduling.k8s.io/v1", `"value":5`, nil},
	{"/apis/node.k8s.io/v1/runtimeclasses", "RuntimeClass", "node.k8s.io/v1", `"handler":"h"`, nil},
	{"/apis/certificates.k8s.io/v1/certificatesigningrequests", "CertificateSigningRequest", "certificates.k8s.io/v1", `"spec":{"request":"bm90IGEgcmVxdWVzdA==","signerName":"example.com/s","usages":["client auth"]}`, []string{"status", "approval"}},
	{"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", "ValidatingWebhookConfiguration", "admissionregistration.k8s.io/v1", `"webhooks":[]`, nil},
	{"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", "MutatingWebhookConfiguration", "admissionregistration.k8s.io/v1", `"webhooks":[]`, nil},
	{"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies", "ValidatingAdmissionPolicy", "admissionregistration.k8s.io/v1", `"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":["none.example"],"apiVersions":["v1"],"operations":["CREATE"],"resources":["nones"]}]},"validations":[{"expression":"true"}]}`, []string{"status"}},
	{"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", "admissionregistration.k8s.io/v1", `"spec":{"policyName":"sample","validationActions":["Deny"]}`, nil},
	{"/apis/apiregistration.k8s.io/v1/apiservices", "APIService", "apiregistration.k8s.io/v1", `"spec":{"group":"remote.example","version":"v1","groupPriorityMinimum":100,"versionPriority":10,"service":{"namespace":"compare","name":"s"},"insecureSkipTLSVerify":true}`, []string{"status"}},
	{"/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas", "FlowSchema", "flowcontrol.apiserver.k8s.io/v1", `"spec":{"priorityLevelConfiguration":{"name":"catch-all"},"matchingPrecedence":9000}`, []string{"status"}},
	{"/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations", "PriorityLevelConfiguration", "flowcontrol.apiserver.k8s.io/v1", `"spec":{"type":"Limited","limited":{"nominalConcurrencyShares":1,"limitResponse":{"type":"Reject"}}}`, []string{"status"}},
	{"/apis/resource.k8s.io/v1/deviceclasses", "DeviceClass", "resource.k8s.io/v1", `"spec":{}`, nil},
	{"/apis/resource.k8s.io/v1/namespaces/compare/resourceclaims", "ResourceClaim", "resource.k8s.io/v1", `"spec":{}`, []string{"status"}},
	{"/apis/resource.k8s.io/v1/namespaces/compare/resourceclaimtemplates", "ResourceClaimTemplate", "resource.k8s.io/v1", `"spec":{"spec":{}}`, nil},
	{"/apis/networking.k8s.io/v1/servicecidrs", "ServiceCIDR", "networking.k8s.io/v1", `"spec":{"cidrs":["10.112.0.0/24"]}`, []string{"status"}},
	{"/apis/networking.k8s.io/v1/ipaddresses", "IPAddress", "networking.k8s.io/v1", `"spec":{"parentRef":{"resource":"services","namespace":"compare","name":"s"}}`, nil},
}

func (s sample) name() string {
	switch s.kind {
	case "APIService":
		return "v1.remote.example"
	case "IPAddress":
		return "192.0.2.7"
	case "Event", "HorizontalPodAutoscaler": // these kinds have the same objects in two groups
		return "sample-" + s.label()
	}
	return "sample"
}

// label returns a label value for the objects of the sample's group and version.
func (s sample) label() string { return strings.NewReplacer("/", "-", ".", "-").Replace(s.version) }

func (s sample) object(name string) string {
	return fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q,"labels":{"part":%q}},%s}`, s.version, s.kind, name, s.label(), s.spec)
}

// objects creates, changes and deletes an object of every kind.
func objects(c *client) {
	c.together(len(samples), func(c *client, i int) { live(c, samples[i]) })
}

func live(c *client, s sample) {
	one := s.path + "/" + s.name()
	c.post(s.path+"?dryRun=All", s.object(s.name()))
	created := c.post(s.path+"?fieldManager=creator", s.object(s.name()))
	if s.kind == "APIService" || s.kind == "FlowSchema" { // a controller on both sides sets conditions soon
		created = c.await(request{method: "GET", path: one, quiet: true}, func(a answer) bool { return len(a.conditions()) > 0 })
	}
	revision := created.at("metadata.resourceVersion")
	c.post(s.path, s.object(s.name()))
	for _, accept := range []string{"", asYAML, asProtobuf, asCBOR, asTable, asPartial, strings.Replace(asTable, "v=v1", "v=v1beta1", 1)} {
		c.getAs(accept, one)
	}
	for _, accept := range []string{"", asProtobuf, asCBOR, asTable, asPartials} {
		c.getAs(accept, s.path+"?labelSelector=part%3D"+s.label())
	}
	c.getAs(asTable, s.path+"?labelSelector=part%3D"+s.label()+"&includeObject=Object")
	current := c.get(one)
	c.put(one+"?dryRun=All", current.json(label("written", "dry")))
	c.put(one, current.json(nil))
	c.put(one, current.json(label("written", "put")))
	c.put(one, current.json(label("written", "stale")))
	c.put(one, s.object(s.name()))
	c.patch(mergePatch, one, `{"metadata":{"labels":{"merge":"yes","written":null}}}`)
	c.patch(jsonPatch, one, `[{"op":"test","path":"/metadata/labels/merge","value":"yes"},{"op":"add","path":"/metadata/annotations","value":{"a":"b"}}]`)
	c.patch(jsonPatch, one, `[{"op":"test","path":"/metadata/labels/merge","value":"no"}]`)
	c.patch(jsonPatch, one, `[{"op":"remove","path":"/nowhere"}]`)
	c.patch(strategicPatch, one, `{"metadata":{"annotations":{"$retainKeys":["c"],"c":"d"}}}`)
	c.patch(mergePatch, one+"?dryRun=All", `{"metadata":{"labels":{"dry":"yes"}}}`)
	c.patch(mergePatch, one, `{"metadata":{"resourceVersion":"`+revision+`","labels":{"stale":"yes"}}}`)
	apply := func(query, labels string) {
		c.patch(applyYAML, one+"?"+query, fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q,"labels":{%s}}}`, s.version, s.kind, s.name(), labels))
	}
	apply("", `"x":"y"`)
	apply("fieldManager=one", `"applied":"one"`)
	apply("fieldManager=two", `"applied":"two"`)
	apply("fieldManager=two&force=true", `"applied":"two"`)
	apply("fieldManager=one", ``)
	apply("fieldManager=two&dryRun=All", `"applied":"dry"`)
	for _, sub := range s.sub {
		subresource(c, s, one, sub)
	}
	c.get(one)
	c.watch(s.path + "?resourceVersion=" + revision + "&fieldSelector=metadata.name%3D" + s.name())
	c.delete(one+"?dryRun=All", "")
	c.delete(one, `{"preconditions":{"uid":"11111111-2222-3333-4444-555555555555"}}`)
	c.delete(one, `{"preconditions":{"resourceVersion":"1"}}`)
	c.delete(one, `{"propagationPolicy":"Sideways"}`)
	c.delete(one, `{"gracePeriodSeconds":0,"propagationPolicy":"Background"}`)
	c.get(one)
	c.delete(one, `{"gracePeriodSeconds":0}`)
}

func subresource(c *client, s sample, one, sub string) {
	got := c.get(one + "/" + sub)
	if sub == "finalize" {
		return // the object would be gone
	}
	c.getAs(asTable, one+"/"+sub)
	if sub == "scale" {
		c.put(one+"/scale", got.json(func(o map[string]any) {
			if spec, ok := o["spec"].(map[string]any); ok {
				spec["replicas"] = 3
			}
		}))
		c.patch(mergePatch, one+"/scale", `{"spec":{"replicas":2}}`)
		c.patch(mergePatch, one+"/scale", `{"spec":{"replicas":-2}}`)
		return
	}
	c.put(one+"/"+sub, c.get(one).json(label("by-"+sub, "put")))
	c.patch(mergePatch, one+"/"+sub, `{"metadata":{"labels":{"by-`+sub+`":"patch"}},"status":{"conditions":[{"type":"Seen","status":"True","reason":"r","message":"m"}],"phase":"Unknown","replicas":1}}`)
	c.patch(applyYAML, one+"/"+sub+"?fieldManager=status", fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q},"status":{"observedGeneration":1}}`, s.version, s.kind, s.name()))
}

// label returns a change that sets a label of an object.
func label(name, value string) func(map[string]any) {
	return func(o map[string]any) {
		metadata, _ := o["metadata"].(map[string]any)
		if metadata == nil {
			return
		}
		labels, _ := metadata["labels"].(map[string]any)
		if labels == nil {
			labels = map[string]any{}
			metadata["labels"] = labels
		}
		labels[name] = value
	}
}
