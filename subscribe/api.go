package subscribe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// Values of the Accept header: objects, or only their metadata.
const (
	acceptObjects  = "application/json"
	acceptMetadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	acceptLists    = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
)

// api is the API as the subscriber sees it.
type api struct {
	client     rest.Interface
	config     Config
	namespaced bool
}

// newAPI makes a client for the resource. If the configuration names no namespace, newAPI asks the API whether the
// resource has namespaces.
func newAPI(ctx context.Context, c Config) (*api, error) {
	client, err := clientFor(c.REST, c.Resource.GroupVersion())
	if err != nil {
		return nil, &final{fmt.Errorf("subscribe to %s: %w", c.Resource.Resource, err)}
	}
	a := &api{client: client, config: c, namespaced: true}
	if c.Namespace == "" {
		if a.namespaced, err = a.hasNamespaces(ctx); err != nil {
			return nil, err
		}
	}
	return a, nil
}

func (a *api) hasNamespaces(ctx context.Context) (bool, error) {
	body, err := a.client.Get().DoRaw(ctx)
	if err != nil {
		return false, a.failed("ask about", err)
	}
	var resources metav1.APIResourceList
	if err := json.Unmarshal(body, &resources); err != nil {
		return false, fmt.Errorf("ask about %s: %w", a.config.Resource.Resource, err)
	}
	for _, r := range resources.APIResources {
		if r.Name == a.config.Resource.Resource {
			return r.Namespaced, nil
		}
	}
	return false, &final{fmt.Errorf("subscribe to %s: the API has no such resource in %s", a.config.Resource.Resource, a.config.Resource.GroupVersion())}
}

func clientFor(config *rest.Config, version schema.GroupVersion) (rest.Interface, error) {
	own := rest.CopyConfig(config)
	own.GroupVersion, own.NegotiatedSerializer = &version, scheme.Codecs
	own.Timeout = 0 // a timeout would end watches
	own.QPS = -1    // no limit is needed: changes and checks bound the number of requests
	own.APIPath = "/apis"
	if version.Group == "" {
		own.APIPath = "/api"
	}
	return rest.RESTClientFor(own)
}

func (a *api) request(accept string, options metav1.ListOptions) *rest.Request {
	options.LabelSelector, options.FieldSelector = a.config.LabelSelector, a.config.FieldSelector
	return a.client.Get().NamespaceIfScoped(a.config.Namespace, a.config.Namespace != "").Resource(a.config.Resource.Resource).
		SetHeader("Accept", accept).VersionedParams(&options, metav1.ParameterCodec)
}

// head returns a revision at least as new as every change that was acknowledged before the call.
func (a *api) head(ctx context.Context) (uint64, error) {
	body, err := a.request(acceptLists, metav1.ListOptions{Limit: 1}).DoRaw(ctx)
	if err != nil {
		return 0, a.failed("ask for the newest revision", err)
	}
	var list metav1.PartialObjectMetadataList
	if err := json.Unmarshal(body, &list); err != nil {
		return 0, fmt.Errorf("ask for the newest revision: %w", err)
	}
	return parseRevision(list.ResourceVersion)
}

// page reads one page of the state.
func (a *api) page(ctx context.Context, token string) (*unstructured.UnstructuredList, error) {
	accept := acceptObjects
	if a.config.MetadataOnly {
		accept = acceptLists
	}
	body, err := a.request(accept, metav1.ListOptions{Limit: pageSize, Continue: token}).DoRaw(ctx)
	if err != nil {
		return nil, a.failed("list", err)
	}
	list := &unstructured.UnstructuredList{}
	if err := list.UnmarshalJSON(body); err != nil {
		return nil, fmt.Errorf("list %s: %w", a.config.Resource.Resource, err)
	}
	return list, nil
}

const pageSize = 500

// watch opens a stream of the changes after the revision.
func (a *api) watch(ctx context.Context, after uint64, seconds int64) (io.ReadCloser, error) {
	accept := acceptObjects
	if a.config.MetadataOnly {
		accept = acceptMetadata
	}
	stream, err := a.request(accept, metav1.ListOptions{
		Watch: true, AllowWatchBookmarks: true, ResourceVersion: strconv.FormatUint(after, 10), TimeoutSeconds: &seconds,
	}).Stream(ctx)
	return stream, a.failed("watch", err)
}

// failed makes an error final or leaves it as it is. The API would refuse a refused request again, so a refusal is
// final; every other error may pass.
func (a *api) failed(what string, err error) error {
	if err == nil {
		return nil
	}
	said := fmt.Errorf("%s %s: %w", what, a.config.Resource.Resource, err)
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return said
	}
	switch code := status.Status().Code; {
	case code == http.StatusGone:
		return &final{fmt.Errorf("%s %s: %w", what, a.config.Resource.Resource, ErrExpired)}
	case code >= 400 && code < 500 && code != http.StatusRequestTimeout && code != http.StatusTooManyRequests:
		return &final{said}
	}
	return said
}

func parseRevision(s string) (uint64, error) {
	rev, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read a resourceVersion: '%s' is not a revision", s)
	}
	return rev, nil
}
