package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/registry/core/service"
	"k8s.io/kubernetes/pkg/registry/core/service/ipallocator"
	servicestore "k8s.io/kubernetes/pkg/registry/core/service/storage"

	api "k8s.io/kubernetes/pkg/apis/core"

	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/kubestore"
)

// ServiceConfig says what services may be given. The zero value is kube-apiserver's default.
type ServiceConfig struct {
	// CIDR that Bootstrap writes as ServiceCIDR 'kubernetes', '10.96.0.0/12' by default; its family is that
	// of every service. Afterwards the ServiceCIDR objects rule.
	CIDR string
	// NodePorts is '30000-32767' by default.
	NodePorts utilnet.PortRange
}

func (c ServiceConfig) prefix() (netip.Prefix, error) {
	if c.CIDR == "" {
		c.CIDR = "10.96.0.0/12"
	}
	return netip.ParsePrefix(c.CIDR)
}

func (c ServiceConfig) nodePorts() utilnet.PortRange {
	if c.NodePorts.Size == 0 {
		return utilnet.PortRange{Base: 30000, Size: 2768}
	}
	return c.NodePorts
}

// serviceREST is upstream's registry of services with addresses and ports chosen by our allocator. The
// choice is only a proposal: kubestore claims it in the batch that writes the service, and a proposal
// lost to a concurrent writer is made again here.
type serviceREST struct {
	*servicestore.REST
	alloc *allocator
}

func newServiceREST(opts generic.RESTOptionsGetter, alloc *allocator, endpoints servicestore.EndpointsStorage, pods rest.Getter) (*serviceREST, *servicestore.StatusREST, *service.ProxyREST, error) {
	services, status, proxy, err := servicestore.NewREST(opts, alloc.family,
		map[api.IPFamily]ipallocator.Interface{alloc.family: addresses{alloc}}, ports{alloc}, endpoints, pods, nil)
	if err != nil {
		return nil, nil, nil, err
	}
	bindAllocator(services.Store, alloc)
	resources.DecorateShared(services.Store)
	return &serviceREST{REST: services, alloc: alloc}, status, proxy, nil
}

// bindAllocator gives the allocator the request that it chooses for, which upstream's interfaces lack.
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

// Create makes a service. See allocate for what happens when two writers chose the same address.
func (r *serviceREST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (out runtime.Object, err error) {
	err = r.allocate(ctx, func(ctx context.Context) error {
		// Upstream fills the object in, and what a failed attempt chose must not look like the user's wish.
		out, err = r.REST.Create(ctx, obj.DeepCopyObject(), validate, options)
		return err
	})
	return out, err
}

// Update changes a service; patches come here too.
func (r *serviceREST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, validateCreate rest.ValidateObjectFunc, validateUpdate rest.ValidateObjectUpdateFunc, forceAllowCreate bool, options *metav1.UpdateOptions) (out runtime.Object, created bool, err error) {
	err = r.allocate(ctx, func(ctx context.Context) error {
		out, created, err = r.REST.Update(ctx, name, info, validateCreate, validateUpdate, forceAllowCreate, options)
		return err
	})
	return out, created, err
}

// maxAllocations bounds the attempts of one request. Each lost one means that another service won, and
// requests of one process never choose the same, so only a crowd of processes on a nearly full range gets there.
const maxAllocations = 16

// allocate calls write until it loses no claim. After a loss it catches up, so that the view holds the
// winner's claim: a dynamic choice avoids it, and upstream answers 422 to a user who asked for just that
// address or port.
func (r *serviceREST) allocate(ctx context.Context, write func(context.Context) error) error {
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
			return apierrors.NewInternalError(fmt.Errorf("read what is allocated: %w", err))
		}
		ctx = kubestore.WithView(ctx, view)
	}
	return apierrors.NewTooManyRequests(fmt.Sprintf("%s was taken by another service, again and again; nothing was written", claimed.Key.Name), 1)
}
