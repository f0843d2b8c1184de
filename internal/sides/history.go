package sides

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/logplane/logplane/internal/apiserver/history"
)

// Versions returns the versions of an object, newest first, until there are enough: an object that is written every
// second has more versions than anybody wants to read. If there are none, the error is NotFound.
func (s *Side) Versions(ctx context.Context, namespace, object string, query url.Values, enough func([]history.Version) bool) (*history.VersionList, error) {
	query.Set("fieldSelector", fields.Set{"object": object}.AsSelector().String())
	all := &history.VersionList{}
	for {
		page := &history.VersionList{}
		if err := s.history(ctx, namespace, "versions", query, page); err != nil {
			return nil, err
		}
		if all.ResourceVersion == "" {
			all.TypeMeta, all.ResourceVersion = page.TypeMeta, page.ResourceVersion
		}
		all.Items = append(all.Items, page.Items...)
		switch {
		case len(all.Items) > 0 && (page.Continue == "" || enough(all.Items)):
			return all, nil
		case page.Continue == "":
			return nil, &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound,
				Message: fmt.Sprintf("no version of '%s' is kept in namespace '%s': check the name and the namespace", object, namespace)}}
		}
		query.Set("continue", page.Continue)
	}
}

// Newest is Versions for only the newest version of an object.
func (s *Side) Newest(ctx context.Context, namespace, object string, query url.Values) (*history.VersionList, error) {
	query.Set("limit", "1")
	return s.Versions(ctx, namespace, object, query, func([]history.Version) bool { return true })
}

// Changes returns the changes, oldest first. No namespace means the whole cluster, and a field with an empty value
// counts as absent (row 73).
func (s *Side) Changes(ctx context.Context, namespace string, which fields.Set, labels string) (*history.ChangeList, error) {
	query := url.Values{"fieldSelector": {which.AsSelector().String()}, "labelSelector": {labels}}
	var all []history.Change
	for {
		page := &history.ChangeList{}
		if err := s.history(ctx, namespace, "changes", query, page); err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		if page.Continue == "" { // every page has the revision at which the first page's list ends
			page.Items = all
			return page, nil
		}
		query.Set("continue", page.Continue)
	}
}

func (s *Side) history(ctx context.Context, namespace, resource string, query url.Values, into any) error {
	path := "/apis/" + history.GroupVersion.String()
	if namespace != "" {
		path += "/namespaces/" + url.PathEscape(namespace)
	}
	return s.Read(ctx, path+"/"+resource, query, into)
}
