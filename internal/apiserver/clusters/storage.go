package clusters

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/util/dryrun"

	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

// Config of the registry.
type Config struct {
	Stores *resources.Stores
	// Begins returns where a cluster begins, and keeps that revision of the source readable for the cluster. In a dry
	// run it has no effect. It refuses a user who may not branch the source. From is nil if the client named none.
	Begins func(ctx context.Context, from *ClusterSource, dryRun bool) (projection.Branch, error)
}

// NewStorage makes the registry of the group.
func NewStorage(c Config) (genericapiserver.APIGroupInfo, error) {
	info := genericapiserver.NewDefaultAPIGroupInfo(GroupName, Scheme, metav1.ParameterCodec, codecs)
	info.NegotiatedSerializer = resources.WithoutProtobuf(codecs)
	options, err := optionsOf(c.Stores)
	if err != nil {
		return info, err
	}
	s := strategy{Scheme, names.SimpleNameGenerator}
	store := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return &Cluster{} },
		NewListFunc:               func() runtime.Object { return &ClusterList{} },
		DefaultQualifiedResource:  Resource,
		SingularQualifiedResource: GroupVersion.WithResource("cluster").GroupResource(),
		CreateStrategy:            s,
		UpdateStrategy:            s,
		DeleteStrategy:            s,
		ResetFieldsStrategy:       s,
		TableConvertor:            table{},
	}
	if err := store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: options}); err != nil {
		return info, fmt.Errorf("make the registry of %s: %w", Resource, err)
	}
	info.VersionedResourcesStorageMap[GroupVersion.Version] = map[string]rest.Storage{Resource.Resource: &registry{store, c}}
	return info, nil
}

// optionsOf says how Clusters are stored: as JSON of version v1.
func optionsOf(stores *resources.Stores) (generic.RESTOptions, error) {
	codec, versioner, err := serverstorage.NewStorageCodec(serverstorage.StorageCodecConfig{
		StorageMediaType:  runtime.ContentTypeJSON,
		StorageSerializer: codecs,
		StorageVersion:    GroupVersion,
		MemoryVersion:     internal,
	})
	if err != nil {
		return generic.RESTOptions{}, fmt.Errorf("make the codec of %s: %w", Resource, err)
	}
	config := &storagebackend.ConfigForResource{GroupResource: Resource, Config: storagebackend.Config{Codec: nameless{codec}, EncodeVersioner: versioner}}
	return stores.Options(config, stores.Prefix(Resource), runtime.ContentTypeJSON, nil), nil
}

// nameless decodes objects without their version and kind, as upstream's conversions do, so that the items of a list
// show neither (row 34). Types that are the same in all versions are not converted.
type nameless struct{ runtime.Codec }

// Decode implements runtime.Decoder.
func (c nameless) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	obj, kind, err := c.Codec.Decode(data, defaults, into)
	if err == nil {
		obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	}
	return obj, kind, err
}

// registry of Clusters. A Cluster learns where it begins after everything else has agreed to it, so that no revision is
// kept readable for a Cluster that is refused.
type registry struct {
	*genericregistry.Store
	config Config
}

// Create implements rest.Creater.
func (r *registry) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, o *metav1.CreateOptions) (runtime.Object, error) {
	dryRun := dryrun.IsDryRun(o.DryRun)
	store, validate := r.beginning(validate, dryRun)
	return store.Create(ctx, obj, validate, o)
}

// Update implements rest.Updater. An apply may create.
func (r *registry) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, force bool, o *metav1.UpdateOptions) (runtime.Object, bool, error) {
	dryRun := dryrun.IsDryRun(o.DryRun)
	store, create := r.beginning(create, dryRun)
	return store.Update(ctx, name, info, create, update, force, o)
}

// beginning returns a store for one request, and the check of a new object to pass to it. Upstream makes this check
// last, so the check also says where the Cluster begins. It is given a copy: only the store knows the object itself.
func (r *registry) beginning(validate rest.ValidateObjectFunc, dryRun bool) (*genericregistry.Store, rest.ValidateObjectFunc) {
	var made *Cluster
	store := *r.Store
	store.BeginCreate = func(_ context.Context, obj runtime.Object, _ *metav1.CreateOptions) (genericregistry.FinishFunc, error) {
		made = obj.(*Cluster)
		return func(context.Context, bool) {}, nil
	}
	return &store, func(ctx context.Context, obj runtime.Object) error {
		if validate != nil {
			if err := validate(ctx, obj); err != nil {
				return err
			}
		}
		return r.begin(ctx, made, dryRun)
	}
}

func (r *registry) begin(ctx context.Context, c *Cluster, dryRun bool) error {
	if kubestore.InTransaction(ctx) { // Begins has an effect before it is known whether the transaction commits
		return apierrors.NewBadRequest("a cluster cannot be created in a transaction: create it alone")
	}
	_, err := r.Store.Get(ctx, c.Name, &metav1.GetOptions{})
	if err == nil { // upstream finds it out later
		return apierrors.NewAlreadyExists(Resource, c.Name)
	}
	branch, err := r.config.Begins(ctx, c.Spec.From, dryRun)
	if err != nil {
		return err
	}
	c.Status = ClusterStatus{Key: KeyOf(c), Source: branch.Source, Revision: int64(branch.At)}
	if user, ok := apirequest.UserFrom(ctx); ok {
		c.Status.Creator = user.GetName()
	}
	return nil
}
