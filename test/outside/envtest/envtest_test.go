// Package envtest is the package of a user whose tests run controller-runtime's envtest with Logplane's binaries.
package envtest

import (
	"cmp"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// startEnvironment starts envtest with the binaries of 'logplane envtest-assets', and stops it with the test. Then no
// process is left.
func startEnvironment(t *testing.T, environment *envtest.Environment) {
	t.Helper()
	binary, err := filepath.Abs(cmp.Or(os.Getenv("LOGPLANE_BINARY"), "../../../bin/logplane"))
	require.NoError(t, err)
	assets := exec.CommandContext(t.Context(), binary, "envtest-assets")
	assets.Env = append(os.Environ(), "XDG_CACHE_HOME="+t.TempDir())
	folder, err := assets.Output()
	require.NoError(t, err)
	t.Setenv("KUBEBUILDER_ASSETS", strings.TrimSpace(string(folder)))
	_, err = environment.Start()
	require.NoError(t, err)
	require.Len(t, children(t), 2)
	t.Cleanup(func() {
		require.NoError(t, environment.Stop())
		require.Empty(t, children(t))
	})
}

// children returns the names of this process's child processes.
func children(t *testing.T) (names []string) {
	t.Helper()
	processes, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(t, err)
	for _, file := range processes {
		stat, err := os.ReadFile(file)
		if err != nil {
			continue // the process has ended
		}
		name, rest, _ := strings.Cut(string(stat), ") ")
		if fields := strings.Fields(rest); len(fields) > 1 && fields[1] == strconv.Itoa(os.Getpid()) {
			names = append(names, name)
		}
	}
	return names
}

func clientFor(t *testing.T, config *rest.Config) client.WithWatch {
	t.Helper()
	c, err := client.NewWithWatch(config, client.Options{})
	require.NoError(t, err)
	return c
}

func widgets() *apiextensionsv1.CustomResourceDefinition {
	object := apiextensionsv1.JSONSchemaProps{Type: "object"}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
			Names:    apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Singular: "widget", Kind: "Widget", ListKind: "WidgetList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &object}}},
		},
	}
}

func widget(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"namespace": "default", "name": name},
	}}
}

// TestEnvtest runs envtest as its users do: with a CRD, a webhook, a user with few rights and a kubeconfig.
func TestEnvtest(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	path, fail := "/forbid", admissionv1.Fail
	none := admissionv1.SideEffectClassNone
	environment := &envtest.Environment{
		CRDs: []*apiextensionsv1.CustomResourceDefinition{widgets()},
		WebhookInstallOptions: envtest.WebhookInstallOptions{ValidatingWebhooks: []*admissionv1.ValidatingWebhookConfiguration{{
			ObjectMeta: metav1.ObjectMeta{Name: "forbid"},
			Webhooks: []admissionv1.ValidatingWebhook{{
				Name: "forbid.example.com", AdmissionReviewVersions: []string{"v1"}, SideEffects: &none, FailurePolicy: &fail,
				ClientConfig: admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Namespace: "default", Name: "forbid", Path: &path}},
				Rules: []admissionv1.RuleWithOperations{{
					Operations: []admissionv1.OperationType{admissionv1.Create},
					Rule:       admissionv1.Rule{APIGroups: []string{"example.com"}, APIVersions: []string{"v1"}, Resources: []string{"widgets"}},
				}},
			}},
		}}},
	}
	startEnvironment(t, environment)
	serving := environment.WebhookInstallOptions
	m, err := ctrl.NewManager(environment.Config, manager.Options{
		Metrics:       server.Options{BindAddress: "0"},
		WebhookServer: webhook.NewServer(webhook.Options{Host: serving.LocalServingHost, Port: serving.LocalServingPort, CertDir: serving.LocalServingCertDir}),
	})
	require.NoError(t, err)
	m.GetWebhookServer().Register(path, &admission.Webhook{Handler: admission.HandlerFunc(func(_ context.Context, r admission.Request) admission.Response {
		return admission.ValidationResponse(r.Name != "forbidden", "not this name")
	})})
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- m.Start(running) }()
	<-m.Elected()

	direct := clientFor(t, environment.Config)
	require.EventuallyWithT(t, func(c *assert.CollectT) { // the webhook listens
		require.NoError(c, client.IgnoreAlreadyExists(direct.Create(ctx, widget("allowed"))))
	}, time.Minute, 10*time.Millisecond)
	err = direct.Create(ctx, widget("forbidden"))
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	require.ErrorContains(t, err, "not this name")
	stop()
	require.NoError(t, <-ended)

	user, err := environment.AddUser(envtest.User{Name: "reader", Groups: []string{"few"}}, nil)
	require.NoError(t, err)
	err = clientFor(t, user.Config()).List(ctx, &corev1.SecretList{})
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	config, err := clientcmd.RESTConfigFromKubeConfig(environment.KubeConfig)
	require.NoError(t, err)
	require.NoError(t, clientFor(t, config).List(ctx, &corev1.SecretList{}))

	// As upstream's binaries, these run no controllers.
	privileged := true
	require.NoError(t, direct.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "privileged"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a", SecurityContext: &corev1.SecurityContext{Privileged: &privileged}}}},
	}))
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "default"}}
	require.NoError(t, direct.Create(ctx, account), "there is no default account")
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "stays"}}
	require.NoError(t, direct.Create(ctx, namespace))
	require.NoError(t, direct.Delete(ctx, namespace))
	require.NoError(t, envtest.UninstallCRDs(environment.Config, envtest.CRDInstallOptions{CRDs: environment.CRDs}))
	require.EventuallyWithT(t, func(c *assert.CollectT) { // the server itself deletes the instances, and then the definition
		require.True(c, apierrors.IsNotFound(direct.Get(ctx, client.ObjectKeyFromObject(widgets()), &apiextensionsv1.CustomResourceDefinition{})))
	}, time.Minute, 10*time.Millisecond)
	require.NoError(t, direct.Get(ctx, client.ObjectKeyFromObject(namespace), namespace))
	require.Equal(t, corev1.NamespaceTerminating, namespace.Status.Phase)
}

// TestEnvtestControllers: with LOGPLANE_ENVTEST_CONTROLLERS=1, namespaces have their account, and go when they are
// deleted.
func TestEnvtestControllers(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	t.Setenv("LOGPLANE_ENVTEST_CONTROLLERS", "1")
	environment := &envtest.Environment{}
	startEnvironment(t, environment)
	direct := clientFor(t, environment.Config)
	require.NoError(t, direct.Get(ctx, client.ObjectKey{Namespace: "default", Name: "default"}, &corev1.ServiceAccount{}))
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "goes"}}
	require.NoError(t, direct.Create(ctx, namespace))
	watch, err := direct.Watch(ctx, &corev1.NamespaceList{}, client.MatchingFields{"metadata.name": "goes"})
	require.NoError(t, err)
	defer watch.Stop()
	require.NoError(t, direct.Delete(ctx, namespace))
	for event := range watch.ResultChan() {
		if string(event.Type) == "DELETED" {
			return
		}
	}
	t.Fatal("the watch ended before the namespace went")
}
