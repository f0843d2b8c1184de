package apiserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

// bootstrapRevision counts the changes of what Bootstrap writes for one version of Kubernetes.
const bootstrapRevision = 1

// bootstrapBatch is how many objects one atomic batch holds: all of them today. The log takes 1,000.
const bootstrapBatch = 500

// bootstrapAttempts bounds how often Bootstrap begins again because another process writes the same.
const bootstrapAttempts = 5

// Bootstrap writes what kube-apiserver makes when it starts: namespaces, the RBAC policy, priority classes,
// the default ServiceCIDR and the 'kubernetes' service; and the default service accounts of those
// namespaces. It is idempotent and any number of processes may call it at once. It writes a marker last:
// where the marker is, a call costs one read and writes nothing, so what a user deleted stays deleted until
// the next version of Kubernetes. A crash before the marker leaves objects that the next call skips.
func (s *Server) Bootstrap(ctx context.Context) error {
	var err error
	for range bootstrapAttempts {
		if err = s.bootstrap(ctx); !errors.Is(err, eventlog.ErrConflict) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("write bootstrap objects: %w", err)
	}
	return nil
}

func (s *Server) bootstrap(ctx context.Context) error {
	view, err := s.config.Cell.Projection.Latest(ctx)
	if err != nil {
		return err
	}
	marker := s.bootstrapMarker()
	row, found, err := view.Get(ctx, marker.key.Row(), view.Revision())
	if err != nil {
		return err
	}
	if found && string(row.Value) == string(marker.body) {
		return nil
	}
	if found {
		// An older version was here: its roles get what they miss, as kube-apiserver does it.
		if err := s.reconcilePolicy(ctx); err != nil {
			return err
		}
		if view, err = s.config.Cell.Projection.Latest(ctx); err != nil {
			return err
		}
	}
	writes, err := s.bootstrapWrites(ctx, view)
	if err != nil {
		return err
	}
	done, err := bootstrapWrite(ctx, view, marker)
	if err != nil {
		return err
	}
	return s.appendAll(ctx, view, append(writes, done))
}

// bootstrapMarker says which bootstrap was written. It is no API object.
func (s *Server) bootstrapMarker() stored {
	return stored{
		key:         eventlog.Key{Cluster: s.config.Cell.Cluster, Group: resources.OwnGroup, Resource: "bootstraps", Prefix: "/logplane.dev/bootstraps", Name: "kubernetes"},
		contentType: "text/plain",
		body:        fmt.Appendf(nil, "%s/%d", s.generic.EffectiveVersion.BinaryVersion(), bootstrapRevision),
	}
}

// stored is an object, or a claim, as it is to be stored.
type stored struct {
	key         eventlog.Key
	contentType string
	body        []byte
}

// bootstrapWrites returns the writes of every object that the view lacks, each with its claims.
func (s *Server) bootstrapWrites(ctx context.Context, view *projection.View) ([]projection.Write, error) {
	objects, err := s.bootstrapObjects()
	if err != nil {
		return nil, err
	}
	now := metav1.NewTime(time.Now().UTC().Truncate(time.Second))
	var writes []projection.Write
	resources := map[schema.GroupResource]generic.RESTOptions{}
	for _, o := range objects {
		options, ok := resources[o.resource]
		if !ok { // finding out takes as long as encoding a few objects
			if options, err = s.stores.GetRESTOptions(o.resource, o.object); err != nil {
				return nil, err
			}
			resources[o.resource] = options
		}
		wanted, err := s.encodeBootstrap(ctx, o, options, now)
		if err != nil {
			return nil, fmt.Errorf("encode %s %q: %w", o.resource, o.object.GetName(), err)
		}
		if _, found, err := view.Get(ctx, wanted[0].key.Row(), view.Revision()); err != nil || found {
			if err != nil {
				return nil, err
			}
			continue
		}
		for _, one := range wanted {
			w, err := bootstrapWrite(ctx, view, one)
			if err != nil {
				return nil, err
			}
			writes = append(writes, w)
		}
	}
	return writes, nil
}

// bootstrapWrite writes over whatever the view has of the key.
func bootstrapWrite(ctx context.Context, view *projection.View, s stored) (projection.Write, error) {
	at, err := view.State(ctx, s.key)
	return at.Put(s.contentType, s.body, 0), err
}

// appendAll appends the writes in order, in as few batches as there can be. Batches before one that fails
// stay: the next call finds their objects and goes on.
func (s *Server) appendAll(ctx context.Context, view *projection.View, writes []projection.Write) error {
	for len(writes) > 0 {
		n := min(len(writes), bootstrapBatch)
		if _, err := view.Append(ctx, uuid.NewString(), writes[:n]...); err != nil {
			return err
		}
		writes = writes[n:]
	}
	return nil
}

// bootstrapObject is a versioned object and how its registry stores it.
type bootstrapObject struct {
	resource schema.GroupResource
	strategy rest.RESTCreateStrategy
	object   interface {
		runtime.Object
		metav1.Object
	}
}

// encodeBootstrap does what the registry's create would do to the object, except to validate it: the
// objects are constants, and a test puts each one back through the API. The first is the object, the others are its claims.
func (s *Server) encodeBootstrap(ctx context.Context, o bootstrapObject, options generic.RESTOptions, now metav1.Time) ([]stored, error) {
	legacyscheme.Scheme.Default(o.object)
	kinds, _, err := legacyscheme.Scheme.ObjectKinds(o.object)
	if err != nil {
		return nil, err
	}
	internal, err := legacyscheme.Scheme.UnsafeConvertToVersion(o.object, runtime.InternalGroupVersioner)
	if err != nil {
		return nil, err
	}
	if internal, err = manage(o.strategy, kinds[0], internal); err != nil {
		return nil, err
	}
	object, err := meta.Accessor(internal)
	if err != nil {
		return nil, err
	}
	rest.FillObjectMetaSystemFields(object)
	object.SetCreationTimestamp(now)
	o.strategy.PrepareForCreate(ctx, internal)
	o.strategy.Canonicalize(internal)
	if internal, err = complete(internal, now); err != nil {
		return nil, err
	}
	key := eventlog.Key{
		Cluster: s.config.Cell.Cluster, Group: o.resource.Group, Resource: o.resource.Resource,
		Prefix: "/" + options.ResourcePrefix, Namespace: object.GetNamespace(), Name: object.GetName(),
	}
	body, err := runtime.Encode(options.StorageConfig.Codec, internal)
	if err != nil {
		return nil, err
	}
	if body, err = kubestore.Stored(ctx, s.stores.Transformer(o.resource), key.Row(), body); err != nil {
		return nil, err
	}
	all := []stored{{key, runtime.ContentTypeProtobuf, body}}
	claims, err := s.bootstrapClaims(ctx, o.resource, internal)
	return append(all, claims...), err
}

func (s *Server) bootstrapClaims(ctx context.Context, resource schema.GroupResource, object runtime.Object) ([]stored, error) {
	name := s.stores.Claims(resource)
	if name == nil {
		return nil, nil
	}
	claims, err := name(ctx, object)
	if err != nil {
		return nil, err
	}
	all := make([]stored, len(claims))
	for i, c := range claims {
		all[i] = stored{c.Key, c.ContentType, c.Body}
	}
	return all, nil
}
