package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/logplane/logplane/test/product"
)

// controllersTimeout bounds each wait for upstream's controllers.
const controllersTimeout = 3 * time.Minute

// TestControllers runs upstream's controller manager, its scheduler, and kwok's simulation of nodes against 'api' and
// 'watcher' processes over HTTPS. Each of these programs has its own token and rights. Workloads behave as upstream
// documents, Logplane's processes log no error, and its lifecycle collects garbage alongside upstream's collector.
// 'make controllers' builds the controllers.
func TestControllers(t *testing.T) {
	folder, err := filepath.Abs("../../bin/controllers")
	require.NoError(t, err)
	if _, err := os.Stat(filepath.Join(folder, "kwok")); err != nil {
		t.Skip("no controllers: 'make controllers' builds them")
	}
	c := newControlled(t, folder, filepath.Join(folder, "stages.yaml"))
	c.nodes(5)
	for _, step := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"deployment", c.deployment}, {"job", c.job}, {"stateful set", c.statefulSet}, {"daemon set", c.daemonSet}, {"cron job", c.cronJob},
		{"autoscaler", c.autoscaler}, {"drain", c.drain}, {"namespace", c.namespace},
	} {
		if !t.Run(step.name, step.run) {
			return // the following tests would wait in vain, too
		}
	}
	c.cell.NoErrors()
}

// controlled is a cell with upstream's controllers.
type controlled struct {
	*testing.T
	cell   *product.Cell
	client *kubernetes.Clientset
}

// newControlled runs a cell that is made with the flags, and the controllers with their own tokens. stages has the
// stages of kwok's simulation.
func newControlled(t *testing.T, binaries, stages string, flags ...string) *controlled {
	t.Helper()
	cell := product.RunCell(t, "manager,system:kube-controller-manager,1\nscheduler,system:kube-scheduler,2\nkwok,kwok,3\n", flags...)
	client, err := kubernetes.NewForConfig(cell.Admin())
	require.NoError(t, err)
	c := &controlled{T: t, cell: cell, client: client}
	c.grantKwok(binaries)
	start := func(name string, args ...string) { cell.Start(exec.Command(filepath.Join(binaries, name), args...)) }
	start("kube-controller-manager", "--kubeconfig", cell.Kubeconfig("manager"), "--leader-elect=false", "--use-service-account-credentials",
		"--service-account-private-key-file", cell.SigningKey, "--root-ca-file", cell.Authority, "--secure-port=0")
	start("kube-scheduler", "--kubeconfig", cell.Kubeconfig("scheduler"), "--leader-elect=false", "--secure-port=0")
	start("kwok", "--kubeconfig", cell.Kubeconfig("kwok"), "--manage-all-nodes", "--node-ip=10.1.0.1",
		// without leases, controllers regard all nodes as lost after minutes
		"--node-lease-duration-seconds=40", "--config", stages)
	return c
}

// grantKwok gives kwok the role that kwok's own module contains.
func (c *controlled) grantKwok(binaries string) {
	text, err := os.ReadFile(filepath.Join(binaries, "kwok-role.yaml"))
	require.NoError(c, err)
	var role rbacv1.ClusterRole
	require.NoError(c, yaml.Unmarshal(text, &role))
	_, err = c.client.RbacV1().ClusterRoles().Create(c.Context(), &role, metav1.CreateOptions{})
	require.NoError(c, err)
	_, err = c.client.RbacV1().ClusterRoleBindings().Create(c.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "kwok"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "kwok"}},
	}, metav1.CreateOptions{})
	require.NoError(c, err)
}

// eventually checks the condition after each change of a Pod, and each second, until it holds.
func (c *controlled) eventually(t *testing.T, what string, condition func(context.Context) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), controllersTimeout)
	defer cancel()
	for ctx.Err() == nil {
		if condition(ctx) {
			return
		}
		changes, err := c.client.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{TimeoutSeconds: new(int64(1))})
		require.NoError(t, err)
		<-changes.ResultChan() // until a Pod changes, or a second has passed
		changes.Stop()
	}
	t.Fatalf("after %s: not yet: %s", controllersTimeout, what)
}

func (c *controlled) nodes(n int) {
	for i := range n {
		resources := corev1.ResourceList{"cpu": resource.MustParse("32"), "memory": resource.MustParse("256Gi"), "ephemeral-storage": resource.MustParse("100Gi"), "pods": resource.MustParse("110")}
		_, err := c.client.CoreV1().Nodes().Create(c.Context(), &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i), Labels: map[string]string{"kubernetes.io/hostname": fmt.Sprintf("node-%d", i), "kubernetes.io/os": "linux"}},
			Status:     corev1.NodeStatus{Allocatable: resources, Capacity: resources},
		}, metav1.CreateOptions{})
		require.NoError(c, err)
	}
}

// renew renews a Lease ten times a second until the test ends, as a hundred nodes do together. In a cell without writes
// a process may be able to read old revisions for longer than it must.
func (c *controlled) renew() {
	leases := c.client.CoordinationV1().Leases("kube-node-lease")
	lease, err := leases.Create(c.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "renewed"}}, metav1.CreateOptions{})
	require.NoError(c, err)
	ctx, stop := context.WithCancel(c.Context())
	var renewing sync.WaitGroup
	c.Cleanup(func() { stop(); renewing.Wait() })
	renewing.Go(func() {
		for tick := time.NewTicker(100 * time.Millisecond); ctx.Err() == nil; <-tick.C {
			lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
			if renewed, err := leases.Update(ctx, lease, metav1.UpdateOptions{}); err == nil {
				lease = renewed
			}
		}
	})
}

func template(app, image string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: image}}},
	}
}

func selects(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
}

// pods returns the running Pods of an app.
func (c *controlled) pods(ctx context.Context, app string) []corev1.Pod {
	list, err := c.client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
	require.NoError(c, err)
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil || p.Status.Phase != corev1.PodRunning })
}

// deployment rolls out 50 Pods, upgrades, scales and deletes them.
func (c *controlled) deployment(t *testing.T) {
	ctx, client := t.Context(), c.client.AppsV1().Deployments("default")
	_, err := client.Create(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{
		Replicas: new(int32(50)), Selector: selects("web"), Template: template("web", "one")}}, metav1.CreateOptions{})
	require.NoError(t, err)
	rolled := func(replicas int32, image string) func(context.Context) bool {
		return func(ctx context.Context) bool {
			d, err := client.Get(ctx, "web", metav1.GetOptions{})
			require.NoError(t, err)
			if d.Status.ObservedGeneration < d.Generation || d.Status.UpdatedReplicas != replicas || d.Status.AvailableReplicas != replicas || d.Status.Replicas != replicas {
				return false
			}
			pods := c.pods(ctx, "web")
			return len(pods) == int(replicas) && !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Spec.Containers[0].Image != image })
		}
	}
	began := time.Now()
	c.eventually(t, "50 run", rolled(50, "one"))
	t.Logf("50 Pods ran after %s", time.Since(began).Round(time.Millisecond))
	patch := func(body string) {
		_, err := client.Patch(ctx, "web", types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	patch(`{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"two"}]}}}}`)
	c.eventually(t, "50 run the next image", rolled(50, "two"))
	patch(`{"spec":{"replicas":10}}`)
	c.eventually(t, "10 run", rolled(10, "two"))
	foreground := metav1.DeletePropagationForeground
	require.NoError(t, client.Delete(ctx, "web", metav1.DeleteOptions{PropagationPolicy: &foreground}))
	c.eventually(t, "nothing is left", func(ctx context.Context) bool {
		sets, err := c.client.AppsV1().ReplicaSets("default").List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
		require.NoError(t, err)
		pods, err := c.client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
		require.NoError(t, err)
		return len(sets.Items) == 0 && len(pods.Items) == 0
	})
}

func (c *controlled) job(t *testing.T) {
	template := template("job", "one")
	template.Spec.RestartPolicy = corev1.RestartPolicyNever
	_, err := c.client.BatchV1().Jobs("default").Create(t.Context(), &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "job"},
		Spec: batchv1.JobSpec{Completions: new(int32(5)), Parallelism: new(int32(2)), TTLSecondsAfterFinished: new(int32(0)), Template: template}}, metav1.CreateOptions{})
	require.NoError(t, err)
	c.eventually(t, "the job is done, and gone with its Pods", func(ctx context.Context) bool {
		jobs, err := c.client.BatchV1().Jobs("default").List(ctx, metav1.ListOptions{})
		require.NoError(t, err)
		pods, err := c.client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=job"})
		require.NoError(t, err)
		return len(jobs.Items) == 0 && len(pods.Items) == 0
	})
}

func (c *controlled) statefulSet(t *testing.T) {
	client := c.client.AppsV1().StatefulSets("default")
	_, err := client.Create(t.Context(), &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db"}, Spec: appsv1.StatefulSetSpec{
		Replicas: new(int32(3)), ServiceName: "db", Selector: selects("db"), Template: template("db", "one")}}, metav1.CreateOptions{})
	require.NoError(t, err)
	c.eventually(t, "three run, in order", func(ctx context.Context) bool {
		pods := c.pods(ctx, "db")
		slices.SortFunc(pods, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
		for i, pod := range pods {
			require.Equal(t, fmt.Sprintf("db-%d", i), pod.Name)
		}
		s, err := client.Get(ctx, "db", metav1.GetOptions{})
		require.NoError(t, err)
		return len(pods) == 3 && s.Status.ReadyReplicas == 3
	})
	require.NoError(t, client.Delete(t.Context(), "db", metav1.DeleteOptions{}))
	c.eventually(t, "they are gone", func(ctx context.Context) bool { return len(c.pods(ctx, "db")) == 0 })
}

func (c *controlled) daemonSet(t *testing.T) {
	client := c.client.AppsV1().DaemonSets("default")
	_, err := client.Create(t.Context(), &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "agent"}, Spec: appsv1.DaemonSetSpec{Selector: selects("agent"), Template: template("agent", "one")}}, metav1.CreateOptions{})
	require.NoError(t, err)
	c.eventually(t, "one runs on each node", func(ctx context.Context) bool {
		on := map[string]bool{}
		for _, pod := range c.pods(ctx, "agent") {
			on[pod.Spec.NodeName] = true
		}
		return len(on) == 5
	})
	require.NoError(t, client.Delete(t.Context(), "agent", metav1.DeleteOptions{}))
	c.eventually(t, "they are gone", func(ctx context.Context) bool { return len(c.pods(ctx, "agent")) == 0 })
}

func (c *controlled) cronJob(t *testing.T) {
	template := template("cron", "one")
	template.Spec.RestartPolicy = corev1.RestartPolicyNever
	client := c.client.BatchV1().CronJobs("default")
	_, err := client.Create(t.Context(), &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "cron"}, Spec: batchv1.CronJobSpec{
		Schedule: "* * * * *", JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: template}}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	c.eventually(t, "a minute's job has succeeded", func(ctx context.Context) bool {
		cron, err := client.Get(ctx, "cron", metav1.GetOptions{})
		require.NoError(t, err)
		return cron.Status.LastSuccessfulTime != nil
	})
	require.NoError(t, client.Delete(t.Context(), "cron", metav1.DeleteOptions{}))
	c.eventually(t, "its jobs are gone", func(ctx context.Context) bool {
		jobs, err := c.client.BatchV1().Jobs("default").List(ctx, metav1.ListOptions{})
		require.NoError(t, err)
		return len(jobs.Items) == 0
	})
}

// autoscaler: without a metrics server, the autoscaler reports that it cannot scale.
func (c *controlled) autoscaler(t *testing.T) {
	_, err := c.client.AppsV1().Deployments("default").Create(t.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "scaled"}, Spec: appsv1.DeploymentSpec{
		Replicas: new(int32(2)), Selector: selects("scaled"), Template: template("scaled", "one")}}, metav1.CreateOptions{})
	require.NoError(t, err)
	client := c.client.AutoscalingV2().HorizontalPodAutoscalers("default")
	_, err = client.Create(t.Context(), &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Name: "scaled"}, Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
		ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "scaled"}, MaxReplicas: 5,
	}}, metav1.CreateOptions{})
	require.NoError(t, err)
	c.eventually(t, "it was able to read the scale, and has no metrics", func(ctx context.Context) bool {
		a, err := client.Get(ctx, "scaled", metav1.GetOptions{})
		require.NoError(t, err)
		says := map[autoscalingv2.HorizontalPodAutoscalerConditionType]corev1.ConditionStatus{}
		for _, condition := range a.Status.Conditions {
			says[condition.Type] = condition.Status
		}
		return says[autoscalingv2.AbleToScale] == corev1.ConditionTrue && says[autoscalingv2.ScalingActive] == corev1.ConditionFalse
	})
}

// drain evicts the Pods of a node, as kubectl does.
func (c *controlled) drain(t *testing.T) {
	ctx := t.Context()
	c.eventually(t, "two run", func(ctx context.Context) bool { return len(c.pods(ctx, "scaled")) == 2 })
	node := c.pods(ctx, "scaled")[0].Spec.NodeName
	_, err := c.client.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, []byte(`{"spec":{"unschedulable":true}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	for _, pod := range c.pods(ctx, "scaled") {
		if pod.Spec.NodeName == node {
			require.NoError(t, c.client.CoreV1().Pods("default").EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: pod.Name}}))
		}
	}
	c.eventually(t, "both run elsewhere", func(ctx context.Context) bool {
		pods := c.pods(ctx, "scaled")
		return len(pods) == 2 && pods[0].Spec.NodeName != node && pods[1].Spec.NodeName != node
	})
}

// namespace: Logplane's lifecycle and upstream's controllers empty a namespace together.
func (c *controlled) namespace(t *testing.T) {
	ctx := t.Context()
	_, err := c.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "both"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = c.client.AppsV1().Deployments("both").Create(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{
		Replicas: new(int32(10)), Selector: selects("web"), Template: template("web", "one")}}, metav1.CreateOptions{})
	require.NoError(t, err)
	c.eventually(t, "ten run", func(ctx context.Context) bool {
		d, err := c.client.AppsV1().Deployments("both").Get(ctx, "web", metav1.GetOptions{})
		require.NoError(t, err)
		return d.Status.AvailableReplicas == 10
	})
	require.NoError(t, c.client.CoreV1().Namespaces().Delete(ctx, "both", metav1.DeleteOptions{}))
	c.eventually(t, "the namespace is gone", func(ctx context.Context) bool {
		list, err := c.client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=both"})
		require.NoError(t, err)
		return len(list.Items) == 0
	})
}
