package timetravel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/logplane/logplane/internal/apiserver/history"
	"github.com/logplane/logplane/internal/moment"
	"github.com/logplane/logplane/internal/sides"
)

// Client speaks to one API server, now and in its past. It is for one goroutine, except for its sides.
type Client struct {
	// Namespace is that of the command line, or of the kubeconfig.
	Namespace string
	// Notes is told what moments were taken for; nobody is if it is nil.
	Notes io.Writer

	said   map[string]bool
	config *rest.Config
	sides  map[string]*sides.Side
}

// NewClient makes a client. Nothing is asked yet.
func NewClient(config *rest.Config, namespace string) *Client {
	config = rest.CopyConfig(config)
	config.QPS = -1 // the server says when it is too much
	return &Client{Namespace: namespace, config: config, sides: map[string]*sides.Side{}, said: map[string]bool{}}
}

// at returns the side of a revision; that of "" is now.
func (c *Client) at(revision string) (*sides.Side, error) {
	if s, ok := c.sides[revision]; ok {
		return s, nil
	}
	s, err := sides.At(c.config, revision)
	if err == nil {
		c.sides[revision] = s
	}
	return s, err
}

// pin returns the revision that a moment names, so that all that is read of it is one cut, and says what the moment was
// taken for. Days and clocks are in this machine's zone; ages are counted from the server's clock.
func (c *Client) pin(ctx context.Context, text string) (string, error) {
	m, err := moment.Parse(text, time.Now())
	if err != nil {
		return "", err
	}
	base, _, err := rest.DefaultServerUrlFor(c.config)
	if err != nil {
		return "", err
	}
	client, err := rest.HTTPClientFor(c.config)
	if err != nil {
		return "", err
	}
	path := strings.TrimSuffix(base.String(), "/") + "/at/" + url.PathEscape(m.Text) + "/version"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, path, nil)
	if err != nil {
		return "", err
	}
	answer, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	if err != nil {
		return "", err
	}
	if answer.StatusCode == http.StatusNotFound {
		return "", errNoPast
	}
	if answer.StatusCode != http.StatusOK {
		status := metav1.Status{}
		if json.Unmarshal(body, &status) == nil && status.Status == metav1.StatusFailure {
			return "", &apierrors.StatusError{ErrStatus: status}
		}
		return "", apierrors.NewGenericServerResponse(answer.StatusCode, "GET", schema.GroupResource{}, "", "", 0, true)
	}
	revision := answer.Header.Get("Logplane-Revision")
	if _, err := strconv.ParseUint(revision, 10, 64); err != nil {
		return "", errNoPast
	}
	c.say(text, m, revision, answer.Header.Get("Logplane-Time"))
	return revision, nil
}

// say tells what a moment was taken for, once.
func (c *Client) say(text string, m moment.Moment, revision, written string) {
	if c.Notes == nil || c.said[text] {
		return
	}
	c.said[text] = true
	asked := ""
	if m.Revision == 0 {
		asked = m.Time.Local().Format(momentLayout) + ", which is "
	}
	at := ""
	if t, err := time.Parse(time.RFC3339, written); err == nil {
		at = " of " + t.Local().Format(momentLayout)
	}
	fmt.Fprintf(c.Notes, "'%s' is taken for %srevision %s%s\n", text, asked, revision, at)
}

// momentLayout is a time with its day of the week and its zone.
const momentLayout = "Mon 2006-01-02 15:04:05 -0700"

// errNoPast is what another API server, or a proxy before this one, amounts to.
var errNoPast = errors.New("this API server keeps no past: is it Logplane, and not an older one?")

// newestVersion returns the newest version of an object, and the revision at which it is that.
func (c *Client) newestVersion(ctx context.Context, object string, content bool) (history.Version, string, error) {
	query := url.Values{"limit": {"1"}}
	if content {
		query.Set("include", "object")
	}
	list, err := c.listVersions(ctx, object, c.Namespace, query)
	if err == nil && len(list.Items) == 0 {
		err = c.noVersions(object)
	}
	if err != nil {
		return history.Version{}, "", err
	}
	return list.Items[0], list.ResourceVersion, nil
}

func (c *Client) noVersions(object string) error {
	return fmt.Errorf("no version of '%s' is kept in namespace '%s': are the name and --namespace right?", object, c.Namespace)
}

// versions returns all versions of an object that are kept, newest first.
func (c *Client) versions(ctx context.Context, object, namespace string) (*history.VersionList, error) {
	return c.readVersions(ctx, object, namespace, url.Values{}, func([]history.Version) bool { return false })
}

// contents returns versions of an object with what the object was, newest first, until there are enough of them. An
// object that is written every second has more than one wants to read.
func (c *Client) contents(ctx context.Context, object, namespace string, enough func([]history.Version) bool) ([]history.Version, error) {
	list, err := c.readVersions(ctx, object, namespace, url.Values{"include": {"object"}, "limit": {"50"}}, enough)
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

func (c *Client) readVersions(ctx context.Context, object, namespace string, query url.Values, enough func([]history.Version) bool) (*history.VersionList, error) {
	all := &history.VersionList{}
	for {
		page, err := c.listVersions(ctx, object, namespace, query)
		if err != nil {
			return nil, err
		}
		if all.ResourceVersion == "" {
			all.TypeMeta, all.ListMeta = page.TypeMeta, metav1.ListMeta{ResourceVersion: page.ResourceVersion}
		}
		all.Items = append(all.Items, page.Items...)
		if page.Continue == "" || enough(all.Items) {
			break
		}
		query.Set("continue", page.Continue)
	}
	if len(all.Items) == 0 {
		return nil, c.noVersions(object)
	}
	return all, nil
}

func (c *Client) listVersions(ctx context.Context, object, namespace string, query url.Values) (*history.VersionList, error) {
	query.Set("fieldSelector", fields.Set{"object": object}.AsSelector().String())
	list := &history.VersionList{}
	return list, c.history(ctx, namespace, "versions", query, list)
}

// changes returns what has changed, oldest first. No namespace means the whole cluster.
func (c *Client) changes(ctx context.Context, namespace string, which fields.Set, labels string) (*history.ChangeList, error) {
	query := url.Values{"fieldSelector": {which.AsSelector().String()}}
	if labels != "" {
		query.Set("labelSelector", labels)
	}
	all := &history.ChangeList{}
	for {
		page := &history.ChangeList{}
		if err := c.history(ctx, namespace, "changes", query, page); err != nil {
			return nil, err
		}
		if all.ResourceVersion == "" {
			all.ResourceVersion = page.ResourceVersion
			if which["to"] == "" { // the other pages end where the first one does
				which["to"] = page.ResourceVersion
				query.Set("fieldSelector", which.AsSelector().String())
			}
		}
		all.Items = append(all.Items, page.Items...)
		if page.Continue == "" {
			return all, nil
		}
		query.Set("continue", page.Continue)
	}
}

func (c *Client) history(ctx context.Context, namespace, resource string, query url.Values, into any) error {
	now, err := c.at("")
	if err != nil {
		return err
	}
	path := "/apis/" + history.GroupVersion.String()
	if namespace != "" {
		path += "/namespaces/" + url.PathEscape(namespace)
	}
	err = now.Read(ctx, path+"/"+resource, query, into)
	if apierrors.IsNotFound(err) && strings.Contains(err.Error(), "the server could not find the requested resource") {
		return errNoPast
	}
	return err
}
