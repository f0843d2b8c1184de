package apiserver

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/internal/kubestore/kubestoretest"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// minute is a scaled-down minute of log time. The log keeps events for 10 such minutes, and a revision can be read for
// 60 such minutes.
const minute = 60 * time.Millisecond

// TestPagesOfASelectedNamespace: if a list of all namespaces selects one namespace, the pages of the list contain each
// object of that namespace once. Upstream requests the first page in another way than the later pages.
func TestPagesOfASelectedNamespace(t *testing.T) {
	s := newServer(t)
	for _, namespace := range []string{"aaa", "mmm", "zzz"} {
		s.must(t, 201, request{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"` + namespace + `"}}`})
		for _, name := range []string{"a1", "a2", "m1", "m2", "z1", "z2"} {
			s.must(t, 201, request{method: "POST", path: "/api/v1/namespaces/" + namespace + "/configmaps", body: `{"metadata":{"name":"` + name + `"}}`})
		}
	}
	for _, namespace := range []string{"aaa", "mmm", "zzz"} {
		for limit := 1; limit < 8; limit++ {
			var got []string
			for token := ""; ; {
				a := s.must(t, 200, request{method: "GET", path: fmt.Sprintf("/api/v1/configmaps?fieldSelector=metadata.namespace%%3D%s&limit=%d&continue=%s", namespace, limit, token)}).object(t)
				items, _ := fieldOf(a, "items").([]any)
				for _, item := range items {
					require.Equal(t, namespace, fieldOf(item.(map[string]any), "metadata.namespace"))
					got = append(got, fieldOf(item.(map[string]any), "metadata.name").(string))
				}
				if token, _ = fieldOf(a, "metadata.continue").(string); token == "" {
					break
				}
			}
			require.Equal(t, []string{"a1", "a2", "m1", "m2", "z1", "z2"}, got)
		}
	}
}

// A list that began nine minutes ago continues at exactly its revision, on another process. Meanwhile objects are
// written, deleted and created again, rows are compacted, and garbage is collected. The list still continues half an
// hour later, when its events have left the log. Below the floor, the answer is 410 with a token that continues at the
// newest revision.
func TestContinueAfterNineMinutes(t *testing.T) {
	if testing.Short() {
		t.Skip("thousands of objects")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	log, bucket := eventlogtest.Log(t), memory.New()
	process := func() kubestore.Cell {
		return kubestoretest.Cell(t, projection.Config{Log: log, Bucket: bucket, InlineBytes: 2000,
			LogRetention: 10 * minute, Retention: 60 * minute})
	}
	projector := process().Projection
	one := newServer(t, func(c *Config) { c.Cell = process() })
	other, err := New(Config{Cell: process()})
	require.NoError(t, err)

	const collection = "/api/v1/namespaces/default/configmaps"
	state, n := map[string]string{}, 0
	names := func(i int) string { return fmt.Sprintf("c%02d", i) }
	write := func(name string) { // creates, updates or deletes
		n++
		body := fmt.Sprintf(`{"metadata":{"name":%q},"data":{"n":"%d"}}`, name, n)
		r := request{method: "PUT", path: collection + "/" + name, body: body}
		switch _, exists := state[name]; {
		case !exists:
			r = request{method: "POST", path: collection, body: body}
		case n%3 == 0:
			r = request{method: "DELETE", path: collection + "/" + name}
		}
		a := r.do(t, one)
		require.Less(t, a.code, 300, a.body)
		delete(state, name)
		if r.method != "DELETE" {
			state[name] = fmt.Sprintf("%d@%v", n, fieldOf(a.object(t), "metadata.resourceVersion"))
		}
	}
	churn := func(until func() bool) {
		for !until() {
			for range 5 {
				write(names(rand.IntN(50)))
			}
			_, err := projector.Commit(ctx)
			require.NoError(t, err)
			_, err = projector.Compact(ctx)
			require.NoError(t, err)
			_, err = projector.Collect(ctx, 0)
			require.NoError(t, err)
		}
	}
	for i := range 50 {
		n = 1
		write(names(i))
	}
	first := request{method: "GET", path: collection + "?limit=7"}.do(t, one)
	require.Equal(t, 200, first.code)
	issued, revision := time.Now(), fieldOf(first.object(t), "metadata.resourceVersion").(string)
	want := map[string]string{}
	for name, value := range state {
		want[name] = value
	}
	page := func(a answer, into map[string]string) (token string) {
		require.Equal(t, 200, a.code, a.body)
		require.Equal(t, revision, fieldOf(a.object(t), "metadata.resourceVersion"))
		items, _ := fieldOf(a.object(t), "items").([]any)
		for _, item := range items {
			object := item.(map[string]any)
			into[fieldOf(object, "metadata.name").(string)] = fmt.Sprintf("%v@%v", fieldOf(object, "data.n"), fieldOf(object, "metadata.resourceVersion"))
		}
		token, _ = fieldOf(a.object(t), "metadata.continue").(string)
		return token
	}
	goOn := func(token string) answer {
		return request{method: "GET", path: collection + "?limit=7&continue=" + token}.do(t, other)
	}
	for _, age := range []time.Duration{9 * minute, 30 * minute} {
		churn(func() bool { return time.Since(issued) > age })
		got := map[string]string{}
		for token := page(first, got); token != ""; {
			token = page(goOn(token), got)
		}
		require.Equal(t, want, got, "after %s", age)
	}
	at, err := strconv.ParseUint(revision, 10, 64)
	require.NoError(t, err)
	bounds, err := log.Head(ctx)
	require.NoError(t, err)
	require.Greater(t, uint64(bounds.First), at, "the log was purged")

	churn(func() bool { return uint64(projector.Current().Floor()) > at })
	token := page(first, map[string]string{})
	expired := goOn(token)
	require.Equal(t, 410, expired.code, expired.body)
	require.Equal(t, "Expired", fieldOf(expired.object(t), "reason"))
	inconsistent, _ := fieldOf(expired.object(t), "metadata.continue").(string)
	require.NotEmpty(t, inconsistent)
	rest := goOn(inconsistent)
	require.Equal(t, 200, rest.code)
	items := fieldOf(rest.object(t), "items").([]any)
	require.NotEmpty(t, items)
	for _, item := range items {
		object := item.(map[string]any)
		name := fieldOf(object, "metadata.name").(string)
		require.Equal(t, state[name], fmt.Sprintf("%v@%v", fieldOf(object, "data.n"), fieldOf(object, "metadata.resourceVersion")))
		require.Greater(t, name, names(6), "it goes on where the token was")
	}
}
