package apiserver

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/logplane/logplane/internal/apiserver/listers"
	"github.com/logplane/logplane/internal/apiserver/services"
)

func servicesOf(s *Server) corev1client.ServiceInterface {
	return s.client.CoreV1().Services("default")
}

func serviceNamed(name string, change ...func(*corev1.ServiceSpec)) *corev1.Service {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{"app": name},
		Ports:    []corev1.ServicePort{{Name: "http", Port: 80}},
	}}
	for _, f := range change {
		f(&service.Spec)
	}
	return service
}

func create(t testing.TB, s *Server, service *corev1.Service) *corev1.Service {
	t.Helper()
	created, err := servicesOf(s).Create(context.Background(), service, metav1.CreateOptions{})
	require.NoError(t, err)
	return created
}

func nodePort(spec *corev1.ServiceSpec) { spec.Type = corev1.ServiceTypeNodePort }

// claimed returns the names of the live claims under a prefix.
func claimed(t testing.TB, s *Server, prefix string) []string {
	t.Helper()
	view, err := s.config.Cell.Projection.Latest(context.Background())
	require.NoError(t, err)
	var names []string
	start := s.config.Cell.Cluster + prefix + "/"
	for row, err := range listers.Rows(context.Background(), view, start) {
		require.NoError(t, err)
		names = append(names, row.ID.Name)
	}
	return names
}

func claimedPorts(t testing.TB, s *Server) []string {
	return claimed(t, s, "/logplane.dev/nodeports")
}

func TestServiceGetsAnAddress(t *testing.T) {
	s := bootstrapped(t)
	service := create(t, s, serviceNamed("web"))
	address := netip.MustParseAddr(service.Spec.ClusterIP)
	require.True(t, netip.MustParsePrefix("10.96.0.0/12").Contains(address))
	require.Equal(t, []string{service.Spec.ClusterIP}, service.Spec.ClusterIPs)

	ip, err := s.client.NetworkingV1().IPAddresses().Get(t.Context(), service.Spec.ClusterIP, metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, &networkingv1.ParentReference{Resource: "services", Namespace: "default", Name: "web"}, ip.Spec.ParentRef)
	require.Equal(t, map[string]string{"ipaddress.kubernetes.io/ip-family": "IPv4", "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"}, ip.Labels)
	require.NotEmpty(t, ip.UID)
	require.NotEmpty(t, ip.ResourceVersion)

	require.NoError(t, servicesOf(s).Delete(t.Context(), "web", metav1.DeleteOptions{}))
	_, err = s.client.NetworkingV1().IPAddresses().Get(t.Context(), service.Spec.ClusterIP, metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), err)
}

func TestServicesAtOnceGetDistinctAddresses(t *testing.T) {
	if testing.Short() {
		t.Skip("many writers")
	}
	// There are 254 addresses, one of which is taken: concurrent choices often collide.
	s := bootstrapped(t, func(c *Config) { c.Services.CIDR = "10.0.0.0/24" })
	const count = 200
	services := make([]*corev1.Service, count)
	failed := make([]error, count)
	var running sync.WaitGroup
	for i := range count {
		running.Go(func() {
			services[i], failed[i] = servicesOf(s).Create(context.Background(), serviceNamed(fmt.Sprintf("s%d", i), nodePort), metav1.CreateOptions{})
		})
	}
	running.Wait()
	addresses, ports := map[string]bool{}, map[int32]bool{}
	for i := range count {
		require.NoError(t, failed[i])
		addresses[services[i].Spec.ClusterIP] = true
		ports[services[i].Spec.Ports[0].NodePort] = true
	}
	require.Len(t, addresses, count)
	require.Len(t, ports, count)
	require.Len(t, claimed(t, s, "/ipaddresses"), count+1)
	require.Len(t, claimedPorts(t, s), count)
}

// TestServicesOfTwoServers: the processes do not know each other's choices, and the range is small.
func TestServicesOfTwoServers(t *testing.T) {
	ranges := services.Ranges{CIDR: "10.0.0.0/27"}
	first := bootstrapped(t, func(c *Config) { c.Services = ranges })
	second, err := New(Config{Cell: first.config.Cell, Services: ranges})
	require.NoError(t, err)
	var mu sync.Mutex
	addresses := map[string]bool{}
	var running sync.WaitGroup
	for i := range 20 {
		for j, s := range []*Server{first, second} {
			if j == 1 && i >= 9 { // 30 addresses, one of which is the API's own
				continue
			}
			running.Go(func() {
				service, err := servicesOf(s).Create(context.Background(), serviceNamed(fmt.Sprintf("s%d-%d", j, i)), metav1.CreateOptions{})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				addresses[service.Spec.ClusterIP] = true
			})
		}
	}
	running.Wait()
	require.Len(t, addresses, 29)
	_, err = servicesOf(first).Create(t.Context(), serviceNamed("more"), metav1.CreateOptions{})
	require.ErrorContains(t, err, "range is full")
}

func TestServiceAddressConflicts(t *testing.T) {
	s := bootstrapped(t)
	create(t, s, serviceNamed("first", func(spec *corev1.ServiceSpec) { spec.ClusterIP = "10.96.0.7" }))
	for ip, message := range map[string]string{
		"10.96.0.7":   "provided IP is already allocated",
		"10.96.0.1":   "provided IP is already allocated",
		"192.168.0.7": "the provided network does not match the current range",
	} {
		_, err := servicesOf(s).Create(t.Context(), serviceNamed("second", func(spec *corev1.ServiceSpec) { spec.ClusterIP = ip }), metav1.CreateOptions{})
		require.True(t, apierrors.IsInvalid(err), "%s: %v", ip, err)
		require.ErrorContains(t, err, message)
	}
	require.NoError(t, servicesOf(s).Delete(t.Context(), "first", metav1.DeleteOptions{}))
	create(t, s, serviceNamed("second", func(spec *corev1.ServiceSpec) { spec.ClusterIP = "10.96.0.7" }))
}

// TestServiceAddressOutsideOfTheRange: the first and the last address of an IPv4 range count as outside. The message is
// upstream's. Upstream has another message for a dry run.
func TestServiceAddressOutsideOfTheRange(t *testing.T) {
	for cidr, c := range map[string]struct{ outside, inside []string }{
		"10.0.0.0/24":  {[]string{"10.0.0.0", "10.0.0.255", "10.0.1.0", "192.168.0.7"}, []string{"10.0.0.254"}},
		"fd00:1::/120": {[]string{"fd00:1::", "fd00:1::100", "fd00:2::7"}, []string{"fd00:1::fe", "fd00:1::ff"}},
	} {
		s := bootstrapped(t, func(c *Config) { c.Services.CIDR = cidr })
		ask := func(ip, query string, code int) string {
			body := fmt.Sprintf(`{"metadata":{"generateName":"x-"},"spec":{"clusterIP":%q,"ports":[{"port":80}]}}`, ip)
			return s.must(t, code, request{method: "POST", path: "/api/v1/namespaces/default/services" + query, body: body}).body
		}
		for _, ip := range c.outside {
			refused := "failed to allocate IP " + ip + ": "
			require.Contains(t, ask(ip, "", 422), refused+"the provided network does not match the current range")
			require.Contains(t, ask(ip, "?dryRun=All", 422), refused+"the provided IP ("+ip+") is not in the valid range. The range of valid IPs is "+cidr)
		}
		for _, ip := range c.inside {
			ask(ip, "?dryRun=All", 201)
			ask(ip, "", 201)
		}
	}
}

// TestServiceAddressRace: if many Services ask for one address, one Service gets the address, and the refusals of the
// others say why.
func TestServiceAddressRace(t *testing.T) {
	s := bootstrapped(t)
	const count = 20
	failed := make([]error, count)
	var running sync.WaitGroup
	for i := range count {
		running.Go(func() {
			_, failed[i] = servicesOf(s).Create(context.Background(), serviceNamed(fmt.Sprintf("s%d", i), func(spec *corev1.ServiceSpec) { spec.ClusterIP = "10.96.0.7" }), metav1.CreateOptions{})
		})
	}
	running.Wait()
	won := 0
	for _, err := range failed {
		if err == nil {
			won++
			continue
		}
		require.True(t, apierrors.IsInvalid(err), err)
		require.ErrorContains(t, err, "provided IP is already allocated")
	}
	require.Equal(t, 1, won)
}

func TestServiceNodePorts(t *testing.T) {
	s := bootstrapped(t)
	several := func(spec *corev1.ServiceSpec) {
		spec.Type = corev1.ServiceTypeNodePort
		spec.Ports = []corev1.ServicePort{
			{Name: "a", Port: 80}, {Name: "b", Port: 81}, {Name: "c", Port: 82, NodePort: 30080},
			{Name: "d", Port: 53, Protocol: "TCP"}, {Name: "e", Port: 53, Protocol: "UDP"},
		}
	}
	service := create(t, s, serviceNamed("several", several))
	numbers := map[int32]bool{}
	for _, port := range service.Spec.Ports {
		require.True(t, port.NodePort >= 30000 && port.NodePort <= 32767, port.NodePort)
		numbers[port.NodePort] = true
	}
	require.Len(t, numbers, 4, "the two protocols of port 53 share one")
	require.Equal(t, service.Spec.Ports[3].NodePort, service.Spec.Ports[4].NodePort)
	require.Len(t, claimedPorts(t, s), 4)

	for port, message := range map[int32]string{30080: "provided port is already allocated", 80: "provided port is not in the valid range. The range of valid ports is 30000-32767"} {
		_, err := servicesOf(s).Create(t.Context(), serviceNamed("other", nodePort, func(spec *corev1.ServiceSpec) { spec.Ports[0].NodePort = port }), metav1.CreateOptions{})
		require.True(t, apierrors.IsInvalid(err), err)
		require.ErrorContains(t, err, message)
	}
	require.NoError(t, servicesOf(s).Delete(t.Context(), "several", metav1.DeleteOptions{}))
	require.Empty(t, claimedPorts(t, s))
}

// TestServiceTypeChanges follows the claims through the life of one service.
func TestServiceTypeChanges(t *testing.T) {
	s := bootstrapped(t)
	own := func() []string { // without the claim of the API's own address
		return slices.DeleteFunc(claimed(t, s, "/ipaddresses"), func(name string) bool { return name == "10.96.0.1" })
	}
	patch := func(body string) *corev1.Service {
		t.Helper()
		service, err := servicesOf(s).Patch(t.Context(), "web", types.MergePatchType, []byte(body), metav1.PatchOptions{})
		require.NoError(t, err)
		return service
	}
	service := create(t, s, serviceNamed("web"))
	require.Equal(t, []string{service.Spec.ClusterIP}, own())

	service = patch(`{"spec":{"type":"NodePort"}}`)
	require.Equal(t, []string{fmt.Sprint(service.Spec.Ports[0].NodePort)}, claimedPorts(t, s))
	patch(`{"spec":{"ports":[{"name":"http","port":80,"nodePort":30123}]}}`)
	require.Equal(t, []string{"30123"}, claimedPorts(t, s))
	service = patch(`{"spec":{"type":"LoadBalancer","externalTrafficPolicy":"Local"}}`)
	require.ElementsMatch(t, []string{"30123", fmt.Sprint(service.Spec.HealthCheckNodePort)}, claimedPorts(t, s))
	patch(`{"spec":{"type":"ClusterIP","externalTrafficPolicy":null}}`)
	require.Empty(t, claimedPorts(t, s))

	patch(`{"spec":{"type":"ExternalName","externalName":"example.com","clusterIP":null,"clusterIPs":null}}`)
	require.Empty(t, own())
	service = patch(`{"spec":{"type":"ClusterIP","externalName":null}}`)
	require.Equal(t, []string{service.Spec.ClusterIP}, own())

	headless := create(t, s, serviceNamed("headless", func(spec *corev1.ServiceSpec) { spec.ClusterIP = corev1.ClusterIPNone }))
	require.Equal(t, []string{"None"}, headless.Spec.ClusterIPs)
	require.Len(t, own(), 1)
}

func TestServiceDryRunClaimsNothing(t *testing.T) {
	s := bootstrapped(t)
	before := eventsOf(t, s)
	service, err := servicesOf(s).Create(t.Context(), serviceNamed("web", nodePort), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	require.NoError(t, err)
	require.NotEmpty(t, service.Spec.ClusterIP)
	require.NotZero(t, service.Spec.Ports[0].NodePort)
	_, err = servicesOf(s).Create(t.Context(), serviceNamed("taken", func(spec *corev1.ServiceSpec) { spec.ClusterIP = "10.96.0.1" }), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	require.ErrorContains(t, err, "provided IP is already allocated", "upstream does not look")
	require.Equal(t, before, eventsOf(t, s))
}

// TestServiceAddressIsReleasedWhoeverChangedIt: an address is released even if a user has labelled the address's
// object, and even if the object is stored encrypted.
func TestServiceAddressIsReleasedWhoeverChangedIt(t *testing.T) {
	for name, encryption := range map[string]string{"plain": "", "encrypted": `
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [ipaddresses.networking.k8s.io, services, namespaces]
  providers:
  - aesgcm: {keys: [{name: k, secret: MDEyMzQ1Njc4OWFiY2RlZg==}]}
`} {
		t.Run(name, func(t *testing.T) {
			s := bootstrapped(t, func(c *Config) {
				if encryption != "" {
					c.EncryptionConfigFile = filepath.Join(t.TempDir(), "encryption.yaml")
					require.NoError(t, os.WriteFile(c.EncryptionConfigFile, []byte(encryption), 0o600))
				}
			})
			service := create(t, s, serviceNamed("web", nodePort))
			addresses := s.client.NetworkingV1().IPAddresses()
			_, err := addresses.Patch(t.Context(), service.Spec.ClusterIP, types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{})
			require.NoError(t, err)
			_, err = addresses.Get(t.Context(), "10.96.0.1", metav1.GetOptions{})
			require.NoError(t, err, "the API's own, from bootstrap")
			require.NoError(t, servicesOf(s).Delete(t.Context(), "web", metav1.DeleteOptions{}))
			require.Equal(t, []string{"10.96.0.1"}, claimed(t, s, "/ipaddresses"))
			require.Empty(t, claimedPorts(t, s))
		})
	}
}

// TestServiceFailsWithoutClaims: a Service that is refused leaves no claims behind.
func TestServiceFailsWithoutClaims(t *testing.T) {
	s := bootstrapped(t)
	create(t, s, serviceNamed("web"))
	before := eventsOf(t, s)
	_, err := servicesOf(s).Create(t.Context(), serviceNamed("web", nodePort), metav1.CreateOptions{})
	require.True(t, apierrors.IsAlreadyExists(err), err)
	_, err = servicesOf(s).Create(t.Context(), serviceNamed("Not-A-Name", nodePort), metav1.CreateOptions{})
	require.True(t, apierrors.IsInvalid(err), err)
	require.Equal(t, before, eventsOf(t, s))
}

// TestAddressesInUseStay: an address that a Service uses cannot be deleted. An address that a user reserved can be
// deleted.
func TestAddressesInUseStay(t *testing.T) {
	s := bootstrapped(t)
	service := create(t, s, serviceNamed("web"))
	addresses := s.client.NetworkingV1().IPAddresses()
	require.True(t, apierrors.IsForbidden(addresses.Delete(t.Context(), service.Spec.ClusterIP, metav1.DeleteOptions{})))
	require.True(t, apierrors.IsForbidden(addresses.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{})))
	require.Equal(t, 403, request{method: "DELETE", path: "/apis/networking.k8s.io/v1/ipaddresses/10.96.0.1"}.do(t, s).code)

	reserved := &networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Name: "10.96.0.9"}, Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Group: "example.com", Resource: "gateways", Name: "g"}}}
	_, err := addresses.Create(t.Context(), reserved, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = servicesOf(s).Create(t.Context(), serviceNamed("other", func(spec *corev1.ServiceSpec) { spec.ClusterIP = "10.96.0.9" }), metav1.CreateOptions{})
	require.ErrorContains(t, err, "provided IP is already allocated")
	require.NoError(t, addresses.Delete(t.Context(), "10.96.0.9", metav1.DeleteOptions{}))
}

func TestServicesByServiceCIDR(t *testing.T) {
	s := bootstrapped(t, func(c *Config) { c.Services.CIDR = "10.0.0.0/30" })
	only := create(t, s, serviceNamed("only"))
	require.Equal(t, "10.0.0.2", only.Spec.ClusterIP)
	for _, dryRun := range [][]string{nil, {metav1.DryRunAll}} { // upstream's dry run does not check for free addresses
		_, err := servicesOf(s).Create(t.Context(), serviceNamed("more"), metav1.CreateOptions{DryRun: dryRun})
		require.ErrorContains(t, err, "range is full")
	}
	_, err := s.client.NetworkingV1().ServiceCIDRs().Create(t.Context(), &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.1.0.0/30"}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	more := create(t, s, serviceNamed("more"))
	require.True(t, netip.MustParsePrefix("10.1.0.0/30").Contains(netip.MustParseAddr(more.Spec.ClusterIP)))
	outside := serviceNamed("outside", func(spec *corev1.ServiceSpec) { spec.ClusterIP = "10.2.0.1" })
	_, err = servicesOf(s).Create(t.Context(), outside, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	require.ErrorContains(t, err, "The range of valid IPs is 10.0.0.0/30, 10.1.0.0/30")

	// Addresses in use stay when their range is deleted. New Services do not get an address from that range.
	require.NoError(t, s.client.NetworkingV1().ServiceCIDRs().Delete(t.Context(), "more", metav1.DeleteOptions{}))
	_, err = servicesOf(s).Create(t.Context(), serviceNamed("late"), metav1.CreateOptions{})
	require.ErrorContains(t, err, "range is full")
	kept, err := servicesOf(s).Get(t.Context(), "more", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, more.Spec.ClusterIP, kept.Spec.ClusterIP)
	require.Contains(t, claimed(t, s, "/ipaddresses"), more.Spec.ClusterIP)
}

func TestServicesOfIPv6(t *testing.T) {
	s := bootstrapped(t, func(c *Config) { c.Services.CIDR = "fd00:1::/108" })
	service := create(t, s, serviceNamed("web"))
	require.True(t, netip.MustParsePrefix("fd00:1::/108").Contains(netip.MustParseAddr(service.Spec.ClusterIP)))
	require.Equal(t, []corev1.IPFamily{corev1.IPv6Protocol}, service.Spec.IPFamilies)
}

func TestNodePortRangeFull(t *testing.T) {
	s := bootstrapped(t, func(c *Config) { c.Services.NodePorts = utilnet.PortRange{Base: 30000, Size: 2} })
	create(t, s, serviceNamed("a", nodePort))
	create(t, s, serviceNamed("b", nodePort))
	_, err := servicesOf(s).Create(t.Context(), serviceNamed("c", nodePort), metav1.CreateOptions{})
	require.ErrorContains(t, err, "range is full")
	require.NoError(t, servicesOf(s).Delete(t.Context(), "a", metav1.DeleteOptions{}))
	create(t, s, serviceNamed("c", nodePort))
}

// A watch shows the same object as a get, however many clients watch. When upstream reads a Service of type
// ExternalName, it drops the internal traffic policy that the Service may have had before.
func TestWatchedServiceIsAsRead(t *testing.T) {
	s := bootstrapped(t, withFeed(t))
	listener := httptest.NewServer(s)
	t.Cleanup(listener.Close)
	const services = "/api/v1/namespaces/default/services"
	for watches := range 5 {
		name := fmt.Sprint("s", watches)
		create(t, s, serviceNamed(name, nodePort))
		revision := fieldOf(s.must(t, 200, request{method: "GET", path: services}).object(t), "metadata.resourceVersion")
		var streams []*json.Decoder
		for range watches + 1 {
			response, err := http.Get(fmt.Sprintf("%s%s?watch=1&resourceVersion=%v&timeoutSeconds=30", listener.URL, services, revision))
			require.NoError(t, err)
			defer response.Body.Close()
			streams = append(streams, json.NewDecoder(response.Body))
		}
		s.must(t, 200, request{method: "PATCH", path: services + "/" + name, body: `{"spec":{"type":"ExternalName","externalName":"example.com"}}`, contentType: "application/merge-patch+json"})
		read := s.must(t, 200, request{method: "GET", path: services + "/" + name}).object(t)
		require.Equal(t, "ExternalName", fieldOf(read, "spec.type"))
		s.must(t, 200, request{method: "DELETE", path: services + "/" + name})
		for _, stream := range streams {
			var modified, deleted map[string]any
			require.NoError(t, stream.Decode(&modified))
			require.Equal(t, read, modified["object"], "%d watches", watches+1)
			require.NoError(t, stream.Decode(&deleted))
			require.Equal(t, fieldOf(read, "spec"), fieldOf(deleted, "object.spec"))
		}
	}
}
