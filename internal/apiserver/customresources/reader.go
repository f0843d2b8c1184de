package customresources

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

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
type Reader struct {
	rows      *listers.Indexer
	summaries *summaries
}

// NewReader makes a reader.
func NewReader(f *listers.Factory, p *projection.Projection) *Reader {
	source := listers.Source{
		Object:   &apiextensionsv1.CustomResourceDefinition{},
		Resource: Resource,
		Prefix:   Prefix,
		Decoder:  crdserver.Codecs.UniversalDecoder(apiextensionsv1.SchemeGroupVersion),
		Lenient:  true,
	}
	return &Reader{f.NewIndexer(source), newSummaries(f, p, source)}
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

// Full returns the CRD of a summary. If the CRD has changed since, Full returns a ChangedError, because a document must
// describe the state that its ETag names.
func (c *Reader) Full(ctx context.Context, of Summary) (*apiextensionsv1.CustomResourceDefinition, error) {
	crd, err := c.Get(ctx, of.Name)
	if err != nil {
		return nil, fmt.Errorf("read CustomResourceDefinition '%s': %w", of.Name, err)
	}
	if crd == nil || crd.ResourceVersion != of.ResourceVersion || crd.UID != of.UID {
		return nil, Changed(of.Name)
	}
	return crd, nil
}

// ChangedError says that a CRD has changed since its summary was read. A client that gets this error tries again.
type ChangedError struct{ *apierrors.StatusError }

// Changed returns the error for the CRD with that name.
func Changed(name string) *ChangedError {
	return &ChangedError{apierrors.NewTooManyRequests(fmt.Sprintf("CustomResourceDefinition '%s' has just changed", name), 1)}
}

// Set holds the summary of every CRD at one point in time. It must not be changed.
type Set struct {
	Definitions []Summary // that may be served, by name
	// Reserved are older than the check that refuses them. They are not served.
	Reserved []Summary
	State    State
}

// State tells sets of CRDs apart, including past sets. A deletion of a CRD lowers the count of CRDs. Any other change
// raises the highest revision of a CRD.
type State struct {
	revision uint64
	count    int
}

// All returns the CRDs.
func (c *Reader) All() (Set, error) { return c.AllFor(context.Background()) }

// AllFor is All for a request, which may be one of the past.
func (c *Reader) AllFor(ctx context.Context) (set Set, err error) {
	if past := kubestore.PastFrom(ctx); past != nil {
		var all map[string]Summary
		all, err = c.summaries.at(ctx, past)
		set = setOf(all)
	} else {
		set, err = c.summaries.now(ctx)
	}
	if err != nil {
		return Set{}, fmt.Errorf("list CustomResourceDefinitions: %w", err)
	}
	return set, nil
}

func setOf(all map[string]Summary) Set {
	var set Set
	for _, crd := range all {
		switch {
		case crd.Name == "": // cannot be decoded
			continue
		case Reserved(crd.Spec.Group, crd.Spec.Names.Plural):
			set.Reserved = append(set.Reserved, crd)
		default:
			set.Definitions = append(set.Definitions, crd)
		}
		set.State.count++
		set.State.revision = max(set.State.revision, crd.revision())
	}
	for _, each := range [][]Summary{set.Definitions, set.Reserved} {
		slices.SortFunc(each, func(a, b Summary) int { return strings.Compare(a.Name, b.Name) })
	}
	return set
}

func (s Summary) revision() uint64 { return revisionOf(s.CustomResourceDefinition) }

func revisionOf(crd *apiextensionsv1.CustomResourceDefinition) uint64 {
	revision, _ := strconv.ParseUint(crd.ResourceVersion, 10, 64)
	return revision
}
