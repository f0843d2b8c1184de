package admission

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/generic"
	webhookinit "k8s.io/apiserver/pkg/admission/plugin/webhook/initializer"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/proxy"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/informers/admissionregistration"
	"k8s.io/client-go/informers/internalinterfaces"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/kubeapiserver/admission/exclusion"

	"github.com/logplane/logplane/internal/apiserver/cost/shape"
	"github.com/logplane/logplane/internal/apiserver/listers"
	"github.com/logplane/logplane/internal/calls"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

// webhookKind is one of the two kinds of webhooks. Upstream's plugin P asks the webhooks of the kind. Dynamic's mu
// guards it.
type webhookKind[P any] struct {
	name string
	// configurations reads the objects.
	configurations *listers.Indexer
	make           func(configuration io.Reader) (P, error)
	callerOf       func(P) *generic.Webhook

	// last is the plugin of the last rules. versions has, by name, the versions of the configurations with which that
	// plugin was made.
	last     P
	versions map[string]string
}

// read returns a plugin with the newest configurations, or nil if there are no configurations. The plugin of the last
// rules has compiled its conditions and holds connections, so read returns that plugin again as long as no
// configuration changes. The caller holds mu.
func (k *webhookKind[P]) read(d *Dynamic) (none P, err error) {
	snapshot, versions, err := snapshotOf(k.configurations)
	if err != nil {
		return none, err
	}
	if maps.Equal(versions, k.versions) {
		return k.last, nil
	}
	made := none
	if len(versions) > 0 {
		if made, err = k.make(d.configuration(k.name)); err != nil {
			return none, err
		}
		w := k.callerOf(made)
		// Upstream's initializers set all that the plugin needs, even if a new version of upstream needs more.
		initializer.New(d.config.Client, nil, &frozen{d.config.Listers, snapshot}, d.authorizer, utilfeature.DefaultFeatureGate,
			compatibility.DefaultBuildEffectiveVersion(), nil, nil).Initialize(w)
		named := webhookutil.NewDefaultServiceResolver() // returns a name, which dial does not need
		webhookinit.NewPluginInitializer(d.config.Services.Calls, named).Initialize(w)
		w.SetExcludedAdmissionResources(exclusion.Excluded())
		if err := w.ValidateInitialization(); err != nil {
			return none, err
		}
	}
	d.compilations += int64(len(versions))
	k.last, k.versions = made, versions
	return made, nil
}

// snapshotOf returns the objects of the newest view, and their versions by name.
func snapshotOf(i *listers.Indexer) (snapshot toolscache.Indexer, versions map[string]string, err error) {
	objects, err := i.All()
	if err != nil {
		return nil, nil, err
	}
	snapshot, versions = toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, toolscache.Indexers{}), map[string]string{}
	for _, object := range objects {
		if err := snapshot.Add(object); err != nil {
			return nil, nil, err
		}
		described := object.(metav1.Object)
		versions[described.GetName()] = string(described.GetUID()) + "/" + described.GetResourceVersion()
	}
	return snapshot, versions, nil
}

// frozen is a factory whose webhook configurations are a snapshot. All configurations in the snapshot are of one kind,
// because a plugin asks for only one kind. Other objects come from the newest view.
type frozen struct {
	*listers.Factory
	configurations toolscache.Indexer
}

// Admissionregistration implements informers.SharedInformerFactory.
func (f *frozen) Admissionregistration() admissionregistration.Interface {
	return admissionregistration.New(f, "", nil)
}

// InformerFor implements internalinterfaces.SharedInformerFactory.
func (f *frozen) InformerFor(object runtime.Object, make internalinterfaces.NewInformerFunc) toolscache.SharedIndexInformer {
	switch object.(type) {
	case *admissionregistrationv1.MutatingWebhookConfiguration, *admissionregistrationv1.ValidatingWebhookConfiguration:
		return &listers.Informer{Indexer: f.configurations}
	}
	return f.Factory.InformerFor(object, make)
}

// itself is the address to which upstream sends the credentials of the process's own Pod, or of its loopback client.
const itself = "kubernetes.default.svc:443"

// Calls configures the calls of webhooks. A call has the credentials that the operator has configured for the webhook.
// If the webhook's configuration names a Service, the call goes to an endpoint of the Service. A call to this API
// itself has no credentials, since any user may have chosen the path of the call.
func (s Services) Calls(upstream webhookutil.AuthenticationInfoResolver) webhookutil.AuthenticationInfoResolver {
	configure := func(hostPort string) (*rest.Config, error) {
		known, err := &rest.Config{Timeout: defaultTimeout}, error(nil)
		if hostPort != itself {
			known, err = upstream.ClientConfigFor(hostPort)
		}
		if err != nil {
			return nil, err
		}
		c := rest.CopyConfig(known)
		c.Dial = s.dialer.DialContext
		c.Wrap(func(sender http.RoundTripper) http.RoundTripper { return calls.Measured(sender, maxAnswer, affordable) })
		return c, nil
	}
	return &webhookutil.AuthenticationInfoResolverDelegator{
		ClientConfigForFunc: configure,
		ClientConfigForServiceFunc: func(name, namespace string, port int) (*rest.Config, error) {
			c, err := configure(net.JoinHostPort(name+"."+namespace+".svc", strconv.Itoa(port)))
			if err == nil {
				c.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
					return s.dial(ctx, network, namespace, name, int32(port))
				}
				c.Wrap(func(sender http.RoundTripper) http.RoundTripper { return searching{sender} })
			}
			return c, err
		},
	}
}

// search is the search of one call for an endpoint of the webhook's Service.
type search struct {
	// failure is the error of reading the Service. failure is nil if the Service was read, or did not have to be read.
	// failure is set as soon as the search starts, because the call may end before the search does.
	failure atomic.Pointer[error]
}

type searchKey struct{}

var errSearching error = &projection.ReadError{Err: errors.New("the Service of a webhook was not read in time")}

// dial connects to an endpoint of a Service.
func (s Services) dial(ctx context.Context, network, namespace, name string, port int32) (net.Conn, error) {
	looked, _ := ctx.Value(searchKey{}).(*search)
	looked.failure.Store(&errSearching)
	at, err := s.ResolveEndpoint(namespace, name, port)
	if listers.IsUnreadable(err) {
		looked.failure.Store(&err)
		return nil, err
	}
	looked.failure.Store(nil)
	if err != nil {
		return nil, err
	}
	return s.dialer.DialContext(ctx, network, at.Host)
}

// searching records in the request's context that a webhook could not be called because the webhook's Service could not
// be read. An unread Service is not a failure of the webhook, but upstream's interface cannot tell the two apart. A
// conversion does not know the context of its request, so the error's text names the cause, too (IsAboutUnread).
type searching struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (r searching) RoundTrip(out *http.Request) (*http.Response, error) {
	s := &search{}
	response, err := r.RoundTripper.RoundTrip(out.WithContext(context.WithValue(out.Context(), searchKey{}, s)))
	if failure := s.failure.Load(); err != nil && failure != nil {
		kubestore.Unread(out.Context(), *failure)
		slog.WarnContext(out.Context(), unreadService, "host", out.URL.Host, "error", *failure)
		return response, errors.New(unreadService) // the reason would name objects of the bucket
	}
	return response, err
}

const unreadService = "the Service of the webhook could not be read"

// IsAboutUnread reports whether an error's text says that a webhook could not be called because the webhook's Service
// could not be read.
func IsAboutUnread(text string) bool { return strings.Contains(text, unreadService) }

const (
	// maxAnswer is how many bytes of a webhook's answer are read: twice a patch of the largest object. Upstream reads
	// without a bound, so a webhook could take all memory of the process.
	maxAnswer = 8 << 20
	// smallAnswer is how many bytes an answer may have if the answer is not JSON. Decoders also accept YAML, but need
	// much memory to decode YAML.
	smallAnswer = 64 << 10
	// defaultTimeout is upstream's timeout for a webhook that sets no timeout.
	defaultTimeout = 30 * time.Second
)

// affordable returns an error for an answer that would cost more to decode than any request's body may. Such an answer
// is not decoded: 8 MiB of numbers took half a second and some hundred MiB. affordable accepts a malformed answer,
// because the decoder's error explains the mistake.
func affordable(answer []byte) error {
	large, measure := len(answer) > smallAnswer, shape.YAML // JSON is YAML, too
	if large {
		measure = shape.JSON
	}
	_, err := measure(answer)
	if beyond, ok := errors.AsType[*shape.Error](err); ok && !beyond.Malformed {
		return fmt.Errorf("the answer is not read: %w", err)
	}
	if bytes.HasPrefix(answer, []byte("k8s\x00")) || large && !json.Valid(answer) {
		return fmt.Errorf("the answer has %d bytes and is no JSON", len(answer))
	}
	return nil
}

// Services finds an endpoint of a server that an object names by a Service. By default upstream calls the Service's
// cluster IP, which does not work without a kube-proxy on the same machine.
type Services struct {
	services  corelisters.ServiceLister
	endpoints proxy.EndpointSliceGetter
	dialer    *net.Dialer
}

var _ webhookutil.ServiceResolver = Services{}

// NewServices returns a Services, for webhooks and for remote API servers. An endpoint must be an IP address, not a
// name: validation of EndpointSlices refuses this machine's own addresses, but a name could resolve to such an address.
// The dialer connects to endpoints, and to webhooks that are named by URLs.
func NewServices(f *listers.Factory, dialer *net.Dialer) (Services, error) {
	endpoints, err := proxy.NewEndpointSliceListerGetter(f.Discovery().V1().EndpointSlices().Lister())
	if err != nil {
		return Services{}, fmt.Errorf("find the endpoints of Services: %w", err)
	}
	return Services{f.Core().V1().Services().Lister(), endpoints, dialer}, nil
}

// ResolveEndpoint implements webhookutil.ServiceResolver. The error is listers.Unreadable if the Service could not
// be read.
func (s Services) ResolveEndpoint(namespace, name string, port int32) (found *url.URL, err error) {
	defer listers.Return(&err)
	found, err = proxy.ResolveEndpoint(s.services, s.endpoints, namespace, name, port)
	if err == nil && net.ParseIP(found.Hostname()) == nil {
		return nil, fmt.Errorf("an endpoint of Service %s/%s is the name '%s': give its EndpointSlice addresses", namespace, name, found.Hostname())
	}
	return found, err
}
