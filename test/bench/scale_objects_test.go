package bench

// templates are created through the API; the objects that fill a cell are copies of them. They are about as large as
// such objects are in real clusters, with the fields that kubelets report in their status.
var templates = []struct{ path, body, status string }{
	{"/api/v1/nodes", nodeBody, nodeStatus},
	{"/apis/coordination.k8s.io/v1/namespaces/" + leaseNamespace + "/leases", leaseBody, ""},
	{"/apis/apps/v1/namespaces/templates/replicasets", replicaSetBody, ""},
	{"/api/v1/namespaces/templates/pods", podBody, podStatus},
}

const podTemplate = 3

const leaseBody = `{"metadata":{"name":"template","namespace":"kube-node-lease","ownerReferences":[{"apiVersion":"v1","kind":"Node",
"name":"template","uid":"OWNER"}]},"spec":{"holderIdentity":"template","leaseDurationSeconds":40,
"renewTime":"2026-01-01T00:00:00.000000Z"}}`

const replicaSetBody = `{"metadata":{"name":"template","namespace":"templates","labels":{"app":"web","tier":"frontend"}},
"spec":{"replicas":100,"selector":{"matchLabels":{"app":"web"}},"template":{"metadata":{"labels":{"app":"web"}},
"spec":{"containers":[{"name":"app","image":"registry.example/shop/web:v1.42.7","resources":{"requests":{"cpu":"250m","memory":"256Mi"}}}]}}}}`

const podBody = `{"metadata":{"name":"template","namespace":"templates","generateName":"web-5d9c7b8f6d-",
"labels":{"app":"web","app.kubernetes.io/name":"web","app.kubernetes.io/part-of":"shop","app.kubernetes.io/version":"1.42.7","team":"checkout",
"tier":"frontend","pod-template-hash":"5d9c7b8f6d"},
"annotations":{"prometheus.io/scrape":"true","prometheus.io/port":"9090"},
"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"template","uid":"OWNER","controller":true,"blockOwnerDeletion":true}]},
"spec":{"nodeName":"template","serviceAccountName":"default","automountServiceAccountToken":false,"priority":0,"terminationGracePeriodSeconds":30,
"tolerations":[{"key":"node.kubernetes.io/not-ready","operator":"Exists","effect":"NoExecute","tolerationSeconds":300},
{"key":"node.kubernetes.io/unreachable","operator":"Exists","effect":"NoExecute","tolerationSeconds":300}],
"containers":[{"name":"app","image":"registry.example/shop/web:v1.42.7","args":["--listen=:8080","--metrics=:9090","--log-level=info","--config=/etc/shop/config.yaml"],
"ports":[{"name":"http","containerPort":8080},{"name":"metrics","containerPort":9090}],
"env":[{"name":"POD_IP","valueFrom":{"fieldRef":{"fieldPath":"status.podIP"}}},{"name":"GOMEMLIMIT","value":"230MiB"}],
"resources":{"requests":{"cpu":"250m","memory":"256Mi"},"limits":{"memory":"512Mi"}},
"livenessProbe":{"httpGet":{"path":"/livez","port":"http"},"periodSeconds":10},"readinessProbe":{"httpGet":{"path":"/readyz","port":"http"},"periodSeconds":5},
"volumeMounts":[{"name":"config","mountPath":"/etc/shop"},{"name":"scratch","mountPath":"/tmp"}]}],
"volumes":[{"name":"config","configMap":{"name":"web"}},{"name":"scratch","emptyDir":{"sizeLimit":"64Mi"}}]}}`

const podStatus = `{"status":{"phase":"Running","startTime":"2026-01-01T00:00:00Z","qosClass":"Burstable",
"hostIP":"172.16.0.1","hostIPs":[{"ip":"172.16.0.1"}],"podIP":"10.0.0.1","podIPs":[{"ip":"10.0.0.1"}],
"conditions":[{"type":"PodReadyToStartContainers","status":"True","lastTransitionTime":"2026-01-01T00:00:05Z"},
{"type":"Initialized","status":"True","lastTransitionTime":"2026-01-01T00:00:09Z"},{"type":"Ready","status":"True","lastTransitionTime":"2026-01-01T00:00:19Z"},
{"type":"ContainersReady","status":"True","lastTransitionTime":"2026-01-01T00:00:19Z"},{"type":"PodScheduled","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z"}],
"containerStatuses":[{"name":"app","ready":true,"started":true,"restartCount":0,"image":"registry.example/shop/web:v1.42.7",
"imageID":"registry.example/shop/web@sha256:0d1c2b3a4f5e6d7c8b9a0f1e2d3c4b5a6f7e8d9c0b1a2f3e4d5c6b7a8f9e0d1c",
"containerID":"containerd://0","state":{"running":{"startedAt":"2026-01-01T00:00:11Z"}}}]}}`

const nodeBody = `{"metadata":{"name":"template","labels":{"kubernetes.io/hostname":"template","kubernetes.io/arch":"amd64","kubernetes.io/os":"linux",
"node.kubernetes.io/instance-type":"c7.4xlarge","topology.kubernetes.io/region":"eu-central-1","topology.kubernetes.io/zone":"eu-central-1b",
"node.example.com/pool":"general","node.example.com/capacity-type":"on-demand","node.example.com/image":"2026.01.07"},
"annotations":{"node.alpha.kubernetes.io/ttl":"0","volumes.kubernetes.io/controller-managed-attach-detach":"true",
"csi.volume.kubernetes.io/nodeid":"{\"ebs.csi.example.com\":\"i-0123456789abcdef0\",\"efs.csi.example.com\":\"i-0123456789abcdef0\"}"}},
"spec":{"podCIDR":"10.0.0.0/24","podCIDRs":["10.0.0.0/24"],"providerID":"cloud:///eu-central-1b/"}}`

const nodeStatus = `{"status":{"addresses":[{"type":"InternalIP","address":"172.16.0.1"}],
"capacity":{"cpu":"16","ephemeral-storage":"104845292Ki","hugepages-1Gi":"0","hugepages-2Mi":"0","memory":"32386544Ki","pods":"110"},
"allocatable":{"cpu":"15890m","ephemeral-storage":"95551679124","hugepages-1Gi":"0","hugepages-2Mi":"0","memory":"31369712Ki","pods":"110"},
"conditions":[{"type":"MemoryPressure","status":"False","reason":"KubeletHasSufficientMemory","message":"kubelet has sufficient memory available","lastHeartbeatTime":"2026-01-01T00:05:00Z","lastTransitionTime":"2026-01-01T00:00:00Z"},
{"type":"DiskPressure","status":"False","reason":"KubeletHasNoDiskPressure","message":"kubelet has no disk pressure","lastHeartbeatTime":"2026-01-01T00:05:00Z","lastTransitionTime":"2026-01-01T00:00:00Z"},
{"type":"PIDPressure","status":"False","reason":"KubeletHasSufficientPID","message":"kubelet has sufficient PID available","lastHeartbeatTime":"2026-01-01T00:05:00Z","lastTransitionTime":"2026-01-01T00:00:00Z"},
{"type":"Ready","status":"True","reason":"KubeletReady","message":"kubelet is posting ready status","lastHeartbeatTime":"2026-01-01T00:05:00Z","lastTransitionTime":"2026-01-01T00:00:20Z"}],
"daemonEndpoints":{"kubeletEndpoint":{"Port":10250}},
"nodeInfo":{"machineID":"ec2f3a4b5c6d7e8f9a0b1c2d3e4f5a6b","systemUUID":"ec2f3a4b-5c6d-7e8f-9a0b-1c2d3e4f5a6b","bootID":"7c1d2e3f-4a5b-6c7d-8e9f-0a1b2c3d4e5f",
"kernelVersion":"6.12.63-84.121.example","osImage":"Example Linux 2026","containerRuntimeVersion":"containerd://2.1.5","kubeletVersion":"v1.36.3","kubeProxyVersion":"","operatingSystem":"linux","architecture":"amd64"},
"images":[{"names":["registry.example/shop/web@sha256:0d1c2b3a4f5e6d7c8b9a0f1e2d3c4b5a6f7e8d9c0b1a2f3e4d5c6b7a8f9e0d1c","registry.example/shop/web:v1.42.7"],"sizeBytes":187654321},
{"names":["registry.example/mesh/proxy@sha256:a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f90","registry.example/mesh/proxy:v2.19.1"],"sizeBytes":98765432},
{"names":["registry.example/shop/migrate@sha256:00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff","registry.example/shop/migrate:v1.42.7"],"sizeBytes":45678901},
{"names":["registry.example/system/cni@sha256:ffeeddccbbaa99887766554433221100ffeeddccbbaa99887766554433221100","registry.example/system/cni:v1.20.4"],"sizeBytes":123456789},
{"names":["registry.example/system/csi@sha256:0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0","registry.example/system/csi:v1.41.0"],"sizeBytes":76543210},
{"names":["registry.example/system/logs@sha256:13579bdf02468ace13579bdf02468ace13579bdf02468ace13579bdf02468ace","registry.example/system/logs:v4.0.12"],"sizeBytes":65432109}]}}`
