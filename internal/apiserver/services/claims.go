package services

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/google/uuid"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/service/ipallocator"

	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

// networkingCodec encodes an IPAddress as the registry of ipaddresses stores it.
var networkingCodec = legacyscheme.Codecs.EncoderForVersion(protobuf.NewSerializer(legacyscheme.Scheme, legacyscheme.Scheme), networkingv1.SchemeGroupVersion)

// Claims returns the function that names the claims of Services. transformer is the transformer of IPAddresses.
func Claims(cluster string, transformer value.Transformer) resources.ClaimsFunc {
	return serviceClaims{cluster, transformer}.of
}

// serviceClaims names the claims of Services: an IPAddress for each cluster IP, and the node ports. Claims depend only
// on the Service, so that kubestore can compare the claims of two versions.
type serviceClaims struct {
	cluster string
	// transformer of IPAddresses, the same as in the registry of IPAddresses.
	transformer value.Transformer
}

func (s serviceClaims) of(ctx context.Context, obj runtime.Object) ([]kubestore.Claim, error) {
	service, ok := obj.(*api.Service)
	if !ok {
		return nil, fmt.Errorf("name the claims of a %T: not a service", obj)
	}
	claims, err := s.addresses(ctx, service)
	if err != nil {
		return nil, err
	}
	return append(claims, portClaims(s.cluster, service)...), nil
}

func (s serviceClaims) addresses(ctx context.Context, service *api.Service) ([]kubestore.Claim, error) {
	if service.Spec.Type == api.ServiceTypeExternalName {
		return nil, nil
	}
	var claims []kubestore.Claim
	for _, ip := range service.Spec.ClusterIPs {
		if ip == api.ClusterIPNone {
			break
		}
		address, err := netip.ParseAddr(ip)
		if err != nil {
			return nil, fmt.Errorf("parse cluster IP: %w", err)
		}
		object, key := ipAddress(service, address), addressKey(s.cluster, address)
		body, err := runtime.Encode(networkingCodec, object)
		if err != nil {
			return nil, fmt.Errorf("encode IPAddress: %w", err)
		}
		if body, err = kubestore.Stored(ctx, s.transformer, key.RowKey(), body); err != nil {
			return nil, fmt.Errorf("encrypt IPAddress: %w", err)
		}
		claims = append(claims, kubestore.Claim{
			Key: key, ContentType: runtime.ContentTypeProtobuf, Body: body, Held: s.heldBy(object.Spec.ParentRef),
		})
	}
	return claims, nil
}

// heldBy returns a function that recognises an IPAddress by its parent, which cannot be changed. Users may have written
// to other fields.
func (s serviceClaims) heldBy(parent *networkingv1.ParentReference) func(context.Context, projection.Row) bool {
	return func(ctx context.Context, row projection.Row) bool {
		plain, err := kubestore.Plain(ctx, s.transformer, row)
		if err != nil {
			return false
		}
		object, err := runtime.Decode(legacyscheme.Codecs.UniversalDecoder(networkingv1.SchemeGroupVersion), plain)
		address, ok := object.(*networkingv1.IPAddress)
		return err == nil && ok && address.Spec.ParentRef != nil && *address.Spec.ParentRef == *parent
	}
}

// ipAddress returns the object that upstream's allocator would create. Its uid is derived from the Service's uid, so
// that every computation gives the same uid.
func ipAddress(service *api.Service, address netip.Addr) *networkingv1.IPAddress {
	family := string(api.IPv4Protocol)
	if address.Is6() {
		family = string(api.IPv6Protocol)
	}
	owner, _ := uuid.Parse(string(service.UID))
	return &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Name:              address.String(),
			UID:               types.UID(uuid.NewSHA1(owner, []byte(address.String())).String()),
			CreationTimestamp: service.CreationTimestamp,
			Labels: map[string]string{
				networkingv1.LabelIPAddressFamily: family,
				networkingv1.LabelManagedBy:       ipallocator.ControllerName,
			},
		},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{
			Resource: "services", Namespace: service.Namespace, Name: service.Name,
		}},
	}
}

// portClaims returns the claims of node ports. Their bodies name the owner, for anyone who inspects the log.
func portClaims(cluster string, service *api.Service) []kubestore.Claim {
	numbers := []int32{service.Spec.HealthCheckNodePort}
	for _, port := range service.Spec.Ports {
		numbers = append(numbers, port.NodePort)
	}
	var claims []kubestore.Claim
	seen := map[int32]bool{0: true}
	for _, number := range numbers {
		if seen[number] {
			continue
		}
		seen[number] = true
		claims = append(claims, kubestore.Claim{
			Key:         portKey(cluster, int(number)),
			ContentType: "text/plain",
			Body:        []byte("services/" + service.Namespace + "/" + service.Name + " " + string(service.UID)),
		})
	}
	return claims
}
