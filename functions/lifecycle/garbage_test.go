package lifecycle

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver"
	"github.com/logplane/logplane/internal/apiserver/dependents"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// own creates a ConfigMap with owners.
func (c *cluster) own(namespace, name string, owners ...metav1.OwnerReference) *corev1.ConfigMap {
	c.Helper()
	made, err := c.client.CoreV1().ConfigMaps(namespace).Create(c.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: owners}}, metav1.CreateOptions{})
	require.NoError(c, err)
	return made
}

func ownerOf(o *corev1.ConfigMap, block bool) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: o.Name, UID: o.UID, BlockOwnerDeletion: &block}
}

func (c *cluster) has(namespace, name string) bool {
	_, err := c.client.CoreV1().ConfigMaps(namespace).Get(context.Background(), name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		require.NoError(c, err)
	}
	return err == nil
}

func (c *cluster) deleteConfigMap(namespace, name string, policy metav1.DeletionPropagation) {
	c.Helper()
	require.NoError(c, c.client.CoreV1().ConfigMaps(namespace).Delete(c.Context(), name, metav1.DeleteOptions{PropagationPolicy: &policy}))
}

// references is how many rows the index has.
func (c *cluster) references() (n int) {
	view, err := c.cell.Projection.Latest(context.Background())
	require.NoError(c, err)
	for _, err := range dependents.All(context.Background(), view, "main") {
		require.NoError(c, err)
		n++
	}
	return n
}

// TestGarbage: upstream's documented cases of the three policies, and of owners that are no owners.
func TestGarbage(t *testing.T) {
	c := newCluster(t)
	c.createNamespace("n")
	c.createNamespace("m")
	c.run()

	t.Run("background", func(*testing.T) {
		owner := c.own("n", "owner")
		child := c.own("n", "child", ownerOf(owner, true))
		c.own("n", "grandchild", ownerOf(child, false))
		c.deleteConfigMap("n", "owner", metav1.DeletePropagationBackground)
		require.False(t, c.has("n", "owner"), "the owner goes at once")
		c.eventually(func() bool { return !c.has("n", "child") && !c.has("n", "grandchild") }, "the dependents are gone")
	})
	t.Run("foreground", func(*testing.T) {
		owner := c.own("n", "owner")
		child := c.own("n", "child", ownerOf(owner, true))
		held, err := c.client.CoreV1().ConfigMaps("n").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Name: "held", OwnerReferences: []metav1.OwnerReference{ownerOf(child, true)}, Finalizers: []string{"example.com/hold"}}}, metav1.CreateOptions{})
		require.NoError(t, err)
		c.own("n", "unblocking", ownerOf(owner, false))
		c.deleteConfigMap("n", "owner", metav1.DeletePropagationForeground)
		c.eventually(func() bool {
			o, err := c.client.CoreV1().ConfigMaps("n").Get(t.Context(), "held", metav1.GetOptions{})
			require.NoError(t, err)
			return o.DeletionTimestamp != nil
		}, "what blocks is being deleted")
		require.True(t, c.has("n", "owner"), "the owner waits for what blocks it")
		require.True(t, c.has("n", "child"))
		_, err = c.client.CoreV1().ConfigMaps("n").Patch(t.Context(), held.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		require.NoError(t, err)
		c.eventually(func() bool {
			return !c.has("n", "owner") && !c.has("n", "child") && !c.has("n", "held") && !c.has("n", "unblocking")
		}, "all are gone")
	})
	t.Run("orphan", func(*testing.T) {
		owner := c.own("n", "owner")
		other := c.own("n", "other")
		for i := range 10 {
			c.own("n", fmt.Sprintf("child-%d", i), ownerOf(owner, true), ownerOf(other, true))
		}
		c.deleteConfigMap("n", "owner", metav1.DeletePropagationOrphan)
		c.eventually(func() bool { return !c.has("n", "owner") }, "the owner is gone")
		for i := range 10 {
			child, err := c.client.CoreV1().ConfigMaps("n").Get(t.Context(), fmt.Sprintf("child-%d", i), metav1.GetOptions{})
			require.NoError(t, err)
			require.Equal(t, []metav1.OwnerReference{ownerOf(other, true)}, child.OwnerReferences)
		}
		c.deleteConfigMap("n", "other", metav1.DeletePropagationBackground)
		c.eventually(func() bool { return c.references() == 0 }, "the dependents of the second owner are gone")
	})
	t.Run("two owners", func(*testing.T) {
		one, two := c.own("n", "one"), c.own("n", "two")
		c.own("n", "child", ownerOf(one, true), ownerOf(two, true))
		c.deleteConfigMap("n", "one", metav1.DeletePropagationBackground)
		c.eventually(func() bool {
			child, err := c.client.CoreV1().ConfigMaps("n").Get(context.Background(), "child", metav1.GetOptions{})
			require.NoError(t, err)
			return len(child.OwnerReferences) == 1 && child.OwnerReferences[0].UID == two.UID
		}, "the child forgets the owner that is gone")
		c.deleteConfigMap("n", "two", metav1.DeletePropagationBackground)
		c.eventually(func() bool { return !c.has("n", "child") }, "the child is gone")
	})
	t.Run("circle", func(*testing.T) {
		a := c.own("n", "a")
		b := c.own("n", "b", ownerOf(a, true))
		a.OwnerReferences = []metav1.OwnerReference{ownerOf(b, true)}
		_, err := c.client.CoreV1().ConfigMaps("n").Update(t.Context(), a, metav1.UpdateOptions{})
		require.NoError(t, err)
		c.deleteConfigMap("n", "a", metav1.DeletePropagationForeground)
		c.eventually(func() bool { return !c.has("n", "a") && !c.has("n", "b") }, "the circle is gone")
	})
	t.Run("wrong owners", func(*testing.T) {
		owner := c.own("n", "owner")
		wrongUID := ownerOf(owner, true)
		wrongUID.UID = "another"
		c.own("n", "wrong-uid", wrongUID)
		c.own("m", "other-namespace", ownerOf(owner, true))
		unknown := ownerOf(owner, true)
		unknown.APIVersion, unknown.Kind = "example.com/v1", "Nothing"
		c.own("n", "unknown-kind", unknown)
		node, err := c.client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", OwnerReferences: []metav1.OwnerReference{ownerOf(owner, true)}}}, metav1.CreateOptions{})
		require.NoError(t, err)
		c.own("n", "of-node", metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: "node", UID: node.UID})
		c.eventually(func() bool { return !c.has("n", "wrong-uid") && !c.has("m", "other-namespace") }, "what names no owner is gone")
		require.True(t, c.has("n", "unknown-kind"))
		require.True(t, c.has("n", "of-node"))
		require.NoError(t, c.client.CoreV1().Nodes().Delete(t.Context(), "node", metav1.DeleteOptions{}))
		c.eventually(func() bool { return !c.has("n", "of-node") }, "what a cluster-scoped owner had is gone")
		c.deleteConfigMap("n", "unknown-kind", metav1.DeletePropagationBackground)
		c.deleteConfigMap("n", "owner", metav1.DeletePropagationBackground)
	})
	t.Run("custom resources", func(*testing.T) {
		c.createDefinition()
		c.createWidget("n", "owner")
		owner, err := c.custom.Resource(widgets).Namespace("n").Get(t.Context(), "owner", metav1.GetOptions{})
		require.NoError(t, err)
		reference := metav1.OwnerReference{APIVersion: owner.GetAPIVersion(), Kind: owner.GetKind(), Name: "owner", UID: owner.GetUID()}
		c.own("n", "child", reference)
		child := &unstructured.Unstructured{}
		child.SetAPIVersion(owner.GetAPIVersion())
		child.SetKind(owner.GetKind())
		child.SetName("child")
		child.SetOwnerReferences([]metav1.OwnerReference{reference})
		_, err = c.custom.Resource(widgets).Namespace("n").Create(t.Context(), child, metav1.CreateOptions{})
		require.NoError(t, err)
		require.NoError(t, c.custom.Resource(widgets).Namespace("n").Delete(t.Context(), "owner", metav1.DeleteOptions{}))
		c.eventually(func() bool {
			_, err := c.custom.Resource(widgets).Namespace("n").Get(context.Background(), "child", metav1.GetOptions{})
			return !c.has("n", "child") && apierrors.IsNotFound(err)
		}, "the dependents are gone")
	})
	require.Zero(t, c.references(), "the index has rows of what is gone")
}

// TestGarbageFoundByState: whatever a Lifecycle that is stopped again and again sees, what has a living owner stays,
// and all else goes.
func TestGarbageFoundByState(t *testing.T) {
	c := newCluster(t)
	c.createNamespace("n")
	chain := 100
	if testing.Short() {
		chain = 30
	}
	root := c.own("n", "root")
	alive := c.own("n", "alive")
	last := root
	for i := range chain {
		last = c.own("n", fmt.Sprintf("link-%d", i), ownerOf(last, true))
		c.own("n", fmt.Sprintf("kept-%d", i), ownerOf(alive, true))
	}
	c.deleteConfigMap("n", "root", metav1.DeletePropagationBackground)
	left := func() (links, kept int) {
		list, err := c.client.CoreV1().ConfigMaps("n").List(context.Background(), metav1.ListOptions{})
		require.NoError(t, err)
		for _, o := range list.Items {
			switch o.Name[:4] {
			case "link":
				links++
			case "kept":
				kept++
			}
		}
		return links, kept
	}
	for stops := 0; ; stops++ {
		require.Less(t, stops, 2*chain)
		c.restart()
		stop := c.run()
		before, _ := left()
		enough := max(0, before-1-rand.N(5))
		c.eventually(func() bool { links, _ := left(); return links <= enough }, "some of the chain is gone")
		stop()
		if enough == 0 {
			break
		}
	}
	links, kept := left()
	require.Zero(t, links)
	require.Equal(t, chain, kept)
	require.Equal(t, chain, c.references())
}

// TestDefaultsAreGivenBack: a namespace that has lost its account or its certificate gets it again.
func TestDefaultsAreGivenBack(t *testing.T) {
	c := newCluster(t)
	c.createNamespace("n")
	client := c.client.CoreV1()
	require.NoError(t, client.ServiceAccounts("n").Delete(t.Context(), "default", metav1.DeleteOptions{}))
	account := func() bool {
		_, err := client.ServiceAccounts("n").Get(context.Background(), "default", metav1.GetOptions{})
		return err == nil
	}
	certificate := func() bool {
		m, err := client.ConfigMaps("n").Get(context.Background(), "kube-root-ca.crt", metav1.GetOptions{})
		return err == nil && m.Data["ca.crt"] == "CERTIFICATE"
	}
	c.restart(func(config *Config) { config.RootCA = []byte("CERTIFICATE") })
	c.run()
	c.eventually(func() bool { return account() && certificate() }, "found by state")
	require.NoError(t, client.ServiceAccounts("n").Delete(t.Context(), "default", metav1.DeleteOptions{}))
	c.eventually(account, "found by the event")
	_, err := client.ConfigMaps("n").Patch(t.Context(), "kube-root-ca.crt", types.MergePatchType, []byte(`{"data":{"ca.crt":"another"}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	c.eventually(certificate, "corrected")
	c.deleteNamespace("n")
	c.namespaceGone("n")
}

// TestVolumesAreProtected: a claim goes when no Pod uses it any more, a volume when it is not bound.
func TestVolumesAreProtected(t *testing.T) {
	c := newCluster(t)
	c.createNamespace("n")
	c.run()
	client := c.client.CoreV1()
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim"}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
	}}
	_, err := client.PersistentVolumeClaims("n").Create(t.Context(), claim, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = client.Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = client.Pods("n").Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{
		NodeName: "node", Containers: []corev1.Container{{Name: "c", Image: "i"}},
		Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}}}},
	}}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, client.PersistentVolumeClaims("n").Delete(t.Context(), "claim", metav1.DeleteOptions{}))
	_, err = c.do(t.Context(), claimTaskOf("n", "claim"))
	require.NoError(t, err)
	require.True(t, c.isTerminating(claimTaskOf("n", "claim")))
	_, err = client.PersistentVolumeClaims("n").Get(t.Context(), "claim", metav1.GetOptions{})
	require.NoError(t, err)
	now := int64(0)
	require.NoError(t, client.Pods("n").Delete(t.Context(), "p", metav1.DeleteOptions{GracePeriodSeconds: &now}))
	c.eventually(func() bool {
		_, err := client.PersistentVolumeClaims("n").Get(context.Background(), "claim", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}, "the claim is gone")

	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "volume"}, Spec: corev1.PersistentVolumeSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
		PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/tmp"}},
	}}
	volume, err = client.PersistentVolumes().Create(t.Context(), volume, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NotEmpty(t, volume.Finalizers)
	require.NoError(t, client.PersistentVolumes().Delete(t.Context(), "volume", metav1.DeleteOptions{}))
	c.eventually(func() bool {
		_, err := client.PersistentVolumes().Get(context.Background(), "volume", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}, "the volume is gone")
}

// TestRecount: what a create that could not see a new quota has added is counted when the quota has settled.
func TestRecount(t *testing.T) {
	c := newCluster(t)
	c.createNamespace("n")
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"configmaps": resource.MustParse("10")}}}
	_, err := c.client.CoreV1().ResourceQuotas("n").Create(t.Context(), quota, metav1.CreateOptions{})
	require.NoError(t, err)
	c.createConfigMap("n", "model")
	view, err := c.cell.Projection.Latest(t.Context())
	require.NoError(t, err)
	model, found, err := view.Get(t.Context(), "main/configmaps/n/model", view.Revision())
	require.NoError(t, err)
	require.True(t, found)
	model.ID.Name = "late"
	_, err = c.cell.Log.Append(t.Context(), eventlog.Basis{}, "late", eventlog.Write{Key: model.ID, Op: eventlog.Added, ContentType: model.ContentType, Body: model.Value})
	require.NoError(t, err) // as a create writes it that saw no quota
	used := func() int64 {
		q, err := c.client.CoreV1().ResourceQuotas("n").Get(context.Background(), "q", metav1.GetOptions{})
		require.NoError(t, err)
		amount := q.Status.Used["configmaps"]
		return amount.Value()
	}
	require.EqualValues(t, 1, used())
	c.run()
	c.eventually(func() bool { return used() == 2 }, "it was recounted")
}

// counting counts what is read of a bucket.
type counting struct {
	bucket.Bucket
	reads atomic.Int64
}

func (c *counting) Get(ctx context.Context, key string) ([]byte, string, error) {
	c.reads.Add(1)
	return c.Bucket.Get(ctx, key)
}

func (c *counting) GetRange(ctx context.Context, key string, offset, length int64) ([]byte, error) {
	c.reads.Add(1)
	return c.Bucket.GetRange(ctx, key, offset, length)
}

// TestGarbageReadsOnlyDependents: what an owner's end costs in reads of the bucket does not grow with what else there
// is.
func TestGarbageReadsOnlyDependents(t *testing.T) {
	cost := func(unrelated int) int64 {
		b := &counting{Bucket: memory.Strict(t)}
		c := newClusterOn(t, b)
		c.createNamespace("n")
		owner := c.own("n", "owner")
		const fan = 20
		for i := range fan {
			c.own("n", fmt.Sprintf("m-%d", i), ownerOf(owner, true))
		}
		view, err := c.cell.Projection.Latest(t.Context())
		require.NoError(t, err)
		for i := 0; i < unrelated; i += 500 {
			var writes []projection.Write
			for j := range 500 { // around the dependents, and long enough to fill blocks of their own
				for _, name := range []string{"a", "z"} {
					at, err := view.State(t.Context(), eventlog.Key{Cluster: "main", Resource: "configmaps", Prefix: "/configmaps", Namespace: "n", Name: fmt.Sprintf("%s-%d", name, i+j)})
					require.NoError(t, err)
					writes = append(writes, at.Put("text/plain", make([]byte, 500), 0))
				}
			}
			_, err = view.Append(t.Context(), "unrelated", writes...)
			require.NoError(t, err)
		}
		_, err = c.cell.Projection.Commit(t.Context())
		require.NoError(t, err)

		// Another process, which has read nothing yet.
		p, err := projection.Open(projection.Config{Log: c.cell.Log, Bucket: b})
		require.NoError(t, err)
		c.cell = kubestore.Cell{Log: c.cell.Log, Projection: p, Cluster: "main", Objects: kubestore.NewObjects(16 << 20)}
		c.server, err = apiserver.New(apiserver.Config{Cell: c.cell})
		require.NoError(t, err)
		c.restart()
		c.deleteConfigMap("n", "owner", metav1.DeletePropagationBackground)
		before := b.reads.Load()
		tasks, err := c.lookAtOwner(t.Context(), owner.UID)
		require.NoError(t, err)
		require.Len(t, tasks, fan)
		for _, task := range tasks {
			_, err := c.do(t.Context(), task)
			require.NoError(t, err)
		}
		require.Zero(t, c.references())
		return b.reads.Load() - before
	}
	few, many := cost(500), cost(5000)
	t.Logf("%d reads beside 1,000 objects, %d beside 10,000", few, many)
	require.LessOrEqual(t, many, few+2) // a level more of the snapshot
}
