package subscribe

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/subscribe"
)

// from makes a subscriber begin at a position, and practically never check the API by itself.
func from(from string) func(*subscribe.Config) {
	return func(c *subscribe.Config) { c.From, c.Check = from, time.Hour }
}

// TestRunWaitsWithoutAWatch: without a revision, the state comes first, and then the changes. After the changes the
// subscriber only waits for announcements: no watch is open, and the next announcement wakes it.
func TestRunWaitsWithoutAWatch(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits")
	}
	t.Parallel()
	c := newCell(t)
	b, a := c.put("ours", "b", "1"), c.put("ours", "a", "1")
	c.put("theirs", "a", "1")
	s := c.subscribe(from(""))
	require.Empty(t, s.expect(a, b), "there is no going on from within the state")
	s.expect(c.put("ours", "a", "2"))
	for _, value := range []string{"3", "4"} {
		c.unwatched()
		c.put("theirs", "a", value)
		s.expect(c.put("ours", "a", value))
	}
	s.expect(c.remove("ours", "a"))
	require.ErrorIs(t, s.stop(), context.Canceled)
}

// TestRunResumes: a run from an event's From continues right after that event.
func TestRunResumes(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	c.put("ours", "before", "")
	s := c.subscribe(from(subscribe.Now), func(c *subscribe.Config) { c.Bookmarks = true })
	s.expect(told(watch.Bookmark, "", "", c.head()))
	var lines []string
	for i := range 3 {
		c.put("ours", "a", fmt.Sprint(i))
	}
	first := s.next()
	require.NotEmpty(t, first.From)
	require.ErrorIs(t, s.stop(), context.Canceled)

	lines = append(lines, c.remove("ours", "a"))
	for i := range 3 {
		lines = append(lines, c.put("ours", fmt.Sprint("n", i), ""))
	}
	s = c.subscribe(from(first.From), func(c *subscribe.Config) { c.Bookmarks = true })
	for range 2 { // the changes that the first subscriber did not get
		s.next()
	}
	s.expect(lines...)
	c.put("theirs", "a", "moves the head on")
	e := s.next()
	require.Equal(t, watch.Bookmark, e.Type)
	require.Equal(t, e.Revision, e.From)
}

// TestRunIsExact: whatever happens to announcements, every change comes once, in order. This holds for a subscriber
// whose connection breaks, even if the subscriber never checks the API by itself. If changes are never announced, the
// same holds for a subscriber that checks from time to time.
func TestRunIsExact(t *testing.T) {
	if testing.Short() {
		t.Skip("it breaks connections for seconds")
	}
	t.Parallel()
	t.Run("connections break", func(t *testing.T) {
		exact(t, time.Hour, func(c *cell, link *eventlogtest.Link, n int) {
			switch n {
			case 0:
				link.Cut()
			case 1, 2, last:
				link.Resume()
			}
		})
	})
	t.Run("announcements are lost", func(t *testing.T) {
		exact(t, 300*time.Millisecond, func(c *cell, _ *eventlogtest.Link, n int) {
			switch n {
			case last: // this change is never announced, and no watch is open by chance
				c.unwatched()
				c.announce(false)
			case 0, 1:
				c.announce(false)
			case 2, 3:
				c.announce(true)
			}
		})
	})
}

// last is the trouble before the last change.
const last = -1

func exact(t *testing.T, check time.Duration, trouble func(c *cell, link *eventlogtest.Link, n int)) {
	c := newCell(t)
	conn, link := eventlogtest.ConnectThrough(t, c.nats)
	s := c.subscribe(from(c.head()), func(config *subscribe.Config) { config.Conn, config.Check = conn, check })
	random := rand.New(rand.NewPCG(1, 6))
	const changes = 120
	lines := make(chan string, changes+1)
	go func() {
		defer close(lines)
		exists := map[string]bool{}
		for i := range changes {
			name := fmt.Sprint("o", random.IntN(5))
			if exists[name] && random.IntN(4) == 0 {
				lines <- c.remove("ours", name)
				exists[name] = false
			} else {
				lines <- c.put("ours", name, fmt.Sprint(i))
				exists[name] = true
			}
			c.put("theirs", name, fmt.Sprint(i))
			trouble(c, link, random.IntN(12))
		}
		trouble(c, link, last)
		lines <- c.put("ours", "last", "")
	}()
	for line := range lines {
		s.expect(line)
	}
}

// TestRunWithoutNATS: while NATS cannot be reached, the subscriber opens one watch after another.
func TestRunWithoutNATS(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits")
	}
	t.Parallel()
	c := newCell(t)
	conn, link := eventlogtest.ConnectThrough(t, c.nats)
	s := c.subscribe(from(c.head()), func(config *subscribe.Config) { config.Conn = conn })
	s.expect(c.put("ours", "a", "1"))
	link.Cut()
	s.expect(c.put("ours", "a", "2"), c.put("ours", "a", "3"))
	eventlogtest.Eventually(t, "the connection is down", func() bool { return !conn.IsConnected() })
	begun := c.requests.begun()
	eventlogtest.Eventually(t, "one watch follows the other", func() bool { return c.requests.begun() >= begun+2 })
	s.expect(c.put("ours", "a", "4"))
	link.Resume()
	c.unwatched()
	s.expect(c.put("ours", "a", "5"))
	conn.Close()
	require.ErrorIs(t, s.fails(), nats.ErrConnectionClosed)
}

// TestRunNeedsRights: if a subscriber has no right to watch or to subscribe, its run ends with the error Forbidden.
func TestRunNeedsRights(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	reader := rest.CopyConfig(c.rest)
	reader.Impersonate.UserName = "reader"
	asReader := func(c *subscribe.Config) { c.REST = reader }
	require.True(t, apierrors.IsForbidden(c.subscribe(from(subscribe.Now), asReader).fails()))

	ctx := t.Context()
	_, err := c.client.RbacV1().Roles("ours").Create(ctx, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "list", "watch"}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = c.client.RbacV1().RoleBindings("ours").Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		RoleRef:    rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: "reader"},
		Subjects:   []rbacv1.Subject{{APIGroup: "rbac.authorization.k8s.io", Kind: "User", Name: "reader"}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	c.subscribe(from(c.head()), asReader).expect(c.put("ours", "a", "1"))
	theirs := func(c *subscribe.Config) { c.Namespace = "theirs" }
	require.True(t, apierrors.IsForbidden(c.subscribe(from(c.head()), asReader, theirs).fails()))
}

// TestRunRefuses: Run refuses a resource or a position to which it cannot subscribe, and says why.
func TestRunRefuses(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	everywhere := func(c *subscribe.Config) { c.Namespace, c.Resource.Resource = "", "widgets" }
	require.ErrorContains(t, c.subscribe(everywhere).fails(), "the API has no such resource in v1")
	require.ErrorContains(t, c.subscribe(from("yesterday")).fails(), "From is 'yesterday'")
	require.True(t, apierrors.IsNotFound(c.subscribe(func(c *subscribe.Config) { c.Resource.Resource = "widgets" }).fails()))
}

// TestHandlerFails: an error of the handler ends the run, and the handler's event comes again in the next run.
func TestHandlerFails(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	start := c.head()
	line := c.put("ours", "a", "1")
	broken := errors.New("broken")
	config := subscribe.Config{Conn: c.conn, REST: c.rest, Resource: configMaps, Namespace: "ours", From: start}
	require.Equal(t, broken, subscribe.Run(t.Context(), config, func(context.Context, subscribe.Event) error { return broken }))
	c.subscribe(from(start)).expect(line)
}

// TestRunScopes: a run may have one of these scopes: a resource without namespaces, all namespaces, selectors, or
// metadata only.
func TestRunScopes(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	start := c.head()
	everywhere := func(c *subscribe.Config) { c.Namespace = "" }
	all := c.subscribe(from(start), everywhere)
	named := c.subscribe(from(start), everywhere, func(c *subscribe.Config) { c.FieldSelector, c.MetadataOnly = "metadata.name=b", true })
	namespaces := c.subscribe(from(start), everywhere, func(c *subscribe.Config) { c.Resource.Resource = "namespaces" })
	a, b := c.put("ours", "a", "1"), c.put("theirs", "b", "1")
	all.expect(a, b)
	e := named.next()
	require.Equal(t, b, told(e.Type, e.Namespace, e.Name, e.Revision))
	require.NotContains(t, string(e.Body), `"data"`)
	o, err := c.client.CoreV1().Namespaces().Get(t.Context(), "ours", metav1.GetOptions{})
	require.NoError(t, err)
	o.Labels["changed"] = "yes"
	o, err = c.client.CoreV1().Namespaces().Update(t.Context(), o, metav1.UpdateOptions{})
	require.NoError(t, err)
	namespaces.expect(told(watch.Modified, "", "ours", o.ResourceVersion))
}

// TestSubscriberAfterAnHour: a subscriber that was away for an hour gets all changes, once and in order, although the
// log no longer has most of these changes. A subscriber that was away for longer than the retention learns that its
// position has expired. Time is simulated: a write stands for ten seconds. Every minute, events that are older than the
// log's retention of ten minutes leave the log, and versions that are older than the cell's retention of an hour are
// forgotten.
func TestSubscriberAfterAnHour(t *testing.T) {
	if testing.Short() {
		t.Skip("hundreds of writes")
	}
	t.Parallel()
	const minute, logRetention, retention = 6, 10, 60
	c := newCell(t)
	s := c.subscribe(from(c.head()))
	left := s.expect(c.put("ours", "seen", ""))
	require.ErrorIs(t, s.stop(), context.Canceled)

	var lines []string
	var ends []projection.Revision // the last revision of each minute
	pass := func(minutes int) {
		for range minutes {
			for i := range minute {
				lines = append(lines, c.put("ours", fmt.Sprint("o", i), fmt.Sprint(len(lines))))
			}
			applied, err := c.projection.Commit(t.Context())
			require.NoError(t, err)
			ends = append(ends, applied)
			require.NoError(t, c.projection.Retain(t.Context(), before(ends, retention), before(ends, logRetention)))
		}
	}
	pass(retention)
	extent, err := c.log.Extent(t.Context())
	require.NoError(t, err)
	require.Greater(t, extent.First, ends[retention-logRetention-2], "the log has lost what the subscriber missed")
	c.stop()
	c.serve() // the new process has nothing in memory
	s = c.subscribe(from(left))
	s.expect(lines...)
	s.expect(c.put("ours", "live", ""))
	pass(2)
	require.ErrorIs(t, c.subscribe(from(left)).fails(), subscribe.ErrExpired)
}

// before returns the last revision of the given number of minutes ago, 0 if there is no such revision.
func before(ends []projection.Revision, minutes int) projection.Revision {
	if len(ends) <= minutes {
		return 0
	}
	return ends[len(ends)-1-minutes]
}
