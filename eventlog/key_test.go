package eventlog_test

import (
	"strings"
	"testing"

	"github.com/logplane/logplane/eventlog"
)

func TestSubject(t *testing.T) {
	for _, c := range []struct {
		key     eventlog.Key
		subject string
	}{
		{pod("web-0"), "p.log.main.%core.pods.default.web-0"},
		{eventlog.Key{Cluster: "main", Resource: "nodes", Name: "n.example"}, "p.log.main.%core.nodes.%cluster.n_example"},
		{eventlog.Key{Cluster: "a.b", Group: "rbac.authorization.k8s.io", Resource: "clusterroles", Name: "system:*>% _\x7f\x00é"},
			"p.log.a_b.rbac_authorization_k8s_io.clusterroles.%cluster.system:%2A%3E%25%20%5F%7F%00é"},
	} {
		got, err := c.key.Subject("p")
		if err != nil || got != c.subject {
			t.Errorf("%+v: got %q, %v", c.key, got, err)
		}
		back, err := eventlog.ParseSubject("p", got)
		c.key.Prefix = ""
		if err != nil || back != c.key {
			t.Errorf("%q: got %+v, %v", got, back, err)
		}
	}
}

func TestSubjectTooLong(t *testing.T) {
	key := pod(strings.Repeat("x", 3900))
	if _, err := key.Subject("p"); err != eventlog.ErrKeyTooLong {
		t.Errorf("got %v", err)
	}
}

func FuzzSubject(f *testing.F) {
	f.Add("main", "", "pods", "default", "web-0")
	f.Add("main", "rbac.authorization.k8s.io", "clusterroles", "", "system:*.>_%")
	f.Add("m", "%core", "%2A", "%cluster", "\x00\xff")
	f.Fuzz(func(t *testing.T, cluster, group, resource, namespace, name string) {
		key := eventlog.Key{Cluster: cluster, Group: group, Resource: resource, Namespace: namespace, Name: name}
		subject, err := key.Subject("p")
		if err != nil {
			return
		}
		if strings.ContainsAny(subject, "*> \t\r\n\x00") || strings.Count(subject, ".") != 6 || strings.Contains(subject, "..") {
			t.Fatalf("%+v: %q is not one literal subject", key, subject)
		}
		back, err := eventlog.ParseSubject("p", subject)
		if err != nil || back != key {
			t.Fatalf("%q: got %+v, %v; want %+v", subject, back, err, key)
		}
	})
}

func FuzzParseSubject(f *testing.F) {
	f.Add("p.log.main.%core.pods.default.web-0")
	f.Add("p.log.a_b.%2A.%5F.%cluster._")
	f.Add("p.log.%barrier")
	f.Fuzz(func(t *testing.T, subject string) {
		key, err := eventlog.ParseSubject("p", subject)
		if err != nil {
			return
		}
		back, err := key.Subject("p")
		if err != nil || back != subject {
			t.Fatalf("%q is %+v, which is %q (%v)", subject, key, back, err)
		}
	})
}
