// Package outside is the module of a user who tests a controller with logplanetest.
package outside

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/logplane/logplane/logplanetest"
)

// copier is the smallest useful reconciler: it keeps a Secret next to each ConfigMap that asks for a copy.
type copier struct{ client.Client }

func (c copier) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var source corev1.ConfigMap
	if err := c.Get(ctx, request.NamespacedName, &source); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if source.Labels["copy"] != "yes" {
		return ctrl.Result{}, nil
	}
	target := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: source.Namespace, Name: source.Name}}
	_, err := ctrl.CreateOrUpdate(ctx, c.Client, target, func() error {
		target.StringData = source.Data
		return ctrl.SetControllerReference(&source, target, c.Scheme())
	})
	return ctrl.Result{}, err
}

// TestControllerRuntime runs a manager with a reconciler and leader election. logplanetest starts its server, in the
// one line that an envtest user would change.
func TestControllerRuntime(t *testing.T) {
	config := logplanetest.Start(t)
	config.QPS = -1
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	m, err := ctrl.NewManager(config, manager.Options{
		Metrics:        server.Options{BindAddress: "0"},
		LeaderElection: true, LeaderElectionID: "copier", LeaderElectionNamespace: "default",
	})
	require.NoError(t, err)
	require.NoError(t, ctrl.NewControllerManagedBy(m).For(&corev1.ConfigMap{}).Owns(&corev1.Secret{}).Complete(copier{m.GetClient()}))
	ended := make(chan error, 1)
	running, stop := context.WithCancel(ctx)
	go func() { ended <- m.Start(running) }()

	direct := clientFor(t, config)
	source := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "source", Labels: map[string]string{"copy": "yes"}},
		Data:       map[string]string{"a": "1"},
	}
	require.NoError(t, direct.Create(ctx, source))
	copied := awaitSecret(ctx, t, direct, "1")
	require.Equal(t, source.UID, copied.OwnerReferences[0].UID)
	source.Data["a"] = "2"
	require.NoError(t, direct.Update(ctx, source))
	awaitSecret(ctx, t, direct, "2")
	require.NoError(t, direct.Delete(ctx, copied))
	awaitSecret(ctx, t, direct, "2")
	stop()
	require.NoError(t, <-ended)
}

func clientFor(t *testing.T, config *rest.Config) client.WithWatch {
	t.Helper()
	c, err := client.NewWithWatch(config, client.Options{})
	require.NoError(t, err)
	return c
}

// awaitSecret watches until the copy holds the value.
func awaitSecret(ctx context.Context, t *testing.T, c client.WithWatch, value string) *corev1.Secret {
	t.Helper()
	watch, err := c.Watch(ctx, &corev1.SecretList{}, client.InNamespace("default"))
	require.NoError(t, err)
	defer watch.Stop()
	for event := range watch.ResultChan() {
		require.NotEqual(t, "ERROR", string(event.Type), "%v", apierrors.FromObject(event.Object))
		if secret := event.Object.(*corev1.Secret); string(event.Type) != "DELETED" && string(secret.Data["a"]) == value {
			return secret
		}
	}
	t.Fatalf("no secret with value %s", value)
	return nil
}
