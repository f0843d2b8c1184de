package projection

import "errors"

// Errors of views, matched with errors.Is.
var (
	// ErrExpired: the revision is below the floor; the API answers 410.
	ErrExpired = errors.New("the revision is older than retention")
	// ErrFuture: the revision does not exist yet.
	ErrFuture = errors.New("the revision does not exist yet")
)
