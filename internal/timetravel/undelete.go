package timetravel

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/logplane/logplane/internal/apiserver/history"
)

// Undelete makes an object again as its last version was.
func (t *Tool) Undelete(ctx context.Context, object string, yes bool) error {
	newest, _, err := t.newestVersion(ctx, object, true)
	if err != nil {
		return err
	}
	last := &newest
	name := t.title(last.Object)
	content, err := contentOf(last)
	if err != nil {
		return err
	}
	if last.Verb != "delete" {
		if content != nil && content.GetDeletionTimestamp() != nil {
			return fmt.Errorf("%s is being deleted: wait until it is gone, then run this again", name)
		}
		t.line("%s is there: nothing to do", name)
		return nil
	}
	k, err := t.servedNow(last.Object, content.GroupVersionKind().Version)
	if err != nil {
		return err
	}
	if why := runsAgain(content, k); why != "" {
		return fmt.Errorf("%s is not made again: %s", name, why)
	}
	wanted := again(content, k)
	notes, err := newOwners(t.Client).adopt(ctx, wanted)
	if err != nil {
		return err
	}
	t.line("create %s as it was before %s deleted it at revision %s, %s", name, last.Author(), last.Name, last.CreationTimestamp.UTC().Format(time.RFC3339))
	t.notes(notes)
	if err := t.confirm(ctx, yes); err != nil {
		return err
	}
	made, notes, err := t.create(ctx, k, wanted)
	if err != nil {
		return t.whyNotMade(last.Object, err)
	}
	t.line("%s was created, revision %s", name, made.GetResourceVersion())
	t.notes(slices.Concat(notes, t.rebind(ctx, k, content, made), contentsOf(k, made.GetName())))
	return nil
}

// contentsOf says what went with a namespace or a definition, and is not back with it.
func contentsOf(k kind, name string) []string {
	switch k.GroupResource() {
	case namespaces:
		return []string{fmt.Sprintf("what was in it is not back: 'restore --namespace %s --to' a moment before brings it back", name)}
	case definitions:
		return []string{"its objects are not back: 'restore --to' a moment before brings them back"}
	}
	return nil
}

func (t *Tool) notes(notes []string) {
	for _, note := range notes {
		t.line("  %s", note)
	}
}

// servedNow returns the kind of an object in the version in which it was stored.
func (t *Tool) servedNow(object history.Reference, version string) (kind, error) {
	now, err := t.at("")
	if err != nil {
		return kind{}, err
	}
	kinds, err := now.kinds()
	if err != nil {
		return kind{}, err
	}
	of := resourceOf(object)
	if k, ok := kinds.find(of, version); ok {
		return k, nil
	}
	if _, ok := kinds.of(of); ok {
		return kind{}, fmt.Errorf("%s was stored as %s, which is no longer served", t.title(object), schema.GroupVersion{Group: of.Group, Version: version})
	}
	return kind{}, fmt.Errorf("the kind of %s is not served now: 'undelete crd/%s' brings it back", t.title(object), of)
}

// whyNotMade says what is missing for an object that could not be created.
func (t *Tool) whyNotMade(object history.Reference, err error) error {
	switch {
	case apierrors.IsNotFound(err) && strings.Contains(err.Error(), "namespaces"):
		return fmt.Errorf("namespace '%s' is not there: 'undelete namespace/%s' makes it again", object.Namespace, object.Namespace)
	case apierrors.IsAlreadyExists(err):
		return fmt.Errorf("%s was made meanwhile: 'history' says by whom", t.title(object))
	}
	return fmt.Errorf("create %s: %w", t.title(object), err)
}
