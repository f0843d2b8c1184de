package subscribe

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"k8s.io/apimachinery/pkg/watch"
)

// The subjects and headers of republished messages are a permanent format ("Events" of docs/format.md).

// Markers stand for empty parts of a subject.
const (
	noGroup     = "%core"
	noNamespace = "%cluster"
)

// Headers of a republished message. The server adds the headers that begin with Nats-.
const (
	headerType         = "ce-type"
	headerContentType  = "content-type"
	headerStored       = "Nats-Subject"
	headerSequence     = "Nats-Sequence"
	headerStreamSource = "Nats-Stream-Source"
)

var typeOfHeader = map[string]watch.EventType{
	"dev.logplane.object.added":    watch.Added,
	"dev.logplane.object.modified": watch.Modified,
	"dev.logplane.object.deleted":  watch.Deleted,
}

// announcements is the subject of the events of a resource. If the configuration has no namespace, the subject matches
// the events of all namespaces, or of all objects if the resource has no namespaces.
func announcements(c Config, namespaced bool) (string, error) {
	if c.Cluster == "" || c.Resource.Resource == "" {
		return "", errors.New("cluster and resource must not be empty")
	}
	namespace := token(c.Namespace, noNamespace)
	if namespaced && c.Namespace == "" {
		namespace = "*"
	}
	return strings.Join([]string{
		c.Prefix, "events", token(c.Cluster, ""), token(c.Resource.Group, noGroup), token(c.Resource.Resource, ""), namespace, "*",
	}, "."), nil
}

// token writes a part of a subject. Names in the API contain no characters that must be escaped except those in
// 'escapes', and nats.go refuses subjects with spaces.
func token(part, empty string) string {
	if part == "" {
		return empty
	}
	return escapes.Replace(part)
}

var escapes = strings.NewReplacer(".", "_", "_", "%5F", "*", "%2A", ">", "%3E", "%", "%25")

// object reads the namespace and the name of a message's object from the subject under which the log holds the message.
func object(prefix string, m *nats.Msg) (namespace, name string, err error) {
	subject := m.Header.Get(headerStored)
	rest, ok := strings.CutPrefix(subject, prefix+".log.")
	tokens := strings.Split(rest, ".")
	if !ok || len(tokens) != 5 {
		return "", "", fmt.Errorf("'%s' %q is not '%s.log.<cluster>.<group>.<resource>.<namespace>.<name>'", headerStored, subject, prefix)
	}
	if tokens[3] != noNamespace {
		namespace, err = unescape(tokens[3])
	}
	name, errName := unescape(tokens[4])
	if err = errors.Join(err, errName); err != nil {
		return "", "", fmt.Errorf("'%s' %q: %w", headerStored, subject, err)
	}
	return namespace, name, nil
}

func unescape(token string) (string, error) {
	return url.PathUnescape(strings.ReplaceAll(token, "_", "."))
}

// revision returns the revision of a republished message. A message with a body came through another stream with its
// own sequences. Such a message names the log's sequence in an extra header.
func revision(m *nats.Msg) (uint64, error) {
	text := m.Header.Get(headerSequence)
	if source := strings.Fields(m.Header.Get(headerStreamSource)); len(source) >= 2 {
		text = source[1]
	}
	rev, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read the revision of a message: '%s' is not a number", text)
	}
	return rev, nil
}
