package lifecycle

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/logplane/logplane/internal/apiserver/dependents"
)

func (c *cluster) once() []string {
	c.Helper()
	left, err := c.Once(c.Context())
	require.NoError(c, err)
	return left
}

// TestOnceSaysWhatIsLeft: each call of Once names the tasks that wait for other clients, until these clients have
// acted.
func TestOnceSaysWhatIsLeft(t *testing.T) {
	c := newCluster(t)
	require.Empty(t, c.once())
	c.createNamespace("n")
	c.createNamespace("held")
	c.createConfigMap("held", "c", "example.com/hold")
	c.deleteNamespace("held")
	owner := c.own("n", "owner")
	_, err := c.client.CoreV1().ConfigMaps("n").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: "child", OwnerReferences: []metav1.OwnerReference{ownerOf(owner, true)}, Finalizers: []string{"example.com/hold"}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	c.deleteConfigMap("n", "owner", metav1.DeletePropagationForeground)
	_, err = c.client.CoreV1().PersistentVolumeClaims("n").Create(t.Context(), &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim"}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
	}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = c.client.CoreV1().Pods("n").Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{
		NodeName: "node", Containers: []corev1.Container{{Name: "c", Image: "i"}},
		Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}}}},
	}}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, c.client.CoreV1().PersistentVolumeClaims("n").Delete(t.Context(), "claim", metav1.DeleteOptions{}))
	for range 2 {
		c.restart()
		left := c.once()
		require.Len(t, left, 3)
		require.Equal(t, []string{"claim n/claim is used by Pods", "configmaps n/owner waits for its dependents"}, left[:2])
		require.Equal(t, "namespace held: content remains, and its conditions say what", left[2])
	}
	for _, o := range [][2]string{{"held", "c"}, {"n", "child"}} {
		_, err = c.client.CoreV1().ConfigMaps(o[0]).Patch(t.Context(), o[1], types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	now := int64(0)
	require.NoError(t, c.client.CoreV1().Pods("n").Delete(t.Context(), "p", metav1.DeleteOptions{GracePeriodSeconds: &now}))
	c.restart()
	require.Empty(t, c.once())
	require.False(t, c.has("n", "owner"))
	c.namespaceGone("held")
}

// TestOwnersThatWaitForEachOther: as in upstream, nothing breaks a circle whose objects are all in foreground deletion.
// Such a circle must not keep the collector busy.
func TestOwnersThatWaitForEachOther(t *testing.T) {
	c := newCluster(t)
	c.createNamespace("n")
	a := c.own("n", "a")
	b := c.own("n", "b", ownerOf(a, true))
	a.OwnerReferences = []metav1.OwnerReference{ownerOf(b, true)}
	_, err := c.client.CoreV1().ConfigMaps("n").Update(t.Context(), a, metav1.UpdateOptions{})
	require.NoError(t, err)
	for _, name := range []string{"a", "b"} {
		c.deleteConfigMap("n", name, metav1.DeletePropagationForeground)
	}
	for _, name := range []string{"a", "b"} {
		more, err := c.do(t.Context(), collectTaskOf(dependents.Object{Resource: "configmaps", Namespace: "n", Name: name}))
		require.NoError(t, err)
		require.Empty(t, more)
	}
	require.Len(t, c.once(), 2)
}

// TestGarbageBesideABrokenKind: objects that cannot be read, because their conversion webhook is gone, do not hold up
// other objects. Upstream's test is TestCascadingDeleteOnCRDConversionFailure.
func TestGarbageBesideABrokenKind(t *testing.T) {
	c := newCluster(t)
	c.createNamespace("n")
	c.createDefinition()
	owner := c.own("n", "owner")
	for _, name := range []string{"a", "b"} {
		c.createWidget("n", name)
		widget, err := c.custom.Resource(widgets).Namespace("n").Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		widget.SetOwnerReferences([]metav1.OwnerReference{ownerOf(owner, true)})
		_, err = c.custom.Resource(widgets).Namespace("n").Update(t.Context(), widget, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	c.own("n", "child", ownerOf(owner, true))
	definitions := c.extensions.ApiextensionsV1().CustomResourceDefinitions()
	d, err := definitions.Get(t.Context(), "widgets.example.com", metav1.GetOptions{})
	require.NoError(t, err)
	nowhere := "https://127.0.0.1:1"
	d.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter, Webhook: &apiextensionsv1.WebhookConversion{
		ClientConfig: &apiextensionsv1.WebhookClientConfig{URL: &nowhere}, ConversionReviewVersions: []string{"v1"}}}
	next := d.Spec.Versions[0]
	next.Name = "v2"
	d.Spec.Versions[0].Storage = false
	d.Spec.Versions = append(d.Spec.Versions, next)
	_, err = definitions.Update(t.Context(), d, metav1.UpdateOptions{})
	require.NoError(t, err)
	c.deleteConfigMap("n", "owner", metav1.DeletePropagationBackground)
	c.restart()
	_, err = c.Once(t.Context())
	require.ErrorContains(t, err, "collect example.com/widgets/n/a: ")
	require.ErrorContains(t, err, "collect example.com/widgets/n/b: ")
	require.False(t, c.has("n", "child"))
	require.Equal(t, 2, c.references())
}

// TestOnceEnds: Once ends although other clients keep writing and a webhook answers each deletion with a conflict. Once
// does the work that follows from its own writes.
func TestOnceEnds(t *testing.T) {
	c := newCluster(t)
	c.createNamespace("n")
	gone := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "gone", UID: "gone"}
	others := c.life
	n := 0
	var mu sync.Mutex
	litter := func() {
		mu.Lock()
		defer mu.Unlock()
		n++
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("litter-%d", n), OwnerReferences: []metav1.OwnerReference{gone}}}
		_, err := others.client.CoreV1().ConfigMaps("n").Create(c.Context(), object, metav1.CreateOptions{})
		assert.NoError(c, err)
	}
	refused := 0
	c.restart(through(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		switch {
		case r.Method != http.MethodDelete:
		case strings.HasSuffix(r.URL.Path, "/refused"):
			refused++
			body := `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Conflict","code":409}`
			return &http.Response{StatusCode: http.StatusConflict, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
		case strings.Contains(r.URL.Path, "/litter-"):
			litter()
		}
		return next.RoundTrip(r)
	}))
	c.own("n", "refused", gone)
	first := gone
	for _, name := range []string{"a", "b", "c", "d"} {
		first = ownerOf(c.own("n", name, first), false)
	}
	litter()
	_, err := c.Once(t.Context())
	require.ErrorContains(t, err, "collect /configmaps/n/refused: ")
	require.Equal(t, onceTries, refused)
	require.Equal(t, 3, n, "one of the state, one that came meanwhile, and what that led to")
	for _, name := range []string{"a", "b", "c", "d"} {
		require.False(t, c.has("n", name), name)
	}
}
