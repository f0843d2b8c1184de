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

// authorizer decides by the rules in mode RBAC. Members of system:masters may do everything in any mode.
func (a Authorization) authorizer(rules *roles.Index) (authorizer.Authorizer, authorizer.RuleResolver, error) {
	masters := authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup)
	var chosen interface {
		authorizer.Authorizer
		authorizer.RuleResolver
	}
	switch a.Mode {
	case "", "AlwaysAllow":
		chosen = authorizerfactory.NewAlwaysAllowAuthorizer()
	case "RBAC":
		chosen = rules.Authorizer()
	default:
		return nil, nil, fmt.Errorf("unknown authorization mode %q: it must be 'AlwaysAllow' or 'RBAC'", a.Mode)
	}
	return union.New(masters, chosen), union.NewRuleResolvers(chosen), nil
}
