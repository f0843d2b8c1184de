package outside

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/logplane/logplane/logplanetest"
)

// TestEnvironment: envtest installs CustomResourceDefinitions and webhooks on a server of logplanetest, and the webhook
// decides.
func TestEnvironment(t *testing.T) {
	for name, logplane := range map[string]*logplanetest.Server{"plain": {}, "secure": {Secure: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			existing := true
			environment := &envtest.Environment{
				UseExistingCluster: &existing, Config: logplane.Start(t),
				CRDDirectoryPaths: []string{"testdata/crds"}, ErrorIfCRDPathMissing: true,
				WebhookInstallOptions: envtest.WebhookInstallOptions{Paths: []string{"testdata/webhooks"}},
			}
			config, err := environment.Start()
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, environment.Stop()) })

			where := environment.WebhookInstallOptions
			m, err := ctrl.NewManager(config, manager.Options{
				Metrics: server.Options{BindAddress: "0"},
				WebhookServer: webhook.NewServer(webhook.Options{
					Host: where.LocalServingHost, Port: where.LocalServingPort, CertDir: where.LocalServingCertDir,
				}),
			})
			require.NoError(t, err)
			m.GetWebhookServer().Register("/drinks", &webhook.Admission{Handler: admission.HandlerFunc(func(_ context.Context, r admission.Request) admission.Response {
				if r.Name == "mud" {
					return admission.Denied("nobody drinks that")
				}
				return admission.Allowed("")
			})})
			ended := make(chan error, 1)
			running, stop := context.WithCancel(ctx)
			go func() { ended <- m.Start(running) }()
			require.Eventually(t, func() bool { return m.GetWebhookServer().StartedChecker()(nil) == nil }, time.Minute, 10*time.Millisecond)

			drink := func(name string) *unstructured.Unstructured {
				return &unstructured.Unstructured{Object: map[string]any{
					"apiVersion": "example.com/v1", "kind": "Drink", "metadata": map[string]any{"namespace": "default", "name": name},
				}}
			}
			direct := clientFor(t, config)
			require.NoError(t, direct.Create(ctx, drink("tea")))
			require.ErrorContains(t, direct.Create(ctx, drink("mud")), "nobody drinks that")
			stop()
			require.NoError(t, <-ended)
		})
	}
}
