package lifecycle

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/utils/ptr"
)

// job creates a Job, which is already finished if 'finished' is set.
func (c *cluster) job(name string, ttl *int32, finished bool) *batchv1.Job {
	c.Helper()
	jobs := c.client.BatchV1().Jobs("n")
	j, err := jobs.Create(c.Context(), &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: batchv1.JobSpec{TTLSecondsAfterFinished: ttl, Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "i"}},
		}}},
	}, metav1.CreateOptions{})
	require.NoError(c, err)
	if !finished {
		return j
	}
	now := metav1.Now()
	condition := func(of batchv1.JobConditionType) batchv1.JobCondition {
		return batchv1.JobCondition{Type: of, Status: corev1.ConditionTrue, LastTransitionTime: now, LastProbeTime: now}
	}
	j.Status = batchv1.JobStatus{
		StartTime: &now, CompletionTime: &now, Succeeded: 1, UncountedTerminatedPods: &batchv1.UncountedTerminatedPods{},
		Conditions: []batchv1.JobCondition{condition(batchv1.JobSuccessCriteriaMet), condition(batchv1.JobComplete)},
	}
	j, err = jobs.UpdateStatus(c.Context(), j, metav1.UpdateOptions{})
	require.NoError(c, err)
	return j
}

// TestFinishedJobs: a finished Job is deleted when its TTL has passed, and not before, whether the lifecycle sees the
// Job finish or finds the finished Job later.
func TestFinishedJobs(t *testing.T) {
	c := newCluster(t)
	c.createNamespace("n")
	c.job("before", ptr.To[int32](0), true)
	c.run()
	c.job("at-once", ptr.To[int32](0), true)
	soon := c.job("soon", ptr.To[int32](2), true)
	c.job("later", ptr.To[int32](3600), true)
	c.job("never", nil, true)
	c.job("running", ptr.To[int32](0), false)
	isGone := func(name string) bool {
		_, err := c.client.BatchV1().Jobs("n").Get(c.Context(), name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}
	for _, name := range []string{"before", "at-once", "soon"} {
		c.eventually(func() bool { return isGone(name) }, name)
	}
	end, _ := endOfJob(soon)
	require.False(t, time.Now().Before(end))
	for _, name := range []string{"later", "never", "running"} {
		require.False(t, isGone(name), name)
	}
}

// TestBootstrapTokensExpire: a bootstrap token is deleted at its expiration. Secrets that are not bootstrap tokens
// stay.
func TestBootstrapTokensExpire(t *testing.T) {
	c := newCluster(t)
	c.run()
	secrets := c.client.CoreV1().Secrets(metav1.NamespaceSystem)
	make := func(name string, of corev1.SecretType, expiration string) {
		data := map[string]string{}
		if expiration != "" {
			data[bootstrapapi.BootstrapTokenExpirationKey] = expiration
		}
		_, err := secrets.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Type: of, StringData: data}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	past := time.Now().Add(-time.Hour).Format(time.RFC3339)
	make("expired", bootstrapapi.SecretTypeBootstrapToken, past)
	make("unreadable", bootstrapapi.SecretTypeBootstrapToken, "tomorrow")
	make("good", bootstrapapi.SecretTypeBootstrapToken, time.Now().Add(time.Hour).Format(time.RFC3339))
	make("unlimited", bootstrapapi.SecretTypeBootstrapToken, "")
	make("other", corev1.SecretTypeOpaque, past)
	left := func() (names []string) {
		all, err := secrets.List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		for _, s := range all.Items {
			names = append(names, s.Name)
		}
		return names
	}
	c.eventually(func() bool { return len(left()) == 3 }, "two are gone")
	require.Equal(t, []string{"good", "other", "unlimited"}, left())
}
