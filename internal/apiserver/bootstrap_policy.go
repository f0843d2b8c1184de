package apiserver

import (
	"context"

	genericapiserver "k8s.io/apiserver/pkg/server"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
)

// reconcilePolicy gives existing roles and bindings what a newer version of Kubernetes adds to them, by
// upstream's own start-up hook, in process. Its context ends with the call.
func (s *Server) reconcilePolicy(ctx context.Context) error {
	_, hook, err := rbacrest.RESTStorageProvider{}.PostStartHook()
	if err != nil {
		return err
	}
	return hook(genericapiserver.PostStartHookContext{LoopbackClientConfig: s.loopback, Context: ctx})
}
