package products

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/cert"

	"github.com/logplane/logplane/eventlog/eventlogtest"
)

var (
	certificates = schema.GroupVersionResource{Group: "cert-manager.io", Version: "v1", Resource: "certificates"}
	requests     = schema.GroupVersionResource{Group: "cert-manager.io", Version: "v1", Resource: "certificaterequests"}
	issuers      = schema.GroupVersionResource{Group: "cert-manager.io", Version: "v1", Resource: "issuers"}
	mutating     = schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "mutatingwebhookconfigurations"}
	validating   = schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingwebhookconfigurations"}
)

// TestCertManager: cert-manager's chart is installed. The three processes of cert-manager run with tokens of their
// service accounts, and with the roles of the chart. The injector makes the server trust cert-manager's webhook, and
// the webhook refuses invalid objects. The controllers issue certificates by a self-signed issuer and by a CA, and
// issue a certificate again after its specification has changed.
func TestCertManager(t *testing.T) {
	chart := shipped(t, "cert-manager/chart")
	h := newHost(t)
	secure, health := freePort(t), freePort(t)
	h.install(chart, "cert-manager", map[string]any{
		"crds":            map[string]any{"enabled": true},
		"prometheus":      map[string]any{"enabled": false},
		"startupapicheck": map[string]any{"enabled": false}, // a Job that needs a node
		"webhook": map[string]any{ // without nodes, the server reaches the webhook by a URL
			"securePort": secure, "url": map[string]any{"host": fmt.Sprintf("localhost:%d", secure)},
			"extraArgs": []any{"--kubeconfig=$(KUBECONFIG)", "--dynamic-serving-dns-names=localhost", fmt.Sprintf("--healthz-port=%d", health)},
		},
	})
	h.run(shipped(t, "cert-manager/controller"), "cert-manager", "cert-manager")
	h.run(shipped(t, "cert-manager/cainjector"), "cert-manager", "cert-manager-cainjector")
	h.run(shipped(t, "cert-manager/webhook"), "cert-manager", "cert-manager-webhook")
	for _, resource := range []schema.GroupVersionResource{mutating, validating} {
		h.until(resource, "", "cert-manager-webhook", func(u *unstructured.Unstructured) bool {
			webhooks, _, _ := unstructured.NestedSlice(u.Object, "webhooks")
			bundle, _, _ := unstructured.NestedString(webhooks[0].(map[string]any), "clientConfig", "caBundle")
			return bundle != ""
		})
	}
	issuer := `
apiVersion: cert-manager.io/v1
kind: Issuer
metadata: {name: self}
spec: {selfSigned: {}}
`
	eventlogtest.Eventually(t, "the webhook answers", func() bool { return !apierrors.IsInternalError(h.apply(issuer)) })
	h.until(issuers, "default", "self", hasCondition("Ready"))

	require.NoError(t, h.apply(`
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {name: authority}
spec: {isCA: true, commonName: authority, secretName: authority, privateKey: {algorithm: ECDSA}, issuerRef: {name: self}}
---
apiVersion: cert-manager.io/v1
kind: Issuer
metadata: {name: authority}
spec: {ca: {secretName: authority}}
`))
	h.until(certificates, "default", "authority", hasCondition("Ready"))
	authority := h.issued("authority")
	require.True(t, authority[0].IsCA)
	h.until(issuers, "default", "authority", hasCondition("Ready"))

	leaf := `
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {name: leaf}
spec: {dnsNames: [%s], secretName: leaf, duration: %s, issuerRef: {name: authority}}
`
	require.NoError(t, h.apply(fmt.Sprintf(leaf, "one.test", "24h")))
	h.until(certificates, "default", "leaf", hasCondition("Ready"))
	roots := x509.NewCertPool()
	roots.AddCert(authority[0])
	verify := func(name string) error {
		chain := h.issued("leaf")
		_, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, DNSName: name})
		return err
	}
	require.NoError(t, verify("one.test"))

	err := h.apply(fmt.Sprintf(leaf, "one.test", "10m"))
	require.ErrorContains(t, err, `admission webhook "webhook.cert-manager.io" denied the request`)
	require.ErrorContains(t, err, "spec.duration")

	require.NoError(t, h.apply(fmt.Sprintf(leaf, "two.test", "24h")))
	h.until(certificates, "default", "leaf", func(u *unstructured.Unstructured) bool {
		revision, _, _ := unstructured.NestedInt64(u.Object, "status", "revision")
		return revision == 2 && hasCondition("Ready")(u)
	})
	require.Error(t, verify("one.test"))
	require.NoError(t, verify("two.test"))

	asked, err := h.dynamic.Resource(requests).Namespace("default").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.NotEmpty(t, asked.Items)
	for _, name := range []string{"leaf", "authority"} {
		require.NoError(t, h.dynamic.Resource(certificates).Namespace("default").Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	for _, request := range asked.Items {
		h.untilGone(requests, "default", request.GetName())
	}
	h.cell.NoErrors()
}

// issued returns the certificate chain in a Secret.
func (h *host) issued(name string) (chain []*x509.Certificate) {
	h.Helper()
	secret, err := h.client.CoreV1().Secrets("default").Get(h.Context(), name, metav1.GetOptions{})
	require.NoError(h, err)
	_, err = tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	require.NoError(h, err)
	chain, err = cert.ParseCertsPEM(secret.Data[corev1.TLSCertKey])
	require.NoError(h, err)
	return chain
}
