package eventlog

import "slices"

// Subscribers see the messages that the server republishes (docs/subscribers.md).

// Allowed returns the subjects to which a subscriber may subscribe in order to see these namespaces of a cluster. With
// clusterScoped the subscriber also sees objects without a namespace; with bodies it also sees the messages that have
// bodies.
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

// Headers that the server adds to republished messages and to the answers to direct gets.
const (
	headerStored    = "Nats-Subject"
	headerSequence  = "Nats-Sequence"
	headerTimestamp = "Nats-Time-Stamp"
)
