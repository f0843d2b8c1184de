package fanout

import (
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
)

// TestAnnounce: the channel is closed when the object was encoded, also without success.
func TestAnnounce(t *testing.T) {
	for _, object := range []runtime.Object{&example.Pod{}, newEncodedOnce(&example.Pod{})} {
		announced, encoded := Announce(object)
		require.NoError(t, Decorate(announced, func(runtime.Object) error { return nil }))
		require.Empty(t, encoded)
		failing := func(runtime.Object, io.Writer) error { return errors.New("no") }
		require.Error(t, announced.(runtime.CacheableObject).CacheEncode("id", failing, io.Discard))
		<-encoded
	}
}

// TestEncoderPanics: a watch whose encoder panics leaves no empty encoding to the other watches.
func TestEncoderPanics(t *testing.T) {
	shared := newEncodedOnce(&example.Pod{})
	encode := func(runtime.Object, io.Writer) error { panic("no") }
	require.Panics(t, func() { _ = shared.CacheEncode("id", encode, io.Discard) })
	require.Error(t, shared.CacheEncode("id", encode, io.Discard))
}
