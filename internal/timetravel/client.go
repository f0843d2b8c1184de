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

// Client talks to one API server, about now and about its past. It is for one goroutine, except for its sides.
type Client struct {
	// Namespace is from the command line, or from the kubeconfig.
	Namespace string
	// Notes receives what each moment was taken to mean. It may be nil.
	Notes io.Writer

	said   map[string]bool
	config *rest.Config
	sides  map[string]*sides.Side
}

// NewClient makes a client. It sends no request.
func NewClient(config *rest.Config, namespace string) *Client {
	config = rest.CopyConfig(config)
	config.QPS = -1 // the server itself limits requests
	return &Client{Namespace: namespace, config: config, sides: map[string]*sides.Side{}, said: map[string]bool{}}
}

// at returns the side of a revision; the empty revision means now.
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

// pin returns the revision of a moment, so that all reads of the moment are one cut. It also notes what the moment was
// taken to mean. Days and times of day are in this machine's zone. Ages are counted from the server's clock.
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

// say notes, once, what a moment was taken to mean.
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

// errNoPast is the error if the server is not Logplane, or a proxy before it does not pass on paths of the past.
var errNoPast = errors.New("this API server keeps no past: is it Logplane, and not an older one?")

// versions returns versions of an object, newest first, until there are enough of them.
func (c *Client) versions(ctx context.Context, object string, query url.Values, enough func([]history.Version) bool) (*history.VersionList, error) {
	now, err := c.at("")
	if err != nil {
		return nil, err
	}
	list, err := now.Versions(ctx, c.Namespace, object, query, enough)
	if err == nil && len(list.Items) == 0 {
		err = fmt.Errorf("no version of '%s' is kept in namespace '%s': are the name and --namespace right?", object, c.Namespace)
	}
	return list, err
}

// changes returns the changes, oldest first. No namespace means the whole cluster.
func (c *Client) changes(ctx context.Context, namespace string, which fields.Set, labels string) (*history.ChangeList, error) {
	now, err := c.at("")
	if err != nil {
		return nil, err
	}
	return now.Changes(ctx, namespace, which, labels)
}
