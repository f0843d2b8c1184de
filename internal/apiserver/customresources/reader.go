package customresources

import (
	"context"
	"fmt"
	"sort"
	"strconv"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/logplane/logplane/internal/apiserver/listers"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

// Resource is the resource of CustomResourceDefinitions.
var Resource = apiextensionsv1.Resource("customresourcedefinitions")

// Prefix is upstream's storage prefix of CustomResourceDefinitions.
const Prefix = "apiextensions.k8s.io/customresourcedefinitions"

// Reader reads CustomResourceDefinitions from the newest view, or as of the moment that a request of the past reads. It
// is safe for concurrent use.
type Reader struct{ rows *listers.Indexer }

// NewReader makes a reader.
func NewReader(f *listers.Factory) *Reader {
	return &Reader{f.NewIndexer(listers.Source{
		Object:   &apiextensionsv1.CustomResourceDefinition{},
		Resource: Resource,
		Prefix:   Prefix,
		Decoder:  crdserver.Codecs.UniversalDecoder(apiextensionsv1.SchemeGroupVersion),
		Lenient:  true,
	})}
}

// Prefix of the rows of CRDs. It ends in a slash.
func (c *Reader) Prefix() string { return c.rows.Prefix() }

// Get returns the CRD with that name, or nil if there is no such CRD or the CRD is reserved. The object is shared.
func (c *Reader) Get(ctx context.Context, name string) (*apiextensionsv1.CustomResourceDefinition, error) {
	var object any
	var ok bool
	var err error
	if past := kubestore.PastFrom(ctx); past != nil {
		object, ok, err = c.rows.GetAt(ctx, past, name)
	} else {
		object, ok, err = c.rows.Read(name)
	}
	if err != nil || !ok {
		return nil, err
	}
	crd := object.(*apiextensionsv1.CustomResourceDefinition)
	if Reserved(crd.Spec.Group, crd.Spec.Names.Plural) {
		return nil, nil
	}
	return crd, nil
}

type emptyingKey struct{}

// Emptying marks the context of requests that delete all instances of the definition with this uid, as
// namespaces.Emptying does for the content of a namespace.
func Emptying(ctx context.Context, uid types.UID) context.Context {
	return context.WithValue(ctx, emptyingKey{}, uid)
}

// Check refuses to create a custom resource whose CRD is gone or terminating. If the CRD was gone or terminating when
// the request began, upstream's handler has already refused.
func (c *Reader) Check(ctx context.Context, v *projection.View, change kubestore.Change) error {
	resource := change.Resource()
	uid, emptying := ctx.Value(emptyingKey{}).(types.UID)
	create := change.Before == nil && change.After != nil
	if !create && !emptying || Reserved(resource.Group, resource.Resource) {
		return nil
	}
	object, found, err := c.rows.GetAt(ctx, v, resource.String())
	if err != nil {
		return fmt.Errorf("read CustomResourceDefinition '%s': %w", resource, err)
	}
	definition, _ := object.(*apiextensionsv1.CustomResourceDefinition) // nil if it is not found
	switch terminates := found && definition.DeletionTimestamp != nil; {
	case emptying && terminates && definition.UID == uid, !emptying && found && !terminates:
		return nil
	case emptying:
		return apierrors.NewConflict(resource, change.Key.Name, fmt.Errorf("CustomResourceDefinition '%s' is another one now", resource))
	}
	refused := apierrors.NewMethodNotSupported(resource, "create")
	refused.ErrStatus.Message = "create not allowed while custom resource definition is terminating"
	return refused
}

// Set holds every CRD that may be served at one point in time. It must not be changed.
type Set struct {
	Definitions []*apiextensionsv1.CustomResourceDefinition // by name
	State       State
}

// State tells sets of CRDs apart, including past sets. A deletion of a CRD lowers the count of CRDs. Any other change
// raises the highest revision of a CRD.
type State struct {
	revision uint64
	count    int
}

// All returns every CRD that may be served.
func (c *Reader) All() (Set, error) { return setOf(c.rows.All()) }

// AllFor is All for a request, which may be one of the past.
func (c *Reader) AllFor(ctx context.Context) (Set, error) {
	if past := kubestore.PastFrom(ctx); past != nil {
		return setOf(c.rows.AllAt(ctx, past))
	}
	return c.All()
}

func setOf(objects []any, err error) (Set, error) {
	if err != nil {
		return Set{}, fmt.Errorf("list CustomResourceDefinitions: %w", err)
	}
	set := Set{State: State{count: len(objects)}}
	for _, object := range objects {
		crd := object.(*apiextensionsv1.CustomResourceDefinition)
		if !Reserved(crd.Spec.Group, crd.Spec.Names.Plural) { // a reserved CRD may be older than the check that refuses reserved CRDs
			set.Definitions = append(set.Definitions, crd)
		}
		set.State.revision = max(set.State.revision, revisionOf(crd))
	}
	sort.Slice(set.Definitions, func(i, j int) bool { return set.Definitions[i].Name < set.Definitions[j].Name })
	return set, nil
}

func revisionOf(crd *apiextensionsv1.CustomResourceDefinition) uint64 {
	revision, _ := strconv.ParseUint(crd.ResourceVersion, 10, 64)
	return revision
}
