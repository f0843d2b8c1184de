package lifecycle

import (
	"bytes"
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/namespaces"
	"github.com/logplane/logplane/projection"
)

// A namespace gets its account and its certificate in its own write (package namespaces). The task here restores them
// in a namespace that has lost them, or that is older than this version of Logplane or than the certificate.

// isDefault says whether the key is of an object that every namespace has.
func isDefault(k eventlog.Key) bool {
	return k.Group == "" && (k.Resource == "serviceaccounts" && k.Name == namespaces.DefaultAccount || k.Resource == "configmaps" && k.Name == namespaces.RootCA)
}

// lacksDefaults says whether a namespace lacks what every namespace has. It reads at most two rows.
func (l *Lifecycle) lacksDefaults(ctx context.Context, view *projection.View, namespace string) (bool, error) {
	for _, d := range namespaces.Defaults(namespace, l.config.RootCA) {
		key := eventlog.Key{Cluster: l.config.Cell.Cluster, Prefix: "/" + d.Resource.Resource, Namespace: namespace, Name: d.Object.GetName()}
		row, found, err := view.Get(ctx, key.RowKey(), view.Revision())
		if err != nil {
			return false, fmt.Errorf("look at what namespace '%s' has: %w", namespace, err)
		}
		_, certificate := d.Object.(*corev1.ConfigMap)
		if !found || certificate && !bytes.Contains(row.Value, l.config.RootCA) { // the task decrypts it if needed
			return true, nil
		}
	}
	return false, nil
}

// giveDefaults creates the objects that every namespace has.
func (l *Lifecycle) giveDefaults(ctx context.Context, name string) error {
	namespace, err := l.client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && namespace.DeletionTimestamp != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get namespace '%s': %w", name, err)
	}
	for _, d := range namespaces.Defaults(name, l.config.RootCA) {
		switch wanted := d.Object.(type) {
		case *corev1.ServiceAccount:
			_, err = l.client.CoreV1().ServiceAccounts(name).Create(ctx, wanted, metav1.CreateOptions{})
		case *corev1.ConfigMap:
			err = l.publish(ctx, wanted)
		}
		if err != nil && !apierrors.IsAlreadyExists(err) && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return fmt.Errorf("give namespace '%s' its %s: %w", name, d.Resource.Resource, err)
		}
	}
	return nil
}

// publish creates the ConfigMap, or corrects its content.
func (l *Lifecycle) publish(ctx context.Context, wanted *corev1.ConfigMap) error {
	client := l.client.CoreV1().ConfigMaps(wanted.Namespace)
	has, err := client.Get(ctx, wanted.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = client.Create(ctx, wanted, metav1.CreateOptions{})
	case err == nil && !maps.Equal(has.Data, wanted.Data):
		has.Data, has.BinaryData = wanted.Data, nil
		_, err = client.Update(ctx, has, metav1.UpdateOptions{})
	}
	return err
}
