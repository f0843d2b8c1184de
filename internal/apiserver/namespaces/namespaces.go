// Package namespaces ties objects to the life of their namespace.
//
// Upstream checks at the beginning of a create that the namespace exists, and upstream's controllers later give a new
// namespace its account and its certificate. Here the check is repeated on the view from which the create is computed,
// and the objects that every namespace has are written in the namespace's own atomic batch.
package namespaces

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/controller/certificates/rootcacertpublisher"

	"github.com/logplane/logplane/internal/apiserver/listers"
	"github.com/logplane/logplane/internal/apiserver/resources"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

// DefaultAccount is the ServiceAccount that every namespace has, and RootCA is the ConfigMap that every namespace has.
const (
	DefaultAccount = "default"
	RootCA         = rootcacertpublisher.RootCACertConfigMapName
)

// Config of Namespaces.
type Config struct {
	Stores  *resources.Stores
	Listers *listers.Factory
	// RootCA is the PEM of the authority that signs this API's certificate, for Pods to trust. If it is empty,
	// namespaces get no ConfigMap.
	RootCA []byte
	// Bare namespaces get neither an account nor a certificate.
	Bare bool
}

// Namespaces ties objects to their namespace. It is safe for concurrent use.
type Namespaces struct {
	config Config
	rows   *listers.Indexer
}

// New makes a Namespaces. It reads nothing.
func New(c Config) *Namespaces {
	return &Namespaces{c, c.Listers.IndexerOf(&corev1.Namespace{})}
}

type emptyingKey struct{}

// Emptying marks the context of requests that delete all content of a namespace. These requests identify the namespace
// only by its name, and somebody may meanwhile have finished the deletion of the namespace and made a new namespace of
// that name. With the context, a write in a namespace is allowed only if the namespace has the given uid and is
// terminating in the view from which the write is computed. If the uid is empty, the write is allowed only if the view
// has no such namespace. Any other write is a conflict.
func Emptying(ctx context.Context, uid types.UID) context.Context {
	return context.WithValue(ctx, emptyingKey{}, uid)
}

// checkEmptied returns the conflict that Emptying describes. The check is exact: objects in a namespace that was made
// again were written after the view. So the deletion of such an object conflicts with the object's write and is
// computed again.
func (n *Namespaces) checkEmptied(ctx context.Context, v *projection.View, c kubestore.Change) error {
	uid, emptying := ctx.Value(emptyingKey{}).(types.UID)
	if !emptying || c.Key.Namespace == "" {
		return nil
	}
	object, found, err := n.rows.GetAt(ctx, v, c.Key.Namespace)
	if err != nil {
		return fmt.Errorf("read namespace '%s': %w", c.Key.Namespace, err)
	}
	namespace, _ := object.(*corev1.Namespace) // nil if not found
	if !found && uid == "" || found && namespace.UID == uid && namespace.DeletionTimestamp != nil {
		return nil
	}
	return apierrors.NewConflict(c.Resource(), c.Key.Name, fmt.Errorf("namespace '%s' is another one now", c.Key.Namespace))
}

// Alongside refuses a create in a namespace that is missing or terminating. For a new namespace it returns the writes
// of the objects that every namespace has.
func (n *Namespaces) Alongside(ctx context.Context, v *projection.View, c kubestore.Change) ([]projection.Write, error) {
	if err := n.checkEmptied(ctx, v, c); err != nil {
		return nil, err
	}
	switch {
	case c.Before != nil || c.After == nil:
		return nil, nil
	case c.Key.Namespace != "":
		return nil, n.check(ctx, v, c)
	case c.Resource() == corev1.Resource("namespaces") && !n.config.Bare:
		return n.defaults(ctx, v, c.Key.Name)
	}
	return nil, nil
}

// check refuses a create in a namespace that is missing or terminating. If the namespace was missing or terminating
// when the request began, admission has already refused the request.
func (n *Namespaces) check(ctx context.Context, v *projection.View, c kubestore.Change) error {
	name := c.Key.Namespace
	object, found, err := n.rows.GetAt(ctx, v, name)
	switch {
	case err != nil:
		return fmt.Errorf("read namespace '%s': %w", name, err)
	case !found:
		return apierrors.NewNotFound(corev1.Resource("namespaces"), name)
	case object.(*corev1.Namespace).DeletionTimestamp == nil:
		return nil
	}
	refused := apierrors.NewForbidden(c.Resource(), c.Key.Name, fmt.Errorf("unable to create new content in namespace %s because it is being terminated", name))
	refused.ErrStatus.Details.Causes = append(refused.ErrStatus.Details.Causes, metav1.StatusCause{
		Type: corev1.NamespaceTerminatingCause, Message: fmt.Sprintf("namespace %s is being terminated", name), Field: "metadata.namespace",
	})
	return refused
}

// defaults returns the writes of the objects that a new namespace has.
func (n *Namespaces) defaults(ctx context.Context, v *projection.View, namespace string) ([]projection.Write, error) {
	var writes []projection.Write
	for _, d := range Defaults(namespace, n.config.RootCA) {
		key := n.config.Stores.Key(d.Resource, namespace, d.Object.GetName())
		at, err := v.State(ctx, key)
		if err != nil {
			return nil, err
		}
		if _, live := at.Row(); live {
			continue
		}
		d.Object.SetUID(types.UID(uuid.NewString()))
		d.Object.SetCreationTimestamp(metav1.Now())
		w, err := n.config.Stores.PutCore(ctx, at, key, d.Object)
		if err != nil {
			return nil, err
		}
		writes = append(writes, w)
	}
	return writes, nil
}

// Default is an object that every namespace has.
type Default struct {
	Resource schema.GroupResource
	Object   interface {
		runtime.Object
		metav1.Object
	}
}

// Defaults returns the objects that every namespace has. The caller may write to them.
func Defaults(namespace string, rootCA []byte) []Default {
	all := []Default{{corev1.Resource("serviceaccounts"), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: DefaultAccount, Namespace: namespace}}}}
	if len(rootCA) > 0 {
		all = append(all, Default{corev1.Resource("configmaps"), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{
				Name: RootCA, Namespace: namespace,
				Annotations: map[string]string{rootcacertpublisher.DescriptionAnnotation: rootcacertpublisher.Description},
			},
			Data: map[string]string{"ca.crt": string(rootCA)},
		}})
	}
	return all
}
