package lifecycle

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/quotas"
	"github.com/logplane/logplane/projection"
)

// recountsOfState returns the tasks of quotas that must be recounted.
func (l *Lifecycle) recountsOfState(ctx context.Context, view *projection.View) ([]task, error) {
	names, err := quotas.AllMarked(ctx, view, l.config.Cell.Cluster)
	if err != nil {
		return nil, fmt.Errorf("look for quotas to recount: %w", err)
	}
	var tasks []task
	for _, name := range names {
		tasks = append(tasks, task{recountTask, name})
	}
	return tasks, nil
}

// recount counts the usage of a quota again, if it limits something new or if a client wrote its status. It does so
// once every create that could not see the quota has ended. The server counts with each write of the quota itself, even
// with one that changes nothing.
func (l *Lifecycle) recount(ctx context.Context, t task) error {
	namespace, name := quotas.Marked(t.name)
	key := quotas.MarkKey(l.config.Cell.Cluster, namespace, name)
	view, err := l.config.Cell.Projection.Latest(ctx)
	if err != nil {
		return err
	}
	mark, marked, err := view.Get(ctx, key.RowKey(), view.Revision())
	if err != nil || !marked {
		return err
	}
	unsettled, err := l.settle(ctx, key)
	switch {
	case err != nil:
		return err
	case unsettled != nil:
		return unsettled
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
		return nil // somebody has marked it again, or has removed the mark; that event starts another task if needed
	}
	_, err = l.config.Cell.Append(ctx, view, at.Delete())
	if errors.Is(err, eventlog.ErrConflict) {
		return nil
	}
	return err
}
