package kubestore

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection"
	"github.com/logplane/logplane/projection/bucket"
	"github.com/logplane/logplane/projection/bucket/memory"
)

// encrypted loads a configuration file in kube-apiserver's format. Each provider is one of 'aescbc:k', 'aesgcm:k',
// 'secretbox:k' or 'identity'.
func encrypted(t *testing.T, providers ...string) value.Transformer {
	t.Helper()
	config := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [pods]\n  providers:\n"
	for _, p := range providers {
		if p == "identity" {
			config += "  - identity: {}\n"
			continue
		}
		kind, key, _ := bytes.Cut([]byte(p), []byte(":"))
		secret := base64.StdEncoding.EncodeToString(bytes.Repeat(key, 32)[:32])
		config += fmt.Sprintf("  - %s:\n      keys:\n      - {name: %s, secret: %s}\n", kind, key, secret)
	}
	path := filepath.Join(t.TempDir(), "encryption.yaml")
	require.NoError(t, os.WriteFile(path, []byte(config), 0o600))
	loaded, err := encryptionconfig.LoadEncryptionConfig(t.Context(), path, false, "")
	require.NoError(t, err)
	return loaded.Transformers[schema.GroupResource{Resource: "pods"}]
}

// TestEncryption: a value is encrypted in log and bucket and bound to its key. A value can be read with any configured
// key, and is rewritten with the first key. Without its encryption key a value cannot be read, even if it is cached.
func TestEncryption(t *testing.T) {
	conn := eventlogtest.Start(t)
	for _, kind := range []string{"aescbc", "aesgcm", "secretbox"} {
		t.Run(kind, func(t *testing.T) {
			b := newBed(t, conn, memory.Strict(t))
			old, rotated := encrypted(t, kind+":a", "identity"), encrypted(t, kind+":b", kind+":a", "identity")
			transformer := &swapped{t: old}
			s := newStore(b.Cell, pods(transformer))
			p := pod("ns", "a")
			p.Labels = map[string]string{"secret": "attack-at-dawn"}
			created := create(t, s, p)
			changed, err := relabel(t.Context(), s, keyOf(p), "n", "1")
			require.NoError(t, err)
			_, err = remove(t.Context(), s, keyOf(create(t, s, pod("ns", "gone"))))
			require.NoError(t, err)
			requireUnreadable(t, b, "attack-at-dawn")

			w := watchFrom(t, s, created.ResourceVersion)
			require.Equal(t, "MODIFIED ns/a "+changed.ResourceVersion, w.next())

			// With another first key the value is stale, so the same update now writes.
			transformer.set(rotated)
			noChange := func() *example.Pod {
				out := &example.Pod{}
				require.NoError(t, s.GuaranteedUpdate(t.Context(), keyOf(p), out, false, nil,
					storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) { return obj, nil }), nil))
				return out
			}
			rewritten := noChange()
			require.NotEqual(t, changed.ResourceVersion, rewritten.ResourceVersion)
			require.Equal(t, rewritten, noChange())

			// With only the old key, the value can no longer be read.
			transformer.set(old)
			require.True(t, storage.IsCorruptObject(s.Get(t.Context(), keyOf(p), storage.GetOptions{}, &example.Pod{})))
			transformer.set(encrypted(t, "identity"))
			require.True(t, storage.IsCorruptObject(s.Get(t.Context(), keyOf(p), storage.GetOptions{}, &example.Pod{})))
			transformer.set(rotated)
			out := &example.Pod{}
			require.NoError(t, s.Get(t.Context(), keyOf(p), storage.GetOptions{}, out))
			require.Equal(t, rewritten, out)
		})
	}
}

// requireUnreadable checks that no event and no object of the bucket contains the text.
func requireUnreadable(t *testing.T, b *bed, text string) {
	t.Helper()
	b.commit(t.Context())
	bounds, err := b.Log.Head(t.Context())
	require.NoError(t, err)
	require.NoError(t, b.Log.Tail(t.Context(), bounds.First-1, bounds.Head, func(e eventlog.Event) error {
		require.NotContains(t, string(e.Body), text)
		return nil
	}))
	require.NoError(t, b.bucket.List(t.Context(), "", func(a bucket.Attributes) error {
		body, _, err := b.bucket.Get(t.Context(), a.Key)
		require.NotContains(t, string(body), text)
		return err
	}))
}

// row returns the row of a path.
func (b *bed) row(t *testing.T, s *store, path string) projection.Row {
	t.Helper()
	v, err := s.Consistent(t.Context())
	require.NoError(t, err)
	row, found, err := v.Get(t.Context(), s.rowKey(path), v.Revision())
	require.True(t, found)
	require.NoError(t, err)
	return row
}

// TestEncryptedValuesAreBoundToTheirKey: if the value of one object is stored in place of another's, neither a get nor
// a list returns the wrong value, whether or not the provider binds values to keys.
func TestEncryptedValuesAreBoundToTheirKey(t *testing.T) {
	conn := eventlogtest.Start(t)
	const moved = "value of another object"
	for kind, why := range map[string]string{"aescbc": moved, "secretbox": moved, "aesgcm": "authentication failed"} {
		t.Run(kind, func(t *testing.T) {
			b := newBed(t, conn, memory.Strict(t))
			named := pods(encrypted(t, kind+":a"))
			named.Named = true
			s := newStore(b.Cell, named)
			create(t, s, pod("ns", "a"))
			row := b.row(t, s, "/pods/ns/a")
			for _, other := range []string{"/pods/ns/b", "/pods/other/a"} {
				_, err := b.Log.Append(t.Context(), eventlog.Basis{}, "moved"+other, eventlog.Write{
					Key: s.key(other), Op: eventlog.Added, ContentType: row.ContentType, Body: row.Value,
				})
				require.NoError(t, err)
				require.ErrorContains(t, s.Get(t.Context(), other, storage.GetOptions{}, &example.Pod{}), why)
			}
			err := s.GetList(t.Context(), "/pods/other", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, &example.PodList{})
			require.ErrorContains(t, causesOf(t, err), why)
			require.NoError(t, s.Get(t.Context(), "/pods/ns/a", storage.GetOptions{}, &example.Pod{}))
		})
	}
}

// causesOf returns what a list says about the objects that it cannot read.
func causesOf(t *testing.T, err error) error {
	t.Helper()
	require.True(t, apierrors.IsStoreReadError(err), "%v", err)
	var causes []error
	for _, cause := range err.(apierrors.APIStatus).Status().Details.Causes {
		causes = append(causes, errors.New(cause.Message))
	}
	return errors.Join(causes...)
}

// TestStoredIsTheInverseOfPlain: a stored value decrypts to the original, with a provider and without a provider.
func TestStoredIsTheInverseOfPlain(t *testing.T) {
	b := newBed(t, eventlogtest.Start(t), memory.Strict(t))
	transformer := encrypted(t, "aesgcm:a")
	s := newStore(b.Cell, pods(transformer))
	create(t, s, pod("ns", "a"))
	row := b.row(t, s, "/pods/ns/a")
	plain, err := Plain(t.Context(), transformer, row)
	require.NoError(t, err)
	sealed, err := Stored(t.Context(), transformer, row.Key, plain)
	require.NoError(t, err)
	row.Value = sealed
	again, err := Plain(t.Context(), transformer, row)
	require.NoError(t, err)
	require.Equal(t, plain, again)
	row.Value, err = Stored(t.Context(), nil, row.Key, plain)
	require.NoError(t, err)
	require.Equal(t, plain, row.Value)
}
