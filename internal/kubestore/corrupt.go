package kubestore

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/projection"
)

// keepCorrupt remembers a corrupt row while unsafe deletion is possible, so that a list names all corrupt rows at once.
// Otherwise the first one ends the list. Upstream does the same, in functions that it does not export.
func (l *listing) keepCorrupt(row projection.Row, err error) error {
	path := strings.TrimPrefix(row.Key, l.store.Cluster)
	var corrupt *corruptError
	switch {
	case storage.IsInternalError(err) && !unsafeDeletion():
		return storage.NewInternalError(fmt.Errorf("unable to transform key %q: %w", path, err))
	case !unsafeDeletion() || !errors.As(err, &corrupt):
		return err
	}
	if len(l.corrupt) == maxCorrupt {
		return l.corruptions()
	}
	l.corrupt = append(l.corrupt, storage.NewCorruptObjError(path, corrupt))
	return nil
}

// corruptions returns the Status that names every corrupt object, or nil if there is none.
func (l *listing) corruptions() error {
	if len(l.corrupt) == 0 {
		return nil
	}
	var causes []metav1.StatusCause
	for _, err := range l.corrupt {
		var e *storage.StorageError
		if errors.As(err, &e) {
			causes = append(causes, metav1.StatusCause{
				Type: metav1.CauseTypeUnexpectedServerResponse, Field: e.Key, Message: e.Error(),
			})
		}
	}
	if len(l.corrupt) == maxCorrupt {
		causes = append(causes, metav1.StatusCause{
			Type: metav1.CauseTypeTooMany, Message: "too many errors, the list is truncated",
		})
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusInternalServerError,
		Reason:  metav1.StatusReasonStoreReadError,
		Message: fmt.Sprintf("failed to read one or more %s from the storage", l.store.GroupResource),
		Details: &metav1.StatusDetails{
			Group: l.store.Group, Kind: l.store.GroupResource.Resource, Name: "list", Causes: causes,
		},
	}}
}

// corruptDeletion is the last event of a watch that cannot decode a deleted object.
func corruptDeletion(err error) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusInternalServerError,
		Reason:  metav1.StatusReasonStoreReadError,
		Message: fmt.Sprintf("saw a DELETED event, but object data is corrupt - %v", err),
	}}
}
