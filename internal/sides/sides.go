package sides

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/url"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// pageSize is how many objects one page of a list has.
const pageSize = 500

// Side is the API at a revision, or the API of now. It is safe for concurrent use.
type Side struct {
	// Revision is empty for now.
	Revision  string
	Dynamic   dynamic.Interface
	Discovery discovery.DiscoveryInterface

	catalog func() (*Catalog, error)
}

// At returns the side of a revision; the empty revision means now. It sends no request.
func At(config *rest.Config, revision string) (*Side, error) {
	if revision != "" {
		config = rest.CopyConfig(config)
		config.Host = strings.TrimSuffix(config.Host, "/") + "/at/" + revision
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	kinds, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	return &Side{Revision: revision, Dynamic: objects, Discovery: kinds,
		catalog: sync.OnceValues(func() (*Catalog, error) { return readCatalog(kinds) })}, nil
}

// Catalog returns the kinds that this side serves. It asks the API only once.
func (s *Side) Catalog() (*Catalog, error) { return s.catalog() }

// Objects returns the client for the objects of a kind.
func (s *Side) Objects(k Kind, namespace string) dynamic.ResourceInterface {
	if k.Namespaced {
		return s.Dynamic.Resource(k.GroupVersionResource).Namespace(namespace)
	}
	return s.Dynamic.Resource(k.GroupVersionResource)
}

// Get returns an object, or nil if it does not exist.
func (s *Side) Get(ctx context.Context, k Kind, namespace, name string) (*unstructured.Unstructured, error) {
	object, err := s.Objects(k, namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return object, err
}

// Read decodes the JSON answer to a path of this side.
func (s *Side) Read(ctx context.Context, path string, query url.Values, into any) error {
	request := s.Discovery.RESTClient().Get().AbsPath(path).SetHeader("Accept", "application/json")
	for name, values := range query {
		request = request.Param(name, values[0])
	}
	result := request.Do(ctx)
	if err := result.Error(); err != nil { // Raw returns the error without its message
		return err
	}
	body, _ := result.Raw()
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("decode the answer of %s: %w", path, err)
	}
	return nil
}

// All yields the objects of a kind, in the namespace or everywhere, ordered by namespace and name. It leaves out
// objects that are derived from other objects. If a read fails, All yields the error last.
func (s *Side) All(ctx context.Context, k Kind, namespace string) iter.Seq2[*unstructured.Unstructured, error] {
	return func(yield func(*unstructured.Unstructured, error) bool) {
		for options := (metav1.ListOptions{Limit: pageSize}); ; {
			page, err := s.Objects(k, namespace).List(ctx, options)
			if err != nil {
				yield(nil, err)
				return
			}
			for i := range page.Items {
				if !k.Passes(&page.Items[i]) && !yield(&page.Items[i], nil) {
					return
				}
			}
			if options.Continue = page.GetContinue(); options.Continue == "" {
				return
			}
		}
	}
}
