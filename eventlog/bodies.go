package eventlog

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// A stream republishes either all bodies or none, and the log republishes none. So the bodies of the resources on a
// list go through another stream. The server copies the events of these resources from the log to the other stream, and
// republishes these copies with their bodies. The other stream keeps only the last event, so that after a restart the
// copying continues where it was. The log's own stream stays unchanged.

// Resource is a resource whose bodies are republished.
type Resource struct {
	// Group is the API group, empty for the core group.
	Group string
	// Resource is the plural resource name.
	Resource string
}

// Check says why the resource cannot be on the list. Secrets can never be on the list. Patterns cannot be on the list
// either, because a pattern might match Secrets.
func (r Resource) Check() error {
	if r == (Resource{Resource: "secrets"}) {
		return errors.New("Secrets are never republished")
	}
	if r.Resource == "" || strings.ContainsAny(r.Resource+r.Group, "*>/ ") {
		return errors.New("it must name one resource, for example 'configmaps' or 'deployments.apps'")
	}
	return nil
}

// SetBodies makes the server republish the events of these resources, and of no others, with their bodies, on
// '<prefix>.bodies.>'. A user who may subscribe to a namespace there can read these resources in that namespace,
// whatever the API would allow. SetBodies refuses every resource that Check refuses.
func SetBodies(ctx context.Context, c Config, resources []Resource) error {
	c = c.withDefaults()
	js := c.jetStream()
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	if len(resources) == 0 {
		if err := js.DeleteStream(ctx, bodiesStream(c)); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return fmt.Errorf("republish no bodies: %w", err)
		}
		return nil
	}
	config, err := bodiesConfig(ctx, js, c, resources)
	if err != nil {
		return fmt.Errorf("republish bodies: %w", err)
	}
	if _, err := js.CreateOrUpdateStream(ctx, config); err != nil {
		return fmt.Errorf("republish bodies: stream '%s': %w", config.Name, err)
	}
	return nil
}

func bodiesStream(c Config) string { return c.Stream + "-bodies" }

// bodiesConfig is the configuration of a stream that copies the events that are appended from now on.
func bodiesConfig(ctx context.Context, js jetstream.JetStream, c Config, resources []Resource) (jetstream.StreamConfig, error) {
	log, err := js.Stream(ctx, c.Stream)
	if err != nil {
		return jetstream.StreamConfig{}, fmt.Errorf("stream '%s': %w", c.Stream, err)
	}
	source := &jetstream.StreamSource{Name: c.Stream, OptStartSeq: log.CachedInfo().State.LastSeq + 1}
	for _, r := range resources {
		filter, err := "", r.Check()
		if err == nil {
			all := Key{Cluster: anyPart, Group: r.Group, Resource: r.Resource, Namespace: anyPart, Name: anyPart}
			filter, err = all.subject(c.Prefix+".log", true)
		}
		if err != nil {
			return jetstream.StreamConfig{}, fmt.Errorf("'%s' of group '%s': %w", r.Resource, r.Group, err)
		}
		source.SubjectTransforms = append(source.SubjectTransforms, jetstream.SubjectTransformConfig{Source: filter})
	}
	return jetstream.StreamConfig{
		Name:        bodiesStream(c),
		Description: "Republishes what Logplane's log holds of some resources, with bodies; only the last is kept",
		Sources:     []*jetstream.StreamSource{source},
		Storage:     log.CachedInfo().Config.Storage,
		Replicas:    log.CachedInfo().Config.Replicas,
		Retention:   jetstream.LimitsPolicy,
		Discard:     jetstream.DiscardOld,
		MaxMsgs:     1,
		RePublish:   &jetstream.RePublish{Source: c.Prefix + ".log.>", Destination: c.Prefix + ".bodies.>"},
	}, nil
}

// Bodies returns the resources whose bodies are republished.
func Bodies(ctx context.Context, c Config) ([]Resource, error) {
	c = c.withDefaults()
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	var s jetstream.Stream
	err := whileAllowed(ctx, c.Conn, mayNotMake, func(ctx context.Context) (err error) {
		s, err = c.jetStream().Stream(ctx, bodiesStream(c))
		return err
	})
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ask whose bodies are republished: %w", err)
	}
	var resources []Resource
	for _, source := range s.CachedInfo().Config.Sources {
		for _, t := range source.SubjectTransforms {
			k, err := parseSubject(c.Prefix, t.Source, true)
			if err == nil && (k.Group == anyPart || k.Resource == anyPart) {
				err = fmt.Errorf("'%s' is not a filter of one resource", t.Source)
			}
			if err != nil {
				return nil, fmt.Errorf("ask whose bodies are republished: stream '%s': %w", bodiesStream(c), err)
			}
			resources = append(resources, Resource{k.Group, k.Resource})
		}
	}
	return resources, nil
}
