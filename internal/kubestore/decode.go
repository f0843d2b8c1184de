package kubestore

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection"
)

// stored is one version of an object as the log and the snapshot hold it.
type stored struct {
	rowKey   string
	revision eventlog.Revision
	value    []byte
}

// Plain undoes the transformer: it returns a row's value as the codec encoded it. A nil transformer is identity.
func Plain(ctx context.Context, t value.Transformer, row projection.Row) ([]byte, error) {
	if t == nil {
		t = identity.NewEncryptCheckTransformer()
	}
	data, _, err := t.TransformFromStorage(ctx, row.Value, authenticated(row.StoredKey()))
	return data, err
}

// Stored is the inverse of Plain. It returns the value as the transformer stores it under the row key.
func Stored(ctx context.Context, t value.Transformer, rowKey string, plain []byte) ([]byte, error) {
	if t == nil {
		t = identity.NewEncryptCheckTransformer()
	}
	return t.TransformToStorage(ctx, plain, authenticated(rowKey))
}

// authenticated binds an encrypted value to its row key, so that nobody can pass off the value of one object, or of one
// cluster, as the value of another.
func authenticated(rowKey string) value.Context { return value.DefaultContext(rowKey) }

// IsOf fails if a decrypted object does not belong to its row key. Not all of upstream's providers bind a value to its
// key: with aescbc and secretbox, anybody who can write to the log could have one user's Secret read as another's.
func IsOf(rowKey string, obj runtime.Object) error {
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	name := "/" + m.GetName()
	if m.GetNamespace() != "" {
		name = "/" + m.GetNamespace() + name
	}
	if !strings.HasSuffix(rowKey, name) {
		return errors.New("it is the value of another object")
	}
	return nil
}

// encode returns the deterministic encoding of an object, without resourceVersion.
func (s *store) encode(obj runtime.Object) ([]byte, error) {
	if err := s.versioner.PrepareObjectForStorage(obj); err != nil {
		return nil, fmt.Errorf("PrepareObjectForStorage failed: %v", err)
	}
	return runtime.Encode(s.Codec, obj)
}

// seal transforms an encoded object into the value to be stored.
func (s *store) seal(ctx context.Context, rowKey string, data []byte) ([]byte, error) {
	sealed, err := s.Transformer.TransformToStorage(ctx, data, authenticated(rowKey))
	if err != nil {
		return nil, storage.NewInternalError(err)
	}
	return sealed, nil
}

// unseal is the inverse of seal. It runs on every read, even if the object is cached, so that no value can be read any
// more once its encryption key is removed. Stale says that the value should be encrypted anew.
func (s *store) unseal(ctx context.Context, v stored) (data []byte, stale bool, err error) {
	data, stale, err = s.Transformer.TransformFromStorage(ctx, v.value, authenticated(v.rowKey))
	if err != nil {
		err = fmt.Errorf("revision %d cannot be transformed: %w", v.revision, err)
		return nil, false, storage.NewInternalError(&corruptError{rowKey: v.rowKey, err: err, sealed: true})
	}
	return data, stale, nil
}

// shared returns the decoded object with its resourceVersion. The object may be in the cache, so nobody may write to
// it. The argument 'into' only gives the wanted type and, for a custom resource, the wanted version.
func (s *store) shared(v stored, data []byte, into runtime.Object) (runtime.Object, error) {
	obj, cached, err := s.look(v, data, into)
	if err == nil && !cached {
		s.Objects.add(s.version(v, into), s.owner(v.rowKey), obj)
	}
	return obj, err
}

func (s *store) version(v stored, into runtime.Object) version {
	return version{store: s.id, rowKey: v.rowKey, revision: v.revision, kind: s.kind(into)}
}

func (s *store) look(v stored, data []byte, into runtime.Object) (obj runtime.Object, cached bool, err error) {
	obj = s.Objects.get(s.version(v, into))
	if obj != nil && (into == nil || reflect.TypeOf(obj) == reflect.TypeOf(into)) {
		return obj, true, nil
	}
	obj, err = s.decode(data, into)
	if err == nil && s.Named && !s.plain {
		err = IsOf(v.rowKey, obj)
	}
	switch {
	case errors.As(err, new(*Unconverted)):
		return nil, false, err
	case err != nil:
		return nil, false, &corruptError{rowKey: v.rowKey, err: err}
	}
	// An object that cannot hold a revision is still returned.
	_ = s.versioner.UpdateObject(obj, uint64(v.revision))
	return obj, false, nil
}

// decode returns a new object of the same type as 'into'. If 'into' is nil, the codec chooses the type.
func (s *store) decode(data []byte, into runtime.Object) (runtime.Object, error) {
	if into == nil {
		return runtime.Decode(s.Codec, data)
	}
	fresh := reflect.New(reflect.TypeOf(into).Elem()).Interface().(runtime.Object)
	if u, ok := into.(runtime.Unstructured); ok {
		fresh = u.NewEmptyInstance()
	}
	obj, _, err := s.Codec.Decode(data, nil, fresh)
	return obj, err
}

// kind distinguishes the objects to which one row of a custom resource can be converted: the codec converts to the
// version of the object that it decodes into.
func (s *store) kind(into runtime.Object) string {
	switch {
	case !s.unstructured:
		return ""
	case into == nil:
		return "default"
	}
	return into.GetObjectKind().GroupVersionKind().GroupVersion().String()
}

// decodeTo sets out to a copy of the object, which belongs to the caller.
func (s *store) decodeTo(v stored, data []byte, out runtime.Object) error {
	obj, err := s.shared(v, data, out)
	if err != nil {
		return err
	}
	return copyTo(obj, out)
}

// answer is decodeTo for an object that was created or deleted. The object is not cached: most objects are not asked
// for again soon, and decoded objects take more memory than everything else that a write leaves behind.
func (s *store) answer(v stored, data []byte, out runtime.Object) error {
	obj, cached, err := s.look(v, data, out)
	if err != nil {
		return err
	}
	if cached {
		return copyTo(obj, out)
	}
	return setTo(obj, out)
}

func copyTo(obj, out runtime.Object) error {
	return setTo(obj.DeepCopyObject(), out)
}

// setTo sets out to an object that nobody else refers to.
func setTo(obj, out runtime.Object) error {
	target, err := conversion.EnforcePtr(out)
	if err != nil {
		return fmt.Errorf("unable to convert output object to pointer: %v", err)
	}
	target.Set(reflect.ValueOf(obj).Elem())
	return nil
}

// Unconverted is the error of a codec of custom resources if a webhook has failed to convert an object. The stored
// value is intact, so the client gets upstream's error.
type Unconverted struct{ Err error }

// Error implements error.
func (e *Unconverted) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Unconverted) Unwrap() error { return e.Err }

// corruptError is the error for a row whose value cannot be transformed or decoded.
type corruptError struct {
	rowKey string
	err    error
	// sealed says that the value could not be transformed.
	sealed bool
}

func (e *corruptError) Error() string { return e.err.Error() }
func (e *corruptError) Unwrap() error { return e.err }

// Status tells the client which object is corrupt.
func (e *corruptError) Status() metav1.Status {
	return apierrors.NewInternalError(fmt.Errorf("read %s: %w", e.rowKey, e.err)).Status()
}
