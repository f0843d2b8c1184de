package plans

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"github.com/logplane/logplane/internal/apiserver/history"
	"github.com/logplane/logplane/internal/sides"
)

// undelete makes a deleted object again, in the state of its last version.
type undelete struct {
	*planner
	history.PlanObject
}

func (u *undelete) compute(ctx context.Context) ([]*step, error) {
	versions, err := u.live.Newest(ctx, u.namespace, u.Object, url.Values{"include": {"object"}})
	if err != nil {
		return nil, err
	}
	last := &versions.Items[0]
	content, err := last.Decoded()
	if err != nil {
		return nil, refuse(http.StatusGone, "%s", err.Error())
	}
	if last.Verb != "delete" {
		if content.GetDeletionTimestamp() != nil {
			return nil, refuse(http.StatusConflict, "%s is being deleted: wait until it is gone, then run this again", last.Object.In(u.namespace))
		}
		return []*step{{PlanChange: history.PlanChange{Object: last.Object}}}, nil
	}
	k, why, err := u.servedNow(last.Object, content.GroupVersionKind().Version)
	if err != nil {
		return nil, err
	}
	if why == "" {
		why = runsAgain(content, k)
	}
	if why != "" {
		return nil, refuse(http.StatusConflict, "%s is not made again: %s", last.Object.In(u.namespace), why)
	}
	wanted := again(content, k)
	notes, err := u.owners.adopt(ctx, wanted.DeepCopy())
	if err != nil {
		return nil, err
	}
	s := &step{kind: k, PlanChange: history.PlanChange{Object: last.Object, Verb: "create", Author: last.Author(), Time: &last.CreationTimestamp,
		Revisions: []string{last.Name}, Notes: notes}}
	s.write = func(ctx context.Context, done *history.PlanChange) error {
		done.Notes = nil // create finds the notes again
		if err := u.create(ctx, k, content, wanted.DeepCopy(), done); err != nil {
			return u.whyNotMade(last.Object, err)
		}
		done.Notes = append(done.Notes, contentsOf(k, last.Object.Name)...)
		return nil
	}
	return []*step{s}, nil
}

// contentsOf returns a note about a namespace or a definition: an undelete does not make its objects again.
func contentsOf(k sides.Kind, name string) []string {
	switch k.GroupResource() {
	case namespaces:
		return []string{fmt.Sprintf("what was in it is not back: 'restore --namespace %s --to' a moment before brings it back", name)}
	case definitions:
		return []string{"its objects are not back: 'restore --to' a moment before brings them back"}
	}
	return nil
}
