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
	"k8s.io/apiserver/pkg/admission/plugin/webhook/generic"
	"k8s.io/apiserver/pkg/util/proxy"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/informers/admissionregistration"
	"k8s.io/client-go/informers/internalinterfaces"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/logplane/logplane/internal/apiserver/listers"
	"github.com/logplane/logplane/internal/apiserver/shape"
	"github.com/logplane/logplane/internal/calls"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

// webhookKind is one of the two kinds of webhooks, which upstream's plugin P asks. Dynamic's mu guards it.
type webhookKind[P any] struct {
	name string
	// configurations read the objects.
	configurations *listers.Indexer
	make           func(configuration io.Reader) (P, error)
	callerOf       func(P) *generic.Webhook

	// last is the plugin of the last rules. It knows the configurations of these versions, by name.
	last     P
	versions map[string]string
}

// read returns the plugin that knows the newest configurations, or none if there are none. The one of the last rules
// has compiled its conditions and holds connections, so it stays while no configuration changes. It requires mu.
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
		w.SetExternalKubeClientSet(d.config.Client)
		w.SetExternalKubeInformerFactory(&frozen{d.config.Listers, snapshot})
		w.SetAuthorizer(d.authorizer)
		w.SetServiceResolver(webhookutil.NewDefaultServiceResolver()) // a name, which dial does not need
		w.SetAuthenticationInfoResolverWrapper(d.config.Services.Calls)
		if err := w.ValidateInitialization(); err != nil {
			return none, err
		}
	}
	d.compilations += int64(len(versions))
	k.last, k.versions = made, versions
	return made, nil
}

// snapshotOf holds the objects of the newest view, and says which versions they are.
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

// frozen is a factory whose webhook configurations are those of one moment, of one kind: the plugin asks for no other.
// Everything else is exact.
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

// itself is where upstream shows the credentials of the process's own Pod, or of its loopback client.
const itself = "kubernetes.default.svc:443"

// Calls says how webhooks are called: with the credentials that the operator has given for them, and at an endpoint of
// the Service if they are named by one. This API is called as by a stranger, who may have chosen the path.
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

// search is what one call of a webhook looks for: an endpoint of its Service.
type search struct {
	// failure is why the Service could not be read, nil if it could, or need not. It is there from the start of the
	// search on, which may take longer than the call.
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

// searching lets the request know if its webhook could not be called because the Service could not be read. That is no
// failure of the webhook, and upstream's interface has no place for it. A conversion does not know its request, so the
// error says it in words (IsAboutUnread).
type searching struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (r searching) RoundTrip(out *http.Request) (*http.Response, error) {
	s := &search{}
	response, err := r.RoundTripper.RoundTrip(out.WithContext(context.WithValue(out.Context(), searchKey{}, s)))
	if failure := s.failure.Load(); err != nil && failure != nil {
		kubestore.Unread(out.Context(), *failure)
		slog.WarnContext(out.Context(), unreadService, "host", out.URL.Host, "error", *failure)
		return response, errors.New(unreadService) // the reason names places of the bucket
	}
	return response, err
}

const unreadService = "the Service of the webhook could not be read"

// IsAboutUnread says whether a text tells that a webhook could not be called because its Service could not be read.
func IsAboutUnread(text string) bool { return strings.Contains(text, unreadService) }

const (
	// maxAnswer is how many bytes of a webhook's answer are read: a patch of the largest object, twice. Upstream reads
	// without an end, and a webhook could take all memory of the process.
	maxAnswer = 8 << 20
	// smallAnswer is how many bytes an answer may have that is not JSON. Decoders take YAML for an answer, too, and
	// need much memory for it.
	smallAnswer = 64 << 10
	// defaultTimeout is upstream's bound of a call that has no other.
	defaultTimeout = 30 * time.Second
)

// affordable says why an answer is not decoded: it would cost what no body may. 8 MiB of numbers took half a second and
// some hundred MiB. Who decodes it says what is wrong with one that is malformed.
func affordable(answer []byte) error {
	large, measure := len(answer) > smallAnswer, shape.YAML // which JSON is, too
	if large {
		measure = shape.JSON
	}
	_, err := measure(answer)
	var beyond *shape.Error
	if errors.As(err, &beyond) && !beyond.Malformed {
		return fmt.Errorf("the answer is not read: %w", err)
	}
	if bytes.HasPrefix(answer, []byte("k8s\x00")) || large && !json.Valid(answer) {
		return fmt.Errorf("the answer has %d bytes and is no JSON", len(answer))
	}
	return nil
}

// Services finds a server that is named by its Service: at one of the Service's endpoints. Upstream asks the cluster IP
// by default, which leads nowhere without a kube-proxy beside the process.
type Services struct {
	services  corelisters.ServiceLister
	endpoints proxy.EndpointSliceGetter
	dialer    *net.Dialer
}

var _ webhookutil.ServiceResolver = Services{}

// NewServices returns what finds endpoints of Services, for webhooks and for remote API servers. An endpoint is an
// address, and never one that names this machine: validation refuses those. A name could stand for any. The dialer
// connects to endpoints, and to webhooks that are named by URLs.
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
