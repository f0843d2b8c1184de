package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	bootstraputil "k8s.io/cluster-bootstrap/util/secrets"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/clusters"
	"github.com/logplane/logplane/projection"
)

// The tasks here delete a finished Job with `ttlSecondsAfterFinished`, a bootstrap token with an expiration, and a
// Cluster with a TTL, when the object's time has come. Upstream's controllers do the same with Jobs and tokens. Before
// that time, the task waits.

// endsOf returns the task of an event of a Job, or of a Secret in the namespace of bootstrap tokens.
func endsOf(e eventlog.Event) []task {
	k := e.Key
	switch {
	case e.Op == eventlog.Deleted:
	case k.Group == "batch" && k.Resource == "jobs":
		return []task{{kind: jobTask, namespace: k.Namespace, name: k.Name}}
	case k.Group == "" && k.Resource == "secrets" && k.Namespace == metav1.NamespaceSystem:
		return []task{{kind: tokenTask, namespace: k.Namespace, name: k.Name}}
	}
	return nil
}

// endsOfState returns the tasks of objects that will have to be deleted.
func (l *life) endsOfState(ctx context.Context, _ *projection.View) ([]task, error) {
	var tasks []task
	jobs, err := l.client.BatchV1().Jobs("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list Jobs: %w", err)
	}
	for _, j := range jobs.Items {
		if _, ends := endOfJob(&j); ends {
			tasks = append(tasks, task{kind: jobTask, namespace: j.Namespace, name: j.Name})
		}
	}
	tokens, err := l.client.CoreV1().Secrets(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{FieldSelector: "type=" + string(bootstrapapi.SecretTypeBootstrapToken)})
	if err != nil {
		return nil, fmt.Errorf("list bootstrap tokens: %w", err)
	}
	for _, s := range tokens.Items {
		tasks = append(tasks, task{kind: tokenTask, namespace: s.Namespace, name: s.Name})
	}
	return tasks, nil
}

// endOfJob returns when a Job is to be deleted, if ever.
func endOfJob(j *batchv1.Job) (end time.Time, ends bool) {
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

// endJob deletes a Job whose time has come. The Job's Pods are deleted with the Job.
func (l *life) endJob(ctx context.Context, t task) error {
	jobs := l.client.BatchV1().Jobs(t.namespace)
	j, err := jobs.Get(ctx, t.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get Job '%s/%s': %w", t.namespace, t.name, err)
	}
	end, ends := endOfJob(j)
	if !ends {
		return nil
	}
	if err := l.await(ctx, end); err != nil {
		return err
	}
	foreground := metav1.DeletePropagationForeground
	return ended(jobs.Delete(ctx, j.Name, metav1.DeleteOptions{PropagationPolicy: &foreground, Preconditions: asSeen(j)}))
}

// endToken deletes a bootstrap token whose time has come, or whose expiration cannot be parsed.
func (l *life) endToken(ctx context.Context, t task) error {
	secrets := l.client.CoreV1().Secrets(t.namespace)
	s, err := secrets.Get(ctx, t.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get Secret '%s/%s': %w", t.namespace, t.name, err)
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
// whether the log is asked for its time.
func (l *life) await(ctx context.Context, end time.Time) error {
	now := time.Now()
	if !now.Before(end) {
		var err error
		if now, err = l.now(ctx); err != nil {
			return fmt.Errorf("ask for the log's time: %w", err)
		}
	}
	if now.Before(end) {
		return &notYetError{After: end.Sub(now), Reason: fmt.Sprintf("its time comes at %s", end.UTC().Format(time.RFC3339))}
	}
	return nil
}

// asSeen makes a deletion fail if the object has changed since it was read.
func asSeen(o metav1.Object) *metav1.Preconditions {
	uid, revision := o.GetUID(), o.GetResourceVersion()
	return &metav1.Preconditions{UID: &uid, ResourceVersion: &revision}
}

// ended filters the error of a deletion. An object that is already gone or has changed meanwhile is not an error: the
// change makes an event.
func ended(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// ofAccounts selects the Secrets that hold tokens of service accounts.
var ofAccounts = metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("type", string(corev1.SecretTypeServiceAccountToken)).String()}

// accountsOfState returns a task for each service account that a Secret with a token names.
func (l *life) accountsOfState(ctx context.Context, _ *projection.View) ([]task, error) {
	secrets, err := l.client.CoreV1().Secrets("").List(ctx, ofAccounts)
	if err != nil {
		return nil, fmt.Errorf("list the tokens of service accounts: %w", err)
	}
	accounts := map[task]bool{}
	for _, s := range secrets.Items {
		accounts[task{kind: accountTask, namespace: s.Namespace, name: s.Annotations[corev1.ServiceAccountNameKey]}] = true
	}
	return slices.Collect(maps.Keys(accounts)), nil
}

// revokeTokens deletes the Secrets that hold tokens of a service account that is gone, as upstream's token controller
// does. The tokens became invalid when the account was deleted.
func (l *life) revokeTokens(ctx context.Context, t task) error {
	account, err := l.client.CoreV1().ServiceAccounts(t.namespace).Get(ctx, t.name, metav1.GetOptions{})
	gone := apierrors.IsNotFound(err)
	if err != nil && !gone {
		return fmt.Errorf("get service account '%s/%s': %w", t.namespace, t.name, err)
	}
	client := l.client.CoreV1().Secrets(t.namespace)
	secrets, err := client.List(ctx, ofAccounts)
	if err != nil {
		return fmt.Errorf("list the tokens of service account '%s/%s': %w", t.namespace, t.name, err)
	}
	var failed []error
	for i := range secrets.Items {
		s := &secrets.Items[i]
		uid := types.UID(s.Annotations[corev1.ServiceAccountUIDKey])
		if s.Annotations[corev1.ServiceAccountNameKey] != t.name || !gone && (uid == "" || uid == account.UID) {
			continue
		}
		err := client.Delete(ctx, s.Name, metav1.DeleteOptions{Preconditions: asSeen(s)})
		if err != nil && !apierrors.IsNotFound(err) {
			failed = append(failed, fmt.Errorf("delete token '%s' of service account '%s/%s': %w", s.Name, t.namespace, t.name, err))
		}
	}
	return errors.Join(failed...)
}

func isCluster(k eventlog.Key) bool {
	return k.Cluster == main && k.Group == clusters.Resource.Group && k.Resource == clusters.Resource.Resource
}

// clustersOfState returns the tasks of Clusters that have a TTL. Each waits in memory until its Cluster ends.
func (l *life) clustersOfState(ctx context.Context, view *projection.View) ([]task, error) {
	if l.cluster != main {
		return nil, nil
	}
	var tasks []task
	start := main + "/" + clusters.Resource.Group + "/" + clusters.Resource.Resource + "/"
	for row, err := range view.Scan(ctx, start, projection.PrefixEnd(start), view.Revision()) {
		if err != nil {
			return nil, fmt.Errorf("look for Clusters: %w", err)
		}
		var stored unstructured.Unstructured
		unreadable := stored.UnmarshalJSON(row.Value) // perhaps it is encrypted; the task decrypts it
		if _, ends := endOfCluster(&stored); ends || unreadable != nil {
			tasks = append(tasks, task{kind: clusterTask, name: strings.Clone(row.ID.Name)})
		}
	}
	return tasks, nil
}

// endOfCluster returns when a Cluster is to be deleted, if ever.
func endOfCluster(c *unstructured.Unstructured) (end time.Time, ends bool) {
	text, found, _ := unstructured.NestedString(c.Object, "spec", "ttl")
	ttl, err := time.ParseDuration(text)
	created := c.GetCreationTimestamp()
	if !found || err != nil || created.IsZero() || c.GetDeletionTimestamp() != nil {
		return time.Time{}, false
	}
	return created.Add(ttl), true
}

// endCluster deletes a Cluster whose time has come.
func (l *life) endCluster(ctx context.Context, t task) error {
	client := l.dynamic.Resource(clusters.GroupVersion.WithResource(clusters.Resource.Resource))
	c, err := client.Get(ctx, t.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get Cluster '%s': %w", t.name, err)
	}
	end, ends := endOfCluster(c)
	if !ends {
		return nil
	}
	if err := l.await(ctx, end); err != nil {
		return err
	}
	return ended(client.Delete(ctx, t.name, metav1.DeleteOptions{Preconditions: asSeen(c)}))
}
