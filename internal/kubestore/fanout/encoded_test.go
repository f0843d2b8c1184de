package fanout

import (
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
)

// TestReceipt: an object whose encoding failed was not sent, and an object that was decorated was not sent as it is.
func TestReceipt(t *testing.T) {
	object, ok := Announce(&example.Pod{})
	require.False(t, ok.SentAsIs())
	encode := func(err error) func(runtime.Object, io.Writer) error {
		return func(runtime.Object, io.Writer) error { return err }
	}
	require.NoError(t, object.(runtime.CacheableObject).CacheEncode("id", encode(nil), io.Discard))
	require.True(t, ok.SentAsIs())

	object, failed := Announce(newEncodedOnce(&example.Pod{}))
	require.Error(t, object.(runtime.CacheableObject).CacheEncode("id", encode(errors.New("no")), io.Discard))
	<-failed.Encoded()
	require.False(t, failed.SentAsIs())

	object, decorated := Announce(&example.Pod{})
	require.NoError(t, object.(Shared).Decorate(func(runtime.Object) error { return nil }))
	require.NoError(t, object.(runtime.CacheableObject).CacheEncode("id", encode(nil), io.Discard))
	require.False(t, decorated.SentAsIs())
}

// TestEncoderPanics: a watch whose encoder panics leaves no empty encoding to the other watches.
func TestEncoderPanics(t *testing.T) {
	shared := newEncodedOnce(&example.Pod{})
	encode := func(runtime.Object, io.Writer) error { panic("no") }
	require.Panics(t, func() { _ = shared.CacheEncode("id", encode, io.Discard) })
	require.Error(t, shared.CacheEncode("id", encode, io.Discard))
	event := watch.Event{Type: watch.Added, Object: shared}
	require.Panics(t, func() { Encoded(event, panicking{}) })
	_, ok := Encoded(event, panicking{})
	require.False(t, ok)
}

type panicking struct{}

func (panicking) Encode(watch.EventType, runtime.Object) ([]byte, error) { panic("no") }
