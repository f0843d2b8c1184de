package kubestore

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/storage"
)

// keepCorrupt remembers a corrupt row, so that a list names all corrupt rows that it reads. Upstream handles corrupt
// rows in the same way, in functions that it does not export.
func (l *listing) keepCorrupt(err error) error {
	var corrupt *corruptError
	if !errors.As(err, &corrupt) || l.exact && errors.Is(err, ErrDropped) {
		return err
	}
	if len(l.corrupt) == maxCorrupt {
		return l.corruptions()
	}
	l.corrupt = append(l.corrupt, corrupt)
	return nil
}

// corruptions returns the Status that names every corrupt object, or nil if there is none.
func (l *listing) corruptions() error {
	if len(l.corrupt) == 0 {
		return nil
	}
	var causes []metav1.StatusCause
	for _, err := range l.corrupt {
		_, path, _ := strings.Cut(err.rowKey, "/")
		path = "/" + path
		causes = append(causes, metav1.StatusCause{
			Type: metav1.CauseTypeUnexpectedServerResponse, Field: path, Message: storage.NewCorruptObjError(path, err).Error(),
		})
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
		Message: fmt.Sprintf("failed to read one or more %s from the storage: %s", l.store.GroupResource, l.corrupt[0].Status().Message),
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
