package services

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/proxy"
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
func NewREST(c Config, opts generic.RESTOptionsGetter, endpoints proxy.EndpointSliceGetter, pods rest.Getter, transport http.RoundTripper) (*REST, *servicestore.StatusREST, *service.ProxyREST, error) {
	alloc, err := newAllocator(c)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("configure service addresses: %w", err)
	}
	services, status, proxied, err := servicestore.NewREST(opts, alloc.family,
		map[api.IPFamily]ipallocator.Interface{alloc.family: addresses{allocator: alloc}}, ports{alloc}, endpoints, pods, transport)
	if err != nil {
		return nil, nil, nil, err
	}
	bindAllocator(services.Store, alloc)
	resources.DecorateShared(services.Store)
	return &REST{REST: services, alloc: alloc}, status, proxied, nil
}

// bindAllocator tells the allocator for which request it chooses, since upstream's interfaces do not name the request.
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

// Create implements rest.Creater. If two writers choose the same address, one writer chooses again (allocate).
func (r *REST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (out runtime.Object, err error) {
	err = r.allocate(ctx, func(ctx context.Context) error {
		// Upstream writes its choices into the object, so each attempt gets a copy. The choice of a failed attempt must
		// not look like the user's own.
		out, err = r.REST.Create(ctx, obj.DeepCopyObject(), validate, options)
		return err
	})
	return out, err
}

// Update implements rest.Updater. Patches use this method too.
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

// allocate calls write until write loses no claim to another writer. After a loss, allocate catches up, so that the
// view holds the winner's claim. The next choice then avoids the claimed name; a user who asked for that address or
// port gets upstream's 422.
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
