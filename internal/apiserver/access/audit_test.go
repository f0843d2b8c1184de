package access

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/internal/apiserver/access/accesstest"
)

// TestAuditFlags: flags that do not fit together are refused, and the error names the flags to give.
func TestAuditFlags(t *testing.T) {
	for message, a := range map[string]Audit{
		"need --audit-policy-file": {LogPath: "-"},
		"needs --audit-log-path":   {PolicyFile: "p"},
		"'legacy', 'json'":         {PolicyFile: "p", LogPath: "-", LogFormat: "xml"},
		"--audit-webhook-mode is 'batch': it must be one of 'blocking', 'blocking-strict'": {PolicyFile: "p", WebhookConfigFile: "w", WebhookMode: "batch"},
	} {
		require.ErrorContains(t, a.Check(), message)
	}
	require.NoError(t, Audit{}.Check())
	for policy, refused := range map[string]bool{
		"omitStages: [RequestReceived]\nrules: [{level: Metadata}]":                                   true,
		"rules: [{level: None, omitStages: [RequestReceived]}, {level: Metadata}]":                    false,
		"rules: [{level: None, users: [a]}, {level: Metadata, omitStages: [Panic, RequestReceived]}]": true,
	} {
		path := filepath.Join(t.TempDir(), "policy.yaml")
		require.NoError(t, os.WriteFile(path, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\n"+policy), 0o600))
		log := filepath.Join(t.TempDir(), "log")
		_, _, err := Audit{PolicyFile: path, LogPath: log, LogMode: auditStrict}.Open()
		require.Equal(t, refused, err != nil && strings.Contains(err.Error(), "--audit-policy-file omits the stage RequestReceived"), "%s: %v", policy, err)
		_, _, err = Audit{PolicyFile: path, LogPath: log, WebhookMode: auditStrict}.Open() // without a webhook
		require.NoError(t, err)
	}
	for _, a := range []Audit{
		{PolicyFile: filepath.Join(t.TempDir(), "missing"), LogPath: "-"},
		{PolicyFile: accesstest.AuditPolicy(t), LogPath: t.TempDir()},
		{PolicyFile: accesstest.AuditPolicy(t), WebhookConfigFile: filepath.Join(t.TempDir(), "missing")},
	} {
		_, _, err := a.Open()
		require.Error(t, err)
	}
}
