package timetravel

import (
	"fmt"
	"strings"

	"github.com/logplane/logplane/internal/apiserver/history"
)

// ParseObject understands 'deploy/web' and 'deployment web'.
func ParseObject(args []string) (string, error) {
	object := strings.Join(args, "/")
	if strings.Count(object, "/") != 1 || strings.HasPrefix(object, "/") || strings.HasSuffix(object, "/") {
		return "", fmt.Errorf("'%s' names no object: write KIND/NAME, such as deploy/web", strings.Join(args, " "))
	}
	return object, nil
}

func split(object string) (kind, name string) {
	kind, name, _ = strings.Cut(object, "/")
	return kind, name
}

// title names an object for a line: as one names it on the command line, with its namespace if that is another one.
func (c *Client) title(r history.Reference) string {
	if r.Namespace == "" || r.Namespace == c.Namespace {
		return r.String()
	}
	return r.String() + " -n " + r.Namespace
}
