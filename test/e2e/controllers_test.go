package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/localstack"
	"github.com/logplane/logplane/test/product"
)

// controllersTimeout bounds each step with upstream's controllers.
const controllersTimeout = 3 * time.Minute

// TestControllers runs upstream's controller manager and scheduler, and kwok, which plays nodes, against 'api' and
// 'watcher' processes over HTTPS. Each has a token and the rights of its own. Workloads do as upstream documents, our
// log has no error, and our lifecycle collects garbage beside upstream's collector. 'make controllers' builds them.
func TestControllers(t *testing.T) {
	folder, err := filepath.Abs("../../bin/controllers")
	require.NoError(t, err)
	if _, err := os.Stat(filepath.Join(folder, "kwok")); err != nil {
		t.Skip("no controllers: 'make controllers' builds them")
	}
	c := newControlled(t, folder)
	c.nodes(5)
	for _, step := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"deployment", c.deployment}, {"job", c.job}, {"stateful set", c.statefulSet}, {"daemon set", c.daemonSet}, {"cron job", c.cronJob},
		{"autoscaler", c.autoscaler}, {"drain", c.drain}, {"namespace", c.namespace},
	} {
		if !t.Run(step.name, step.run) {
			return // the next ones would wait, too
		}
	}
	for _, p := range c.processes {
		require.NotContains(t, p.Output(), "level=ERROR")
	}
}

// controlled is a cell with controllers.
type controlled struct {
	*testing.T
	client    *kubernetes.Clientset
	processes []*product.Process
}

// newControlled starts a cell, the processes that serve it, and the controllers.
func newControlled(t *testing.T, binaries string) *controlled {
	t.Helper()
	secrets, err := localstack.EnsureCredentials(filepath.Join(t.TempDir(), "credentials"), "localhost:7373")
	require.NoError(t, err)
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	require.NoError(t, os.WriteFile(tokens, []byte("root,root,1,system:masters\nmanager,system:kube-controller-manager,2\nscheduler,system:kube-scheduler,3\nkwok,kwok,4\n"), 0o600))
	where := []string{"--nats", eventlogtest.Run(t, t.TempDir()).ClientURL(), "--bucket", "file://" + filepath.Join(t.TempDir(), "bucket"), "--root-ca-file", secrets.Authority}
	serving := slices.Concat([]string{"--listen", "127.0.0.1:0", "--tls-cert-file", secrets.Server, "--tls-private-key-file", secrets.ServerKey, "--client-ca-file", secrets.Authority,
		"--token-auth-file", tokens, "--service-account-issuer", "https://logplane.test", "--service-account-signing-key-file", secrets.SigningKey}, where)
	made := product.Run(t, slices.Concat([]string{"init"}, where)...)
	<-made.Exited
	require.Zero(t, made.Cmd.ProcessState.ExitCode(), made.Output())
	watcher := product.Serve(t, slices.Concat([]string{"watcher"}, serving)...)
	api := product.Serve(t, slices.Concat([]string{"api", "--watcher-url", watcher.URL()}, serving)...)
	plain := where[:4]
	c := &controlled{T: t, processes: []*product.Process{
		watcher, api, product.Run(t, slices.Concat([]string{"projector"}, plain)...), product.Run(t, slices.Concat([]string{"lifecycle"}, where)...),
	}}
	authority, err := os.ReadFile(secrets.Authority)
	require.NoError(t, err)
	kubeconfig := func(token string) string {
		config := clientcmdapi.NewConfig()
		config.Clusters["c"] = &clientcmdapi.Cluster{Server: api.URL(), CertificateAuthorityData: authority}
		config.AuthInfos["c"] = &clientcmdapi.AuthInfo{Token: token}
		config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "c"}
		config.CurrentContext = "c"
		path := filepath.Join(t.TempDir(), token+".kubeconfig")
		require.NoError(t, clientcmd.WriteToFile(*config, path))
		return path
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig("root"))
	require.NoError(t, err)
	config.QPS = -1
	c.client, err = kubernetes.NewForConfig(config)
	require.NoError(t, err)
	c.grantKwok(binaries)
	c.start(binaries, "kube-controller-manager", "--kubeconfig", kubeconfig("manager"), "--leader-elect=false", "--use-service-account-credentials",
		"--service-account-private-key-file", secrets.SigningKey, "--root-ca-file", secrets.Authority, "--secure-port=0")
	c.start(binaries, "kube-scheduler", "--kubeconfig", kubeconfig("scheduler"), "--leader-elect=false", "--secure-port=0")
	c.start(binaries, "kwok", "--kubeconfig", kubeconfig("kwok"), "--manage-all-nodes", "--config", filepath.Join(binaries, "stages.yaml"))
	return c
}

// start runs a controller until the test ends. What it says is shown if the test fails.
func (c *controlled) start(binaries, name string, args ...string) {
	c.Helper()
	command := exec.Command(filepath.Join(binaries, name), args...)
	var said bytes.Buffer
	command.Stdout, command.Stderr, command.Dir = &said, &said, c.TempDir()
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(c, command.Start())
	c.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		if c.Failed() {
			c.Logf("%s:\n%s", name, said.String()[max(0, said.Len()-8000):])
		}
	})
}

// grantKwok gives kwok the role that it comes with.
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

// eventually asks again with each change of the objects that list watches, until the condition holds.
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
		<-changes.ResultChan() // a Pod that changes, or a second
		changes.Stop()
	}
	t.Fatalf("after %s: not yet: %s", controllersTimeout, what)
}

func (c *controlled) nodes(n int) {
	for i := range n {
		resources := corev1.ResourceList{"cpu": resource.MustParse("32"), "memory": resource.MustParse("256Gi"), "pods": resource.MustParse("110")}
		_, err := c.client.CoreV1().Nodes().Create(c.Context(), &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i), Labels: map[string]string{"kubernetes.io/hostname": fmt.Sprintf("node-%d", i)}},
			Status:     corev1.NodeStatus{Allocatable: resources, Capacity: resources},
		}, metav1.CreateOptions{})
		require.NoError(c, err)
	}
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

// pods are the running Pods of an app.
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

// autoscaler: without a metrics server the autoscaler says that it cannot scale.
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

// drain moves the Pods of a node by evictions, as kubectl does.
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

// namespace: our lifecycle and upstream's controllers empty it together.
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
