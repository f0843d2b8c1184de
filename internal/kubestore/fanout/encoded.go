package fanout

import (
	"bytes"
	"errors"
	"io"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// encodedOnce is an object that many watches send. Each representation of it is encoded for the first watch that needs
// it. Upstream's encoders recognise encodedOnce as a CacheableObject. encodedOnce also gives access to the object's
// metadata. It is like upstream's cachingObject, which is not exported. But encodedOnce is not copied on write: nobody
// may write to it.
type encodedOnce struct {
	metav1.Object

	mu              sync.Mutex // guards the fields below, but not the fields of a representation
	object          runtime.Object
	decorated       bool
	failed          error                                  // the error of the decorating function
	representations map[runtime.Identifier]*representation // by the identifiers of upstream's encoders
}

// Shared is an object that many watches send in the same encoding.
type Shared interface {
	// Decorate lets a function change the object that all watches send, except for the object's metadata. Each watch
	// must call Decorate before anything else and with the same function. The function is called once, and every call
	// returns its error.
	Decorate(func(runtime.Object) error) error
}

// Decorate lets a function change an object that a watch sends, which may be Shared.
func Decorate(o runtime.Object, change func(runtime.Object) error) error {
	if shared, ok := o.(Shared); ok {
		return shared.Decorate(change)
	}
	return change(o)
}

// announced is an object that one watch sends. Upstream's encoders recognise it as a CacheableObject.
type announced struct {
	runtime.Object
	encoded chan struct{}
	once    sync.Once // closes encoded
}

var (
	_ runtime.CacheableObject = (*announced)(nil)
	_ Shared                  = (*announced)(nil)
)

// Announce returns the object as one watch sends it, and a channel that is closed when the object was encoded. The
// watch may wait for the encoding, and so for the client.
func Announce(object runtime.Object) (runtime.Object, <-chan struct{}) {
	a := &announced{Object: object, encoded: make(chan struct{})}
	return a, a.encoded
}

// CacheEncode implements runtime.CacheableObject. The encoding goes to the client.
func (a *announced) CacheEncode(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	defer a.once.Do(func() { close(a.encoded) }) // also if encode panics
	if shared, ok := a.Object.(runtime.CacheableObject); ok {
		return shared.CacheEncode(id, encode, w)
	}
	return encode(a.Object, w)
}

// GetObject implements runtime.CacheableObject.
func (a *announced) GetObject() runtime.Object { return a.DeepCopyObject() }

// Decorate implements Shared.
func (a *announced) Decorate(change func(runtime.Object) error) error {
	return Decorate(a.Object, change)
}

// errPanicked marks a representation whose encoder did not return, so that no other watch takes it for an empty
// encoding.
var errPanicked = errors.New("the object could not be encoded")

type representation struct {
	once sync.Once
	data []byte
	err  error
}

var _ runtime.CacheableObject = (*encodedOnce)(nil)

// newEncodedOnce returns nil if the object has no metadata.
func newEncodedOnce(object runtime.Object) *encodedOnce {
	about, ok := object.(metav1.Object)
	if !ok {
		return nil
	}
	return &encodedOnce{Object: about, object: object, representations: map[runtime.Identifier]*representation{}}
}

// CacheEncode implements runtime.CacheableObject.
func (o *encodedOnce) CacheEncode(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	o.mu.Lock()
	e := o.representations[id]
	if e == nil {
		e = &representation{}
		o.representations[id] = e
	}
	o.mu.Unlock()
	e.once.Do(func() {
		e.err = errPanicked
		var buffer bytes.Buffer
		// Conversion may write to the object, so a copy is encoded.
		e.err = encode(o.GetObject(), &buffer)
		e.data = buffer.Bytes()
	})
	if e.err != nil {
		return e.err
	}
	if splice, ok := w.(runtime.Splice); ok {
		splice.Splice(e.data)
		return nil
	}
	_, err := w.Write(e.data)
	return err
}

// Decorate implements Shared.
func (o *encodedOnce) Decorate(change func(runtime.Object) error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.decorated {
		o.decorated = true
		o.object = o.object.DeepCopyObject() // the original belongs to the change
		o.failed = change(o.object)
	}
	return o.failed
}

func (o *encodedOnce) sent() runtime.Object {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.object
}

// GetObject implements runtime.CacheableObject. It returns a copy that belongs to the caller.
func (o *encodedOnce) GetObject() runtime.Object { return o.sent().DeepCopyObject() }

// GetObjectKind implements runtime.Object.
func (o *encodedOnce) GetObjectKind() schema.ObjectKind { return o.sent().GetObjectKind() }

// DeepCopyObject implements runtime.Object. The copy is an ordinary object that is not shared.
func (o *encodedOnce) DeepCopyObject() runtime.Object { return o.GetObject() }
