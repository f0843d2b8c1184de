package kubestore

import (
	"context"
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/eventlog/eventlogtest"
)

// needTransformer has the suites that check how values are transformed. Transformed values take no fast path.
var needTransformer = map[string]bool{
	"TransformationFailure": true, "GuaranteedUpdate": true, "GuaranteedUpdateChecksStoredData": true, "Stats": true,
	"ListResourceVersionMatch": true,
	"WatchError":               true, "WatchErrorIsBlockingFurtherEvents": true, "WatchWithUnsafeDelete": true,
	"DeleteExpectedTransformOrDecodeError": true, "DeleteWithConflictAndMissingExpectedTransformOrDecodeError": true,
}

// TestUpstreamOnFastPaths runs upstream's suites with every shortcut: lists are made of chunks, stored bytes exclude
// objects from a selection without decoding, and facts exclude blocks. TestUpstream takes the general path, since its
// values are transformed.
func TestUpstreamOnFastPaths(t *testing.T) {
	conn := eventlogtest.Start(t)
	for mode := range modes {
		if (testing.Short() || eventlogtest.Slowdown > 1) && mode != "random" {
			continue
		}
		for name, suite := range suites {
			if needTransformer[name] {
				continue
			}
			t.Run(mode+"/"+name, func(t *testing.T) {
				if waits[name] {
					t.Parallel()
				}
				ctx := shortly(t)
				b := newBed(t, conn, kinds["strict"](t))
				suite(ctx, t, &stepped{store: newStore(b.Cell, storedPods()), bed: b, step: modes[mode](b), chunks: true})
			})
		}
	}
}

// storedPods are pods in protobuf, as built-in kinds are stored.
func storedPods() Resource {
	r := pods(nil)
	stored := protobuf.NewSerializer(scheme, scheme)
	r.Codec = codecs.CodecForVersions(stored, codecs.UniversalDeserializer(), examplev1.SchemeGroupVersion, example.SchemeGroupVersion)
	r.ContentType = runtime.ContentTypeProtobuf
	r.StoredFields = map[string][]int32{"spec.nodeName": {2, 10}}
	return r
}

// wholeChunk is a chunk that holds the list from which it was made.
type wholeChunk struct{ items reflect.Value }

func (l wholeChunk) Bytes() int                { return 1000 * l.items.Len() }
func (l wholeChunk) Size() (count, length int) { return l.items.Len(), 1000 * l.items.Len() }

// listInChunks lists in chunks, and puts the chunks together.
func listInChunks(ctx context.Context, s *store, key string, opts storage.ListOptions, list runtime.Object) error {
	p := &Chunks{Resource: s.GroupResource, Encoding: "objects", Sized: opts.Recursive, Encode: func(_ context.Context, list runtime.Object, _ bool) (Chunk, error) {
		items, err := itemsOf(list.DeepCopyObject())
		return wholeChunk{items}, err
	}}
	items, err := itemsOf(list)
	if err != nil {
		return err
	}
	items.SetZero() // some suites reuse a list
	given, err := s.ListChunks(ctx, key, opts, list, p)
	if err != nil {
		return err
	}
	defer p.Close()
	if !given || items.Len() > 0 {
		panic("the list is not in chunks")
	}
	items.Set(reflect.MakeSlice(items.Type(), 0, 0))
	for chunk, err := range p.All() {
		if err != nil {
			return err
		}
		items.Set(reflect.AppendSlice(items, chunk.(wholeChunk).items))
	}
	return nil
}
