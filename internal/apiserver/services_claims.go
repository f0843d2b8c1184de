package apiserver

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/google/uuid"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/service/ipallocator"

	"github.com/logplane/logplane/internal/kubestore"
)

// networkingCodec encodes an IPAddress as the registry of ipaddresses stores it.
var networkingCodec = legacyscheme.Codecs.EncoderForVersion(protobuf.NewSerializer(legacyscheme.Scheme, legacyscheme.Scheme), networkingv1.SchemeGroupVersion)

// claimsOf returns what names the claims of a built-in resource's objects, nil for those without.
func claimsOf(cluster string, resource schema.GroupResource) claimsFunc {
	if resource == api.Resource("services") {
		return serviceClaims(cluster)
	}
	return nil
}

// serviceClaims returns the claims of a service: an IPAddress for each cluster IP, and its node ports.
// They depend on nothing but the object, so that kubestore can compare those of two versions.
func serviceClaims(cluster string) claimsFunc {
	return func(_ context.Context, obj runtime.Object) ([]kubestore.Claim, error) {
		service, ok := obj.(*api.Service)
		if !ok {
			return nil, fmt.Errorf("name the claims of a %T: not a service", obj)
		}
		claims, err := addressClaims(cluster, service)
		if err != nil {
			return nil, err
		}
		return append(claims, portClaims(cluster, service)...), nil
	}
}

func addressClaims(cluster string, service *api.Service) ([]kubestore.Claim, error) {
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
		body, err := runtime.Encode(networkingCodec, ipAddress(service, address))
		if err != nil {
			return nil, fmt.Errorf("encode IPAddress: %w", err)
		}
		claims = append(claims, kubestore.Claim{Key: addressKey(cluster, address), ContentType: runtime.ContentTypeProtobuf, Body: body})
	}
	return claims, nil
}

// ipAddress is the object that upstream's allocator would create. Its uid is derived from the service's,
// so that it is the same however often it is computed.
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

// portClaims' bodies name the owner, for whoever inspects the log.
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
