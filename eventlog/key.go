package eventlog

import (
	"fmt"
	"strings"
)

// maxSubject is the longest subject, in bytes, that fits into the server's protocol line (4,096 bytes) together with a
// reply subject and the longer republished form.
const maxSubject = 3900

// Markers stand for empty parts of a key. An escaped token never starts with a bare '%' followed by a lower-case
// letter, so no object can be named like one.
const (
	coreMarker    = "%core"
	clusterMarker = "%cluster"
	barrierMarker = "%barrier"
)

// Key names one object. From it come the subject of its events in the log (Subject) and the key of its rows in the
// projection (RowKey). The subject gives it back, but for the prefix, which the event carries.
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
// fails with ErrKeyTooLong over 3,900 bytes.
func (k Key) Subject(prefix string) (string, error) {
	return k.subject(prefix+".log.", escapeToken)
}

// subject joins what write makes of each part of the key.
func (k Key) subject(start string, write func(b *strings.Builder, part, empty string)) (string, error) {
	if k.Cluster == "" || k.Resource == "" || k.Name == "" {
		return "", fmt.Errorf("name the subject of key %+v: cluster, resource and name must not be empty", k)
	}
	var b strings.Builder
	b.Grow(len(start) + len(k.Cluster) + len(k.Group) + len(k.Resource) + len(k.Namespace) + len(k.Name) + 32)
	b.WriteString(start)
	write(&b, k.Cluster, "")
	b.WriteByte('.')
	write(&b, k.Group, coreMarker)
	b.WriteByte('.')
	write(&b, k.Resource, "")
	b.WriteByte('.')
	write(&b, k.Namespace, clusterMarker)
	b.WriteByte('.')
	write(&b, k.Name, "")
	if b.Len() > maxSubject {
		return "", ErrKeyTooLong
	}
	return b.String(), nil
}

// parseSubject is the inverse of subject below '<prefix>.log.'; read is that of write. The Key's Prefix is left empty,
// as the subject does not hold it. Only what subject can produce is accepted, so that one object has exactly one
// subject.
func parseSubject(prefix, subject string, read func(token, empty string) (string, error)) (Key, error) {
	rest, ok := strings.CutPrefix(subject, prefix+".log.")
	if !ok {
		return Key{}, fmt.Errorf("parse subject %q: it is not below '%s.log'", subject, prefix)
	}
	if len(subject) > maxSubject {
		return Key{}, fmt.Errorf("parse subject: %w", ErrKeyTooLong)
	}
	tokens := strings.Split(rest, ".")
	if len(tokens) != 5 {
		return Key{}, fmt.Errorf("parse subject %q: it has %d tokens after the prefix, not 5", subject, len(tokens))
	}
	markers := [5]string{1: coreMarker, 3: clusterMarker}
	var parts [5]string
	for i, token := range tokens {
		part, err := read(token, markers[i])
		if err != nil {
			return Key{}, fmt.Errorf("parse subject %q: %w", subject, err)
		}
		parts[i] = part
	}
	return Key{Cluster: parts[0], Group: parts[1], Resource: parts[2], Namespace: parts[3], Name: parts[4]}, nil
}

const upperHex = "0123456789ABCDEF"

// escapeToken writes s as one literal token of a subject. The server would accept a bare '*' in a published subject,
// and later reads of that subject would match other objects.
func escapeToken(b *strings.Builder, s, empty string) {
	if s == "" {
		b.WriteString(empty)
		return
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case c == '.':
			b.WriteByte('_')
		case mustEscape(c):
			b.WriteByte('%')
			b.WriteByte(upperHex[c>>4])
			b.WriteByte(upperHex[c&15])
		default:
			b.WriteByte(c)
		}
	}
}

func mustEscape(c byte) bool {
	return c <= ' ' || c == 0x7f || c == '_' || c == '*' || c == '>' || c == '%'
}

// unescapeToken accepts exactly the tokens that escapeToken writes; empty is the marker that stands for the empty part,
// if the part may be empty.
func unescapeToken(token, empty string) (string, error) {
	if token == "" {
		return "", fmt.Errorf("it has an empty token")
	}
	if empty != "" && token == empty {
		return "", nil
	}
	if !strings.ContainsAny(token, "_%") && !strings.ContainsFunc(token, func(r rune) bool { return r < 0x80 && mustEscape(byte(r)) }) {
		return token, nil
	}
	part := make([]byte, 0, len(token))
	for i := 0; i < len(token); i++ {
		c := token[i]
		switch {
		case c == '_':
			part = append(part, '.')
		case c == '%':
			decoded, ok := unescapeByte(token[i:])
			if !ok {
				return "", fmt.Errorf("token %q has a wrong escape at byte %d", token, i)
			}
			part = append(part, decoded)
			i += 2
		case mustEscape(c):
			return "", fmt.Errorf("token %q has an unescaped byte %#02x", token, c)
		default:
			part = append(part, c)
		}
	}
	return string(part), nil
}

// unescapeByte decodes '%XX' at the start of s and refuses escapes of bytes that need none.
func unescapeByte(s string) (byte, bool) {
	if len(s) < 3 {
		return 0, false
	}
	high, low := strings.IndexByte(upperHex, s[1]), strings.IndexByte(upperHex, s[2])
	if high < 0 || low < 0 {
		return 0, false
	}
	c := byte(high<<4 | low)
	return c, mustEscape(c)
}
