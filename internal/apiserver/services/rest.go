package services

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/kubernetes/pkg/registry/core/service"
	"k8s.io/kubernetes/pkg/registry/core/service/ipallocator"
	servicestore "k8s.io/kubernetes/pkg/registry/core/service/storage"

	api "k8s.io/kubernetes/pkg/apis/core"

	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/kubestore"
)

// REST is upstream's registry of services with addresses and ports chosen by our allocator. A choice is only a
// proposal: kubestore claims it in the batch that writes the service. If a concurrent writer wins the claim, Create and
// Update make another proposal.
type REST struct {
	*servicestore.REST
	alloc *allocator
}

// NewREST makes the registries of services and of their subresources.
func NewREST(c Config, opts generic.RESTOptionsGetter, endpoints servicestore.EndpointsStorage, pods rest.Getter, proxy http.RoundTripper) (*REST, *servicestore.StatusREST, *service.ProxyREST, error) {
	alloc, err := newAllocator(c)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("configure service addresses: %w", err)
	}
	owned := &ownedEndpoints{EndpointsStorage: endpoints}
	services, status, proxied, err := servicestore.NewREST(opts, alloc.family,
		map[api.IPFamily]ipallocator.Interface{alloc.family: addresses{allocator: alloc}}, ports{alloc}, owned, pods, proxy)
	if err != nil {
		return nil, nil, nil, err
	}
	owned.bind(services.Store)
	bindAllocator(services.Store, alloc)
	resources.DecorateShared(services.Store)
	return &REST{REST: services, alloc: alloc}, status, proxied, nil
}

// bindAllocator tells the allocator for which request it chooses, since upstream's interfaces do not.
func bindAllocator(store *genericregistry.Store, alloc *allocator) {
	create, update := store.BeginCreate, store.BeginUpdate
	store.BeginCreate = func(ctx context.Context, obj runtime.Object, options *metav1.CreateOptions) (finish genericregistry.FinishFunc, err error) {
		err = alloc.during(ctx, func() error {
			finish, err = create(ctx, obj, options)
			return err
		})
		return finish, err
	}
	store.BeginUpdate = func(ctx context.Context, obj, old runtime.Object, options *metav1.UpdateOptions) (finish genericregistry.FinishFunc, err error) {
		err = alloc.during(ctx, func() error {
			finish, err = update(ctx, obj, old, options)
			return err
		})
		return finish, err
	}
}

// ownedEndpoints deletes the Endpoints of a deleted service as the user who deleted the service, and in the same
// transaction if there is one. Upstream's hook does not get the request, so the storage remembers the request's context
// under the object that the hook gets.
type ownedEndpoints struct {
	servicestore.EndpointsStorage
	deleted sync.Map // contexts of requests, by the service that they have just deleted
	hooks   sync.Map // the context while the hook runs, by the service's namespace and name
}

func (e *ownedEndpoints) bind(store *genericregistry.Store) {
	store.Storage.Storage = deletions{store.Storage.Storage, &e.deleted}
	after := store.AfterDelete
	store.AfterDelete = func(obj runtime.Object, options *metav1.DeleteOptions) {
		if ctx, ok := e.deleted.LoadAndDelete(obj); ok {
			s := obj.(*api.Service)
			e.hooks.Store(types.NamespacedName{Namespace: s.Namespace, Name: s.Name}, ctx)
			defer e.hooks.Delete(types.NamespacedName{Namespace: s.Namespace, Name: s.Name})
		}
		after(obj, options)
	}
}

// Delete implements rest.GracefulDeleter. It is finished even if the request ends meanwhile.
func (e *ownedEndpoints) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	namespace := apirequest.NamespaceValue(ctx)
	if of, ok := e.hooks.Load(types.NamespacedName{Namespace: namespace, Name: name}); ok {
		ctx = apirequest.WithNamespace(context.WithoutCancel(of.(context.Context)), namespace)
	}
	return e.EndpointsStorage.Delete(ctx, name, validate, options)
}

// deletions remembers which request has deleted an object.
type deletions struct {
	storage.Interface
	contexts *sync.Map
}

// Delete implements storage.Interface.
func (d deletions) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions, validate storage.ValidateObjectFunc, cached runtime.Object, options storage.DeleteOptions) error {
	err := d.Interface.Delete(ctx, key, out, preconditions, validate, cached, options)
	if err == nil {
		d.contexts.Store(out, ctx)
	}
	return err
}

// Create implements rest.Creater. If two writers choose the same address, one of them chooses again (allocate).
func (r *REST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (out runtime.Object, err error) {
	err = r.allocate(ctx, func(ctx context.Context) error {
		// Upstream writes its choices into the object, so each attempt gets a copy. The choice of a failed attempt must
		// not look like the user's own.
		out, err = r.REST.Create(ctx, obj.DeepCopyObject(), validate, options)
		return err
	})
	return out, err
}

// Update implements rest.Updater. Patches come here too.
func (r *REST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, validateCreate rest.ValidateObjectFunc, validateUpdate rest.ValidateObjectUpdateFunc, forceAllowCreate bool, options *metav1.UpdateOptions) (out runtime.Object, created bool, err error) {
	err = r.allocate(ctx, func(ctx context.Context) error {
		out, created, err = r.REST.Update(ctx, name, info, validateCreate, validateUpdate, forceAllowCreate, options)
		return err
	})
	return out, created, err
}

// maxAllocations bounds the attempts of one request. Each lost attempt means that another service won, and requests of
// one process never choose the same name. So only many processes that share a nearly full range reach this bound.
const maxAllocations = 16

// allocate calls write until write does not lose a claim. After a loss it catches up, so that the view holds the
// winner's claim. The next choice then avoids the claimed name; a user who asked for that address or port gets
// upstream's 422.
func (r *REST) allocate(ctx context.Context, write func(context.Context) error) error {
	ctx, release := r.alloc.begin(ctx)
	defer release()
	var claimed *kubestore.ClaimedError
	for range maxAllocations {
		err := write(ctx)
		if !errors.As(err, &claimed) {
			return err
		}
		view, err := r.alloc.cell.Projection.Latest(ctx)
		if err != nil {
			return kubestore.Answer(ctx, fmt.Errorf("read what is allocated: %w", err))
		}
		ctx = kubestore.WithView(ctx, view)
	}
	return apierrors.NewTooManyRequests(fmt.Sprintf("%s was taken by another service, again and again; nothing was written", claimed.Key.Name), 1)
}
