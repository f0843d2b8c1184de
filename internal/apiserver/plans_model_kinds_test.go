package apiserver

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
)

// modelKind is a kind of objects, with the changes that the test may make to such objects.
type modelKind struct {
	// resource is the name that 'versions' uses. version is the version in which objects are stored.
	resource, version string
	// everywhere says that the kind has no namespaces.
	everywhere bool
	// object is a new object, without its name.
	object string
	// names are the fields that name the items of a list, by the list's way. A list without such fields is one value.
	names map[string][]string
	// edits are changes that are allowed at any time. fixed makes a change that is allowed only in a new object.
	edits []edit
	fixed func(object map[string]any)
	// immutable are the places that the API does not let clients change.
	immutable []string
	// status changes the status, if the kind has a subresource for the status.
	status edit
	// hasStatus says that the kind has a status that the test does not change.
	hasStatus bool
	// protected says that the server gives a new object a finalizer.
	protected bool
	// serverKeeps is an annotation in which the server keeps a count.
	serverKeeps string
	// other is another version, in which objects are not stored.
	other string
	// kept are places that a restore leaves as they are.
	kept []string
	// passes says that a restore skips the kind. alone says that transactions do not write the kind.
	passes, alone bool
	// kind is the kind's name. in is the namespace of the kind's objects, if that is not the usual namespace.
	kind, in string
	// A twin is a copy of an object. toTwin removes the values that an object and its twin cannot share, such as an
	// address. fromTwin puts the object's own values back.
	toTwin   func(object map[string]any)
	fromTwin func(object, own map[string]any)
	// finished says that an object has done its work, and would repeat the work if the object were made again.
	finished func(object map[string]any) bool
}

// edit changes an object in one or more places.
type edit func(m *model, object map[string]any)

func (k *modelKind) namespaced() bool { return !k.everywhere }

// namespace is the namespace of the kind's objects.
func (k *modelKind) namespace() string {
	if k.everywhere {
		return ""
	}
	return space
}

// collection is the path of the kind's objects, in the version in which they are stored.
func (k *modelKind) collection() string {
	resource, group, _ := strings.Cut(k.resource, ".")
	path := "/api/" + k.version
	if group != "" {
		path = "/apis/" + group + "/" + k.version
	}
	if k.namespaced() {
		path += "/namespaces/" + cmp.Or(k.in, space)
	}
	return path + "/" + resource
}

// typed is the apiVersion and kind of an object.
func (k *modelKind) typed() string {
	_, group, _ := strings.Cut(k.resource, ".")
	return `{"apiVersion":"` + strings.TrimPrefix(group+"/"+k.version, "/") + `","kind":"` + k.kind + `"}`
}

// keysOf are the fields that name the items of a list.
func (k *modelKind) keysOf(way string) []string {
	for suffix, keys := range k.names {
		if way == suffix {
			return keys
		}
	}
	last := way[strings.LastIndex(way, ".")+1:]
	return commonNames[last]
}

// commonNames are the naming fields of lists that many kinds have.
var commonNames = map[string][]string{
	"containers": {"name"}, "initContainers": {"name"}, "env": {"name"}, "volumes": {"name"}, "ownerReferences": {"kind", "name"}, "finalizers": {},
}

// written is the part of an object that a client may write.
func (k *modelKind) written(object map[string]any) map[string]any {
	out := copyOf(object)
	metadata := under(out, "metadata")
	for _, of := range []string{"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "deletionTimestamp", "deletionGracePeriodSeconds"} {
		delete(metadata, of)
	}
	if k.serverKeeps != "" {
		delete(under(metadata, "annotations"), k.serverKeeps)
	}
	if k.status != nil || k.hasStatus {
		delete(out, "status")
	}
	if out["aggregationRule"] != nil {
		delete(out, "rules") // these rules come from other roles
	}
	uid, _ := fieldOf(object, "metadata.uid").(string)
	return withoutUID(out, uid).(map[string]any)
}

// withoutUID is a value without the uid of its object. A Job has its own uid in labels and selector.
func withoutUID(value any, uid string) any {
	switch v := value.(type) {
	case map[string]any:
		for name, field := range v {
			v[name] = withoutUID(field, uid)
		}
	case []any:
		for i, item := range v {
			v[i] = withoutUID(item, uid)
		}
	case string:
		if v == uid {
			return "its uid"
		}
	}
	return value
}

// absent stands for a missing value.
type absent struct{}

// oneOf sets a field to one of the given values. absent{} removes the field.
func oneOf(way string, values ...any) edit {
	return func(m *model, object map[string]any) {
		parts := strings.Split(way, ".")
		last := len(parts) - 1
		value := values[m.IntN(len(values))]
		if value == any(absent{}) {
			without(object, way)
			return
		}
		under(object, parts[:last]...)[parts[last]] = deepCopy(value)
	}
}

// items adds, removes or changes an item of a list whose items have names.
func items(way, key string, names []string, item func(m *model, item map[string]any)) edit {
	return func(m *model, object map[string]any) {
		parts := strings.Split(way, ".")
		last := len(parts) - 1
		holder := under(object, parts[:last]...)
		list, _ := holder[parts[last]].([]any)
		list = slices.Clone(list)
		name := names[m.IntN(len(names))]
		i := slices.IndexFunc(list, func(item any) bool { return item.(map[string]any)[key] == name })
		switch {
		case i < 0:
			made := map[string]any{key: name}
			item(m, made)
			list = slices.Insert(list, m.IntN(len(list)+1), any(made))
		case m.IntN(2) == 0 && len(list) > 1:
			list = slices.Delete(list, i, i+1)
		default:
			changed := copyOf(list[i].(map[string]any))
			item(m, changed)
			list[i] = changed
		}
		holder[parts[last]] = list
	}
}

// commonEdits are the edits of all kinds.
var commonEdits = []edit{
	oneOf("metadata.labels.l", "1", "2", "3", absent{}),
	oneOf("metadata.labels.k", "1", "2", absent{}),
	oneOf("metadata.annotations.a", "1", "2", "3", "", absent{}),
	oneOf("metadata.annotations.b", "<&> \u2028", "2", absent{}),
}

// held sets or removes a finalizer, which keeps an object after its deletion.
var held = oneOf("metadata.finalizers", []any{"example.com/hold"}, absent{}, absent{}, absent{})

var modelDefinitions = []string{
	`{"metadata":{"name":"things.example.com"},"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"things","kind":"Thing"},"versions":[
		{"name":"v2","served":true,"storage":false,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{
			"size":{"type":"integer","format":"int64"},"hue":{"type":"string"}}}}}}},
		{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{
			"size":{"type":"integer","format":"int64"},"color":{"type":"string","default":"red"},"only":{"type":"string","nullable":true}}}}}}}]}}`,
	`{"metadata":{"name":"gadgets.example.com"},"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"gadgets","kind":"Gadget"},"versions":[
		{"name":"v1","served":true,"storage":true,"subresources":{"status":{}},"schema":{"openAPIV3Schema":{"type":"object","properties":{
			"status":{"type":"object","x-kubernetes-preserve-unknown-fields":true},
			"spec":{"type":"object","properties":{
				"big":{"type":"integer","format":"int64","nullable":true},"note":{"type":"string","nullable":true},
				"color":{"type":"string","default":"red"},"shade":{"type":"string","default":"dark","nullable":true},
				"map":{"type":"object","additionalProperties":{"type":"string","nullable":true}},
				"free":{"type":"object","x-kubernetes-preserve-unknown-fields":true,"nullable":true},
				"tags":{"type":"array","x-kubernetes-list-type":"set","items":{"type":"string"}},
				"numbers":{"type":"array","items":{"type":"integer","format":"int64"}},
				"things":{"type":"array","x-kubernetes-list-type":"atomic","items":{"type":"object","properties":{"name":{"type":"string"},"value":{"type":"string"}}}},
				"items":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["id"],"items":{"type":"object","required":["id"],"properties":{
					"id":{"type":"string"},"value":{"type":"string","nullable":true},"level":{"type":"integer","default":3}}}},
				"pairs":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["host","port"],"items":{"type":"object","required":["host","port"],"properties":{
					"host":{"type":"string"},"port":{"type":"integer"},"value":{"type":"string"}}}}
			}}}}}}]}}`,
	`{"metadata":{"name":"globals.example.com"},"spec":{"group":"example.com","scope":"Cluster","names":{"plural":"globals","kind":"Global"},"versions":[
		{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`,
}

// Parts of objects.
const (
	podOf       = `{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}`
	selectsPods = `"selector":{"matchLabels":{"a":"b"}},"template":` + podOf
	webhooksOf  = `{"webhooks":[{"name":"a.example.com","clientConfig":{"url":"https://127.0.0.1:1/x"},"sideEffects":"None","admissionReviewVersions":["v1"],
		"rules":[{"apiGroups":["none.example.com"],"apiVersions":["v1"],"operations":["CREATE"],"resources":["nones"]}]}]}`
	policyMatches = `"matchConstraints":{"resourceRules":[{"apiGroups":["none.example.com"],"apiVersions":["v1"],"operations":["CREATE"],"resources":["nones"]}]}`
)

// values decodes JSON texts.
func values(texts ...string) (all []any) {
	for _, text := range texts {
		if text == "" {
			all = append(all, absent{})
			continue
		}
		var value any
		decoder := json.NewDecoder(strings.NewReader(text))
		decoder.UseNumber()
		if err := decoder.Decode(&value); err != nil {
			panic(err)
		}
		all = append(all, value)
	}
	return all
}

// setTo sets a field to one of the given values, which are JSON texts. An empty text removes the field.
func setTo(way string, texts ...string) edit { return oneOf(way, values(texts...)...) }

// fixing sets one field of a new object.
func fixing(way, text string) func(map[string]any) {
	return func(object map[string]any) {
		parts := strings.Split(way, ".")
		under(object, parts[:len(parts)-1]...)[parts[len(parts)-1]] = values(text)[0]
	}
}

var modelKinds = slices.Concat(coreKinds, workloadKinds, clusterKinds, customKinds)

// ownerKind is the kind of objects that own others.
var ownerKind = modelKind{resource: "configmaps", kind: "ConfigMap", version: "v1", object: `{"data":{"a":"1"}}`, edits: []edit{setTo("data.a", `"1"`, `"2"`, "")}}

// owned gives an object an owner, or removes that owner.
func owned(m *model, object map[string]any) {
	owner := m.owners[m.IntN(len(m.owners))]
	all, _ := fieldOf(object, "metadata.ownerReferences").([]any)
	i := slices.IndexFunc(all, func(r any) bool { return r.(map[string]any)["name"] == owner.name })
	switch {
	case i >= 0:
		all = slices.Delete(slices.Clone(all), i, i+1)
	case owner.now() != nil:
		all = append(slices.Clone(all), map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "name": owner.name, "uid": fieldOf(owner.now(), "metadata.uid")})
	}
	under(object, "metadata")["ownerReferences"] = all
}

var coreKinds = []modelKind{
	{resource: "configmaps", kind: "ConfigMap", version: "v1", object: `{"data":{"a":"1"}}`, edits: []edit{
		setTo("data.a", `"1"`, `"2"`, `"3"`, `""`, ""), setTo("data.b", `"1"`, `"2"`, ""), setTo("data.c", `"x\ny\n"`, ""),
		setTo("binaryData.d", `"AAE="`, `"AAI="`, ""), applied,
	}},
	{resource: "secrets", kind: "Secret", version: "v1", object: `{"type":"example.com/one","data":{"a":"MQ=="}}`, edits: []edit{
		setTo("data.a", `"MQ=="`, `"Mg=="`, `""`, ""), setTo("data.b", `"MQ=="`, `"Mg=="`, ""), setTo("stringData.c", `"x"`, `"y"`),
	}, fixed: fixing("type", `"example.com/two"`), immutable: []string{`."type"`}},
	{resource: "services", kind: "Service", version: "v1", object: `{"spec":{"selector":{"a":"b"},"ports":[{"name":"http","port":80}]}}`, edits: []edit{
		setTo("spec.selector.c", `"1"`, `"2"`, ""), setTo("spec.sessionAffinity", `"None"`, `"ClientIP"`), setTo("spec.publishNotReadyAddresses", "true", ""),
		items("spec.ports", "name", []string{"http", "https", "more"}, func(m *model, item map[string]any) {
			item["port"] = map[string]any{"http": 80, "https": 443, "more": 8080}[item["name"].(string)]
			item["targetPort"] = values("80", `"named"`, "8080")[m.IntN(3)]
		}),
	}, names: map[string][]string{"spec.ports": {"port", "protocol"}}, kept: serviceAddresses, immutable: serviceAddresses,
		toTwin:   func(object map[string]any) { without(object, "spec.clusterIP", "spec.clusterIPs") },
		fromTwin: func(object, own map[string]any) { borrow(object, own, "spec.clusterIP", "spec.clusterIPs") },
		status:   conditions(`"Ready"`)},
	{resource: "serviceaccounts", kind: "ServiceAccount", version: "v1", object: `{}`, edits: []edit{
		setTo("automountServiceAccountToken", "true", "false", ""),
		items("imagePullSecrets", "name", []string{"p", "q", "r"}, func(*model, map[string]any) {}),
	}, names: map[string][]string{"imagePullSecrets": {"name"}}},
	{resource: "pods", kind: "Pod", version: "v1",
		object: `{"spec":{"automountServiceAccountToken":false,"containers":[{"name":"c","image":"i"}]}}`, edits: []edit{
			func(m *model, object map[string]any) {
				fieldOf(object, "spec.containers").([]any)[0].(map[string]any)["image"] = values(`"i"`, `"j"`, `"k"`)[m.IntN(3)]
			},
		}, fixed: fixing("spec.hostname", `"x"`), immutable: []string{`."spec"."hostname"`},
		status: setTo("status.phase", `"Pending"`, `"Running"`, `"Succeeded"`), finished: func(object map[string]any) bool {
			return fieldOf(object, "status.phase") == "Succeeded"
		}},
	{resource: "persistentvolumeclaims", kind: "PersistentVolumeClaim", version: "v1", protected: true,
		object: `{"spec":{"accessModes":["ReadWriteOnce"],"storageClassName":"one","resources":{"requests":{"storage":"1Gi"}}}}`,
		fixed:  fixing("spec.storageClassName", `"two"`), immutable: []string{`."spec"`}, status: setTo("status.phase", `"Pending"`, `"Lost"`)},
	{resource: "persistentvolumes", kind: "PersistentVolume", version: "v1", everywhere: true, protected: true,
		object: `{"spec":{"capacity":{"storage":"1Gi"},"accessModes":["ReadWriteOnce"],"hostPath":{"path":"/x"}}}`, edits: []edit{
			setTo("spec.persistentVolumeReclaimPolicy", `"Retain"`, `"Delete"`, `"Recycle"`), setTo("spec.mountOptions", `["a"]`, `["a","b"]`, ""),
			setTo("spec.capacity.storage", `"1Gi"`, `"2Gi"`),
		}, fixed: fixing("spec.hostPath.path", `"/y"`), immutable: []string{`."spec"."hostPath"`}, status: setTo("status.phase", `"Available"`, `"Released"`)},
	{resource: "resourcequotas", kind: "ResourceQuota", version: "v1", object: `{"spec":{"hard":{"count/a.example.org":"10"}}}`, hasStatus: true, edits: []edit{
		func(m *model, object map[string]any) {
			under(object, "spec", "hard")["count/a.example.org"] = values(`"10"`, `"20"`, `"1k"`)[m.IntN(3)]
		},
	}},
	{resource: "limitranges", kind: "LimitRange", version: "v1", object: `{"spec":{"limits":[{"type":"PersistentVolumeClaim","max":{"storage":"10Gi"}}]}}`, edits: []edit{
		setTo("spec.limits", `[{"type":"PersistentVolumeClaim","max":{"storage":"10Gi"}}]`, `[{"type":"PersistentVolumeClaim","max":{"storage":"20Gi"}}]`,
			`[{"type":"PersistentVolumeClaim","max":{"storage":"30Gi"}}]`),
	}},
	{resource: "podtemplates", kind: "PodTemplate", version: "v1", object: `{"template":` + podOf + `}`, edits: podEdits("template.")},
	{resource: "replicationcontrollers", kind: "ReplicationController", version: "v1", object: `{"spec":{"selector":{"a":"b"},"template":` + podOf + `}}`,
		edits:  append(podEdits("spec.template."), setTo("spec.replicas", "0", "1", "2"), setTo("spec.minReadySeconds", "1", "2", "")),
		status: setTo("status.replicas", "1", "2")},
	{resource: "leases.coordination.k8s.io", kind: "Lease", version: "v1", object: `{"spec":{"holderIdentity":"x","leaseDurationSeconds":10}}`, passes: true, edits: []edit{
		setTo("spec.holderIdentity", `"x"`, `"y"`, `"z"`), setTo("spec.renewTime", `"2026-01-02T03:04:05.123456Z"`, `"2026-01-02T03:04:05.000000Z"`, ""),
		setTo("spec.leaseTransitions", "1", "2", ""),
	}},
	{resource: "endpointslices.discovery.k8s.io", kind: "EndpointSlice", version: "v1",
		object: `{"addressType":"IPv4","endpoints":[{"addresses":["10.1.2.3"]}],"ports":[{"name":"x","port":80,"protocol":"TCP"}]}`, edits: []edit{
			setTo("endpoints", `[]`, `[{"addresses":["10.1.2.3"],"conditions":{"ready":true}}]`, `[{"addresses":["10.1.2.4"],"conditions":{"ready":false}},{"addresses":["10.1.2.3"]}]`),
			setTo("ports", `[{"name":"x","port":80,"protocol":"TCP"}]`, `[{"name":"x","port":81,"protocol":"TCP"}]`),
		}},
}

var serviceAddresses = []string{`."spec"."clusterIP"`, `."spec"."clusterIPs"`}

var selectorIsFixed = []string{`."spec"."selector"`}

func fixSelector(object map[string]any) {
	under(object, "spec", "selector", "matchLabels")["fixed"] = "x"
	under(object, "spec", "template", "metadata", "labels")["fixed"] = "x"
}

var workloadKinds = []modelKind{
	{resource: "deployments.apps", kind: "Deployment", version: "v1", object: `{"spec":{` + selectsPods + `}}`, edits: append(podEdits("spec.template."),
		setTo("spec.replicas", "0", "1", "2"), setTo("spec.paused", "true", ""), setTo("spec.minReadySeconds", "5", "6", ""),
		setTo("spec.strategy", `{"type":"Recreate"}`, `{"type":"RollingUpdate"}`)),
		immutable: selectorIsFixed, fixed: fixSelector, status: setTo("status.replicas", "1", "2", "3")},
	{resource: "statefulsets.apps", kind: "StatefulSet", version: "v1", object: `{"spec":{"serviceName":"x",` + selectsPods + `}}`, edits: append(podEdits("spec.template."),
		setTo("spec.replicas", "0", "1", "2"), setTo("spec.updateStrategy.rollingUpdate.partition", "0", "1", "2"), setTo("spec.minReadySeconds", "5", "6", "")),
		immutable: append([]string{`."spec"."serviceName"`}, selectorIsFixed...), fixed: fixing("spec.serviceName", `"y"`), status: setTo("status.replicas", "1", "2", "3")},
	{resource: "daemonsets.apps", kind: "DaemonSet", version: "v1", object: `{"spec":{` + selectsPods + `}}`, edits: append(podEdits("spec.template."),
		setTo("spec.minReadySeconds", "5", "6", ""), setTo("spec.revisionHistoryLimit", "5", "6")),
		serverKeeps: "deprecated.daemonset.template.generation",
		immutable:   selectorIsFixed, fixed: fixSelector, status: setTo("status.numberReady", "1", "2", "3")},
	{resource: "replicasets.apps", kind: "ReplicaSet", version: "v1", object: `{"spec":{` + selectsPods + `}}`, edits: append(podEdits("spec.template."),
		setTo("spec.replicas", "0", "1", "2"), setTo("spec.minReadySeconds", "5", "6", "")),
		immutable: selectorIsFixed, fixed: fixSelector, status: setTo("status.replicas", "1", "2", "3")},
	{resource: "controllerrevisions.apps", kind: "ControllerRevision", version: "v1", object: `{"revision":1,"data":{"a":null,"b":9007199254740993}}`, edits: []edit{
		setTo("revision", "1", "2", "9007199254740993"),
	}, immutable: []string{`."data"`}, fixed: fixing("data", `{"a":{"b":null},"c":1.5}`)},
	{resource: "jobs.batch", kind: "Job", version: "v1", object: `{"spec":{"suspend":true,"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}`, edits: []edit{
		setTo("spec.suspend", "true", "false"), setTo("spec.activeDeadlineSeconds", "10", "20", ""), setTo("spec.ttlSecondsAfterFinished", "10", "20", ""),
		setTo("spec.parallelism", "1", "2", "0"),
	}, immutable: []string{`."spec"."completions"`, `."spec"."selector"`, `."spec"."template"`}, fixed: fixing("spec.completions", "2"),
		hasStatus: true, alone: true},
	{resource: "cronjobs.batch", kind: "CronJob", version: "v1",
		object: `{"spec":{"schedule":"* * * * *","jobTemplate":{"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}}}`,
		edits: append(podEdits("spec.jobTemplate.spec.template."), setTo("spec.schedule", `"* * * * *"`, `"1 * * * *"`, `"@daily"`), setTo("spec.suspend", "true", "false"),
			setTo("spec.timeZone", `"Etc/UTC"`, ""), setTo("spec.startingDeadlineSeconds", "60", "70", "")),
		status: setTo("status.lastScheduleTime", `"2026-01-02T03:04:05Z"`, `"2026-01-02T03:05:05Z"`)},
	{resource: "ingresses.networking.k8s.io", kind: "Ingress", version: "v1", object: `{"spec":{"defaultBackend":{"service":{"name":"x","port":{"number":80}}}}}`, edits: []edit{
		setTo("spec.rules", `[{"host":"a.example.com"}]`, `[{"host":"b.example.com"},{"host":"a.example.com"}]`, ""), setTo("spec.ingressClassName", `"x"`, `"y"`, ""),
		setTo("spec.defaultBackend.service.port.number", "80", "81", "82"), setTo("spec.tls", `[{"hosts":["a.example.com"]}]`, `[{"secretName":"x"}]`, ""),
	}, status: setTo("status.loadBalancer.ingress", `[{"ip":"10.1.1.1"}]`, `[{"ip":"10.1.1.2"}]`)},
	{resource: "networkpolicies.networking.k8s.io", kind: "NetworkPolicy", version: "v1", object: `{"spec":{"podSelector":{}}}`, edits: []edit{
		setTo("spec.podSelector.matchLabels.a", `"1"`, `"2"`), setTo("spec.policyTypes", `["Ingress"]`, `["Ingress","Egress"]`),
		setTo("spec.ingress", `[{}]`, `[{"from":[{"podSelector":{}}]}]`, `[{"ports":[{"port":80},{"port":"x","protocol":"UDP"}]}]`, ""),
	}},
	{resource: "poddisruptionbudgets.policy", kind: "PodDisruptionBudget", version: "v1", object: `{"spec":{"minAvailable":1,"selector":{"matchLabels":{"a":"b"}}}}`, edits: []edit{
		setTo("spec.minAvailable", "1", `"50%"`, "0"), setTo("spec.selector.matchLabels.c", `"1"`, `"2"`, ""), setTo("spec.unhealthyPodEvictionPolicy", `"AlwaysAllow"`, `"IfHealthyBudget"`, ""),
	}, status: setTo("status.currentHealthy", "1", "2", "3")},
	{resource: "horizontalpodautoscalers.autoscaling", kind: "HorizontalPodAutoscaler", version: "v2",
		object: `{"spec":{"maxReplicas":3,"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"x"}}}`, edits: []edit{
			setTo("spec.maxReplicas", "3", "4", "5"), setTo("spec.minReplicas", "1", "2"), setTo("spec.scaleTargetRef.name", `"x"`, `"y"`),
			setTo("spec.metrics", `[{"type":"Resource","resource":{"name":"cpu","target":{"type":"Utilization","averageUtilization":50}}}]`,
				`[{"type":"Resource","resource":{"name":"cpu","target":{"type":"AverageValue","averageValue":"500m"}}}]`),
			setTo("spec.behavior", `{"scaleDown":{"stabilizationWindowSeconds":60}}`, `{"scaleUp":{"stabilizationWindowSeconds":0}}`, ""),
		}, status: setTo("status.currentReplicas", "1", "2")},
	{resource: "roles.rbac.authorization.k8s.io", kind: "Role", version: "v1", object: `{"rules":[]}`, edits: rules},
	{resource: "rolebindings.rbac.authorization.k8s.io", kind: "RoleBinding", version: "v1", object: roleBindingOf, edits: subjects,
		fixed: fixing("roleRef.name", `"y"`), immutable: []string{`."roleRef"`}},
}

var rules = []edit{
	setTo("rules", `[]`, `[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]`, `[{"apiGroups":["","apps"],"resources":["pods"],"resourceNames":["x"],"verbs":["get","list"]}]`),
}

const roleBindingOf = `{"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"x"},"subjects":[{"kind":"User","name":"x","apiGroup":"rbac.authorization.k8s.io"}]}`

var subjects = []edit{
	setTo("subjects", `[{"kind":"User","name":"x","apiGroup":"rbac.authorization.k8s.io"}]`, `[{"kind":"Group","name":"x","apiGroup":"rbac.authorization.k8s.io"}]`,
		`[{"kind":"User","name":"y","apiGroup":"rbac.authorization.k8s.io"},{"kind":"User","name":"x","apiGroup":"rbac.authorization.k8s.io"}]`, ""),
}

var clusterKinds = []modelKind{
	{resource: "clusterroles.rbac.authorization.k8s.io", kind: "ClusterRole", version: "v1", everywhere: true, object: `{"rules":[]}`,
		edits: append(rules[:1:1], setTo("aggregationRule.clusterRoleSelectors", `[{"matchLabels":{"none":"x"}}]`, `[{"matchLabels":{"none":"y"}}]`))},
	{resource: "clusterrolebindings.rbac.authorization.k8s.io", kind: "ClusterRoleBinding", version: "v1", everywhere: true, object: roleBindingOf, edits: subjects,
		fixed: fixing("roleRef.name", `"y"`), immutable: []string{`."roleRef"`}},
	{resource: "ingressclasses.networking.k8s.io", kind: "IngressClass", version: "v1", everywhere: true, object: `{"spec":{"controller":"example.com/x"}}`, edits: []edit{
		setTo("spec.parameters", `{"kind":"X","name":"x"}`, `{"kind":"X","name":"y","apiGroup":"example.com"}`, ""),
	}, fixed: fixing("spec.controller", `"example.com/y"`), immutable: []string{`."spec"."controller"`}},
	{resource: "storageclasses.storage.k8s.io", kind: "StorageClass", version: "v1", everywhere: true, object: `{"provisioner":"example.com/x"}`, edits: []edit{
		setTo("allowVolumeExpansion", "true", "false", ""), setTo("mountOptions", `["a"]`, `["b","a"]`, ""),
	}, fixed: fixing("parameters", `{"a":"b"}`), immutable: []string{`."parameters"`}},
	{resource: "csidrivers.storage.k8s.io", kind: "CSIDriver", version: "v1", everywhere: true, object: `{"spec":{}}`, edits: []edit{
		setTo("spec.requiresRepublish", "true", "false"), setTo("spec.seLinuxMount", "true", "false"), setTo("spec.tokenRequests", `[{"audience":"a"}]`, `[{"audience":"b","expirationSeconds":3600}]`, ""),
	}, fixed: fixing("spec.attachRequired", "false"), immutable: []string{`."spec"."attachRequired"`}},
	{resource: "priorityclasses.scheduling.k8s.io", kind: "PriorityClass", version: "v1", everywhere: true, object: `{"value":5}`, edits: []edit{
		setTo("description", `"a"`, `"b"`, ""),
	}, fixed: fixing("value", "6"), immutable: []string{`."value"`}},
	{resource: "runtimeclasses.node.k8s.io", kind: "RuntimeClass", version: "v1", everywhere: true, object: `{"handler":"x"}`, edits: []edit{
		setTo("overhead.podFixed.cpu", `"1"`, `"500m"`), setTo("scheduling.nodeSelector.a", `"1"`, `"2"`),
		setTo("scheduling.tolerations", `[{"key":"a","operator":"Exists"}]`, `[{"key":"a","operator":"Exists","effect":"NoSchedule"}]`),
	}, fixed: fixing("handler", `"y"`), immutable: []string{`."handler"`}},
	{resource: "validatingadmissionpolicies.admissionregistration.k8s.io", kind: "ValidatingAdmissionPolicy", version: "v1", everywhere: true,
		object: `{"spec":{` + policyMatches + `,"validations":[{"expression":"true"}]}}`, edits: []edit{
			setTo("spec.failurePolicy", `"Ignore"`, `"Fail"`), setTo("spec.validations", `[{"expression":"true"}]`, `[{"expression":"false","message":"no"}]`, `[{"expression":"1 == 1"},{"expression":"true"}]`),
			items("spec.variables", "name", []string{"x", "y", "z"}, func(m *model, item map[string]any) { setTo("expression", `"1"`, `"2"`, `"3"`)(m, item) }),
		}, names: map[string][]string{"spec.variables": {"name"}}, status: setTo("status.observedGeneration", "1", "2")},
	{resource: "validatingadmissionpolicybindings.admissionregistration.k8s.io", kind: "ValidatingAdmissionPolicyBinding", version: "v1", everywhere: true,
		object: `{"spec":{"policyName":"none","validationActions":["Deny"]}}`, edits: []edit{
			setTo("spec.policyName", `"none"`, `"neither"`), setTo("spec.validationActions", `["Deny"]`, `["Warn"]`),
		}},
	{resource: "validatingwebhookconfigurations.admissionregistration.k8s.io", kind: "ValidatingWebhookConfiguration", version: "v1", everywhere: true, object: webhooksOf,
		edits: webhookEdits, names: map[string][]string{"webhooks": {"name"}}},
	{resource: "mutatingwebhookconfigurations.admissionregistration.k8s.io", kind: "MutatingWebhookConfiguration", version: "v1", everywhere: true, object: webhooksOf,
		edits: webhookEdits, names: map[string][]string{"webhooks": {"name"}}},
	{resource: "flowschemas.flowcontrol.apiserver.k8s.io", kind: "FlowSchema", version: "v1", everywhere: true,
		object: `{"spec":{"priorityLevelConfiguration":{"name":"global-default"},"matchingPrecedence":9000}}`, edits: []edit{
			setTo("spec.matchingPrecedence", "9000", "9001", "9002"), setTo("spec.distinguisherMethod", `{"type":"ByUser"}`, `{"type":"ByNamespace"}`, ""),
			setTo("spec.rules", `[{"subjects":[{"kind":"User","user":{"name":"x"}}],"nonResourceRules":[{"verbs":["get"],"nonResourceURLs":["/x"]}]}]`, ""),
		}, hasStatus: true},
	{resource: "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io", kind: "PriorityLevelConfiguration", version: "v1", everywhere: true,
		object: `{"spec":{"type":"Limited","limited":{"nominalConcurrencyShares":5,"limitResponse":{"type":"Reject"}}}}`, edits: []edit{
			setTo("spec.limited.nominalConcurrencyShares", "5", "6", "0"), setTo("spec.limited.lendablePercent", "5", "6", "0"), setTo("spec.limited.borrowingLimitPercent", "5", "6", ""),
		}, hasStatus: true},
}

var webhookEdits = []edit{
	items("webhooks", "name", []string{"a.example.com", "b.example.com", "c.example.com"}, func(m *model, item map[string]any) {
		of := values(webhooksOf)[0].(map[string]any)["webhooks"].([]any)[0].(map[string]any)
		for name, value := range of {
			if name != "name" {
				item[name] = value
			}
		}
		setTo("timeoutSeconds", "1", "2", "3")(m, item)
		setTo("failurePolicy", `"Ignore"`, `"Fail"`)(m, item)
	}),
}

var customKinds = []modelKind{
	{resource: "things.example.com", kind: "Thing", version: "v1", other: "v2", object: `{"apiVersion":"example.com/v1","kind":"Thing","spec":{"size":1}}`, edits: []edit{
		setTo("spec.size", "1", "9007199254740993", "-9223372036854775808", ""), setTo("spec.color", `"red"`, `"blue"`, ""), setTo("spec.only", `"x"`, "null", `""`, ""),
	}},
	{resource: "gadgets.example.com", kind: "Gadget", version: "v1", object: `{"apiVersion":"example.com/v1","kind":"Gadget","spec":{"big":9007199254740993}}`, edits: []edit{
		setTo("spec.big", "9007199254740993", "9223372036854775807", "-1", "null", ""), setTo("spec.note", `"x"`, `""`, "null", ""), setTo("spec.color", `"red"`, `"blue"`, ""),
		setTo("spec.shade", `"dark"`, "null", `"x"`, ""), setTo("spec.map.a", `"1"`, `"2"`, "null", ""), setTo("spec.map.b", `"1"`, "null", ""),
		setTo("spec.free.a", "null", "9007199254740993", "1.5", `{"x":null}`, `{"x":9007199254740993,"y":{}}`, `[null,1]`, `[]`, ""), setTo("spec.free.b", "1", "null", "true", ""),
		setTo("spec.tags", `["a"]`, `["a","b"]`, `["c","b"]`, `[]`, ""), setTo("spec.numbers", `[1,2]`, `[9007199254740993]`, `[]`, ""),
		items("spec.items", "id", []string{"x", "y", "z"}, func(m *model, item map[string]any) { setTo("value", `"1"`, `"2"`, "null", "")(m, item) }),
	}, names: map[string][]string{"spec.items": {"id"}, "spec.pairs": {"host", "port"}, "spec.tags": {}},
		status: setTo("status.x", "1", "9007199254740993", "null")},
	{resource: "globals.example.com", kind: "Global", version: "v1", everywhere: true, object: `{"apiVersion":"example.com/v1","kind":"Global"}`, edits: []edit{
		setTo("spec.a", "null", "9007199254740993", `{"x":null}`, `{"x":{"y":[null]}}`, `"x"`, ""), setTo("status.phase", `"x"`, "null", `"y"`, ""), setTo("top", "null", "1", `{}`, `[]`, ""),
		setTo("spec.b.c", "1", "2", "null", ""),
	}},
}

func conditions(of string) edit {
	return setTo("status.conditions", `[{"type":`+of+`,"status":"True","reason":"R","message":"m","lastTransitionTime":"2026-01-02T03:04:05Z"}]`,
		`[{"type":`+of+`,"status":"False","reason":"R","message":"m","lastTransitionTime":"2026-01-02T03:04:05Z"}]`)
}

// without removes fields.
func without(object map[string]any, ways ...string) {
	for _, way := range ways {
		parts := strings.Split(way, ".")
		last := len(parts) - 1
		if holder, ok := fieldOf(map[string]any{"": object}, strings.Join(append([]string{""}, parts[:last]...), ".")).(map[string]any); ok {
			delete(holder, parts[last])
		}
	}
}

// borrow gives fields the values that they have in another object.
func borrow(object, own map[string]any, ways ...string) {
	without(object, ways...)
	for _, way := range ways {
		if value := fieldOf(own, way); value != nil {
			parts := strings.Split(way, ".")
			under(object, parts[:len(parts)-1]...)[parts[len(parts)-1]] = deepCopy(value)
		}
	}
}

// lastApplied is the annotation in which 'kubectl apply' keeps the applied object.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// applied changes an object in the way of 'kubectl apply'.
func applied(m *model, object map[string]any) {
	document := map[string]any{"data": map[string]any{}}
	for _, name := range []string{"a", "b"} {
		if value := []any{"1", "2", nil}[m.IntN(3)]; value != nil {
			under(document, "data")[name] = value
			under(object, "data")[name] = value
		}
	}
	under(object, "metadata", "annotations")[lastApplied] = encoded(document) + "\n"
}

// podEdits are the edits of a Pod or a Pod template.
func podEdits(in string) []edit {
	return []edit{
		setTo(in+"metadata.labels.p", `"1"`, `"2"`, ""),
		setTo(in+"metadata.annotations.p", `"1"`, `"2"`, ""),
		setTo(in+"spec.terminationGracePeriodSeconds", "10", "20", "30"),
		items(in+"spec.containers", "name", []string{"c", "d", "e"}, func(m *model, item map[string]any) {
			setTo("image", `"i"`, `"j"`, `"k"`)(m, item)
			setTo("command", `["a","b"]`, `["b"]`, "")(m, item)
			if m.IntN(2) == 0 {
				items("env", "name", []string{"A", "B", "C"}, func(m *model, item map[string]any) {
					setTo("value", `"1"`, `"2"`, `"3"`)(m, item)
				})(m, item)
			}
		}),
	}
}
