package subscribe

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The subjects are the subjects of docs/format.md.
func TestAnnouncements(t *testing.T) {
	for want, c := range map[string]Config{
		"p.events.main.%core.configmaps.ours.*":             {Resource: configMaps, Namespace: "ours"},
		"p.events.main.%core.configmaps.*.*":                {Resource: configMaps},
		"p.events.other.networking_k8s_io.ingresses.a%5F.*": {Cluster: "other", Namespace: "a_", Resource: schema.GroupVersionResource{Group: "networking.k8s.io", Resource: "ingresses"}},
		"p.events.main.%core.configmaps.%2A%3E%25.*":        {Resource: configMaps, Namespace: "*>%"},
	} {
		c.Prefix = "p"
		subject, err := announcements(c.withDefaults(), true)
		require.NoError(t, err)
		require.Equal(t, want, subject)
	}
	subject, err := announcements(Config{Prefix: "p", Resource: schema.GroupVersionResource{Resource: "nodes"}}.withDefaults(), false)
	require.NoError(t, err)
	require.Equal(t, "p.events.main.%core.nodes.%cluster.*", subject)
	_, err = announcements(Config{Prefix: "p"}.withDefaults(), false)
	require.Error(t, err)
}

// A message that is not an event gives an error that names the subject.
func TestParseRefuses(t *testing.T) {
	good := func() nats.Header {
		return nats.Header{
			headerType: {"dev.logplane.object.added"}, headerSequence: {"7"}, headerStored: {"logplane.log.main.%core.configmaps.ours.a"},
		}
	}
	_, err := Parse("logplane", &nats.Msg{Subject: "s", Header: good()})
	require.NoError(t, err)
	for name, wrong := range map[string]string{
		headerType: "dev.logplane.barrier", headerSequence: "-1", headerStored: "logplane.log.%barrier", headerStreamSource: "logplane x",
	} {
		h := good()
		h.Set(name, wrong)
		_, err := Parse("logplane", &nats.Msg{Subject: "s", Header: h})
		require.ErrorContains(t, err, "parse the message on 's'", name)
	}
	h := good()
	h.Set(headerStored, "logplane.log.main.%core.configmaps.ours.%zz")
	_, err = Parse("logplane", &nats.Msg{Subject: "s", Header: h})
	require.ErrorContains(t, err, "invalid URL escape")
}
