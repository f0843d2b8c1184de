package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/description/spec"
	"github.com/logplane/logplane/internal/apiserver/resources"
)

func registerBodies(flags *pflag.FlagSet, bodies *[]string) {
	flags.StringSliceVar(bodies, "events-bodies", nil, "resources whose events are republished with their bodies, for example 'configmaps,deployments.apps'; never Secrets, or what is encrypted at rest; 'none' for none. A custom resource is accepted whether it exists or not")
}

// noBodies empties the list.
const noBodies = "none"

func parseBodies(names []string) ([]eventlog.Resource, error) {
	if len(names) == 1 && names[0] == noBodies {
		return nil, nil
	}
	var parsed []eventlog.Resource
	for _, name := range names {
		r := eventlog.Resource(schema.ParseGroupResource(name))
		err := r.Check()
		if err == nil {
			err = checkExists(r)
		}
		if err != nil {
			return nil, fmt.Errorf("--events-bodies has '%s': %w", name, err)
		}
		parsed = append(parsed, r)
	}
	return parsed, nil
}

// checkExists refuses a resource that no cell can have. It accepts every group with a dot: custom resources have such
// groups, and which of those exist is not known before there is a cell.
func checkExists(r eventlog.Resource) error {
	if strings.Contains(r.Group, ".") {
		return nil
	}
	exists, err := spec.HasResource(r.Group, r.Resource)
	if err != nil || exists {
		return err
	}
	return errors.New("there is no such resource; it must be the plural name, with the group if it has one")
}

// republishBodies sets the list to the flag's value, if the flag was given. It refuses encrypted resources in the
// resulting list. Otherwise the events would publish content that is encrypted on disk.
func republishBodies(ctx context.Context, c eventlog.Config, given bool, list []eventlog.Resource, encryption string) error {
	if !given {
		var err error
		if list, err = eventlog.Bodies(ctx, c); err != nil {
			return err
		}
	}
	for _, r := range list {
		resource := schema.GroupResource(r)
		encrypts, err := resources.Encrypts(encryption, resource)
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
