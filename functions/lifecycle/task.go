package lifecycle

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/customresources"
	"github.com/logplane/logplane/internal/apiserver/quotas"
	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

// kind is the kind of a task.
type kind string

const (
	namespaceTask  kind = "namespace"
	definitionTask kind = "definition"
	namesTask      kind = "names" // of a group's definitions
	rolesTask      kind = "roles"
	strayTask      kind = "stray"
	collectTask    kind = "collect"
	finishTask     kind = "finish" // ends the foreground deletion of an object, if nothing blocks it any more
	ownerTask      kind = "owner"
	recountTask    kind = "recount"
	defaultsTask   kind = "defaults"
	claimTask      kind = "claim"
	volumeTask     kind = "volume"
	attributesTask kind = "attributes" // a VolumeAttributesClass
	jobTask        kind = "job"
	tokenTask      kind = "token"
	accountTask    kind = "account"
	versionsTask   kind = "versions" // of a group of custom resources
	remoteTask     kind = "remote"   // an APIService
)

// task says what to look at. One queue never runs equal tasks at the same time.
type task struct {
	kind kind
	name string
}

// taskOf is a task that looks at one object.
func taskOf(k kind, namespace, name string) task { return task{k, namespace + "/" + name} }

// objectNamespace and objectName return the parts of a name 'NAMESPACE/NAME'.
func objectNamespace(t task) string {
	namespace, _, _ := strings.Cut(t.name, "/")
	return namespace
}

func objectName(t task) string {
	_, name, _ := strings.Cut(t.name, "/")
	return name
}

func (t task) String() string { return string(t.kind) + " " + t.name }

// isOf says whether the key is that of the task's own object, not of an object in it.
func (t task) isOf(k eventlog.Key) bool {
	switch t.kind {
	case namespaceTask:
		return k.Group == "" && k.Resource == "namespaces"
	case definitionTask:
		return k.Group == definitionGroup && k.Resource == "customresourcedefinitions"
	case accountTask:
		return k.Group == "" && k.Resource == "serviceaccounts"
	case namesTask, versionsTask, remoteTask: // no content asks for them
		return true
	}
	return k.Group == rolesGroup && k.Resource == "clusterroles"
}

const (
	definitionGroup = "apiextensions.k8s.io"
	rolesGroup      = "rbac.authorization.k8s.io"
	ownGroup        = resources.OwnGroup
	serviceGroup    = "apiregistration.k8s.io"
)

// isOwn says whether the key is of one of our own resources, which the API does not serve.
func isOwn(k eventlog.Key, resource string) bool {
	return k.Group == ownGroup && k.Resource == resource
}

// tasksOf returns the tasks that an event may ask for. A deleted object may be the last one that its namespace or its
// definition waited for. A new object may have come too late for its namespace.
func tasksOf(e eventlog.Event) []task {
	k := e.Key
	var tasks []task
	switch {
	case e.Op == eventlog.Barrier:
		return nil
	case isOwn(k, quotas.Recounts) && e.Op != eventlog.Deleted:
		return []task{{recountTask, k.Name}}
	case isOwn(k, customresources.Names) && e.Op == eventlog.Deleted:
		return []task{{namesTask, customresources.GroupOfName(k.Name)}}
	case k.Group == ownGroup:
		return nil
	case k.Group == "" && k.Resource == "namespaces":
		return []task{{namespaceTask, k.Name}}
	case k.Group == definitionGroup && k.Resource == "customresourcedefinitions":
		return []task{{definitionTask, k.Name}, {versionsTask, afterDot(k.Name)}}
	case k.Group == serviceGroup && k.Resource == "apiservices":
		return []task{{versionsTask, afterDot(k.Name)}, {remoteTask, k.Name}}
	case k.Group == rolesGroup && k.Resource == "clusterroles":
		return []task{{rolesTask, ""}}
	case e.Op == eventlog.Modified && isDefault(k):
		return []task{{defaultsTask, k.Namespace}}
	case e.Op == eventlog.Added && k.Namespace != "":
		return []task{{strayTask, k.Namespace}}
	case e.Op != eventlog.Deleted:
		return nil
	}
	if k.Namespace != "" {
		tasks = append(tasks, task{namespaceTask, k.Namespace})
	}
	if k.Group == "" && k.Resource == "serviceaccounts" {
		tasks = append(tasks, taskOf(accountTask, k.Namespace, k.Name))
	}
	if isDefault(k) {
		tasks = append(tasks, task{defaultsTask, k.Namespace})
	}
	if strings.Contains(k.Group, ".") {
		tasks = append(tasks, task{definitionTask, k.Resource + "." + k.Group})
	}
	return tasks
}

// afterDot returns the group from the name of a definition or of an APIService.
func afterDot(name string) string {
	_, group, _ := strings.Cut(name, ".")
	return group
}

// tasksOfState returns the tasks that the state asks for, whichever events led to it.
func (l *Lifecycle) tasksOfState(ctx context.Context, view *projection.View) ([]task, error) {
	l.kinds.changed() // they may have changed while no lifecycle ran
	tasks := []task{{rolesTask, ""}}
	namespaces, err := l.client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	for _, n := range namespaces.Items {
		if n.DeletionTimestamp != nil {
			tasks = append(tasks, task{namespaceTask, n.Name})
			continue
		}
		lacks, err := l.lacksDefaults(ctx, view, n.Name)
		if err != nil {
			return nil, err
		}
		if lacks {
			tasks = append(tasks, task{defaultsTask, n.Name})
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
		if apihelpers.IsCRDConditionFalse(&d, apiextensionsv1.NamesAccepted) {
			tasks = append(tasks, task{namesTask, d.Spec.Group})
		}
	}
	services, err := l.registrations.APIServices().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list APIServices: %w", err)
	}
	tasks = append(tasks, tasksOfVersions(definitions.Items, services.Items)...)
	for _, of := range []func(context.Context, *projection.View) ([]task, error){l.strays, l.garbageOfState, l.recountsOfState} {
		more, err := of(ctx, view)
		if err != nil {
			return nil, err
		}
		tasks = append(tasks, more...)
	}
	for _, of := range []func(context.Context) ([]task, error){l.volumesOfState, l.mortalsOfState, l.accountsOfState} {
		more, err := of(ctx)
		if err != nil {
			return nil, err
		}
		tasks = append(tasks, more...)
	}
	return tasks, nil
}

// author is the author of everything that tasks write. Some of it is also written in the name of an upstream
// controller.
var author = kubestore.PartOf("lifecycle")

// do runs a task once. It returns the tasks that follow from it.
func (l *Lifecycle) do(ctx context.Context, t task) ([]task, error) {
	ctx = kubestore.WithAuthor(ctx, author)
	if name := controllers[t.kind]; name != "" {
		ctx = kubestore.WithController(ctx, name)
	}
	switch t.kind {
	case namespaceTask:
		return nil, l.emptyNamespace(ctx, t)
	case definitionTask:
		return nil, l.emptyDefinition(ctx, t)
	case namesTask:
		return nil, l.offerNames(ctx, t.name)
	case strayTask:
		return nil, l.deleteStrays(ctx, t)
	case collectTask, finishTask:
		return l.collect(ctx, t)
	case ownerTask:
		return l.lookAtOwner(ctx, types.UID(t.name))
	case recountTask:
		return nil, l.recount(ctx, t)
	case claimTask:
		return nil, l.releaseClaim(ctx, t)
	case volumeTask:
		return nil, l.releaseVolume(ctx, t)
	case attributesTask:
		return nil, l.releaseAttributes(ctx, t)
	case defaultsTask:
		return nil, l.giveDefaults(ctx, t.name)
	case jobTask:
		return nil, l.endJob(ctx, t)
	case tokenTask:
		return nil, l.endToken(ctx, t)
	case accountTask:
		return nil, l.revokeTokens(ctx, t)
	case versionsTask:
		return nil, l.registerVersions(ctx, t.name)
	case remoteTask:
		return nil, l.checkRemote(ctx, t.name)
	default:
		return nil, l.aggregateRoles(ctx)
	}
}
