// Package nodes decides which requests nodes may make. A node may read the objects that its Pods use, report on itself,
// and do little else.
//
// Nouns. A node is a user 'system:node:NAME' in the group system:nodes. The graph, which is upstream's, says which
// objects the Pods of each node use.
//
// Upstream fills the graph from informers, so it misses the newest Pods. Here a node's request first brings the graph
// to the newest view: the request goes through the events since the previous request of any node, and reads the changed
// objects again. The first request reads all Pods. A process that gets no requests from nodes has no graph.
package nodes

import (
	"context"
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/auth/nodeidentifier"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/node"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
	"k8s.io/utils/ptr"

	"github.com/logplane/logplane/internal/apiserver/listers"
	"github.com/logplane/logplane/projection"
)

// Authorizer is upstream's Node authorizer over an exact graph. It is safe for concurrent use.
type Authorizer struct {
	kinds []*kind

	mu      sync.Mutex // guards the following fields, and the changed keys of the kinds
	changes listers.Changes
	// graph is nil until the first request of a node. upstream decides by the graph.
	graph    *node.Graph
	upstream *node.NodeAuthorizer
}

// kind is one of the kinds of objects from which the graph is made.
type kind struct {
	*listers.Indexer
	// put puts an object into the graph, drop removes an object from the graph.
	put  func(g *node.Graph, object any)
	drop func(g *node.Graph, namespace, name string)
	// changed has the keys that must be read again.
	changed map[string]bool
}

var identifier = nodeidentifier.NewDefaultNodeIdentifier()

// New makes an Authorizer. It reads nothing.
func New(p *projection.Projection, all *listers.Factory) *Authorizer {
	node.RegisterMetrics()
	return &Authorizer{changes: listers.NewChanges(p), kinds: []*kind{
		{
			Indexer: all.IndexerOf(&corev1.Pod{}),
			put: func(g *node.Graph, object any) {
				if pod := object.(*corev1.Pod); pod.Spec.NodeName != "" {
					g.AddPod(pod)
				} else {
					g.DeletePod(pod.Name, pod.Namespace) // the graph may have an earlier Pod of the same name
				}
			},
			drop: func(g *node.Graph, namespace, name string) { g.DeletePod(name, namespace) },
		},
		{
			Indexer: all.IndexerOf(&corev1.PersistentVolume{}),
			put:     func(g *node.Graph, object any) { g.AddPV(object.(*corev1.PersistentVolume)) },
			drop:    func(g *node.Graph, _, name string) { g.DeletePV(name) },
		},
		{
			Indexer: all.IndexerOf(&storagev1.VolumeAttachment{}),
			put: func(g *node.Graph, object any) {
				attachment := object.(*storagev1.VolumeAttachment)
				g.AddVolumeAttachment(attachment.Name, attachment.Spec.NodeName)
			},
			drop: func(g *node.Graph, _, name string) { g.DeleteVolumeAttachment(name) },
		},
		{
			Indexer: all.IndexerOf(&resourcev1.ResourceSlice{}),
			put: func(g *node.Graph, object any) {
				slice := object.(*resourcev1.ResourceSlice)
				g.AddResourceSlice(slice.Name, ptr.Deref(slice.Spec.NodeName, ""))
			},
			drop: func(g *node.Graph, _, name string) { g.DeleteResourceSlice(name) },
		},
	}}
}

// Authorize implements authorizer.Authorizer. It has no opinion about users that are not nodes.
func (a *Authorizer) Authorize(ctx context.Context, attributes authorizer.Attributes) (authorizer.Decision, string, error) {
	if _, isNode := identifier.NodeIdentity(attributes.GetUser()); !isNode {
		return authorizer.DecisionNoOpinion, "", nil
	}
	newest, err := a.newest()
	if err != nil {
		listers.Fail(ctx, fmt.Errorf("read what the Pods of nodes use: %w", err))
	}
	return newest.Authorize(ctx, attributes)
}

// RulesFor implements authorizer.RuleResolver. A node's rights cannot be listed.
func (a *Authorizer) RulesFor(ctx context.Context, who user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return node.NewAuthorizer(nil, identifier, nil).RulesFor(ctx, who, namespace)
}

// Shrink drops the graph.
func (a *Authorizer) Shrink() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.graph = nil
}

// newest brings the graph to the newest view. One request at a time does so; requests of other nodes need the graph
// too, and wait.
func (a *Authorizer) newest() (*node.NodeAuthorizer, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, err := a.changes.Forward(a.mark, func() { a.graph = nil }); err != nil {
		return nil, err
	}
	if a.graph == nil {
		if err := a.read(); err != nil {
			return nil, err
		}
		return a.upstream, nil
	}
	for _, k := range a.kinds {
		for key := range k.changed {
			if err := k.renew(a.graph, key); err != nil {
				return nil, err
			}
			delete(k.changed, key)
		}
	}
	return a.upstream, nil
}

// mark remembers that an object must be read again. It requires mu.
func (a *Authorizer) mark(row string) {
	if a.graph == nil {
		return
	}
	for _, k := range a.kinds {
		if key, ok := strings.CutPrefix(row, k.Prefix()); ok {
			k.changed[key] = true
		}
	}
}

// read makes the graph of all objects. It requires mu.
func (a *Authorizer) read() error {
	graph := node.NewGraph()
	for _, k := range a.kinds {
		objects, err := k.All()
		if err != nil {
			return err
		}
		for _, object := range objects {
			k.put(graph, object)
		}
		k.changed = map[string]bool{}
	}
	a.graph, a.upstream = graph, node.NewAuthorizer(graph, identifier, bootstrappolicy.NodeRules())
	return nil
}

// renew brings one object of the graph to the newest view. An object that cannot be decoded is dropped, and so grants
// nothing.
func (k *kind) renew(g *node.Graph, key string) error {
	object, found, err := k.Read(key)
	if err != nil && !listers.IsUndecodable(err) {
		return err
	}
	if err == nil && found {
		k.put(g, object)
		return nil
	}
	namespace, name, namespaced := strings.Cut(key, "/")
	if !namespaced {
		namespace, name = "", key
	}
	k.drop(g, namespace, name)
	return nil
}
