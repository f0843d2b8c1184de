package kubestore

import (
	"bytes"
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection"
)

// Claim is an object that only one owner can hold. It is created with precondition 0 in its owner's batch, and deleted
// with its owner.
type Claim struct {
	Key eventlog.Key
	// ContentType and Body of the claim object as stored.
	ContentType string
	Body        []byte
	// Held says whether a live row of Key is still this owner's claim, and so must be deleted with the owner. If Held
	// is nil, the row is the claim if its value equals Body.
	Held func(ctx context.Context, row projection.Row) bool
}

// held says whether the live row is still the claim.
func (c Claim) held(ctx context.Context, row projection.Row) bool {
	if c.Held != nil {
		return c.Held(ctx, row)
	}
	return bytes.Equal(row.Value, c.Body)
}

// ClaimedError says that another owner holds a claim. Nothing was written. Projection.Current has the claim.
type ClaimedError struct{ Key eventlog.Key }

func (e *ClaimedError) Error() string { return e.Key.Path() + " is already claimed" }

// Status is the answer if the server does not try again. If the client tries again, its next request may see the claim
// and avoid it.
func (e *ClaimedError) Status() metav1.Status {
	return apierrors.NewConflict(schema.GroupResource{Group: e.Key.Group, Resource: e.Key.Resource}, e.Key.Name, e).Status()
}

// claimWrites are the writes that turn the claims of the object 'before' into the claims of the object 'after'. Nil
// stands for no object. In the batch the claims' writes come before the owner's write, so that nobody ever sees an
// owner without its claims.
func (s *store) claimWrites(ctx context.Context, v *projection.View, before, after runtime.Object) ([]projection.Write, error) {
	if s.Resource.Claims == nil {
		return nil, nil
	}
	had, err := s.claimsOf(ctx, before)
	if err != nil {
		return nil, err
	}
	has, err := s.claimsOf(ctx, after)
	if err != nil {
		return nil, err
	}
	var writes []projection.Write
	for _, c := range missing(had, has) {
		w, held, err := releaseClaim(ctx, v, c)
		if err != nil {
			return nil, err
		}
		if held {
			writes = append(writes, w)
		}
	}
	for _, c := range missing(has, had) {
		w, err := takeClaim(ctx, v, c)
		if err != nil {
			return nil, err
		}
		writes = append(writes, w)
	}
	return writes, nil
}

func (s *store) claimsOf(ctx context.Context, obj runtime.Object) ([]Claim, error) {
	if obj == nil {
		return nil, nil
	}
	return s.Resource.Claims(ctx, obj)
}

// missing returns the claims in a whose keys are not in b, each key once.
func missing(a, b []Claim) []Claim {
	seen := make(map[eventlog.Key]bool, len(a)+len(b))
	for _, c := range b {
		seen[c.Key] = true
	}
	var left []Claim
	for _, c := range a {
		if !seen[c.Key] {
			seen[c.Key] = true
			left = append(left, c)
		}
	}
	return left
}

// takeClaim returns the write that creates a claim. It fails with a ClaimedError if somebody holds the claim.
func takeClaim(ctx context.Context, v *projection.View, c Claim) (projection.Write, error) {
	at, err := v.State(ctx, c.Key)
	if err != nil {
		return projection.Write{}, err
	}
	_, live := at.Row()
	if live {
		return projection.Write{}, &ClaimedError{Key: c.Key}
	}
	if err := transactionOf(ctx).mayCreate(true, c.Key); err != nil {
		return projection.Write{}, err
	}
	return at.Put(c.ContentType, c.Body, 0), nil
}

// releaseClaim returns the write that deletes a claim, if its owner still holds it. A claim may be gone, or another
// owner may have taken it since.
func releaseClaim(ctx context.Context, v *projection.View, c Claim) (w projection.Write, held bool, err error) {
	at, err := v.State(ctx, c.Key)
	if err != nil {
		return projection.Write{}, false, err
	}
	row, live := at.Row()
	if !live || !c.held(ctx, row) {
		return projection.Write{}, false, nil
	}
	return at.Delete(), true, nil
}
