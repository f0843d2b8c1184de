package kubestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"

	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection"
)

// Create implements storage.Interface.
func (s *store) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	path, err := s.path(key, false)
	if err != nil {
		return err
	}
	set, err := s.versioner.ObjectResourceVersion(obj)
	if err == nil && set != 0 {
		return storage.ErrResourceVersionSetOnCreate
	}
	var data, body []byte
	rev, err := s.compute(ctx, path, true, func(v *projection.View) (eventlog.Revision, error) {
		at, err := v.State(ctx, s.key(path))
		if err != nil {
			return 0, err
		}
		row, live := at.Row()
		if live {
			return 0, refused{row.Revision, storage.NewKeyExistsError(path, 0)}
		}
		if body == nil || s.Complete != nil {
			data, err = s.completed(ctx, v, nil, obj)
			if err == nil {
				body, err = s.seal(ctx, s.rowKey(path), data)
			}
			if err == nil {
				err = spend(ctx, 2*len(data))
			}
			if err != nil {
				return 0, err
			}
		}
		return s.append(ctx, v, Change{Key: s.key(path), After: obj}, at, s.put(body, lifetime(ttl)))
	})
	if err != nil || out == nil {
		return err
	}
	return s.answer(stored{rowKey: s.rowKey(path), revision: rev}, data, out)
}

// completed completes the object and returns its encoding.
func (s *store) completed(ctx context.Context, v *projection.View, before, after runtime.Object) ([]byte, error) {
	if s.Complete != nil {
		if err := s.Complete(ctx, v, before, after); err != nil {
			return nil, err
		}
	}
	return s.encode(after)
}

// GuaranteedUpdate implements storage.Interface. It ignores the suggested object: it reads the row from the view in any
// case, and the cache makes it cheap to get the row's decoded object.
func (s *store) GuaranteedUpdate(ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc, _ runtime.Object) error {
	path, err := s.path(key, false)
	if err != nil {
		return err
	}
	if _, err := conversion.EnforcePtr(destination); err != nil {
		return fmt.Errorf("unable to convert output object to pointer: %v", err)
	}
	u := &update{store: s, path: path, like: destination, ignoreNotFound: ignoreNotFound, preconditions: preconditions, try: tryUpdate}
	rev, err := s.compute(ctx, path, false, func(v *projection.View) (eventlog.Revision, error) { return u.attempt(ctx, v) })
	if err != nil {
		return err
	}
	return s.decodeTo(stored{rowKey: s.rowKey(path), revision: rev}, u.data, destination)
}

// update is one call of GuaranteedUpdate.
type update struct {
	*store
	path           string
	like           runtime.Object
	ignoreNotFound bool
	preconditions  *storage.Preconditions
	try            storage.UpdateFunc
	// data is the encoding of the last attempt.
	data []byte
}

// attempt updates the object as of the view. An update that changes nothing appends nothing.
func (u *update) attempt(ctx context.Context, v *projection.View) (eventlog.Revision, error) {
	st, err := u.state(ctx, v, u.path, u.like, false)
	if err == nil && !st.found && !u.ignoreNotFound {
		err = refused{0, storage.NewKeyNotFoundError(u.path, 0)}
	}
	if err == nil {
		err = spend(ctx, 2*len(st.data))
	}
	if err != nil {
		return 0, err
	}
	if err := u.preconditions.Check(u.path, st.obj); err != nil {
		return 0, refused{st.revision, err}
	}
	ret, ttl, err := u.try(st.obj, storage.ResponseMeta{ResourceVersion: uint64(st.revision)})
	if err != nil {
		return 0, refused{st.revision, err}
	}
	u.data, err = u.completed(ctx, v, st.kept, ret)
	if err != nil {
		return 0, refused{st.revision, err}
	}
	if err := spend(ctx, 2*max(0, len(u.data)-len(st.data))); err != nil {
		return 0, err
	}
	if st.found && !st.stale && bytes.Equal(u.data, st.data) && !requestOf(ctx).Guarded {
		return st.revision, nil
	}
	body, err := u.seal(ctx, u.rowKey(u.path), u.data)
	if err != nil {
		return 0, err
	}
	seconds := uint32(0)
	if ttl != nil {
		seconds = lifetime(*ttl)
	}
	return u.append(ctx, v, Change{Key: u.key(u.path), Before: st.kept, After: ret}, st.at, u.put(body, seconds))
}

// Delete implements storage.Interface. It ignores the suggested object, as GuaranteedUpdate does.
func (s *store) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, _ runtime.Object, opts storage.DeleteOptions) error {
	path, err := s.path(key, false)
	if err != nil {
		return err
	}
	if _, err := conversion.EnforcePtr(out); err != nil {
		return fmt.Errorf("unable to convert output object to pointer: %v", err)
	}
	raw := opts.ExpectTransformOrDecodeError
	var data []byte
	rev, err := s.compute(ctx, path, true, func(v *projection.View) (eventlog.Revision, error) {
		st, err := s.state(ctx, v, path, out, raw)
		if err != nil {
			return 0, err
		}
		if !st.found {
			return 0, refused{0, storage.NewKeyNotFoundError(path, 0)}
		}
		if err := spend(ctx, len(st.data)); err != nil {
			return 0, err
		}
		if preconditions != nil {
			if err := preconditions.Check(path, st.obj); err != nil {
				return 0, refused{st.revision, err}
			}
		}
		if err := validate(ctx, st.obj); err != nil {
			return 0, refused{st.revision, err}
		}
		data = st.data
		return s.append(ctx, v, Change{Key: s.key(path), Before: st.kept}, st.at, (*projection.State).Delete)
	})
	if err != nil || raw {
		return err
	}
	return s.answer(stored{rowKey: s.rowKey(path), revision: rev}, data, out)
}

// state is the state of a key as of a view.
type state struct {
	at       projection.State
	found    bool
	revision eventlog.Revision // of the live row, else 0
	obj      runtime.Object    // the caller's own copy; empty if not found, nil if read raw
	kept     runtime.Object    // obj as it was read, which may be shared; nil if not found or read raw
	data     []byte            // the encoding of obj
	stale    bool              // says that the value should be encrypted anew
}

// state reads the key of a path. With raw, state refuses a value that can be transformed and decoded.
func (s *store) state(ctx context.Context, v *projection.View, path string, like runtime.Object, raw bool) (*state, error) {
	at, err := v.State(ctx, s.key(path))
	if err != nil {
		return nil, err
	}
	row, live := at.Row()
	live = live && !s.foreign(row.ContentType)
	st := &state{at: at, found: live, obj: emptyLike(like)}
	if !live {
		return st, runtime.SetZeroValue(st.obj)
	}
	st.revision = row.Revision
	st.data, st.stale, err = s.unseal(ctx, storedRow(row))
	if err == nil {
		st.kept, err = s.shared(storedRow(row), st.data, st.obj)
	}
	var corrupt *corruptError
	switch {
	case raw && errors.As(err, &corrupt):
		return &state{at: at, found: true, revision: row.Revision}, nil
	case raw && err == nil:
		return nil, refused{row.Revision, storage.NewInvalidObjError(path, "unsafe deletion is not allowed because the object is decodable from storage")}
	case err != nil:
		return nil, err
	}
	return st, copyTo(st.kept, st.obj)
}

func emptyLike(obj runtime.Object) runtime.Object {
	if u, ok := obj.(runtime.Unstructured); ok {
		return u.NewEmptyInstance()
	}
	return reflect.New(reflect.TypeOf(obj).Elem()).Interface().(runtime.Object)
}

// put returns a function that makes the write of a body from the state of its key.
func (s *store) put(body []byte, seconds uint32) func(*projection.State) projection.Write {
	return func(at *projection.State) projection.Write { return at.Put(s.ContentType, body, seconds) }
}

// lifetime converts upstream's time to live to the log's seconds.
func lifetime(ttl uint64) uint32 { return uint32(min(ttl, math.MaxUint32)) }
