package cells

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

func RegisterBodies(flags *pflag.FlagSet, bodies *[]string) {
	flags.StringSliceVar(bodies, "events-bodies", nil, "resources whose events have bodies for subscribers, for example 'configmaps,deployments.apps'; never Secrets, or what is encrypted at rest; 'none' empties the list. A custom resource is accepted whether it exists or not (docs/subscribers.md)")
}

// noBodies empties the list.
const noBodies = "none"

func ParseBodies(names []string) ([]eventlog.Resource, error) {
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
// groups, and the custom resources of a cell are not known before the cell exists.
func checkExists(r eventlog.Resource) error {
	if strings.Contains(r.Group, ".") || spec.HasResource(r.Group, r.Resource) {
		return nil
	}
	return errors.New("there is no such resource: give the plural name, with the group if it has one")
}

// RepublishBodies sets the list to the flag's value, if the flag was given. It refuses encrypted resources in the
// resulting list. Otherwise the events would publish content that is encrypted on disk.
func RepublishBodies(ctx context.Context, c eventlog.Config, given bool, list []eventlog.Resource, encryption string) error {
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
			return fmt.Errorf("--events-bodies has '%s', which --encryption-provider-config encrypts: leave it out of one of the two", resource)
		}
	}
	if !given {
		return nil
	}
	return eventlog.SetBodies(ctx, c, list)
}
