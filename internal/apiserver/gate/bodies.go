package gate

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/logplane/logplane/internal/apiserver/answers"
	"github.com/logplane/logplane/internal/apiserver/loopback"
	"github.com/logplane/logplane/internal/apiserver/requests"
)

const (
	// A process holds at most bodiesMost bytes of bodies for requests that are not answered yet. A small process holds
	// twice the budget of its caches, and at least bodiesLeast. One user may hold one of bodiesShares equal parts.
	bodiesMost   = 128 << 20
	bodiesLeast  = 32 << 20
	bodiesShares = 4
	// bodyCost is about how many bytes a request costs while its body arrives. It is counted together with the body's
	// bytes.
	bodyCost = 16 << 10
	// firstRead is how many bytes are reserved for a body before any of it has arrived.
	firstRead = 4 << 10
)

// bodies counts the bytes of bodies that have arrived, not bytes that were only announced. It is safe for concurrent
// use.
type bodies struct {
	limit int64 // bytes

	mu   sync.Mutex       // guards held and by
	held int64            // bytes
	by   map[string]int64 // user
}

func newBodies(caches int64) bodies {
	return bodies{limit: min(max(2*caches, bodiesLeast), bodiesMost), by: map[string]int64{}}
}

// body is one request's part of the counted bytes.
type body struct {
	of   *bodies
	user string
	held int64
	// exempt bodies are not bounded and not counted.
	exempt bool
}

// hold counts n more bytes, or returns an error if the process or the user would hold too many.
func (b *body) hold(n int64) error {
	if b.exempt {
		return nil
	}
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	if b.of.held+n > b.of.limit || b.of.by[b.user]+n > b.of.limit/bodiesShares {
		return apierrors.NewTooManyRequests(fmt.Sprintf(
			"this process holds %d MiB of requests that are not answered yet, %d MiB of them of user '%s': try again",
			b.of.held>>20, b.of.by[b.user]>>20, b.user), retrySeconds)
	}
	b.held += n
	b.of.held += n
	b.of.by[b.user] += n
	return nil
}

func (b *body) end() {
	if b.held == 0 {
		return
	}
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	b.of.held -= b.held
	b.of.by[b.user] -= b.held
	if b.of.by[b.user] == 0 {
		delete(b.of.by, b.user)
	}
}

// read returns the whole body. announced is the length that the client announced, -1 if it announced none.
func (b *body) read(from io.Reader, announced, allowed int64) ([]byte, error) {
	if announced > allowed {
		return nil, tooLarge(allowed)
	}
	capacity := int64(firstRead)
	if announced >= 0 {
		capacity = min(capacity, announced+1) // one byte more, to see the end
	}
	if err := b.hold(bodyCost + capacity); err != nil {
		return nil, err
	}
	read := make([]byte, 0, capacity)
	for {
		n, err := from.Read(read[len(read):cap(read)])
		read = read[:len(read)+n]
		switch {
		case int64(len(read)) > allowed:
			return nil, tooLarge(allowed)
		case err == io.EOF:
			return read, nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, errBodyLate
		case err != nil:
			return nil, apierrors.NewBadRequest(fmt.Sprintf("the body could not be read: %v", err))
		}
		if len(read) < cap(read) {
			continue
		}
		more := int64(cap(read))
		if announced >= 0 {
			more = min(more, announced+1-int64(cap(read)))
		}
		if err := b.hold(more); err != nil {
			return nil, err
		}
		read = append(make([]byte, 0, int64(cap(read))+more), read...)
	}
}

func tooLarge(allowed int64) error {
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", allowed))
}

var errBodyLate = &apierrors.StatusError{ErrStatus: metav1.Status{
	Status: metav1.StatusFailure, Code: http.StatusRequestTimeout, Reason: metav1.StatusReasonTimeout,
	Message: "the body of the request did not arrive in time: nothing was done",
}}

// WithBodyDeadline gives a body half of the request's time to arrive. It is the outermost filter, because net/http
// waits for an unread body before it sends any answer.
func (g *Gate) WithBodyDeadline(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			late := time.Now().Add(g.config.Requests.Timeout / 2)
			_ = http.NewResponseController(w).SetReadDeadline(late) // not every server supports deadlines
		}
		h.ServeHTTP(w, r)
	})
}

// WithBody receives the whole body before the request takes a seat and before anything else is done for the request.
func (g *Gate) WithBody(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength == 0 || loopback.Is(r.Context()) {
			h.ServeHTTP(w, r)
			return
		}
		user, _ := apirequest.UserFrom(r.Context())
		b := &body{of: &g.bodies, user: guestName(r.Context(), user), exempt: g.exempt(user)}
		defer b.end()
		read, err := b.read(r.Body, r.ContentLength, g.config.MaxBody)
		if err != nil {
			fail := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answers.Fail(w, r, err) })
			Unreceived(fail).ServeHTTP(w, r)
			return
		}
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		r = r.WithContext(r.Context())
		r.Body, r.ContentLength = requests.NewBody(read), int64(len(read))
		h.ServeHTTP(w, r)
	})
}

// refusedTime is how long the rest of an unread body may take to arrive.
const refusedTime = 5 * time.Second

// Unreceived answers a request whose body may not have arrived, and closes the connection after the answer. Otherwise
// net/http would wait for the rest of the body before it sends the answer.
func Unreceived(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 && r.ProtoMajor == 1 {
			w.Header().Set("Connection", "close")
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(refusedTime))
		}
		h.ServeHTTP(w, r)
	})
}
