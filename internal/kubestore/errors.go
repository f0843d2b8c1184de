package kubestore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"syscall"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket"
)

// retryAfterSeconds is how long clients are told to wait before they try again.
const retryAfterSeconds = 1

// These messages are upstream's. Clients and upstream's tests look for these texts.
const (
	expiredList     = "The resourceVersion for the provided list is too old."
	expiredWatch    = "The resourceVersion for the provided watch is too old."
	expiredContinue = "The provided continue parameter is too old " +
		"to display a consistent list result. You can start a new list without " +
		"the continue parameter."
	inconsistentContinue = "The provided continue parameter is too old " +
		"to display a consistent list result. You can start a new list without " +
		"the continue parameter, or use the continue token in this response to " +
		"retrieve the remainder of the results. Continuing with the provided " +
		"token results in an inconsistent list - objects that were created, " +
		"modified, or deleted between the time the first chunk was returned " +
		"and now may show up in the list."
)

// invalidRevision answers a resourceVersion that is not a number.
func invalidRevision(err error) error {
	return apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err))
}

// RevisionError answers a request for a revision that did not come in time or could not be read.
func (c Cell) RevisionError(ctx context.Context, err error, rev eventlog.Revision) error {
	if !errors.Is(err, projection.ErrFuture) {
		return Answer(ctx, err)
	}
	head := eventlog.Revision(0)
	v := c.Projection.Current()
	if v != nil {
		head = v.Revision()
	}
	return storage.NewTooLargeResourceVersionError(uint64(rev), uint64(head), retryAfterSeconds)
}

// afterMoment answers a request that reads the past and asks for a revision after its moment.
func afterMoment(rev, moment eventlog.Revision) error {
	return apierrors.NewBadRequest(fmt.Sprintf("revision %d is after revision %d, which the path names: ask for an older one, or leave out '/at/…'", rev, moment))
}

// listError answers a list that could not be read. If the list's revision has expired and the request asks for one of
// its pages, the answer has a token that continues from the same key at a new revision.
func listError(ctx context.Context, err error, paging bool, continueKey, prefix string) error {
	switch {
	case !errors.Is(err, projection.ErrExpired):
		return Answer(ctx, err)
	case !paging:
		return apierrors.NewResourceExpired(expiredList)
	}
	// ValidateListOptions takes revision -1 for the latest revision.
	token, tokenErr := storage.EncodeContinue(continueKey, prefix, -1)
	if tokenErr != nil {
		return apierrors.NewResourceExpired(expiredContinue)
	}
	expired := apierrors.NewResourceExpired(inconsistentContinue)
	expired.ErrStatus.ListMeta.Continue = token
	return expired
}

// Answer returns the answer to a client for an error. An error that is already an answer is returned as it is. The
// answer to a failed read does not say where the data is stored; the process's log does.
func Answer(ctx context.Context, err error) error {
	var status apierrors.APIStatus
	var known *storage.StorageError
	var unread *projection.ReadError
	switch {
	case errors.Is(err, projection.ErrExpired), errors.Is(err, projection.ErrTooMuch), errors.Is(err, projection.ErrTrimmed):
		// A moment may have fallen out of the retained history since the moment was looked up. Asking again does not
		// help.
		return apierrors.NewResourceExpired(err.Error())
	case errors.Is(err, projection.ErrNoBranch): // it has ended since the request began
		return apierrors.NewGenericServerResponse(http.StatusNotFound, "", schema.GroupResource{Group: "clusters.logplane.dev", Resource: "clusters"}, "", err.Error(), 0, true)
	case errors.As(err, &unread):
		return unreadAnswer(ctx, unread)
	case errors.As(err, &status), errors.As(err, &known), storage.IsInternalError(err), errors.As(err, new(*Unconverted)):
		return err
	case isContextError(err):
		return &endedError{err, false}
	}
	return apierrors.NewInternalError(err)
}

// lasting are the read errors that remain when the read is tried again: data is damaged, lost or of another epoch.
var lasting = []error{projection.ErrDamaged, projection.ErrNewer, bucket.ErrNotFound, eventlog.ErrFenced, eventlog.ErrDiverged}

// unreadAnswer answers a request whose data could not be read. A bucket or a log that fails may work again a second
// later, so a client may repeat a request that has written nothing.
func unreadAnswer(ctx context.Context, err error) error {
	r := requestViewOf(ctx)
	written := r != nil && r.hasWritten()
	if ctx.Err() != nil {
		return &endedError{ctx.Err(), !written && errors.Is(ctx.Err(), context.Canceled)}
	}
	slog.WarnContext(ctx, "what is stored could not be read", "error", err)
	for _, why := range lasting {
		if errors.Is(err, why) {
			return apierrors.NewInternalError(fmt.Errorf("what is stored cannot be read, and its operator must see to it: %w", why))
		}
	}
	return unwritten(ctx, errors.New("what is stored could not be read"))
}

// unwritten answers a request whose append wrote nothing, if the next try may succeed. A request with several appends,
// such as a deletecollection, may have written a part before. In that case the answer has no Retry-After.
func unwritten(ctx context.Context, why error) error {
	if r := requestViewOf(ctx); r != nil && r.hasWritten() {
		return apierrors.NewInternalError(fmt.Errorf("a part was written, and no more: %w: read the objects to learn what was written", why))
	}
	message := fmt.Sprintf("nothing was written: %v: try again", why)
	if errors.Is(why, projection.ErrBehind) {
		return apierrors.NewTooManyRequests(message, retryAfterSeconds)
	}
	return Unavailable(message)
}

// appendAnswer answers a request whose append failed.
func appendAnswer(ctx context.Context, err error, resource schema.GroupResource, key eventlog.Key) error {
	switch {
	case errors.Is(err, eventlog.ErrUnknown):
		slog.WarnContext(ctx, "it is unknown whether an event was appended", "error", err)
		// There is no Retry-After: client-go would send the request again, and the second request would meet the write
		// of the first (row 61).
		return apierrors.NewInternalError(fmt.Errorf("%w: read the object to learn whether it was written", eventlog.ErrUnknown))
	case errors.Is(err, eventlog.ErrNotPublished):
		slog.WarnContext(ctx, "an event was not published", "error", err)
		why := eventlog.ErrNotPublished
		if strings.Contains(err.Error(), syscall.ENOSPC.Error()) { // found only in the text of a NATS error
			why = fmt.Errorf("%w: the log has %w", why, syscall.ENOSPC)
		}
		if errors.Is(err, ErrUncommitted) {
			why = fmt.Errorf("%w: %w", why, ErrUncommitted)
		}
		return unwritten(ctx, why)
	case errors.Is(err, eventlog.ErrConflict):
		return unwritten(ctx, eventlog.ErrConflict)
	case errors.Is(err, projection.ErrBehind):
		return unwritten(ctx, projection.ErrBehind)
	case errors.Is(err, eventlog.ErrTooLarge):
		return apierrors.NewRequestEntityTooLargeError(err.Error())
	case errors.Is(err, eventlog.ErrKeyTooLong):
		return apierrors.NewInvalid(schema.GroupKind{Group: resource.Group, Kind: resource.Resource}, key.Name,
			field.ErrorList{field.Invalid(field.NewPath("metadata", "name"), key.Name, err.Error())})
	}
	return Answer(ctx, err)
}

// endedError is the error of a request whose deadline has passed or whose client has gone away. Without its Status,
// upstream would log a program fault and answer 500.
type endedError struct {
	error
	// cutOff says that nothing was done and the deadline had not passed. If the client is gone, the answer is unread;
	// otherwise this process is shutting down.
	cutOff bool
}

func (e *endedError) Unwrap() error { return e.error }

// Status is upstream's answer to a request that was not served in time.
func (e *endedError) Status() metav1.Status {
	if e.cutOff {
		return Unavailable("this process stopped before it served the request: send it again").ErrStatus
	}
	return apierrors.NewTimeoutError(fmt.Sprintf("the request ended before it was served: %v", e.error), 0).Status()
}

// Unavailable is a 503 that tells clients to try again in a second. It promises that nothing was done.
func Unavailable(message string) *apierrors.StatusError {
	unavailable := apierrors.NewServiceUnavailable(message)
	unavailable.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfterSeconds}
	return unavailable
}

// watchError is the last event of a watch that cannot continue.
func watchError(ctx context.Context, err error) *metav1.Status {
	if errors.Is(err, projection.ErrExpired) {
		err = apierrors.NewResourceExpired(expiredWatch)
	}
	err = Answer(ctx, err)
	var status apierrors.APIStatus
	if !errors.As(err, &status) { // an error that Answer has left as upstream made it
		status = apierrors.NewInternalError(err)
	}
	s := status.Status()
	return &s
}

func isContextError(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
