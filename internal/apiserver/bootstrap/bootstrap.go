// Package bootstrap writes the objects that kube-apiserver makes when it starts: namespaces and the objects that each
// namespace has, the RBAC policy, priority classes, the default ServiceCIDR, the Service 'kubernetes', and the
// APIServices of the built-in versions.
//
// Nouns. The marker says which version's objects were written. The marker is written last. Once the marker exists, a
// call of Write costs one read and writes nothing. So objects that a user has deleted stay deleted until the next
// version of Kubernetes. If a process crashes before it writes the marker, the next call skips the objects that exist.
package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	clientrest "k8s.io/client-go/rest"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/aggregation"
	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/apiserver/services"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

// Config says where Write writes, and which objects.
type Config struct {
	Cell   kubestore.Cell
	Stores *resources.Stores
	// Ranges are the ranges of Services.
	Ranges services.Ranges
	// RootCA is the certificate that every namespace gets. It is empty if there is no certificate.
	RootCA []byte
	// Bare leaves out each namespace's ServiceAccount and certificate.
	Bare bool
	// Loopback is the configuration of a client that calls this process and may do everything.
	Loopback *clientrest.Config
	// Version of Kubernetes.
	Version string
}

// revision counts changes to the objects that are written for one version of Kubernetes.
const revision = 2

// batch is how many objects one atomic batch may hold: enough for all objects today. The log's limit is 1,000.
const batch = 500

// attempts bounds how often Write tries while other processes write the same objects.
const attempts = 5

// Write writes the objects that are missing. It is idempotent, and any number of processes may call it at once.
func Write(ctx context.Context, c Config) error {
	ctx = kubestore.WithAuthor(ctx, kubestore.PartOf("init"))
	var err error
	for range attempts {
		if err = c.write(ctx); !errors.Is(err, eventlog.ErrConflict) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("write bootstrap objects: %w", err)
	}
	return nil
}

func (c Config) write(ctx context.Context) error {
	view, err := c.Cell.Projection.Latest(ctx)
	if err != nil {
		return err
	}
	// The marker says which version of the objects was written. The marker is not an API object.
	marker := stored{markerOf(c.Cell.Cluster), "text/plain", fmt.Appendf(nil, "%s/%d", c.Version, revision)}
	row, found, err := view.Get(ctx, marker.key.RowKey(), view.Revision())
	if err != nil {
		return err
	}
	if found && string(row.Value) == string(marker.body) {
		return nil
	}
	if found {
		// The cluster has the objects of an older version. The existing roles get the rules that they lack, as in
		// kube-apiserver.
		if err := c.reconcilePolicy(ctx); err != nil {
			return err
		}
	}
	all, err := objects(c.Ranges, c.RootCA, c.Bare)
	if err != nil {
		return err
	}
	wanted, err := c.encodeAll(ctx, all)
	if err != nil {
		return err
	}
	if view, err = c.Cell.Projection.Latest(ctx); err != nil { // writes are not computed from the old view
		return err
	}
	writes, err := c.writes(ctx, view, wanted)
	if err != nil {
		return err
	}
	done, err := writeOver(ctx, view, marker)
	if err != nil {
		return err
	}
	// If a batch fails, the batches before it stay; the next call finds their objects and goes on.
	for some := range slices.Chunk(append(writes, done), batch) {
		if _, err := c.Cell.Append(ctx, view, some...); err != nil {
			return err
		}
	}
	return nil
}

func markerOf(cluster string) eventlog.Key {
	return eventlog.Key{Cluster: cluster, Group: resources.OwnGroup, Resource: "bootstraps", Prefix: "/logplane.dev/bootstraps", Name: "kubernetes"}
}

// Written reports whether the view holds the cluster's marker, from any version of Write.
func Written(ctx context.Context, view *projection.View, cluster string) (bool, error) {
	_, found, err := view.Get(ctx, markerOf(cluster).RowKey(), view.Revision())
	return found, err
}

// writes returns the writes of every wanted object that the view lacks, each with its claims.
func (c Config) writes(ctx context.Context, view *projection.View, wanted [][]stored) ([]projection.Write, error) {
	var writes []projection.Write
	for _, one := range wanted {
		_, found, err := view.Get(ctx, one[0].key.RowKey(), view.Revision())
		if err != nil {
			return nil, err
		}
		if found {
			continue
		}
		for _, part := range one {
			w, err := writeOver(ctx, view, part)
			if err != nil {
				return nil, err
			}
			writes = append(writes, w)
		}
	}
	return writes, nil
}

// encodeAll encodes each object with its claims. It uses all processors, because the first start of 'dev' waits for the
// encoding.
func (c Config) encodeAll(ctx context.Context, all []object) ([][]stored, error) {
	encoder := encoder{c.Cell.Cluster, c.Stores, metav1.NewTime(time.Now().UTC().Truncate(time.Second))}
	resources := map[schema.GroupResource]generic.RESTOptions{}
	encoded := make([][]stored, len(all))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, o := range all {
		options, ok := resources[o.resource]
		if !ok { // kept, since making the options takes as long as encoding a few objects
			var err error
			if o.resource == aggregation.Resource {
				options, err = aggregation.Options(c.Stores)
			} else {
				options, err = c.Stores.GetRESTOptions(o.resource, o.object)
			}
			if err != nil {
				return nil, errors.Join(err, group.Wait())
			}
			resources[o.resource] = options
		}
		group.Go(func() (err error) {
			if encoded[i], err = encoder.encode(ctx, o, options); err != nil {
				return fmt.Errorf("encode %s %q: %w", o.resource, o.object.GetName(), err)
			}
			return nil
		})
	}
	return encoded, group.Wait()
}

// writeOver returns the write that stores s, whatever the view holds under the key of s.
func writeOver(ctx context.Context, view *projection.View, s stored) (projection.Write, error) {
	at, err := view.State(ctx, s.key)
	return at.Put(s.contentType, s.body, 0), err
}

// reconcilePolicy gives existing roles and bindings the rules and subjects that a newer version of Kubernetes adds. It
// runs upstream's own start-up hook in this process. The hook's context ends with the call.
func (c Config) reconcilePolicy(ctx context.Context) error {
	_, hook, err := rbacrest.RESTStorageProvider{}.PostStartHook()
	if err != nil {
		return err
	}
	return hook(genericapiserver.PostStartHookContext{LoopbackClientConfig: c.Loopback, Context: ctx})
}
