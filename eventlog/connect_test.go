package eventlog

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRedacted: no message contains a password, whatever characters the password has.
func TestRedacted(t *testing.T) {
	for url, shown := range map[string]string{
		"nats://127.0.0.1:4222":                      "nats://127.0.0.1:4222",
		"nats://a:4222,b:4222":                       "nats://a:4222,b:4222",
		"nats://me:hush@127.0.0.1:1":                 "nats://xxxxx@127.0.0.1:1",
		"tls://hush@127.0.0.1:1":                     "tls://xxxxx@127.0.0.1:1",
		"me:hush@127.0.0.1:1":                        "xxxxx@127.0.0.1:1",
		"nats://me:hu#sh@127.0.0.1:1":                "nats://xxxxx@127.0.0.1:1",
		"nats://me:hu/sh@hush@127.0.0.1:1":           "nats://xxxxx@127.0.0.1:1",
		"nats://me:hu,sh@127.0.0.1:1":                "nats://xxxxx@127.0.0.1:1",
		"nats://me:hush@127.0.0.1:1,nats://b:hush@c": "nats://xxxxx@c",
	} {
		require.Equal(t, shown, Servers{URL: url}.redacted())
	}
	for _, url := range []string{
		"nats://me:hush@127.0.0.1:1", "nats://me:hush@127.0.0.1:1x", "nats://me:hush#@127.0.0.1:1", "nats://hush:hush/@127.0.0.1:1", "nats://me:%hush@127.0.0.1:1",
	} {
		_, err := Connect(Servers{URL: url})
		require.ErrorContains(t, err, "connect to the log at 'nats://xxxxx@127.0.0.1:1")
		require.NotContains(t, err.Error(), "hush")
	}
}
