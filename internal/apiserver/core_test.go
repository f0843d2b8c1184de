package apiserver

import (
	"testing"

	"github.com/stretchr/testify/require"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
)

func createPod(t *testing.T, s *Server, name string) *corev1.Pod {
	t.Helper()
	pod, err := s.client.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	return pod
}

// TestPodSubresources: each subresource changes its own part of a Pod and nothing else.
func TestPodSubresources(t *testing.T) {
	s := bootstrapped(t)
	pods := s.client.CoreV1().Pods("default")
	createPod(t, s, "p")
	require.NoError(t, pods.Bind(t.Context(), &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Target: corev1.ObjectReference{Kind: "Node", Name: "n"}}, metav1.CreateOptions{}))
	pod, err := pods.Get(t.Context(), "p", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "n", pod.Spec.NodeName)
	require.True(t, apierrors.IsConflict(pods.Bind(t.Context(), &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Target: corev1.ObjectReference{Kind: "Node", Name: "m"}}, metav1.CreateOptions{})))

	pod.Status.Phase = corev1.PodRunning
	pod.Spec.NodeName = "ignored"
	pod, err = pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Equal(t, "n", pod.Spec.NodeName)
	require.Equal(t, corev1.PodRunning, pod.Status.Phase)

	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Image: "i", TerminationMessagePolicy: "File", ImagePullPolicy: "Always"}}}
	pod, err = pods.UpdateEphemeralContainers(t.Context(), "p", pod, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Len(t, pod.Spec.EphemeralContainers, 1)

	pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}
	_, err = pods.UpdateResize(t.Context(), "p", pod, metav1.UpdateOptions{})
	require.True(t, err == nil || apierrors.IsInvalid(err), err) // the QoS class may not change

	for _, verb := range []string{"log", "exec?command=x&stdout=1", "attach", "portforward", "proxy"} {
		got := request{method: "GET", path: "/api/v1/namespaces/default/pods/p/" + verb}.do(t, s)
		require.Equal(t, 405, got.code, "%s: %s", verb, got.body)
	}
}

// TestEvictionRespectsBudgets: an eviction sends requests through the loopback client while it is served.
func TestEvictionRespectsBudgets(t *testing.T) {
	s := bootstrapped(t)
	pods, budgets := s.client.CoreV1().Pods("default"), s.client.PolicyV1().PodDisruptionBudgets("default")
	pod := createPod(t, s, "p")
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	_, err := pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
	require.NoError(t, err)
	one := intstr.FromInt32(1)
	budget, err := budgets.Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "b"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &one, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	budget.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: budget.Generation}
	budget, err = budgets.UpdateStatus(t.Context(), budget, metav1.UpdateOptions{})
	require.NoError(t, err)

	eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	another := eviction.DeepCopy()
	another.DeleteOptions = metav1.NewPreconditionDeleteOptions("another")
	err = pods.EvictV1(t.Context(), another)
	require.True(t, apierrors.IsConflict(err), err)
	require.ErrorContains(t, err, `Operation cannot be fulfilled on Pod "p": the UID in the precondition (another)`)
	require.True(t, apierrors.IsTooManyRequests(pods.EvictV1(t.Context(), eviction)))
	budget.Status.DisruptionsAllowed = 1
	_, err = budgets.UpdateStatus(t.Context(), budget, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.NoError(t, pods.EvictV1(t.Context(), eviction))
	_, err = pods.Get(t.Context(), "p", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), err)
	budget, err = budgets.Get(t.Context(), "b", metav1.GetOptions{})
	require.NoError(t, err)
	require.Zero(t, budget.Status.DisruptionsAllowed)
}

func TestControllersScale(t *testing.T) {
	s := bootstrapped(t)
	controllers := s.client.CoreV1().ReplicationControllers("default")
	_, err := controllers.Create(t.Context(), &corev1.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{Name: "r"},
		Spec: corev1.ReplicationControllerSpec{Selector: map[string]string{"a": "b"}, Template: &corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	scale, err := controllers.UpdateScale(t.Context(), "r", &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "r", Namespace: "default"}, Spec: autoscalingv1.ScaleSpec{Replicas: 3}}, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 3, scale.Spec.Replicas)
	controller, err := controllers.Get(t.Context(), "r", metav1.GetOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 3, *controller.Spec.Replicas)
	require.EqualValues(t, 2, controller.Generation)
}

// TestCoreResources makes and deletes one object of each kind in the core group, except bindings, component statuses,
// namespaces, Pods, replication controllers and Services.
func TestCoreResources(t *testing.T) {
	s := bootstrapped(t)
	for path, body := range map[string]string{
		"nodes":                                     `{"metadata":{"name":"x"}}`,
		"persistentvolumes":                         `{"metadata":{"name":"x"},"spec":{"capacity":{"storage":"1Gi"},"accessModes":["ReadWriteOnce"],"hostPath":{"path":"/x"}}}`,
		"namespaces/default/configmaps":             `{"metadata":{"name":"x"}}`,
		"namespaces/default/endpoints":              `{"metadata":{"name":"x"}}`,
		"namespaces/default/events":                 `{"metadata":{"name":"x"},"involvedObject":{"namespace":"default"}}`,
		"namespaces/default/limitranges":            `{"metadata":{"name":"x"},"spec":{"limits":[{"type":"Container","max":{"cpu":"1"}}]}}`,
		"namespaces/default/persistentvolumeclaims": `{"metadata":{"name":"x"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}`,
		"namespaces/default/podtemplates":           `{"metadata":{"name":"x"},"template":{"spec":{"containers":[{"name":"c","image":"i"}]}}}`,
		"namespaces/default/resourcequotas":         `{"metadata":{"name":"x"},"spec":{"hard":{"pods":"10"}}}`,
		"namespaces/default/secrets":                `{"metadata":{"name":"x"}}`,
		"namespaces/default/serviceaccounts":        `{"metadata":{"name":"x"}}`,
	} {
		created := request{method: "POST", path: "/api/v1/" + path, body: body}.do(t, s)
		require.Equal(t, 201, created.code, "%s: %s", path, created.body)
		require.Equal(t, 200, request{method: "DELETE", path: "/api/v1/" + path + "/x"}.do(t, s).code, path)
	}
}

// TestComponentStatuses: the log is the only component that is listed. Requests need the log; other components are not
// invented.
func TestComponentStatuses(t *testing.T) {
	s := bootstrapped(t)
	list := s.must(t, 200, request{method: "GET", path: "/api/v1/componentstatuses"}).body
	require.JSONEq(t, `{"kind":"ComponentStatusList","apiVersion":"v1","metadata":{},"items":[`+
		`{"metadata":{"name":"log"},"conditions":[{"type":"Healthy","status":"True","message":"ok"}]}]}`, list)
	one := s.must(t, 200, request{method: "GET", path: "/api/v1/componentstatuses/log"})
	require.Equal(t, "log", fieldOf(one.object(t), "metadata.name"))
	s.must(t, 404, request{method: "GET", path: "/api/v1/componentstatuses/etcd-0"})
}

// TestPrivileged: Pods may have the privileges that CNI plugins and CSI drivers ask for.
func TestPrivileged(t *testing.T) {
	s := bootstrapped(t)
	const containers = `"containers":[{"name":"c","image":"i","securityContext":{"privileged":true}}]`
	s.must(t, 201, request{method: "POST", path: "/api/v1/namespaces/default/pods", body: `{"metadata":{"name":"p"},"spec":{"hostNetwork":true,` + containers + `}}`})
	s.must(t, 201, request{method: "POST", path: "/apis/apps/v1/namespaces/default/daemonsets", body: `{"metadata":{"name":"d"},"spec":{` +
		`"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{` + containers + `}}}}`})
}

// TestServiceStatus: a write to the status subresource does not change the claims.
func TestServiceStatus(t *testing.T) {
	s := bootstrapped(t)
	service := create(t, s, serviceNamed("web", func(spec *corev1.ServiceSpec) { spec.Type = corev1.ServiceTypeLoadBalancer }))
	ports := claimedPorts(t, s)
	service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
	updated, err := servicesOf(s).UpdateStatus(t.Context(), service, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Equal(t, "192.0.2.1", updated.Status.LoadBalancer.Ingress[0].IP)
	require.Equal(t, ports, claimedPorts(t, s))

	// A finalizer keeps the service and its claims. A status patch removes the finalizer.
	_, err = servicesOf(s).Patch(t.Context(), "web", types.MergePatchType, []byte(`{"metadata":{"finalizers":["example.com/hold"]}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.NoError(t, servicesOf(s).Delete(t.Context(), "web", metav1.DeleteOptions{}))
	require.Equal(t, ports, claimedPorts(t, s))
	_, err = servicesOf(s).Patch(t.Context(), "web", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}, "status")
	require.NoError(t, err)
	require.Empty(t, claimedPorts(t, s))
	require.Equal(t, []string{"10.96.0.1"}, claimed(t, s, "/ipaddresses"))
}

// TestServiceApply: allocated addresses and ports stay when the same manifest is applied or put again.
func TestServiceApply(t *testing.T) {
	s := bootstrapped(t)
	apply := func() *corev1.Service {
		t.Helper()
		answer := request{
			method: "PATCH", path: "/api/v1/namespaces/default/services/web?fieldManager=test", contentType: "application/apply-patch+yaml",
			body: `{"apiVersion":"v1","kind":"Service","metadata":{"name":"web"},"spec":{"type":"NodePort","ports":[{"port":80}]}}`,
		}.do(t, s)
		require.Contains(t, []int{200, 201}, answer.code, answer.body)
		service := &corev1.Service{}
		_, _, err := scheme.Codecs.UniversalDeserializer().Decode([]byte(answer.body), nil, service)
		require.NoError(t, err)
		return service
	}
	first := apply()
	require.NotEmpty(t, first.Spec.ClusterIP)
	require.NotZero(t, first.Spec.Ports[0].NodePort)
	require.Equal(t, first, apply())
	put := request{method: "PUT", path: "/api/v1/namespaces/default/services/web", body: `{"metadata":{"name":"web"},"spec":{"type":"NodePort","ports":[{"port":80}]}}`}.do(t, s)
	require.Equal(t, 200, put.code, put.body)
	require.Equal(t, first.Spec.ClusterIP, fieldOf(put.object(t), "spec.clusterIP"))
}
