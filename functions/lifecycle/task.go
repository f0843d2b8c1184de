package lifecycle

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/customresources"
	"github.com/logplane/logplane/internal/apiserver/quotas"
	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

// kind is the kind of a task.
type kind string

// The kinds of tasks, with the objects that tasks of each kind name.
const (
	namespaceTask  kind = "namespace"  // a namespace
	leftoverTask   kind = "leftovers"  // a namespace
	defaultsTask   kind = "defaults"   // a namespace
	definitionTask kind = "definition" // a CustomResourceDefinition
	namesTask      kind = "names"      // a group of definitions
	versionsTask   kind = "versions"   // a group of custom resources
	remoteTask     kind = "remote"     // an APIService
	remotesTask    kind = "remotes"    // nothing: all remote APIServices
	rolesTask      kind = "roles"      // nothing: all roles
	recountTask    kind = "recount"    // the row that requests it
	collectTask    kind = "collect"    // any object
	finishTask     kind = "finish"     // any object; the task only ends a foreground deletion that nothing blocks
	ownerTask      kind = "owner"      // a uid
	claimTask      kind = "claim"
	volumeTask     kind = "volume"
	attributesTask kind = "attributes" // a VolumeAttributesClass
	jobTask        kind = "job"
	tokenTask      kind = "token"   // a Secret
	accountTask    kind = "account" // a service account
	clusterTask    kind = "cluster" // a Cluster
	stateTask      kind = "state"   // nothing: the task reads the cluster's state
)

const garbageCollector = "generic-garbage-collector"

// works says how a task of each kind runs, and which upstream controller does the same work. To webhooks, policies and
// audits the task appears as that controller, since their rules exempt the controller by its name.
var works = map[kind]struct {
	run        func(*life, context.Context, task) (next []task, err error)
	controller string
}{
	namespaceTask:  {alone((*life).emptyNamespace), "namespace-controller"},
	leftoverTask:   {alone((*life).deleteLeftovers), "namespace-controller"},
	defaultsTask:   {alone((*life).giveDefaults), ""},
	definitionTask: {alone((*life).emptyDefinition), ""},
	namesTask:      {alone((*life).offerNames), ""},
	versionsTask:   {alone((*life).registerVersions), ""},
	remoteTask:     {alone((*life).checkRemote), ""},
	remotesTask:    {(*life).checkRemotes, ""},
	rolesTask:      {alone((*life).aggregateRoles), ""},
	recountTask:    {alone((*life).recount), ""},
	collectTask:    {(*life).collect, garbageCollector},
	finishTask:     {(*life).collect, garbageCollector},
	ownerTask:      {(*life).lookAtOwner, garbageCollector},
	claimTask:      {alone((*life).release), "pvc-protection-controller"},
	volumeTask:     {alone((*life).release), "pv-protection-controller"},
	attributesTask: {alone((*life).release), "volumeattributesclass-protection-controller"},
	jobTask:        {alone((*life).endJob), "ttl-after-finished-controller"},
	tokenTask:      {alone((*life).endToken), "token-cleaner"},
	accountTask:    {alone((*life).revokeTokens), ""},
	clusterTask:    {alone((*life).endCluster), ""},
	stateTask:      {(*life).readState, ""},
}

// ofServer are the kinds of the tasks that upstream does in kube-apiserver or does not have.
var ofServer = map[kind]bool{definitionTask: true, namesTask: true, versionsTask: true, remoteTask: true, remotesTask: true, recountTask: true, clusterTask: true, stateTask: true}

// does says whether this lifecycle runs a task.
func (l *Lifecycle) does(t task) bool { return !l.config.ServerOnly || ofServer[t.kind] }

// alone adapts a task from which no other tasks follow.
func alone(run func(*life, context.Context, task) error) func(*life, context.Context, task) ([]task, error) {
	return func(l *life, ctx context.Context, t task) ([]task, error) { return nil, run(l, ctx, t) }
}

// task names the object of a cluster to look at. One queue never runs equal tasks of a cluster at the same time.
type task struct {
	kind kind
	// group and resource are empty unless the kind is for any object. In a queue, namespaces take turns.
	group, resource, namespace, name string
}

func (t task) String() string {
	if t.resource != "" {
		return string(t.kind) + " " + strings.Join([]string{t.group, t.resource, t.namespace, t.name}, "/")
	}
	return string(t.kind) + " " + strings.Trim(t.namespace+"/"+t.name, "/")
}

// author is the author of everything that tasks write. Some writes are also in the name of an upstream controller.
var author = kubestore.PartOf("lifecycle")

// do runs a task once. It returns the tasks that follow from that run.
func (l *life) do(ctx context.Context, t task) (next []task, err error) {
	ctx = kubestore.WithAuthor(ctx, author)
	if name := works[t.kind].controller; name != "" {
		ctx = kubestore.WithController(ctx, name)
	}
	return works[t.kind].run(l, ctx, t)
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

// isDefinition says whether the key is of a CustomResourceDefinition.
func isDefinition(k eventlog.Key) bool {
	return k.Group == definitionGroup && k.Resource == "customresourcedefinitions"
}

// isAPIService says whether the key is of an APIService.
func isAPIService(k eventlog.Key) bool { return k.Group == serviceGroup && k.Resource == "apiservices" }

// tasksOf returns the tasks that an event asks for. A new object may have come too late for its namespace.
func tasksOf(e eventlog.Event) []task {
	k := e.Key
	switch {
	case e.Op == eventlog.Barrier:
	case isOwn(k, quotas.Recounts) && e.Op != eventlog.Deleted:
		return []task{{kind: recountTask, name: k.Name}}
	case isOwn(k, customresources.Names) && e.Op == eventlog.Deleted:
		return []task{{kind: namesTask, name: customresources.GroupOfName(k.Name)}}
	case k.Group == ownGroup:
	case k.Group == "" && k.Resource == "namespaces":
		return []task{{kind: namespaceTask, namespace: k.Name}}
	case isDefinition(k):
		return []task{{kind: definitionTask, name: k.Name}, {kind: versionsTask, name: afterDot(k.Name)}}
	case isAPIService(k):
		return []task{{kind: versionsTask, name: afterDot(k.Name)}, {kind: remoteTask, name: k.Name}}
	case k.Group == rolesGroup && k.Resource == "clusterroles":
		return []task{{kind: rolesTask}}
	case isCluster(k) && e.Op != eventlog.Deleted:
		return []task{{kind: clusterTask, name: k.Name}}
	case e.Op == eventlog.Added && k.Namespace != "":
		return []task{{kind: leftoverTask, namespace: k.Namespace}}
	case e.Op != eventlog.Added:
		var tasks []task
		if isDefault(k) {
			tasks = append(tasks, task{kind: defaultsTask, namespace: k.Namespace})
		}
		if e.Op == eventlog.Deleted && k.Group == "" && k.Resource == "serviceaccounts" {
			tasks = append(tasks, task{kind: accountTask, namespace: k.Namespace, name: k.Name})
		}
		return tasks
	}
	return nil
}

// tasksOfContent returns the tasks that may wait for the deletion of an object: its namespace or its definition may
// have waited only for this object.
func tasksOfContent(k eventlog.Key) []task {
	tasks := []task{{kind: definitionTask, name: k.Resource + "." + k.Group}}
	if k.Namespace != "" {
		tasks = append(tasks, task{kind: namespaceTask, namespace: k.Namespace})
	}
	return tasks
}

// afterDot returns the group from the name of a definition or of an APIService.
func afterDot(name string) string {
	_, group, _ := strings.Cut(name, ".")
	return group
}

// readState returns the tasks that the cluster's state asks for.
func (l *life) readState(ctx context.Context, _ task) ([]task, error) {
	view, err := l.config.Cell.Projection.Latest(ctx)
	if err != nil {
		return nil, err
	}
	return l.tasksOfState(ctx, view)
}

// tasksOfState returns the tasks that the state asks for, whichever events led to the state.
func (l *life) tasksOfState(ctx context.Context, view *projection.View) ([]task, error) {
	l.kinds.changed() // kinds may have changed while no lifecycle ran
	l.mu.Lock()
	l.hasRead = true
	l.mu.Unlock()
	tasks := []task{{kind: rolesTask}}
	namespaces, err := l.client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	for _, n := range namespaces.Items {
		if n.DeletionTimestamp != nil {
			tasks = append(tasks, task{kind: namespaceTask, namespace: n.Name})
			continue
		}
		lacks, err := l.lacksDefaults(ctx, view, n.Name)
		if err != nil {
			return nil, err
		}
		if lacks {
			tasks = append(tasks, task{kind: defaultsTask, namespace: n.Name})
		}
	}
	definitions, err := l.server.Definitions(ctx)
	if err != nil {
		return nil, fmt.Errorf("list definitions: %w", err)
	}
	for _, d := range definitions {
		if d.DeletionTimestamp != nil {
			tasks = append(tasks, task{kind: definitionTask, name: d.Name})
		}
		if apihelpers.IsCRDConditionFalse(d.CustomResourceDefinition, apiextensionsv1.NamesAccepted) {
			tasks = append(tasks, task{kind: namesTask, name: d.Spec.Group})
		}
	}
	services, err := l.registrations.APIServices().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list APIServices: %w", err)
	}
	tasks = append(tasks, tasksOfVersions(definitions, services.Items)...)
	for _, of := range []func(context.Context, *projection.View) ([]task, error){
		l.leftoversOfState, l.garbageOfState, l.recountsOfState, l.volumesOfState, l.endsOfState, l.accountsOfState, l.clustersOfState,
	} {
		more, err := of(ctx, view)
		if err != nil {
			return nil, err
		}
		tasks = append(tasks, more...)
	}
	return slices.DeleteFunc(tasks, func(t task) bool { return !l.does(t) }), nil
}
