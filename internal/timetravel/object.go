package timetravel

import (
	"fmt"
	"strings"
)

// ParseObject parses 'deploy/web' and 'deployment web'.
func ParseObject(args []string) (string, error) {
	object := strings.Join(args, "/")
	if strings.Count(object, "/") != 1 || strings.HasPrefix(object, "/") || strings.HasSuffix(object, "/") {
		return "", fmt.Errorf("'%s' names no object: write KIND/NAME, such as deploy/web", strings.Join(args, " "))
	}
	return object, nil
}
