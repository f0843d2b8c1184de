package apiserver

import (
	"net/http"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/server/flagz"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/logplane/logplane/internal/apiserver/access"
)

// TestZPages: '/flagz' and '/statusz' are for users whom RBAC allows, for example by upstream's role system:monitoring.
// The value of a secret flag is not shown. If the flags are unknown, '/flagz' is answered 404. '/configz' is answered
// 404, too; kube-apiserver does not serve it either.
func TestZPages(t *testing.T) {
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	flags.String("listen", "127.0.0.1:1", "")
	flags.String("nats", "nats://user:secret@host", "")
	require.NoError(t, flags.SetAnnotation("nats", "classified", []string{"true"}))
	s := newServer(t, withTokens(t), func(c *Config) {
		c.Authorization = access.Authorization{Mode: "RBAC"}
		c.Flagz = flagz.NamedFlagSetsReader{FlagSets: cliflag.NamedFlagSets{FlagSets: map[string]*pflag.FlagSet{"test": flags}}}
	})
	require.NoError(t, s.Bootstrap(t.Context()))
	s.must(t, 201, request{method: "POST", path: rbacPath + "/clusterrolebindings", body: `{"metadata":{"name":"ann"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"system:monitoring"},` +
		`"subjects":[{"kind":"User","name":"ann","apiGroup":"rbac.authorization.k8s.io"}]}`}.as("root"))
	for _, path := range []string{"/flagz", "/statusz"} {
		get := request{method: "GET", path: path, accept: "text/plain"}
		s.must(t, http.StatusUnauthorized, get)
		s.must(t, http.StatusForbidden, get.as("bob"))
		require.Contains(t, s.must(t, http.StatusOK, get.as("ann")).body, "apiserver "+path[1:])
	}
	shown := s.must(t, 200, request{method: "GET", path: "/flagz", accept: "application/json;as=Flagz;g=config.k8s.io;v=v1beta1"}.as("ann"))
	require.Equal(t, map[string]any{"listen": "127.0.0.1:1", "nats": "CLASSIFIED"}, shown.object(t)["flags"])
	status := s.must(t, 200, request{method: "GET", path: "/statusz", accept: "application/json;as=Statusz;g=config.k8s.io;v=v1beta1"}.as("ann"))
	require.Contains(t, status.object(t)["paths"], "/metrics")
	require.Contains(t, s.must(t, 200, request{method: "GET", path: "/"}.as("root")).body, "/flagz")

	s.must(t, http.StatusNotFound, request{method: "GET", path: "/configz"}.as("root"))
	s.must(t, http.StatusNotFound, request{method: "GET", path: "/statusz/"}.as("root"))
	require.Equal(t, 404, request{method: "GET", path: "/flagz"}.do(t, newServer(t)).code)
}
