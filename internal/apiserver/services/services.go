// Package services gives Services their addresses and node ports.
//
// Nouns. The allocator chooses an address or a port that is free in the newest view. A choice is only a proposal. A
// claim is an object that holds the choice: an IPAddress for an address, an object of our own for a node port.
// Kubestore appends the claims in the same batch as the Service and deletes the claims with the Service. So the log
// decides which Service gets a choice, and no claim is left over when a process dies (docs/decisions/claims.md).
//
// The path of a new Service through the package:
//
//  1. rest.go opens a proposal for the request, and holds the allocator's turn while upstream's registry chooses.
//  2. allocator.go answers from the newest view.
//  3. claims.go names the claims of the Service that is to be written.
//  4. If another writer has won a claim in the meantime, rest.go catches up and starts over.
package services

import (
	"net/netip"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	networkinglisters "k8s.io/client-go/listers/networking/v1"

	"github.com/logplane/logplane/internal/kubestore"
)

// Ranges says which addresses and ports Services may get. The zero value is kube-apiserver's default.
type Ranges struct {
	// CIDR is written by bootstrap as ServiceCIDR 'kubernetes'. It is '10.96.0.0/12' by default. Every Service has the
	// IP family of CIDR. After bootstrap the ServiceCIDR objects decide about addresses.
	CIDR string
	// NodePorts is '30000-32767' by default.
	NodePorts utilnet.PortRange
}

// Prefix returns the CIDR.
func (r Ranges) Prefix() (netip.Prefix, error) {
	if r.CIDR == "" {
		r.CIDR = "10.96.0.0/12"
	}
	prefix, err := netip.ParsePrefix(r.CIDR)
	return prefix.Masked(), err
}

func (r Ranges) nodePorts() utilnet.PortRange {
	if r.NodePorts.Size == 0 {
		return utilnet.PortRange{Base: 30000, Size: 2768}
	}
	return r.NodePorts
}

// Config of the registry of Services.
type Config struct {
	Cell   kubestore.Cell
	Ranges Ranges
	// CIDRs must be exact at the time of the request.
	CIDRs networkinglisters.ServiceCIDRLister
}
