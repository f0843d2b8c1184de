package kubestore

import (
	"bytes"
	"io"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// encodedOnce is an object that many watches send: each representation of it is encoded for the first that
// asks. Upstream's encoders recognise it, and so does whoever looks at metadata. It is upstream's
// cachingObject, which is not exported, without copies on write: nobody may write to it.
type encodedOnce struct {
	metav1.Object

	mu        sync.Mutex // guards what follows, not what is in the encodings
	object    runtime.Object
	decorated bool
	encodings map[runtime.Identifier]*encoding
}

// Shared is an object that many watches share, as they get it.
type Shared interface {
	// Decorate lets the function change what all of them send, but no metadata. Each of them must call it before
	// anything else, with the same function, which is called once.
	Decorate(func(runtime.Object))
}

type encoding struct {
	once sync.Once
	data []byte
	err  error
}

var _ runtime.CacheableObject = (*encodedOnce)(nil)

// newEncodedOnce returns nil for an object without metadata.
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
		// Of a copy, because conversion may write to what it is given.
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
	o.object = o.object.DeepCopyObject() // it is the facet's
	change(o.object)
}

func (o *encodedOnce) sent() runtime.Object {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.object
}

// GetObject implements runtime.CacheableObject: a copy that belongs to the caller.
func (o *encodedOnce) GetObject() runtime.Object { return o.sent().DeepCopyObject() }

// GetObjectKind implements runtime.Object.
func (o *encodedOnce) GetObjectKind() schema.ObjectKind { return o.sent().GetObjectKind() }

// DeepCopyObject implements runtime.Object; the copy is of the object, and no longer shared.
func (o *encodedOnce) DeepCopyObject() runtime.Object { return o.GetObject() }
