package lifecycle

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/dependents"
	"github.com/logplane/logplane/internal/apiserver/namespaces"
	"github.com/logplane/logplane/projection"
)

// namespaceKey is the key of a namespace.
func (l *Lifecycle) namespaceKey(name string) eventlog.Key {
	return eventlog.Key{Cluster: l.config.Cell.Cluster, Resource: "namespaces", Prefix: "/namespaces", Name: name}
}

// isStray says whether the event added an object to a namespace that is gone. It costs one read of a view.
func (l *Lifecycle) isStray(ctx context.Context, e eventlog.Event) bool {
	view, err := l.config.Cell.Projection.AtLeast(ctx, e.Revision)
	if err != nil {
		return true // the task looks again
	}
	_, found, err := view.Get(ctx, l.namespaceKey(e.Key.Namespace).RowKey(), view.Revision())
	return err != nil || !found
}

// seekAfter is how many objects of one kind in one namespace are read before the scan jumps to the next kind or
// namespace. If there are more, jumping costs less than reading them.
const seekAfter = 100

// strays returns a task for every namespace that has objects but does not exist. It reads only a few objects of each
// kind in each namespace.
func (l *Lifecycle) strays(ctx context.Context, view *projection.View) ([]task, error) {
	exists := map[string]bool{"": true}
	var tasks []task
	start := l.config.Cell.Cluster + "/"
	end := projection.PrefixEnd(start)
	for start != "" {
		from := start
		start = ""
		last, passed := "", 0
		for row, err := range view.Scan(ctx, from, end, view.Revision()) {
			if err != nil {
				return nil, fmt.Errorf("look for objects without a namespace: %w", err)
			}
			of := row.Key[:len(row.Key)-len(row.ID.Name)]
			if of != last {
				last, passed = of, 0
			}
			if passed++; passed > seekAfter {
				start = projection.PrefixEnd(of)
				break
			}
			name := row.ID.Namespace
			_, asked := exists[name]
			if asked {
				continue
			}
			_, found, err := view.Get(ctx, l.namespaceKey(name).RowKey(), view.Revision())
			if err != nil {
				return nil, fmt.Errorf("look for namespace %q: %w", name, err)
			}
			exists[name] = found
			if !found {
				tasks = append(tasks, task{strayTask, name})
			}
		}
	}
	return tasks, nil
}

// deleteStrays deletes everything in a namespace that does not exist. The objects come from requests that saw the
// namespace, and whose messages were held up in a stalled log until the namespace had been finalized.
func (l *Lifecycle) deleteStrays(ctx context.Context, t task) error {
	_, err := l.client.CoreV1().Namespaces().Get(ctx, t.name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	lists, incomplete, err := l.namespacedResources()
	if err != nil {
		return err
	}
	if ctx, err = l.because(ctx, dependents.Object{Resource: "namespaces", Name: t.name}); err != nil {
		return err
	}
	ctx = namespaces.Emptying(ctx, "")
	failed := []error{incomplete}
	resources, err := discovery.GroupVersionResources(discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"deletecollection"}}, lists))
	failed = append(failed, err)
	for resource := range resources {
		err := l.metadata.Resource(resource).Namespace(t.name).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			failed = append(failed, fmt.Errorf("delete stray %s: %w", resource.Resource, err))
		}
	}
	l.config.Logger.WarnContext(ctx, "deleted objects that came after their namespace was gone", "namespace", t.name)
	return errors.Join(failed...)
}
