package main

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/logplane/logplane/cmd/logplane/values"
	"github.com/logplane/logplane/logplanetest"
	"github.com/logplane/logplane/test/product"
)

// TestClientsThatLeaveAreNoErrors: if an error cannot be sent because the client has left, it is not logged as a fault.
func TestClientsThatLeaveAreNoErrors(t *testing.T) {
	var said bytes.Buffer
	logTo(&said, slog.LevelInfo, values.Text)
	t.Cleanup(func() { logTo(os.Stderr, slog.LevelInfo, values.Text) })
	utilruntime.HandleErrorWithContext(t.Context(), errors.New("http2: stream closed"), "Failed to encode watch event")
	require.Empty(t, said.String())
	utilruntime.HandleErrorWithContext(t.Context(), errors.New("no such kind"), "Failed to encode watch event")
	require.Contains(t, said.String(), `level=ERROR msg="Failed to encode watch event" error="no such kind"`)
}

// TestOrdinaryRequestsAreForDebugging: upstream's lines about clients' mistakes and about every Service are logged only
// at the level debug.
func TestOrdinaryRequestsAreForDebugging(t *testing.T) {
	for _, level := range []slog.Level{slog.LevelInfo, slog.LevelDebug} {
		t.Run(level.String(), func(t *testing.T) {
			said := &product.Output{}
			logTo(said, level, values.Text)
			t.Cleanup(func() { logTo(os.Stderr, slog.LevelInfo, values.Text) })
			clients, err := kubernetes.NewForConfig(logplanetest.Start(t))
			require.NoError(t, err)
			err = clients.CoreV1().RESTClient().Get().Resource("pods").Param("limit", "abc").Do(t.Context()).Error()
			require.True(t, apierrors.IsBadRequest(err), err)
			_, err = clients.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
			}, metav1.CreateOptions{})
			require.NoError(t, err)
			for _, line := range []string{`msg="Couldn't parse request"`, `msg="allocated clusterIPs"`} {
				if level == slog.LevelInfo {
					require.NotContains(t, said.String(), line)
				} else {
					require.Contains(t, said.String(), "level=DEBUG "+line)
				}
			}
			require.NotContains(t, said.String(), "level=ERROR")
		})
	}
}
