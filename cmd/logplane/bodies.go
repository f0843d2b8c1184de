package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver"
)

func registerBodies(flags *pflag.FlagSet, bodies *[]string) {
	flags.StringSliceVar(bodies, "events-bodies", nil, "resources whose events are republished with their bodies, for example 'configmaps,deployments.apps'; never Secrets, or what is encrypted at rest; 'none' for none")
}

// noBodies takes every resource off the list.
const noBodies = "none"

func parseBodies(names []string) ([]eventlog.Resource, error) {
	if len(names) == 1 && names[0] == noBodies {
		return nil, nil
	}
	var resources []eventlog.Resource
	for _, name := range names {
		r := schema.ParseGroupResource(name)
		if r.Resource == "" || strings.ContainsAny(name, "*>/ ") {
			return nil, fmt.Errorf("--events-bodies has '%s': it must name one resource, for example 'configmaps' or 'deployments.apps'", name)
		}
		if r == (schema.GroupResource{Resource: "secrets"}) {
			return nil, fmt.Errorf("--events-bodies has 'secrets': Secrets are never republished")
		}
		resources = append(resources, eventlog.Resource{Group: r.Group, Resource: r.Resource})
	}
	return resources, nil
}

// republishBodies makes the list what the flag says, if it was given. Whichever list it is then, nothing of it may be
// encrypted: what the API keeps from a reader of its disks would go out by another door.
func republishBodies(ctx context.Context, c eventlog.Config, given bool, list []eventlog.Resource, encryption string) error {
	if !given {
		var err error
		if list, err = eventlog.Bodies(ctx, c); err != nil {
			return err
		}
	}
	for _, r := range list {
		resource := schema.GroupResource(r)
		encrypts, err := apiserver.Encrypts(encryption, resource)
		if err != nil {
			return err
		}
		if encrypts {
			return fmt.Errorf("--events-bodies has '%s', which --encryption-provider-config encrypts: a resource can be in one of the two only", resource)
		}
	}
	if !given {
		return nil
	}
	return eventlog.SetBodies(ctx, c, list)
}
