package lifecycle

import (
	"context"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	bootstraputil "k8s.io/cluster-bootstrap/util/secrets"

	"github.com/logplane/logplane/eventlog"
)

// A finished Job with `ttlSecondsAfterFinished` and a bootstrap token with an expiration are deleted when their time
// has come, as upstream's controllers do. If it has not come yet, the task waits for it.

// mortalsOf returns the task of an event of a Job, or of a Secret in the namespace of bootstrap tokens.
func mortalsOf(e eventlog.Event) []task {
	k := e.Key
	switch {
	case e.Op == eventlog.Deleted:
	case k.Group == "batch" && k.Resource == "jobs":
		return []task{taskOf(jobTask, k.Namespace, k.Name)}
	case k.Group == "" && k.Resource == "secrets" && k.Namespace == metav1.NamespaceSystem:
		return []task{taskOf(tokenTask, k.Namespace, k.Name)}
	}
	return nil
}

// mortalsOfState returns the tasks of objects that will have to be deleted.
func (l *Lifecycle) mortalsOfState(ctx context.Context) ([]task, error) {
	var tasks []task
	jobs, err := l.client.BatchV1().Jobs("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list Jobs: %w", err)
	}
	for _, j := range jobs.Items {
		if _, mortal := endOfJob(&j); mortal {
			tasks = append(tasks, taskOf(jobTask, j.Namespace, j.Name))
		}
	}
	tokens, err := l.client.CoreV1().Secrets(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{FieldSelector: "type=" + string(bootstrapapi.SecretTypeBootstrapToken)})
	if err != nil {
		return nil, fmt.Errorf("list bootstrap tokens: %w", err)
	}
	for _, s := range tokens.Items {
		tasks = append(tasks, taskOf(tokenTask, s.Namespace, s.Name))
	}
	return tasks, nil
}

// endOfJob returns when a Job is to be deleted, if ever.
func endOfJob(j *batchv1.Job) (end time.Time, mortal bool) {
	if j.Spec.TTLSecondsAfterFinished == nil || j.DeletionTimestamp != nil {
		return time.Time{}, false
	}
	for _, c := range j.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			if c.LastTransitionTime.IsZero() {
				return time.Time{}, false // as upstream, which then does not know when the Job finished
			}
			return c.LastTransitionTime.Add(time.Duration(*j.Spec.TTLSecondsAfterFinished) * time.Second), true
		}
	}
	return time.Time{}, false
}

// endJob deletes a Job whose time has come. Its Pods are deleted with it.
func (l *Lifecycle) endJob(ctx context.Context, t task) error {
	jobs := l.client.BatchV1().Jobs(objectNamespace(t))
	j, err := jobs.Get(ctx, objectName(t), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get Job '%s': %w", t.name, err)
	}
	end, mortal := endOfJob(j)
	if !mortal {
		return nil
	}
	if err := l.await(ctx, end); err != nil {
		return err
	}
	foreground := metav1.DeletePropagationForeground
	return ended(jobs.Delete(ctx, j.Name, metav1.DeleteOptions{PropagationPolicy: &foreground, Preconditions: asSeen(j)}))
}

// endToken deletes a bootstrap token whose time has come, or whose expiration cannot be parsed.
func (l *Lifecycle) endToken(ctx context.Context, t task) error {
	secrets := l.client.CoreV1().Secrets(objectNamespace(t))
	s, err := secrets.Get(ctx, objectName(t), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get Secret '%s': %w", t.name, err)
	}
	if s.Type != bootstrapapi.SecretTypeBootstrapToken || s.DeletionTimestamp != nil {
		return nil
	}
	remaining, expired := bootstraputil.GetExpiration(s, time.Now())
	if remaining == 0 && !expired {
		return nil // it has no expiration
	}
	if err := l.await(ctx, time.Now().Add(remaining)); err != nil {
		return err
	}
	return ended(secrets.Delete(ctx, s.Name, metav1.DeleteOptions{Preconditions: asSeen(s)}))
}

// await returns nil if 'end' has come by the log's time. The clock of this process may be wrong, but it only decides
// whether the log is asked.
func (l *Lifecycle) await(ctx context.Context, end time.Time) error {
	now := time.Now()
	if !now.Before(end) {
		var err error
		if now, err = l.now(ctx); err != nil {
			return fmt.Errorf("ask for the log's time: %w", err)
		}
	}
	if now.Before(end) {
		return &NotYetError{After: end.Sub(now), Reason: fmt.Sprintf("its time comes at %s", end.UTC().Format(time.RFC3339))}
	}
	return nil
}

// asSeen makes a deletion fail if the object has changed since it was read.
func asSeen(o metav1.Object) *metav1.Preconditions {
	uid, revision := o.GetUID(), o.GetResourceVersion()
	return &metav1.Preconditions{UID: &uid, ResourceVersion: &revision}
}

// ended filters the error of a deletion. It is not an error if the object is already gone, or has changed meanwhile:
// the change makes an event.
func ended(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
