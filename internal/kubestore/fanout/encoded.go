package fanout

import (
	"bytes"
	"io"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// encodedOnce is an object that many watches send. Each representation of it is encoded for the first watch that needs
// it. Upstream's encoders recognise it as a CacheableObject, and it can be asked for its metadata. It is like
// upstream's cachingObject, which is not exported, but it is not copied on write: nobody may write to it.
type encodedOnce struct {
	metav1.Object

	mu        sync.Mutex // guards what follows, but not the inside of an encoding
	object    runtime.Object
	decorated bool
	encodings map[runtime.Identifier]*encoding
}

// Shared is an object that many watches send, as they get it.
type Shared interface {
	// Decorate lets a function change what all of them send, except for metadata. Each watch must call Decorate before
	// anything else and with the same function, which is called once.
	Decorate(func(runtime.Object))
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

// Announce returns the object as one watch sends it, and a channel that is closed when it was encoded, for which its
// client may have let the watch wait.
func Announce(object runtime.Object) (runtime.Object, <-chan struct{}) {
	a := &announced{Object: object, encoded: make(chan struct{})}
	return a, a.encoded
}

// CacheEncode implements runtime.CacheableObject. What is encoded goes to the client.
func (a *announced) CacheEncode(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	defer a.once.Do(func() { close(a.encoded) })
	shared, ok := a.Object.(runtime.CacheableObject)
	if ok {
		return shared.CacheEncode(id, encode, w)
	}
	return encode(a.Object, w)
}

// GetObject implements runtime.CacheableObject.
func (a *announced) GetObject() runtime.Object { return a.DeepCopyObject() }

// Decorate implements Shared.
func (a *announced) Decorate(change func(runtime.Object)) {
	shared, ok := a.Object.(Shared)
	if ok {
		shared.Decorate(change)
		return
	}
	change(a.Object)
}

type encoding struct {
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
	return &encodedOnce{Object: about, object: object, encodings: map[runtime.Identifier]*encoding{}}
}

// CacheEncode implements runtime.CacheableObject.
func (o *encodedOnce) CacheEncode(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	o.mu.Lock()
	e, ok := o.encodings[id]
	if !ok {
		e = &encoding{}
		o.encodings[id] = e
	}
	o.mu.Unlock()
	e.once.Do(func() {
		var buffer bytes.Buffer
		// It encodes a copy, because conversion may write to the object.
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
func (o *encodedOnce) Decorate(change func(runtime.Object)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.decorated {
		return
	}
	o.decorated = true
	o.object = o.object.DeepCopyObject() // the original is the change's
	change(o.object)
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
