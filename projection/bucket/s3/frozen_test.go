package s3

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/bucket"
)

// TestExpiredKeys: a role's keys are fetched again once the keys have expired, as after a freeze, and not earlier.
func TestExpiredKeys(t *testing.T) {
	var used []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, after, _ := strings.Cut(r.Header.Get("Authorization"), "Credential=")
		key, _, _ := strings.Cut(after, "/")
		used = append(used, key+" "+r.Header.Get("X-Amz-Security-Token"))
		w.Header().Set("ETag", `"e"`)
	}))
	defer server.Close()
	given := 0
	role := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		given++
		expires := time.Now().Add(-time.Second)
		if given > 1 {
			expires = time.Now().Add(time.Hour)
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"AccessKeyId":"key-%d","SecretAccessKey":"secret","Token":"session-%[1]d","Expiration":%q}`, given, expires.UTC().Format(time.RFC3339))
	}))
	defer role.Close()
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_CONFIG_FILE", "/dev/null")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", role.URL)
	b, err := Open(t.Context(), Config{Endpoint: server.URL, Bucket: "b", PathStyle: true})
	require.NoError(t, err)
	for range 3 {
		_, _, err := b.Get(t.Context(), "k")
		require.NoError(t, err)
	}
	b.Reconnect() // keeps the keys
	_, _, err = b.Get(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, []string{"key-1 session-1", "key-2 session-2", "key-2 session-2", "key-2 session-2"}, used)
	require.Equal(t, 2, given)
}

// TestReconnect: if the connections have died unnoticed, the next request after Reconnect makes a new connection.
func TestReconnect(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("ETag", `"e"`) }))
	defer server.Close()
	link := eventlogtest.NewLink(t)
	link.ToAddress(server.Listener.Addr().String())
	open := func() *Bucket {
		b, err := Open(t.Context(), Config{Endpoint: "http://" + link.Address(), Bucket: "b", AccessKey: "a", SecretKey: "s", PathStyle: true, RequestTimeout: time.Second})
		require.NoError(t, err)
		return b
	}
	get := func(b *Bucket) error { _, _, err := b.Get(t.Context(), "k"); return err }
	kept, renewed := open(), open()
	require.NoError(t, get(kept))
	require.NoError(t, get(renewed))
	link.Lose()
	require.Error(t, get(kept), "its connection is dead")
	bucket.Reconnect(bucket.Count(renewed))
	require.NoError(t, get(renewed))
}
