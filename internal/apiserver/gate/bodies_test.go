package gate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// TestBodiesAreReadWhole: a body is read whole, whatever its length, whether the length was announced or not, and in
// whatever parts it arrives.
func TestBodiesAreReadWhole(t *testing.T) {
	const allowed = 100_000
	all := newBodies(64 << 20)
	for _, length := range []int{0, 1, firstRead - 1, firstRead, firstRead + 1, 3 * firstRead, allowed} {
		sent := bytes.Repeat([]byte("x"), length)
		for _, announced := range []int64{int64(length), -1} {
			for _, from := range []io.Reader{bytes.NewReader(sent), iotest.DataErrReader(bytes.NewReader(sent)), iotest.HalfReader(bytes.NewReader(sent))} {
				b := &body{of: &all, user: "ann"}
				got, err := b.read(from, announced, allowed)
				require.NoError(t, err)
				require.Equal(t, sent, got)
				require.LessOrEqual(t, int64(cap(got)), b.held, "all of it is counted")
				b.end()
			}
		}
	}
	for _, announced := range []int64{allowed + 1, -1} {
		b := &body{of: &all, user: "ann"}
		_, err := b.read(strings.NewReader(strings.Repeat("x", allowed+1)), announced, allowed)
		require.True(t, apierrors.IsRequestEntityTooLargeError(err), "%v", err)
		b.end()
	}
	b := &body{of: &all, user: "ann"}
	_, err := b.read(iotest.ErrReader(errors.New("cut")), 10, allowed)
	require.True(t, apierrors.IsBadRequest(err), "%v", err)
	b.end()
	require.Zero(t, all.held)
	require.Empty(t, all.by)
}

// TestBodiesAreBounded: one user's bodies hold at most a share, and all bodies together at most the limit. Bytes that
// were only announced do not count.
func TestBodiesAreBounded(t *testing.T) {
	all := newBodies(64 << 20)
	receive := func(user string, n int) (*body, error) {
		b := &body{of: &all, user: user}
		_, err := b.read(strings.NewReader(strings.Repeat("x", n)), 3<<20, 3<<20)
		return b, err
	}
	var kept []*body
	for user := range 4 {
		for {
			b, err := receive(fmt.Sprint(user), 2<<20)
			if err != nil {
				require.True(t, apierrors.IsTooManyRequests(err), "%v", err)
				b.end()
				break
			}
			kept = append(kept, b)
		}
		require.LessOrEqual(t, all.by[fmt.Sprint(user)], all.limit/bodiesShares)
		require.Greater(t, all.by[fmt.Sprint(user)], all.limit/bodiesShares*3/4)
	}
	late, err := receive("5", 0)
	require.NoError(t, err)
	exempt := &body{of: &all, user: "root", exempt: true}
	_, err = exempt.read(strings.NewReader(strings.Repeat("x", 2<<20)), -1, 3<<20)
	require.NoError(t, err)
	for _, b := range append(kept, late, exempt) {
		b.end()
	}
	require.Zero(t, all.held)
	require.Empty(t, all.by)
}

// TestBodiesAreGivenBack: the body of a request no longer counts once the request is answered, or refused.
func TestBodiesAreGivenBack(t *testing.T) {
	g := New(Config{MaxBody: 100, Requests: RequestLimits{InFlight: 1, Mutating: 1, Timeout: time.Minute}})
	for _, length := range []int{100, 101} {
		served := false
		h := g.WithBody(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			served = true
			require.Positive(t, g.bodies.held)
		}))
		r := httptest.NewRequest("POST", "/", strings.NewReader(strings.Repeat("x", length)))
		h.ServeHTTP(httptest.NewRecorder(), r.WithContext(apirequest.WithUser(t.Context(), &user.DefaultInfo{Name: "ann"})))
		require.Equal(t, length <= 100, served)
		require.Zero(t, g.bodies.held)
	}
}
