package buckettest

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/projection/bucket"
)

// model is what a bucket is, in a dozen lines, for one client at a time.
type model map[string]modelObject

type modelObject struct{ body, etag string }

func (m model) create(key string) error {
	_, taken := m[key]
	if taken {
		return bucket.ErrPrecondition
	}
	return nil
}

func (m model) replace(key, etag string) error {
	o, exists := m[key]
	switch {
	case !exists:
		return bucket.ErrNotFound
	case o.etag != etag:
		return bucket.ErrPrecondition
	}
	return nil
}

func (m model) get(key string) (modelObject, error) {
	o, exists := m[key]
	if !exists {
		return modelObject{}, bucket.ErrNotFound
	}
	return o, nil
}

// agreesWithTheModel does a random sequence of requests to the bucket and the model; a failure names its seed.
func agreesWithTheModel(t *testing.T, s *suite) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	m, stale := model{}, []string{`"never"`}
	for i := range 300 {
		key := s.key(fmt.Sprintf("%d/%d", random.IntN(2), random.IntN(3)))
		step := fmt.Sprintf("seed %d, step %d, key %s", seed, i, key)
		body := fmt.Sprintf("content %d", i)
		switch random.IntN(7) {
		case 0, 1:
			etag, err := s.Create(s.ctx, key, []byte(body))
			requireSame(t, m.create(key), err, step)
			if err == nil {
				m[key] = modelObject{body, etag}
			}
		case 2, 3:
			etag := m[key].etag
			if etag == "" || random.IntN(3) == 0 {
				etag = stale[random.IntN(len(stale))]
			}
			renewed, err := s.Replace(s.ctx, key, []byte(body), etag)
			requireSame(t, m.replace(key, etag), err, step)
			if err == nil {
				stale = append(stale, etag)
				m[key] = modelObject{body, renewed}
			}
		case 4:
			o, exists := m[key]
			if exists {
				stale = append(stale, o.etag)
			}
			require.NoError(t, s.Delete(s.ctx, key), step)
			delete(m, key)
		case 5:
			got, etag, err := s.Get(s.ctx, key)
			o, want := m.get(key)
			requireSame(t, want, err, step)
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

func requireSame(t *testing.T, want, err error, step string) {
	t.Helper()
	if want == nil {
		require.NoError(t, err, step)
		return
	}
	require.True(t, errors.Is(err, want), "%s: %v, not %v", step, err, want)
}
