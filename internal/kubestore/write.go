package kubestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"time"

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
	if rev, err := s.versioner.ObjectResourceVersion(obj); err == nil && rev != 0 {
		return storage.ErrResourceVersionSetOnCreate
	}
	data, err := s.encode(obj)
	if err != nil {
		return err
	}
	body, err := s.seal(ctx, s.rowKey(path), data)
	if err != nil {
		return err
	}
	rev, err := s.compute(ctx, path, func(v *projection.View) (eventlog.Revision, error) {
		at, err := stateOf(ctx, v, s.key(path))
		if err != nil {
			return 0, err
		}
		if row, live := at.Row(); live {
			return 0, refused{row.Revision, storage.NewKeyExistsError(path, 0)}
		}
		return s.append(ctx, v, nil, obj, at.Put(s.ContentType, body, lifetime(ttl)))
	})
	if err != nil || out == nil {
		return err
	}
	return s.decodeTo(stored{rowKey: s.rowKey(path), revision: rev}, data, out)
}

// GuaranteedUpdate implements storage.Interface. The suggestion is ignored: the row's last revision is
// read from the view in any case, and the cache of decoded objects makes it cheap to use its object.
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
	rev, err := s.compute(ctx, path, func(v *projection.View) (eventlog.Revision, error) { return u.attempt(ctx, v) })
	if err != nil {
		return err
	}
	return s.decodeTo(stored{rowKey: s.rowKey(path), revision: rev}, u.data, destination)
}

// update is one GuaranteedUpdate.
type update struct {
	*store
	path           string
	like           runtime.Object
	ignoreNotFound bool
	preconditions  *storage.Preconditions
	try            storage.UpdateFunc
	// data is what the last attempt encoded.
	data []byte
}

// attempt updates the object as of the view. An update that changes nothing appends nothing.
func (u *update) attempt(ctx context.Context, v *projection.View) (eventlog.Revision, error) {
	st, err := u.state(ctx, v, u.path, u.like, false)
	if err == nil && !st.found && !u.ignoreNotFound {
		err = refused{0, storage.NewKeyNotFoundError(u.path, 0)}
	}
	if err != nil {
		return 0, err
	}
	if err := u.preconditions.Check(u.path, st.obj); err != nil {
		return 0, refused{st.revision, err}
	}
	// The update function may write to the object it is given, so what the claims were is asked before.
	before := st.obj
	if u.Resource.Claims != nil && st.found {
		before = st.obj.DeepCopyObject()
	}
	ret, ttl, err := u.try(st.obj, storage.ResponseMeta{ResourceVersion: uint64(st.revision)})
	if err != nil {
		return 0, refused{st.revision, err}
	}
	if u.data, err = u.encode(ret); err != nil {
		return 0, refused{st.revision, err}
	}
	if st.found && !st.stale && bytes.Equal(u.data, st.data) {
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
	if !st.found {
		before = nil
	}
	return u.append(ctx, v, before, ret, st.at.Put(u.ContentType, body, seconds))
}

// Delete implements storage.Interface. The suggestion is ignored as in GuaranteedUpdate.
func (s *store) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, _ runtime.Object, opts storage.DeleteOptions) error {
	path, err := s.path(key, false)
	if err != nil {
		return err
	}
	if _, err := conversion.EnforcePtr(out); err != nil {
		return fmt.Errorf("unable to convert output object to pointer: %v", err)
	}
	raw := opts.IgnoreStoreReadError && unsafeDeletion()
	var data []byte
	rev, err := s.compute(ctx, path, func(v *projection.View) (eventlog.Revision, error) {
		st, err := s.state(ctx, v, path, out, raw)
		if err != nil {
			return 0, err
		}
		if !st.found {
			return 0, refused{0, storage.NewKeyNotFoundError(path, 0)}
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
		return s.append(ctx, v, st.obj, nil, st.at.Delete())
	})
	if err != nil || raw {
		return err
	}
	return s.decodeTo(stored{rowKey: s.rowKey(path), revision: rev}, data, out)
}

// state is a key as of a view.
type state struct {
	at       projection.State
	found    bool
	revision eventlog.Revision // of the live row, else 0
	obj      runtime.Object    // the caller's own; empty if not found, nil if read raw
	data     []byte
	stale    bool
}

// state reads a key's last row. Read raw, its value is neither transformed nor decoded.
func (s *store) state(ctx context.Context, v *projection.View, path string, like runtime.Object, raw bool) (*state, error) {
	at, err := stateOf(ctx, v, s.key(path))
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
	if raw {
		st.obj = nil
		return st, nil
	}
	if st.data, st.stale, err = s.unseal(ctx, storedRow(row)); err != nil {
		return nil, err
	}
	return st, s.decodeTo(storedRow(row), st.data, st.obj)
}

func emptyLike(obj runtime.Object) runtime.Object {
	if u, ok := obj.(runtime.Unstructured); ok {
		return u.NewEmptyInstance()
	}
	return reflect.New(reflect.TypeOf(obj).Elem()).Interface().(runtime.Object)
}

// stateOf reads what a write of the key is computed from.
func stateOf(ctx context.Context, v *projection.View, key eventlog.Key) (projection.State, error) {
	at, err := v.State(ctx, key)
	if err != nil && !errors.Is(err, projection.ErrExpired) { // of which compute knows what to do
		err = readAnswer(err)
	}
	return at, err
}

// refused says no on account of what one revision of the object holds (0: that there is none).
type refused struct {
	revision eventlog.Revision
	error
}

// attempts bounds how often a write is computed again; with the pauses between, that is at least some
// seconds of losing every time.
const attempts = 100

// compute runs try on a view until it neither loses to another write of the key nor is refused because
// of a state that the view, being from the request's start, shows and a new one does not.
func (s *store) compute(ctx context.Context, path string, try func(*projection.View) (eventlog.Revision, error)) (eventlog.Revision, error) {
	v, fresh, err := s.consistent(ctx)
	for n := 1; err == nil; n++ {
		var rev eventlog.Revision
		rev, err = try(v)
		var no refused
		switch {
		case err == nil:
			return rev, nil
		case errors.As(err, &no):
			if !fresh {
				v, err = s.ifChanged(ctx, path, no)
			}
		case lost(err) && n < attempts:
			writeConflicts.Inc()
			err = backOff(ctx, n)
			if err == nil {
				v, err = s.latest(ctx)
			}
		}
		fresh = true
	}
	return 0, s.writeFailed(err, path)
}

// ifChanged returns a new view if it shows another revision than the one that was refused, else the refusal.
func (s *store) ifChanged(ctx context.Context, path string, no refused) (*projection.View, error) {
	v, err := s.latest(ctx)
	if err != nil {
		return nil, err
	}
	row, found, err := v.Get(ctx, s.rowKey(path), v.Revision())
	if err != nil {
		return nil, readAnswer(err)
	}
	if !found {
		row.Revision = 0
	}
	if row.Revision == no.revision {
		return nil, no
	}
	return v, nil
}

// lost says that certainly nothing was written and that a newer view may do better: another write of one of the keys came
// first, or the floor has passed the view.
func lost(err error) bool {
	var failed appendError
	return errors.As(err, &failed) && errors.Is(failed, eventlog.ErrConflict) || errors.Is(err, projection.ErrExpired)
}

// backOff waits before something is tried again, longer each time and with jitter. After the first failure it does not
// wait: the write that won a conflict is in the log already.
func backOff(ctx context.Context, failures int) error {
	if failures == 1 {
		return nil
	}
	longest := time.Millisecond << min(failures, 7)
	select {
	case <-time.After(rand.N(longest)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// appendError is an append's own error, told from those of upstream's functions.
type appendError struct{ error }

func (e appendError) Unwrap() error { return e.error }

// append appends the write of an object, and of its claims, in one batch.
func (s *store) append(ctx context.Context, v *projection.View, before, after runtime.Object, w projection.Write) (eventlog.Revision, error) {
	writes, err := s.claimWrites(ctx, v, before, after)
	if err != nil {
		return 0, err
	}
	rev, err := s.Append(ctx, v, append(writes, w)...)
	if err != nil {
		return 0, appendError{err}
	}
	s.acknowledge(rev)
	return rev, nil
}

// Append appends writes in one batch and returns the revision of the last one. The writes are made by States of the view,
// which give each its base and precondition. It serves requests and what writes without one. Errors are those of
// View.Append. For a request that has ended, and while the log is known to refuse, it writes nothing and fails with
// ErrNotPublished.
func (c Cell) Append(ctx context.Context, v *projection.View, writes ...projection.Write) (eventlog.Revision, error) {
	end, err := c.beginAppend(ctx)
	if err != nil {
		return 0, err
	}
	defer end()
	rev, err := v.Append(ctx, requestID(ctx), writes...)
	if err != nil {
		return 0, err
	}
	wrote(ctx, rev)
	return rev, nil
}

// writeFailed is what a client is told about a write that failed. What upstream's functions refuse is their answer.
func (s *store) writeFailed(err error, path string) error {
	var no refused
	var failed appendError
	switch {
	case errors.As(err, &no):
		return no.error
	case errors.As(err, &failed):
		return appendAnswer(failed.error, s.GroupResource, s.key(path))
	}
	return answer(err)
}

// lifetime is upstream's time to live in the log's seconds.
func lifetime(ttl uint64) uint32 { return uint32(min(ttl, math.MaxUint32)) }
