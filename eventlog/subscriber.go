package eventlog

import "slices"

// Subscribers see what the server republishes: each event's headers on '<prefix>.events.…', and for the resources on a
// list also the body on '<prefix>.bodies.…' (SetBodies). Both are only live: the server republishes a stored event
// once, to the subscribers that are connected then. So a subscriber may miss an event. Programs that must see every
// event use the API.

// Allowed returns the subjects that a subscriber may subscribe to if it is to see these namespaces of a cluster. With
// clusterScoped it also sees objects without a namespace; with bodies it also sees the messages that have bodies.
func Allowed(prefix, cluster string, namespaces []string, clusterScoped, bodies bool) ([]string, error) {
	if clusterScoped {
		namespaces = append(slices.Clone(namespaces), "")
	}
	starts := []string{prefix + ".events"}
	if bodies {
		starts = append(starts, prefix+".bodies")
	}
	var subjects []string
	for _, namespace := range namespaces {
		for _, start := range starts {
			all := Key{Cluster: cluster, Group: anyPart, Resource: anyPart, Namespace: namespace, Name: anyPart}
			subject, err := all.subject(start, true)
			if err != nil {
				return nil, err
			}
			subjects = append(subjects, subject)
		}
	}
	return subjects, nil
}

// Headers that the server adds to what it republishes, and to what it answers a direct get with.
const (
	headerStored    = "Nats-Subject"
	headerSequence  = "Nats-Sequence"
	headerTimestamp = "Nats-Time-Stamp"
)
