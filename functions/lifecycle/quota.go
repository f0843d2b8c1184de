package lifecycle

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/logplane/logplane/internal/apiserver/quotas"
	"github.com/logplane/logplane/projection"
)

// recountsOfState returns the tasks of quotas that must be recounted.
func (l *life) recountsOfState(ctx context.Context, view *projection.View) ([]task, error) {
	names, err := quotas.AllMarked(ctx, view, l.cluster)
	if err != nil {
		return nil, fmt.Errorf("look for quotas to recount: %w", err)
	}
	var tasks []task
	for _, name := range names {
		tasks = append(tasks, task{kind: recountTask, name: name})
	}
	return tasks, nil
}

// recount counts the usage of a quota again, if the quota limits something new or if a client wrote the quota's status.
// The recount comes after every create that could not see the quota has ended. The server counts the usage in each
// write of the quota, even in a write that changes nothing.
func (l *life) recount(ctx context.Context, t task) error {
	namespace, name := quotas.Marked(t.name)
	key := quotas.MarkKey(l.cluster, namespace, name)
	view, err := l.config.Cell.Projection.Latest(ctx)
	if err != nil {
		return err
	}
	mark, marked, err := view.Get(ctx, key.RowKey(), view.Revision())
	if err != nil || !marked {
		return err
	}
	pending, err := l.pendingCreates(ctx, key)
	switch {
	case err != nil:
		return err
	case pending != nil:
		return pending
	}
	client := l.client.CoreV1().ResourceQuotas(namespace)
	quota, err := client.Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		_, err = client.Update(ctx, quota, metav1.UpdateOptions{})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("recount quota '%s' of namespace '%s': %w", name, namespace, err)
	}
	view, err = l.config.Cell.Projection.Latest(ctx) // the first view is old by now
	if err != nil {
		return err
	}
	at, err := view.State(ctx, key)
	if err != nil {
		return err
	}
	if now, _ := at.Row(); now.Revision != mark.Revision {
		return nil // the request for a recount was renewed or removed; that event starts another task if needed
	}
	_, err = l.config.Cell.Append(ctx, view, at.Delete()) // a conflict may also mean that the log was reconnected: try again
	return err
}
