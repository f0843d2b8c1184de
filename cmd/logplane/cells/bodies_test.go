package cells

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog"
)

func TestParseBodies(t *testing.T) {
	got, err := ParseBodies([]string{"configmaps", "deployments.apps", "ingresses.networking.k8s.io", "widgets.example.com"})
	require.NoError(t, err)
	require.Equal(t, []eventlog.Resource{
		{Resource: "configmaps"}, {Group: "apps", Resource: "deployments"}, {Group: "networking.k8s.io", Resource: "ingresses"},
		{Group: "example.com", Resource: "widgets"},
	}, got)
	got, err = ParseBodies([]string{"none"})
	require.NoError(t, err)
	require.Empty(t, got)
	for refused, why := range map[string]string{
		"secrets": "never republished", "secrets.": "never republished", "": "must name one", "*": "must name one",
		"*.apps": "must name one", "pods/status": "must name one", "pods.*": "must name one",
		"configmap": "no such resource", "deployments": "no such resource", "deployment.apps": "no such resource",
		"pods.app": "no such resource", "none": "no such resource",
	} {
		_, err := ParseBodies([]string{"pods", refused})
		require.ErrorContains(t, err, "--events-bodies has '"+refused+"'")
		require.ErrorContains(t, err, why)
	}
}
