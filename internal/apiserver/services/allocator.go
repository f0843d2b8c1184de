package services

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sort"
	"strconv"
	"strings"
	"sync"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/service/ipallocator"
	"k8s.io/kubernetes/pkg/registry/core/service/portallocator"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/listers"
	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

// allocator chooses addresses and ports that no Service holds in the newest view. It writes nothing. It is safe for
// concurrent use.
type allocator struct {
	cell      kubestore.Cell
	cidrs     networkinglisters.ServiceCIDRLister
	family    api.IPFamily
	portRange utilnet.PortRange

	// turn is held by the request whose registry is choosing; current is that request's attempt.
	turn    chan struct{}
	current *attempt // by turn

	mu sync.Mutex
	// held has the choices of requests that still run in this process, so that two of these requests do not choose the
	// same name and conflict. If choices were forgotten, requests would only retry more often.
	held map[string]*proposal // by mu
}

// proposal has the names that one request has chosen so far, in all its attempts.
type proposal struct{ names []string }

// attempt is one call of upstream's hooks.
type attempt struct {
	ctx      context.Context
	view     *projection.View
	proposal *proposal
	// taken has the names that this attempt has used: a Service must not get a port twice.
	taken map[string]bool
	// err is the error of a failed read, which upstream would report as the user's mistake.
	err error
}

type proposalKey struct{}

func newAllocator(c Config) (*allocator, error) {
	prefix, err := c.Ranges.Prefix()
	if err != nil {
		return nil, err
	}
	a := &allocator{
		cell: c.Cell, cidrs: c.CIDRs, family: api.IPv4Protocol, portRange: c.Ranges.nodePorts(),
		turn: make(chan struct{}, 1), held: map[string]*proposal{},
	}
	if prefix.Addr().Is6() {
		a.family = api.IPv6Protocol
	}
	return a, nil
}

// begin opens a request's proposal; the returned function ends it.
func (a *allocator) begin(ctx context.Context) (context.Context, func()) {
	p := &proposal{}
	return context.WithValue(ctx, proposalKey{}, p), func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, name := range p.names {
			delete(a.held, name)
		}
	}
}

// during calls 'choose', which uses the allocator for this request. Upstream's allocator interfaces carry no context,
// so only one request chooses at a time. Choosing is quick.
func (a *allocator) during(ctx context.Context, choose func() error) (err error) {
	defer listers.Catch(ctx, &err)
	select {
	case a.turn <- struct{}{}:
		defer func() { <-a.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	view := a.cell.Projection.Current()
	if kubestore.InTransaction(ctx) { // only the transaction's view has the names that its other operations have taken
		view = kubestore.ViewFrom(ctx)
	}
	if view == nil {
		if view, err = a.cell.Projection.Latest(ctx); err != nil {
			return kubestore.Answer(ctx, fmt.Errorf("read what is allocated: %w", err))
		}
	}
	p, _ := ctx.Value(proposalKey{}).(*proposal)
	if p == nil {
		p = &proposal{}
	}
	now := &attempt{ctx: ctx, view: view, proposal: p, taken: map[string]bool{}}
	a.current = now
	defer func() { a.current = nil }()
	err = choose()
	if now.err != nil {
		return kubestore.Answer(ctx, fmt.Errorf("read what is allocated: %w", now.err))
	}
	return err
}

// isClaimed reports whether the view holds a live object under the key.
func (a *allocator) isClaimed(key eventlog.Key) (bool, error) {
	now := a.current
	_, found, err := now.view.Get(now.ctx, key.RowKey(), now.view.Revision())
	if err != nil {
		now.err = err
	}
	return found, err
}

// take checks a name that the user asked for, and returns the error 'allocated' if a Service holds that name. It
// ignores the choices of other running requests, because the claim decides who gets the name.
func (a *allocator) take(key eventlog.Key, allocated error) error {
	if a.current.taken[key.Name] {
		return allocated
	}
	claimed, err := a.isClaimed(key)
	if err != nil {
		return err
	}
	if claimed {
		return allocated
	}
	a.current.taken[key.Name] = true
	return nil
}

// propose takes the name if no Service holds it and no other running request has chosen it.
func (a *allocator) propose(key eventlog.Key) (bool, error) {
	now := a.current
	if now.taken[key.Name] {
		return false, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if holder := a.held[key.Name]; holder != nil && holder != now.proposal {
		return false, nil
	}
	claimed, err := a.isClaimed(key)
	if err != nil || claimed {
		return false, err
	}
	a.held[key.Name] = now.proposal
	now.proposal.names = append(now.proposal.names, key.Name)
	now.taken[key.Name] = true
	return true, nil
}

// addresses adapts the allocator to upstream's interface for cluster IPs. Choosing writes nothing, so a dry run chooses
// as the request itself would. Only the error for an address outside of all ranges has the wording of upstream's dry
// run.
type addresses struct {
	*allocator
	dryRun bool
}

var _ ipallocator.Interface = addresses{}

// Allocate checks an address that the user asked for.
func (a addresses) Allocate(ip net.IP) error {
	address, ok := netip.AddrFromSlice(ip)
	if !ok {
		return fmt.Errorf("parse address %q", ip)
	}
	address = address.Unmap()
	prefixes, err := a.prefixes()
	if err != nil {
		return err
	}
	for _, prefix := range prefixes {
		if contains(prefix, address) {
			return a.take(addressKey(a.cell.Cluster, address), ipallocator.ErrAllocated)
		}
	}
	if !a.dryRun {
		return ipallocator.ErrMismatchedNetwork
	}
	// Here upstream asks an arbitrary ServiceCIDR, and the error names only the range of that ServiceCIDR.
	ranges := make([]string, len(prefixes))
	for i, prefix := range prefixes {
		ranges[i] = prefix.String()
	}
	return &ipallocator.ErrNotInRange{IP: ip, ValidRange: strings.Join(ranges, ", ")}
}

// AllocateNext chooses an address of any ready ServiceCIDR.
func (a addresses) AllocateNext() (net.IP, error) {
	prefixes, err := a.prefixes()
	if err != nil {
		return nil, err
	}
	for _, prefix := range prefixes {
		if address, ok, err := a.next(prefix); ok || err != nil {
			return address.AsSlice(), err
		}
	}
	return nil, ipallocator.ErrFull
}

func (a addresses) next(prefix netip.Prefix) (netip.Addr, bool, error) {
	count, size := hosts(prefix)
	n, ok, err := choose(bands(1, count, size, 16, 256, 16), func(n uint64) (bool, error) {
		return a.propose(addressKey(a.cell.Cluster, offset(prefix, n)))
	})
	return offset(prefix, n), ok, err
}

// prefixes returns the prefixes of the family from which Services may get addresses now, sorted by the names of their
// ServiceCIDRs.
func (a addresses) prefixes() ([]netip.Prefix, error) {
	objects, err := a.cidrs.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	sort.Slice(objects, func(i, j int) bool { return objects[i].Name < objects[j].Name })
	var prefixes []netip.Prefix
	for _, object := range objects {
		// As in upstream, a ServiceCIDR without the condition is ready, because there may be no controller.
		ready := meta.FindStatusCondition(object.Status.Conditions, networkingv1.ServiceCIDRConditionReady)
		if !object.DeletionTimestamp.IsZero() || ready != nil && ready.Status != "True" {
			continue
		}
		for _, cidr := range object.Spec.CIDRs {
			prefix, err := netip.ParsePrefix(cidr)
			if err == nil && prefix.Addr().Is6() == (a.family == api.IPv6Protocol) {
				prefixes = append(prefixes, prefix.Masked())
			}
		}
	}
	return prefixes, nil
}

// Release does nothing: kubestore deletes the claim with the service's own write.
func (a addresses) Release(net.IP) error { return nil }

// ForEach does nothing: only upstream's repair loop calls ForEach, and that loop does not run here.
func (a addresses) ForEach(func(net.IP)) {}

// CIDR returns an empty range, as upstream does for several ServiceCIDRs.
func (a addresses) CIDR() net.IPNet { return net.IPNet{} }

// IPFamily of every address.
func (a addresses) IPFamily() api.IPFamily { return a.family }

// Has is called only by upstream's tests.
func (a addresses) Has(net.IP) bool { return false }

// DryRun returns the same allocator for a dry run.
func (a addresses) DryRun() ipallocator.Interface { return addresses{a.allocator, true} }

// Destroy has nothing to do.
func (a addresses) Destroy() {}

// EnableMetrics has nothing to do.
func (a addresses) EnableMetrics() {}

// ports adapts the allocator to upstream's interface for node ports. Like upstream's bitmap, it ignores protocols: a
// number belongs to one Service, which may use it for several protocols.
type ports struct{ *allocator }

var _ portallocator.Interface = ports{}

// Allocate checks a port that the user asked for.
func (p ports) Allocate(port int) error {
	if !p.portRange.Contains(port) {
		return &portallocator.ErrNotInRange{ValidPorts: p.portRange.String()}
	}
	return p.take(portKey(p.cell.Cluster, port), portallocator.ErrAllocated)
}

// AllocateNext chooses a port.
func (p ports) AllocateNext() (int, error) {
	size := uint64(p.portRange.Size)
	n, ok, err := choose(bands(uint64(p.portRange.Base), size, size, 16, 128, 32), func(n uint64) (bool, error) {
		return p.propose(portKey(p.cell.Cluster, int(n)))
	})
	if err == nil && !ok {
		err = portallocator.ErrFull
	}
	return int(n), err
}

// Has reports whether a port is claimed. Upstream calls it in a dry run, instead of Allocate and AllocateNext.
func (p ports) Has(port int) bool {
	claimed, err := p.isClaimed(portKey(p.cell.Cluster, port))
	return claimed && err == nil
}

// Release does nothing: kubestore deletes the claim with the service's own write.
func (p ports) Release(int) error { return nil }

// ForEach does nothing: only upstream's repair loop calls ForEach, and that loop does not run here.
func (p ports) ForEach(func(int)) {}

// Destroy has nothing to do.
func (p ports) Destroy() {}

// EnableMetrics has nothing to do.
func (p ports) EnableMetrics() {}

// addressKey returns the key of an address's IPAddress object.
func addressKey(cluster string, address netip.Addr) eventlog.Key {
	return eventlog.Key{Cluster: cluster, Group: networkingv1.GroupName, Resource: "ipaddresses", Prefix: "/ipaddresses", Name: address.String()}
}

// portKey returns the key of a node port's claim, which is not an API object.
func portKey(cluster string, port int) eventlog.Key {
	return eventlog.Key{Cluster: cluster, Group: resources.OwnGroup, Resource: "nodeports", Prefix: "/logplane.dev/nodeports", Name: strconv.Itoa(port)}
}
