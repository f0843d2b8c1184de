// Package roles decides which requests RBAC allows, by the rules in the newest view.
//
// Nouns. The Index holds the content of RBAC's objects, arranged for authorization's question: which bindings may apply
// to this user? A table holds the RoleBindings of one namespace, or the ClusterRoleBindings, by subject. A grant holds
// the rules of one role. An aggregated role is a ClusterRole whose rules come from the ClusterRoles that its selectors
// choose.
//
// The path of a question:
//
//  1. authorizer.go puts the user into the context and asks upstream's authorizer, whose lists come from the index.
//  2. index.go moves the index forward to the newest view, and marks objects that have changed since the last question.
//  3. table.go reads the marked bindings, and returns the bindings of the user and the user's groups.
//  4. For each binding, upstream asks for the binding's role. The index reads the role and keeps it. If the role is
//     aggregated, aggregate.go composes its rules.
package roles

import (
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	clusterrolepolicybased "k8s.io/kubernetes/pkg/registry/rbac/clusterrole/policybased"
	clusterrolestore "k8s.io/kubernetes/pkg/registry/rbac/clusterrole/storage"
	clusterrolebindingpolicybased "k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding/policybased"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
	rolepolicybased "k8s.io/kubernetes/pkg/registry/rbac/role/policybased"
	rolebindingpolicybased "k8s.io/kubernetes/pkg/registry/rbac/rolebinding/policybased"

	"github.com/logplane/logplane/internal/apiserver/listers"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/cache"
)

// Config of an Index.
type Config struct {
	Projection *projection.Projection
	Listers    *listers.Factory
}

// New makes an index. It is empty until the first question.
func New(c Config) *Index {
	i := &Index{
		changes:             listers.NewChanges(c.Projection),
		roles:               c.Listers.IndexerOf(&rbacv1.Role{}),
		clusterRoles:        c.Listers.IndexerOf(&rbacv1.ClusterRole{}),
		roleBindings:        c.Listers.IndexerOf(&rbacv1.RoleBinding{}),
		clusterRoleBindings: c.Listers.IndexerOf(&rbacv1.ClusterRoleBinding{}),
		namespaced:          cache.New[string, *table](c.Projection.Budget()),
		granted:             cache.New[roleName, *grant](c.Projection.Budget()),
	}
	i.aggregated = aggregatedRoles{i.clusterRoles}
	i.cluster = newTable(i.clusterRoleBindings, "")
	i.forget()
	return i
}

// NewStorage makes upstream's registries of RBAC. They return ClusterRoles with their aggregated rules. Upstream
// refuses a user who grants more rights than the user has. That check asks the index, so it also covers aggregated
// rules.
func (i *Index) NewStorage(granted authorizer.Authorizer, enabled serverstorage.APIResourceConfigSource, opts generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	info, err := rbacrest.RESTStorageProvider{Authorizer: granted}.NewRESTStorage(enabled, opts)
	if err != nil {
		return info, err
	}
	resolver := i.Resolver()
	resources := info.VersionedResourcesStorageMap["v1"]
	for name, storage := range resources {
		switch checked := storage.(type) {
		case *rolepolicybased.Storage:
			resources[name] = rolepolicybased.NewStorage(checked.StandardStorage, granted, resolver)
		case *rolebindingpolicybased.Storage:
			resources[name] = rolebindingpolicybased.NewStorage(checked.StandardStorage, granted, resolver)
		case *clusterrolebindingpolicybased.Storage:
			resources[name] = clusterrolebindingpolicybased.NewStorage(checked.StandardStorage, granted, resolver)
		case *clusterrolepolicybased.Storage:
			store, ok := checked.StandardStorage.(*clusterrolestore.REST)
			if !ok {
				return info, fmt.Errorf("find the store of clusterroles: %T", checked.StandardStorage)
			}
			store.Decorator = func(runtime.Object) {} // never called; it says that ClusterRoles are not shown as they are stored
			resources[name] = clusterrolepolicybased.NewStorage(registry{store, i.aggregated}, granted, resolver)
		default:
			return info, fmt.Errorf("find the store of %s: %T", name, storage)
		}
	}
	return info, nil
}
