package access

import (
	"errors"
	"fmt"

	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"

	"github.com/logplane/logplane/internal/apiserver/nodes"
	"github.com/logplane/logplane/internal/apiserver/roles"
)

// Authorization chooses how a user's rights are decided.
type Authorization struct {
	// Mode is 'AlwaysAllow' (also when empty), 'RBAC' or 'Node,RBAC'. With a ConfigFile it must be empty.
	Mode string
	// ConfigFile is kube-apiserver's --authorization-config: webhooks, Node and RBAC, in the order of the file. A
	// change needs no restart.
	ConfigFile string
}

// allowsEverything reports whether every user may do everything.
func (a Authorization) allowsEverything() bool {
	return a.ConfigFile == "" && (a.Mode == "" || a.Mode == "AlwaysAllow")
}

// authorizer makes the authorizers that Mode or ConfigFile chooses. Members of system:masters may do everything in any
// mode.
func (a Authorization) authorizer(rules *roles.Index, nodes *nodes.Authorizer) (authorizer.Authorizer, authorizer.RuleResolver, error) {
	var chosen []named
	switch {
	case a.ConfigFile != "" && a.Mode != "":
		return nil, nil, errors.New("give either an authorization mode or an authorization configuration")
	case a.ConfigFile != "":
		file, err := newAuthorizers(a.ConfigFile, map[string]Authorizer{modes.ModeNode: nodes, modes.ModeRBAC: rules.Authorizer()})
		if err != nil {
			return nil, nil, err
		}
		return authorizer.AuthorizerFunc(file.Authorize), file, nil
	case a.allowsEverything():
		chosen = []named{{"alwaysallow", authorizerfactory.NewAlwaysAllowAuthorizer()}}
	case a.Mode == "RBAC":
		chosen = []named{{"rbac", rules.Authorizer()}}
	case a.Mode == "Node,RBAC":
		chosen = []named{{"node", nodes}, {"rbac", rules.Authorizer()}}
	default:
		return nil, nil, fmt.Errorf("unknown authorization mode %q: it must be 'RBAC', 'Node,RBAC' or 'AlwaysAllow'", a.Mode)
	}
	made, err := inOrder(chosen)
	return made, made, err
}
