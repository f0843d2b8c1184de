package lifecycle

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/dependents"
	"github.com/logplane/logplane/internal/apiserver/quotas"
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

// references is how many rows the index of dependents has.
func (c *cluster) references() (n int) {
	view, err := c.cell.Projection.Latest(context.Background())
	require.NoError(c, err)
	for _, err := range dependents.All(context.Background(), view, "main") {
		require.NoError(c, err)
		n++
	}
	return n
}

// TestGarbageFoundByState: the Lifecycle is stopped again and again. Still, objects with a living owner stay, and all
// other objects are deleted.
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

// TestDefaultsAreGivenBack: the lost account or certificate of a namespace is restored.
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
	c.restart(func(config *Config) { config.through(func(s Server) Server { return certified{s} }) })
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

// certified is a server with a certificate.
type certified struct{ Server }

func (certified) RootCA() []byte { return []byte("CERTIFICATE") }

// TestVolumesAreProtected: a deleted claim is gone once no Pod uses the claim any more, and a deleted volume is gone
// once the volume is not bound.
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
	_, err = c.do(t.Context(), task{kind: claimTask, namespace: "n", name: "claim"})
	require.NoError(t, err)
	require.True(t, c.isTerminating(task{kind: claimTask, namespace: "n", name: "claim"}))
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

// TestAttributesAreProtected: a deleted VolumeAttributesClass is gone once no volume and no claim names the class any
// more.
func TestAttributesAreProtected(t *testing.T) {
	c := newCluster(t)
	c.createNamespace("n")
	client := c.client
	class := &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, DriverName: "d.example.com", Parameters: map[string]string{"iops": "1"}}
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	create := func() {
		made, err := client.StorageV1().VolumeAttributesClasses().Create(t.Context(), class, metav1.CreateOptions{})
		require.NoError(t, err)
		require.NotEmpty(t, made.Finalizers)
	}
	remove := func() {
		require.NoError(t, client.StorageV1().VolumeAttributesClasses().Delete(t.Context(), "fast", metav1.DeleteOptions{}))
	}
	gone := func(why string) {
		t.Helper()
		c.eventually(func() bool {
			_, err := client.StorageV1().VolumeAttributesClasses().Get(context.Background(), "fast", metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		}, why)
	}
	kept := func() {
		t.Helper()
		_, err := c.do(t.Context(), task{kind: attributesTask, name: "fast"})
		require.NoError(t, err)
		require.True(t, c.isTerminating(task{kind: attributesTask, name: "fast"}))
		_, err = client.StorageV1().VolumeAttributesClasses().Get(t.Context(), "fast", metav1.GetOptions{})
		require.NoError(t, err)
	}

	create()
	remove()
	c.run()
	gone("found by state")

	create()
	_, err := client.CoreV1().PersistentVolumeClaims("n").Create(t.Context(), &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim"}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: modes, Resources: corev1.VolumeResourceRequirements{Requests: size}, VolumeAttributesClassName: &class.Name,
	}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = client.CoreV1().PersistentVolumes().Create(t.Context(), &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "volume"}, Spec: corev1.PersistentVolumeSpec{
		AccessModes: modes, Capacity: size, VolumeAttributesClassName: &class.Name,
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: class.DriverName, VolumeHandle: "v"}},
	}}, metav1.CreateOptions{})
	require.NoError(t, err)
	remove()
	kept()
	require.NoError(t, client.CoreV1().PersistentVolumeClaims("n").Delete(t.Context(), "claim", metav1.DeleteOptions{}))
	kept()
	require.NoError(t, client.CoreV1().PersistentVolumes().Delete(t.Context(), "volume", metav1.DeleteOptions{}))
	gone("neither claim nor volume is there")
}

// TestRecount: an object whose create could not see a new quota is counted once the quota has settled.
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
	require.NoError(t, err) // like the write of a create that saw no quota
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

// TestRecountOfAToldStatus: a client may write any numbers to the status of a quota. The version that the client wrote
// has these numbers, and the next version has counted numbers.
func TestRecountOfAToldStatus(t *testing.T) {
	c := newCluster(t)
	c.createNamespace("n")
	client := c.client.CoreV1().ResourceQuotas("n")
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"configmaps": resource.MustParse("10")}}}
	_, err := client.Create(t.Context(), quota, metav1.CreateOptions{})
	require.NoError(t, err)
	c.createConfigMap("n", "a")
	counted := func() bool {
		view, err := c.cell.Projection.Latest(t.Context())
		require.NoError(t, err)
		marked, err := quotas.AllMarked(t.Context(), view, "main")
		require.NoError(t, err)
		return len(marked) == 0
	}
	c.run()
	c.eventually(counted, "the new quota was counted")
	told, err := client.Patch(t.Context(), "q", types.MergePatchType, []byte(`{"status":{"hard":{"configmaps":"2"},"used":{"configmaps":"9"}}}`), metav1.PatchOptions{}, "status")
	require.NoError(t, err)
	c.eventually(counted, "the quota was counted again")
	of := func(o metav1.ListOptions) (hard, used int64) {
		list, err := client.List(t.Context(), o)
		require.NoError(t, err)
		s := list.Items[0].Status
		return s.Hard.Name("configmaps", resource.DecimalSI).Value(), s.Used.Name("configmaps", resource.DecimalSI).Value()
	}
	hard, used := of(metav1.ListOptions{ResourceVersion: told.ResourceVersion, ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	require.Equal(t, []int64{2, 9}, []int64{hard, used})
	hard, used = of(metav1.ListOptions{})
	require.Equal(t, []int64{10, 1}, []int64{hard, used})
}

// TestTokensGoWithTheirAccount: after a service account was deleted, the Secrets with its tokens are deleted, and no
// other Secrets.
func TestTokensGoWithTheirAccount(t *testing.T) {
	c := newCluster(t)
	c.createNamespace("n")
	secrets, accounts := c.client.CoreV1().Secrets("n"), c.client.CoreV1().ServiceAccounts("n")
	store := func(name, account string, uid types.UID) {
		_, err := secrets.Create(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{corev1.ServiceAccountNameKey: account, corev1.ServiceAccountUIDKey: string(uid)}},
			Type:       corev1.SecretTypeServiceAccountToken, Data: map[string][]byte{"token": []byte("t")},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	made := func(name string) types.UID {
		account, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		require.NoError(t, err)
		return account.UID
	}
	left := func() (names []string) {
		list, err := secrets.List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		for _, s := range list.Items {
			names = append(names, s.Name)
		}
		return names
	}
	store("early", "early", made("early"))
	store("stays", "stays", made("stays"))
	store("old", "again", made("again"))
	require.NoError(t, accounts.Delete(t.Context(), "early", metav1.DeleteOptions{}))
	require.NoError(t, accounts.Delete(t.Context(), "again", metav1.DeleteOptions{}))
	store("young", "again", made("again"))
	c.run() // finds earlier deletions
	c.eventually(func() bool { return slices.Equal(left(), []string{"stays", "young"}) }, "the tokens of accounts that are gone are gone")
	require.NoError(t, accounts.Delete(t.Context(), "again", metav1.DeleteOptions{}))
	c.eventually(func() bool { return slices.Equal(left(), []string{"stays"}) }, "the tokens of the account are gone")
}
