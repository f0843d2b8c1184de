package hostile

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/logplane/logplane/test/product"
)

// TestPasswordsStayOutOfMessages: no message of a command holds a password that the command was given. On e14eff4
// messages hold the password for NATS, and the password in the URL of a bucket or a watcher.
func TestPasswordsStayOutOfMessages(t *testing.T) {
	bucket := "file://" + t.TempDir()
	for _, nats := range []string{
		"nats://me:hush@127.0.0.1:1", "nats://hush@127.0.0.1:1", "me:hush@127.0.0.1:1", "nats://me:hu#sh-hush@127.0.0.1:1", "nats://me:hush@127.0.0.1:1x",
		"nats://me:%hush@127.0.0.1:1", "nats://a:hush@127.0.0.1:1,nats://b:hush@127.0.0.1:2",
	} {
		for _, command := range [][]string{{"api"}, {"watcher"}, {"projector", "--once"}, {"lifecycle"}, {"init"}, {"events"}, {"inspect", "head"}, {"fence"}} {
			printed := outcome(t, append(command, "--nats", nats, "--bucket", bucket)...)
			require.NotContains(t, printed, "hush")
			require.Contains(t, printed, "127.0.0.1", "where it was is told")
			if testing.Short() {
				break
			}
		}
	}
	c := newCell(t)
	for _, where := range [][]string{
		{"--bucket", "s3://me:hush@bucket/prefix"}, {"--bucket", "s3://me:hush#@bucket"}, {"--bucket", "me:hush@bucket"}, {"--bucket", "ftp://me:hush@bucket"},
		{"--bucket", "s3://bucket", "--s3-endpoint", "http://me:hush@127.0.0.1:1"}, {"--bucket", "s3://bucket", "--s3-endpoint", "http://me:hush#@127.0.0.1:1"},
	} {
		printed := outcome(t, append(c.with("api"), where...)...)
		require.NotContains(t, printed, "hush")
		require.Contains(t, printed, where[len(where)-2], "which flag it was is told")
	}
}

// TestLogsHoldNoSecrets: the process's log holds no secrets, even at the level at which every request is logged. This
// held on e14eff4 too.
func TestLogsHoldNoSecrets(t *testing.T) {
	s := serve(t, "api", "--log-level", "debug")
	s.must(admin, http.MethodPost, "/api/v1/namespaces/default/secrets", `{"metadata":{"name":"a"},"stringData":{"a":"hush"}}`)
	s.do(admin, http.MethodPatch, "/api/v1/namespaces/default/secrets/a", "application/strategic-merge-patch+json", `{"stringData":{"a":"hush",}}`)
	s.do(admin, http.MethodPut, "/api/v1/namespaces/default/secrets/a", "application/json", `{"stringData":{"a":["hush"]}}`)
	require.Equal(t, http.StatusUnauthorized, s.do("hush", http.MethodGet, "/version", "", "").Code)
	s.must(admin, http.MethodPost, "/apis/authentication.k8s.io/v1/tokenreviews", `{"spec":{"token":"hush"}}`)
	require.Contains(t, s.Output(), "level=DEBUG")
	require.NotContains(t, s.Output(), "hush")
	require.NotContains(t, s.Output(), base64.StdEncoding.EncodeToString([]byte("hush")))
	require.NotContains(t, s.Output(), "Bearer")
}

// ugly is a tenant's text that a terminal would obey or hide: escapes of 7 and of 8 bits, a line of its own, text that
// runs backwards, and characters without width.
const ugly = "\x1b]0;owned\a\u009b31m\nDELETED\t\u202egnp.exe\u2066\u200b\u2028\U000e0001"

// harmless fails if the text has anything that a terminal would obey or hide, except for the ends of lines.
func harmless(t *testing.T, printed string) {
	t.Helper()
	for i, r := range printed {
		require.True(t, unicode.IsPrint(r) || r == '\n', "%U at %d of %q", r, i, printed)
	}
}

// TestWhatTenantsWriteIsEscaped: commands that print a cell's names, values and errors for an operator print nothing
// that a terminal would obey or hide. Documents keep their meaning. On e14eff4 'inspect' and 'events' print everything
// unchanged.
func TestWhatTenantsWriteIsEscaped(t *testing.T) {
	c := newCell(t)
	s := c.serve("api")
	client := s.clientFor(admin)
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "role" + ugly}}
	made, err := client.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Equal(t, role.Name, made.Name)
	note, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "note", Annotations: map[string]string{"note": ugly}}, Data: map[string]string{"note": ugly},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	s.do(admin, http.MethodGet, "/apis/rbac.authorization.k8s.io/v1/clusterroles/"+url.PathEscape(role.Name)+"/none", "", "")
	harmless(t, s.Output())

	inspect := func(args ...string) string {
		p := product.Run(t, c.with(append([]string{"inspect"}, args...)...)...)
		<-p.Exited
		harmless(t, p.Output())
		return p.Output()
	}
	require.Contains(t, inspect("history", "/clusterroles/"+role.Name), `/clusterroles/role\u001b]0;owned\u0007\u009b31m\u000aDELETED\u0009\u202egnp.exe`)
	require.Contains(t, inspect("history", "/clusterroles/gone"+ugly), "no version of '/clusterroles/gone")
	require.Contains(t, inspect("get", "/clusterroles/"+role.Name), `"name": "role\u001b]0;owned`)
	inspect("root")
	inspect("segments")
	inspect("fsck")
	document := inspect("get", "/configmaps/default/note")
	var read corev1.ConfigMap
	require.NoError(t, yaml.UnmarshalStrict([]byte(document), &read))
	require.Equal(t, note.Data, read.Data)
	require.Equal(t, note.Annotations, read.Annotations)

	for _, format := range []string{"", "json"} {
		events := product.Run(t, c.with("events", "--from", "1", "--output", format)...)
		require.Eventually(t, func() bool { return strings.Contains(events.Output(), "note") }, requestTimeout, 10*time.Millisecond)
		events.Stop()
		harmless(t, events.Output())
		require.Contains(t, events.Output(), `role\u001b]0;owned`)
		for _, line := range strings.Split(strings.TrimSpace(events.Output()), "\n") {
			if format == "json" && strings.Contains(line, "owned") {
				var e struct{ Name string }
				require.NoError(t, json.Unmarshal([]byte(line), &e))
				require.Equal(t, role.Name, e.Name)
			}
			require.False(t, strings.HasPrefix(line, "DELETED"), "a line that no event made: %s", line)
		}
	}
}
