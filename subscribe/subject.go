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

// This is all that a subscriber knows of the log: the subjects and the headers of what the server
// republishes. They are a permanent format ("Events" of docs/format.md, docs/subscribers.md).

// Markers stand for empty parts of a subject.
const (
	noGroup     = "%core"
	noNamespace = "%cluster"
)

// Headers of a republished message. Those that begin with Nats- are the server's.
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

// announcements is the subject of the events of a resource. Without a namespace it is that of all namespaces, or of the
// objects that have none.
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

// token writes a part of a subject. What can be in a part, a name of the API, needs no other escapes; nats.go refuses a
// subject with spaces.
func token(part, empty string) string {
	if part == "" {
		return empty
	}
	return escapes.Replace(part)
}

var escapes = strings.NewReplacer(".", "_", "_", "%5F", "*", "%2A", ">", "%3E", "%", "%25")

// object reads which object a message is about, from the subject that the log holds it on.
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

// revision of a republished message. One that carries a body came by way of another stream with sequences of its own,
// and names the log's beside them.
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
