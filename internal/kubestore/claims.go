package kubestore

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection"
)

// claimWrites are the writes that turn before's claims into after's; nil stands for no object. They go
// before their owner in its batch, so that none of them is ever seen without the other.
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

// missing are the claims of a whose keys are not in b, each once.
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

// takeClaim is the creation of a claim that nobody holds, else a ClaimedError.
func takeClaim(ctx context.Context, v *projection.View, c Claim) (projection.Write, error) {
	at, err := stateOf(ctx, v, c.Key)
	if err != nil {
		return projection.Write{}, err
	}
	if _, live := at.Row(); live {
		return projection.Write{}, &ClaimedError{Key: c.Key}
	}
	return at.Put(c.ContentType, c.Body, 0), nil
}

// releaseClaim is the deletion of a claim, if it is still as its owner says. A claim that is gone, or
// that somebody else has taken since, is left alone.
func releaseClaim(ctx context.Context, v *projection.View, c Claim) (w projection.Write, held bool, err error) {
	at, err := stateOf(ctx, v, c.Key)
	if err != nil {
		return projection.Write{}, false, err
	}
	if row, live := at.Row(); !live || !c.held(ctx, row) {
		return projection.Write{}, false, nil
	}
	return at.Delete(), true, nil
}
