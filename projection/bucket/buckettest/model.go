package buckettest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/projection/bucket"
)

// model is the expected content of a bucket, for one client at a time.
type model map[string]modelObject

type modelObject struct{ body, etag string }

// agreesWithTheModel makes a random sequence of requests to the bucket and the model. A failure names its seed.
func agreesWithTheModel(t *testing.T, s *suite) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	m, stale := model{}, []string{`"never"`}
	for i := range 300 {
		key := s.key(fmt.Sprintf("%d/%d", random.IntN(2), random.IntN(3)))
		step := fmt.Sprintf("seed %d, step %d, key %s", seed, i, key)
		body := fmt.Sprintf("content %d", i)
		o, exists := m[key]
		var want error
		if !exists {
			want = bucket.ErrNotFound
		}
		switch random.IntN(7) {
		case 0, 1:
			want = nil
			if exists {
				want = bucket.ErrPrecondition
			}
			etag, err := s.Create(s.ctx, key, []byte(body))
			require.ErrorIs(t, err, want, step)
			if err == nil {
				m[key] = modelObject{body, etag}
			}
		case 2, 3:
			etag := o.etag
			if !exists || random.IntN(3) == 0 {
				etag = stale[random.IntN(len(stale))]
			}
			if exists && o.etag != etag {
				want = bucket.ErrPrecondition
			}
			renewed, err := s.Replace(s.ctx, key, []byte(body), etag)
			require.ErrorIs(t, err, want, step)
			if err == nil {
				stale = append(stale, etag)
				m[key] = modelObject{body, renewed}
			}
		case 4:
			if exists {
				stale = append(stale, o.etag)
			}
			require.NoError(t, s.Delete(s.ctx, key), step)
			delete(m, key)
		case 5:
			got, etag, err := s.Get(s.ctx, key)
			require.ErrorIs(t, err, want, step)
			require.Equal(t, o, modelObject{string(got), etag}, step)
		case 6:
			s.requireListed(t, m, step)
		}
	}
	s.requireListed(t, m, fmt.Sprintf("seed %d, end", seed))
}

func (s *suite) requireListed(t *testing.T, m model, step string) {
	t.Helper()
	var listed []string
	require.NoError(t, s.List(s.ctx, s.prefix, func(a bucket.Attributes) error {
		require.EqualValues(t, len(m[a.Key].body), a.Size, step)
		listed = append(listed, a.Key)
		return nil
	}), step)
	require.Equal(t, slices.Sorted(maps.Keys(m)), listed, step)
}
