package eventlog

import (
	"slices"
	"strings"
)

// Subscribers see what the server republishes: each event's headers on '<prefix>.events.…', and for the resources on a
// list also the body on '<prefix>.bodies.…' (SetBodies). Both are live only, and may miss an event: a stored one is
// republished once, to whoever is connected then. What must be complete reads the API.

// Any as a part of a key makes a subject's token match every value of it.
const Any = "*"

// Allowed are the subjects that a subscriber may subscribe to who is to see these namespaces of a cluster; with
// clusterScoped also the objects that have none, and with bodies what is republished whole.
func Allowed(prefix, cluster string, namespaces []string, clusterScoped, bodies bool) ([]string, error) {
	if clusterScoped {
		namespaces = append(slices.Clone(namespaces), "")
	}
	var subjects []string
	for _, namespace := range namespaces {
		all := Key{Cluster: cluster, Group: Any, Resource: Any, Namespace: namespace, Name: Any}
		events, err := all.subject(prefix+".events.", escapeTokenOrAny)
		if err != nil {
			return nil, err
		}
		subjects = append(subjects, events)
		if !bodies {
			continue
		}
		whole, err := all.subject(prefix+".bodies.", escapeTokenOrAny)
		if err != nil {
			return nil, err
		}
		subjects = append(subjects, whole)
	}
	return subjects, nil
}

func escapeTokenOrAny(b *strings.Builder, part, empty string) {
	if part == Any {
		b.WriteString(Any)
		return
	}
	escapeToken(b, part, empty)
}

func unescapeTokenOrAny(token, empty string) (string, error) {
	if token == Any {
		return Any, nil
	}
	return unescapeToken(token, empty)
}

// Headers that the server adds to what it republishes, and to what it answers a direct get with.
const (
	headerStored    = "Nats-Subject"
	headerSequence  = "Nats-Sequence"
	headerTimestamp = "Nats-Time-Stamp"
)
