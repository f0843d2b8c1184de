package apiserver

import (
	"fmt"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/union"

	"github.com/logplane/logplane/internal/apiserver/roles"
)

// Authorization says what a user may do.
type Authorization struct {
	// Mode is 'AlwaysAllow' (also when empty) or 'RBAC'.
	Mode string
}

// configureAuthorization makes the authorizer; members of system:masters may do everything in any mode.
func (s *Server) configureAuthorization() error {
	s.rules = roles.New(roles.Config{Projection: s.config.Cell.Projection, Listers: s.listers})
	masters := authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup)
	var chosen interface {
		authorizer.Authorizer
		authorizer.RuleResolver
	}
	switch s.config.Authorization.Mode {
	case "", "AlwaysAllow":
		chosen = authorizerfactory.NewAlwaysAllowAuthorizer()
	case "RBAC":
		chosen = s.rules.Authorizer()
	default:
		return fmt.Errorf("unknown authorization mode %q: it must be 'AlwaysAllow' or 'RBAC'", s.config.Authorization.Mode)
	}
	s.generic.Authorization.Authorizer = union.New(masters, chosen)
	s.generic.RuleResolver = union.NewRuleResolvers(chosen)
	return nil
}
