package eventlog

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// maxSubject is the longest subject, in bytes, that fits into the server's protocol line (4,096 bytes) together with a
// reply subject and the longer subject of the republished message.
const maxSubject = 3900

// markers stand for empty parts of a key, in the order of the subject. A part that has no marker is never empty. An
// escaped token never contains '%' followed by a lower-case letter, so no object's name can look like a marker.
var markers = [5]string{1: "%core", 3: "%cluster"}

// Key names one object. The subject of the object's events in the log (Subject) and the key of its rows in the
// projection (RowKey) are made from the Key. A subject can be parsed back into a Key, except for the Prefix, which is
// in the event's headers.
type Key struct {
	// Cluster is the logical cluster (tenant), 'main' by default. Never empty.
	Cluster string
	// Group is the API group, empty for the core group.
	Group string
	// Resource is the plural resource name, for example 'pods'.
	Resource string
	// Prefix is upstream's storage prefix of the resource, for example '/services/specs'. It starts with a slash and
	// does not end with one.
	Prefix string
	// Namespace is empty for cluster-scoped objects.
	Namespace string
	// Name is the object's name. Never empty.
	Name string
}

// Path is upstream's storage path: '/services/specs/ns/name', or '/minions/name' without a namespace.
func (k Key) Path() string {
	if k.Namespace == "" {
		return k.Prefix + "/" + k.Name
	}
	return k.Prefix + "/" + k.Namespace + "/" + k.Name
}

// RowKey is the key of the object's rows in the projection: the cluster and the storage path. Row keys compare
// bytewise, so that list order is path order in every process.
func (k Key) RowKey() string { return k.Cluster + k.Path() }

// Subject is '<prefix>.log.<cluster>.<group>.<resource>.<namespace>.<name>', each token escaped (format.md, events). It
// returns ErrKeyTooLong if the subject is longer than 3,900 bytes.
func (k Key) Subject(prefix string) (string, error) { return k.subject(prefix+".log", false) }

// anyPart is the part of a pattern whose token matches every value.
const anyPart = "*"

// subject appends the key's tokens to start. In a pattern it leaves anyPart as it is; otherwise it escapes anyPart too.
func (k Key) subject(start string, pattern bool) (string, error) {
	if k.Cluster == "" || k.Resource == "" || k.Name == "" {
		return "", fmt.Errorf("name the subject of key %+v: cluster, resource and name must not be empty", k)
	}
	var b strings.Builder
	b.Grow(len(start) + len(k.Cluster) + len(k.Group) + len(k.Resource) + len(k.Namespace) + len(k.Name) + 32)
	b.WriteString(start)
	for i, part := range [...]string{k.Cluster, k.Group, k.Resource, k.Namespace, k.Name} {
		b.WriteByte('.')
		switch {
		case part == "":
			b.WriteString(markers[i])
		case pattern && part == anyPart:
			b.WriteString(anyPart)
		default:
			escapeToken(&b, part)
		}
	}
	if b.Len() > maxSubject {
		return "", ErrKeyTooLong
	}
	return b.String(), nil
}

// parseSubject is the inverse of subject below '<prefix>.log'. It leaves the Key's Prefix empty, since the subject does
// not hold it. It accepts only subjects that the method subject can produce, so that one object has exactly one
// subject.
func parseSubject(prefix, subject string, pattern bool) (Key, error) {
	rest, ok := strings.CutPrefix(subject, prefix+".log.")
	if !ok {
		return Key{}, fmt.Errorf("parse subject %q: it is not below '%s.log'", subject, prefix)
	}
	if len(subject) > maxSubject {
		return Key{}, fmt.Errorf("parse subject: %w", ErrKeyTooLong)
	}
	parts := strings.Split(rest, ".")
	if len(parts) != len(markers) {
		return Key{}, fmt.Errorf("parse subject %q: it has %d tokens after the prefix, not 5", subject, len(parts))
	}
	for i, token := range parts {
		if pattern && token == anyPart {
			continue
		}
		var err error
		if parts[i], err = unescapeToken(token, markers[i]); err != nil {
			return Key{}, fmt.Errorf("parse subject %q: %w", subject, err)
		}
	}
	return Key{Cluster: parts[0], Group: parts[1], Resource: parts[2], Namespace: parts[3], Name: parts[4]}, nil
}

// escapeToken writes s as one literal token of a subject. Without the escaping the server would accept a bare '*' in a
// published subject, and later reads of that subject would match other objects.
func escapeToken(b *strings.Builder, s string) {
	for i := range len(s) {
		switch c := s[i]; {
		case c == '.':
			b.WriteByte('_')
		case mustEscape(rune(c)):
			fmt.Fprintf(b, "%%%02X", c)
		default:
			b.WriteByte(c)
		}
	}
}

func mustEscape(r rune) bool {
	return r <= ' ' || r == 0x7f || r == '_' || r == '*' || r == '>' || r == '%'
}

// unescapeToken accepts exactly the tokens that escapeToken writes, and the marker of an empty part.
func unescapeToken(token, marker string) (string, error) {
	switch {
	case token == "":
		return "", errors.New("it has an empty token")
	case token == marker:
		return "", nil
	case !strings.ContainsFunc(token, mustEscape):
		return token, nil
	}
	part, err := url.PathUnescape(strings.ReplaceAll(token, "_", "."))
	var written strings.Builder
	escapeToken(&written, part)
	if err != nil || written.String() != token {
		return "", fmt.Errorf("token %q is not escaped as the log's are", token)
	}
	return part, nil
}
