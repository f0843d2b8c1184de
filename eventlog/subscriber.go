package eventlog

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// Subscribers see what the server republishes: each event's headers on '<prefix>.events.…', and for the resources on a
// list also the body on '<prefix>.bodies.…' (SetBodies). Both are live only, and may miss an event: a stored one is
// republished once, to whoever is connected then. What must be complete reads the API.

// Any as a part of a key makes a subject's token match every value of it.
const Any = "*"

// EventsSubject is where the headers of a key's events are republished. Parts that are Any match all, so that the
// subject is a pattern to subscribe to.
func EventsSubject(prefix string, k Key) (string, error) {
	return k.subject(prefix+".events.", escapeTokenOrAny)
}

// BodiesSubject is where the whole events of a key are republished, if its resource is on the list.
func BodiesSubject(prefix string, k Key) (string, error) {
	return k.subject(prefix+".bodies.", escapeTokenOrAny)
}

// Allowed are the subjects that a subscriber may subscribe to who is to see these namespaces of a cluster; with
// clusterScoped also the objects that have none, and with bodies what is republished whole.
func Allowed(prefix, cluster string, namespaces []string, clusterScoped, bodies bool) ([]string, error) {
	if clusterScoped {
		namespaces = append(slices.Clone(namespaces), "")
	}
	var subjects []string
	for _, namespace := range namespaces {
		all := Key{Cluster: cluster, Group: Any, Resource: Any, Namespace: namespace, Name: Any}
		events, err := EventsSubject(prefix, all)
		if err != nil {
			return nil, err
		}
		subjects = append(subjects, events)
		if !bodies {
			continue
		}
		whole, err := BodiesSubject(prefix, all)
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
	headerStored       = "Nats-Subject"
	headerSequence     = "Nats-Sequence"
	headerTimestamp    = "Nats-Time-Stamp"
	headerStreamSource = "Nats-Stream-Source"
)

// DecodeRepublished reads a message that was republished. Its Body is empty if only headers were.
func DecodeRepublished(prefix string, m *nats.Msg) (Event, error) {
	rev, err := RepublishedRevision(m)
	if err != nil {
		return Event{}, err
	}
	at, err := time.Parse(time.RFC3339Nano, m.Header.Get(headerTimestamp))
	if err != nil {
		return Event{}, fmt.Errorf("decode republished event %d: '%s': %w", rev, headerTimestamp, err)
	}
	return decode(prefix, m.Header.Get(headerStored), m.Header, m.Data, rev, at)
}

// RepublishedRevision is the revision of a republished message. One that carries a body came by way of another stream
// with sequences of its own, and names the log's beside them.
func RepublishedRevision(m *nats.Msg) (Revision, error) {
	source := strings.Fields(m.Header.Get(headerStreamSource))
	if len(source) >= 2 {
		rev, err := parseNumber(nats.Header{headerStreamSource: {source[1]}}, headerStreamSource, 64)
		return Revision(rev), err
	}
	rev, err := parseNumber(m.Header, headerSequence, 64)
	return Revision(rev), err
}
