package lifecycle

import (
	"context"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection"
)

// kind of a task.
type kind string

const (
	namespaceTask  kind = "namespace"
	definitionTask kind = "definition"
	rolesTask      kind = "roles"
	strayTask      kind = "stray"
)

// task says what to look at. Equal tasks never run at the same time in one process.
type task struct {
	kind kind
	name string
}

func (t task) String() string { return string(t.kind) + " " + t.name }

// isOf says whether the key is that of the task's own object, rather than of its content.
func (t task) isOf(k eventlog.Key) bool {
	switch t.kind {
	case namespaceTask:
		return k.Group == "" && k.Resource == "namespaces"
	case definitionTask:
		return k.Group == definitionGroup && k.Resource == "customresourcedefinitions"
	}
	return k.Group == rolesGroup && k.Resource == "clusterroles"
}

const (
	definitionGroup = "apiextensions.k8s.io"
	rolesGroup      = "rbac.authorization.k8s.io"
)

// tasksOf returns the tasks that an event may ask for. An object that is gone may be the last one that its namespace or
// its definition waited for. A new object may have come too late for its namespace.
func tasksOf(e eventlog.Event) []task {
	k := e.Key
	var tasks []task
	switch {
	case e.Op == eventlog.Barrier:
		return nil
	case k.Group == "" && k.Resource == "namespaces":
		return []task{{namespaceTask, k.Name}}
	case k.Group == definitionGroup && k.Resource == "customresourcedefinitions":
		return []task{{definitionTask, k.Name}}
	case k.Group == rolesGroup && k.Resource == "clusterroles":
		return []task{{rolesTask, ""}}
	case e.Op == eventlog.Added && k.Namespace != "":
		return []task{{strayTask, k.Namespace}}
	case e.Op != eventlog.Deleted:
		return nil
	}
	if k.Namespace != "" {
		tasks = append(tasks, task{namespaceTask, k.Namespace})
	}
	if strings.Contains(k.Group, ".") {
		tasks = append(tasks, task{definitionTask, k.Resource + "." + k.Group})
	}
	return tasks
}

// tasksOfState returns the tasks that the state asks for, whichever events led to it.
func (l *Lifecycle) tasksOfState(ctx context.Context, view *projection.View) ([]task, error) {
	tasks := []task{{rolesTask, ""}}
	namespaces, err := l.client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	for _, n := range namespaces.Items {
		if n.DeletionTimestamp != nil {
			tasks = append(tasks, task{namespaceTask, n.Name})
		}
	}
	definitions, err := l.extensions.ApiextensionsV1().CustomResourceDefinitions().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list definitions: %w", err)
	}
	for _, d := range definitions.Items {
		if d.DeletionTimestamp != nil {
			tasks = append(tasks, task{definitionTask, d.Name})
		}
	}
	strays, err := l.strays(ctx, view)
	return append(tasks, strays...), err
}

// do runs a task once.
func (l *Lifecycle) do(ctx context.Context, t task) error {
	switch t.kind {
	case namespaceTask:
		return l.emptyNamespace(ctx, t)
	case definitionTask:
		return l.emptyDefinition(ctx, t)
	case strayTask:
		return l.deleteStrays(ctx, t)
	default:
		return l.aggregateRoles(ctx)
	}
}
