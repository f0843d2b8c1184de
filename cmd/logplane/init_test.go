package main

import (
	"bytes"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog/eventlogtest"
)

// TestInitWithoutRights: 'init' says in one line what its user of the log's server lacks. The server has the users that
// 'permissions' prints.
func TestInitWithoutRights(t *testing.T) {
	var printed bytes.Buffer
	require.Zero(t, run(t.Context(), []string{"permissions", "--roles", "--namespace", "default"}, &printed, io.Discard))
	for _, user := range []string{"API", "WATCHER", "PROJECTOR", "LIFECYCLE", "OPERATOR", "SUBSCRIBER"} {
		t.Setenv(user+"_PASSWORD", "hush")
	}
	file := filepath.Join(t.TempDir(), "authorization.conf")
	require.NoError(t, os.WriteFile(file, printed.Bytes(), 0o600))
	configured, err := server.ProcessConfigFile(file)
	require.NoError(t, err)
	s := eventlogtest.Run(t, t.TempDir(), func(o *server.Options) { o.Users = configured.Users })
	bucket := "file://" + t.TempDir()
	initAs := func(user *url.Userinfo) []string {
		at := url.URL{Scheme: "nats", User: user, Host: s.Addr().String()}
		return []string{"init", "--nats", at.String(), "--bucket", bucket}
	}
	const lacks = "logplane: create log: stream 'logplane': this user of the server may not make the log, perhaps only subscribe to its events: " +
		"connect as the user 'operator' of 'logplane permissions --roles', or as one that may do all: nats: permissions violation"
	require.Contains(t, said(t, initAs(url.UserPassword("subscriber", "hush"))...), lacks)
	require.Contains(t, said(t, initAs(url.UserPassword("api", "hush"))...), lacks)
	for _, stranger := range []*url.Userinfo{nil, url.UserPassword("operator", "wrong"), url.UserPassword("me", "hush")} {
		require.Contains(t, said(t, initAs(stranger)...), "the server does not accept the user and password in --nats, or --nats-creds, or they are missing")
	}
	var failed bytes.Buffer
	require.Zero(t, run(t.Context(), initAs(url.UserPassword("operator", "hush")), io.Discard, &failed), failed.String())
	require.Contains(t, said(t, initAs(url.UserPassword("api", "hush"))...), "ask whose bodies are republished: this user of the server may not make the log")
}
