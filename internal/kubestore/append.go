package kubestore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection"
)

// refused is an error that holds only for one revision of the object. Revision 0 means that there is no object.
type refused struct {
	revision eventlog.Revision
	error
}

// attempts bounds how often a write is computed. The pauses between so many attempts take some seconds at least.
const attempts = 100

// compute runs try on a view, and again on a newer view if the write lost to another write of the key. It also runs try
// on a newer view if the write was refused because of a revision that is no longer the object's last: the first view
// may be from the request's start. A write that adds or removes the object changes its namespace's counts. Such a write
// first waits its turn if another write of the namespace has lost and is being tried again. Otherwise each newcomer
// would make the waiting writes lose once more.
func (s *store) compute(ctx context.Context, path string, counts bool, try func(*projection.View) (eventlog.Revision, error)) (eventlog.Revision, error) {
	if t := transactionOf(ctx); t != nil {
		rev, err := t.compute(try)
		return rev, s.writeFailed(ctx, err, path)
	}
	var turn chan struct{}
	defer func() {
		if turn != nil {
			<-turn
		}
	}()
	var v *projection.View
	var fresh bool
	var err error
	if namespace := s.key(path).Namespace; counts && s.turns.taken(namespace) {
		turn = s.turns.take(ctx, namespace)
		fresh = true
		v, err = s.latest(ctx)
	} else {
		v, fresh, err = s.recent(ctx)
	}
	for n := 1; err == nil; n++ {
		var rev eventlog.Revision
		rev, err = try(v)
		var no refused
		switch {
		case err == nil:
			return rev, nil
		case errors.As(err, &no):
			if !fresh {
				v, err = s.ifChanged(ctx, path, no)
			}
		case lost(err) && n < attempts:
			writeConflicts.Inc()
			if turn == nil {
				turn = s.turns.take(ctx, s.contended(path, err))
			}
			err = backOff(ctx, n)
			if err == nil {
				v, err = s.latest(ctx)
			}
		}
		fresh = true
	}
	return 0, s.writeFailed(ctx, err, path)
}

// turns are the turns of a store's lost writes, by the path or the namespace for which these writes contend. Each turn
// is made on first use.
type turns struct {
	mu  sync.Mutex
	all [64]chan struct{} // by mu
}

// of returns the turn of a path or a namespace. Sending to the channel takes the turn.
func (t *turns) of(contended string) chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	turn := &t.all[xxhash.Sum64String(contended)%uint64(len(t.all))]
	if *turn == nil {
		*turn = make(chan struct{}, 1)
	}
	return *turn
}

func (t *turns) taken(contended string) bool { return len(t.of(contended)) > 0 }

// turnTime bounds the wait for a turn. After that time the write is tried without a turn.
const turnTime = 5 * time.Second

// take waits while another write of this store that contends for the same path or namespace is being tried again: two
// such writes at once would only make each other lose once more. It returns nil if the wait takes too long. The holder
// gives the turn back by receiving from the channel.
func (t *turns) take(ctx context.Context, contended string) chan struct{} {
	turn := t.of(contended)
	ctx, cancel := context.WithTimeout(ctx, turnTime)
	defer cancel()
	select {
	case turn <- struct{}{}:
		return turn
	case <-ctx.Done():
		return nil
	}
}

// contended returns the path for which a losing write has contended. If the batch had writes alongside the object, such
// as the write of a quota, contended returns the namespace instead: all writes of the namespace want to change the same
// rows alongside.
func (s *store) contended(path string, err error) string {
	var failed appendError
	if namespace := s.key(path).Namespace; namespace != "" && errors.As(err, &failed) && failed.alongside {
		return namespace
	}
	return path
}

// ifChanged returns a new view if the object's revision in the new view differs from the refused revision. Otherwise it
// returns the refusal.
func (s *store) ifChanged(ctx context.Context, path string, no refused) (*projection.View, error) {
	v, err := s.latest(ctx)
	if err != nil {
		return nil, err
	}
	row, found, err := v.Get(ctx, s.rowKey(path), v.Revision())
	if err != nil {
		return nil, Answer(ctx, err)
	}
	if !found {
		row.Revision = 0
	}
	if row.Revision == no.revision {
		return nil, no
	}
	return v, nil
}

// lost says that the failed append certainly wrote nothing, and that the write may succeed on a newer view. Either
// another write of one of the keys came first, or the floor has passed the view.
func lost(err error) bool {
	var failed appendError
	return errors.As(err, &failed) && errors.Is(failed, eventlog.ErrConflict) || errors.Is(err, projection.ErrExpired)
}

// backOff waits before something is tried again, longer each time and with jitter. After the first failure it does not
// wait: the write that won a conflict is in the log already.
func backOff(ctx context.Context, failures int) error {
	if failures == 1 {
		return nil
	}
	return eventlog.Pause(ctx, rand.N(time.Millisecond<<min(failures, 7)))
}

// appendError is an error of the append itself, as opposed to an error of upstream's functions.
type appendError struct {
	error
	alongside bool // the batch had more than the object
}

func (e appendError) Unwrap() error { return e.error }

// decisions bounds how often Alongside is asked again because the reads for Alongside took too long.
const decisions = 3

// append appends one batch: the write of an object, the writes of its claims, and the writes that Alongside returns.
// Computing the object may have taken long, because webhooks are asked, and the reads for the other writes may also
// have taken long. The view that decides about the write must therefore be no older than Staleness. If the view has
// grown older, append takes the newest view, provided that the object is the same in that view. Otherwise the object
// must be computed again.
func (s *store) append(ctx context.Context, v *projection.View, c Change, at projection.State, write func(*projection.State) projection.Write) (eventlog.Revision, error) {
	t := transactionOf(ctx)
	if err := t.mayCreate(c.Before == nil, c.Key); err != nil {
		return 0, err
	}
	var writes []projection.Write
	for n := 0; n == 0 || t == nil && v.Age() >= Staleness; n++ {
		var err error
		if n > decisions {
			return 0, appendError{error: fmt.Errorf("%w as far as is known: to decide about this one takes too long", eventlog.ErrConflict)}
		}
		if t == nil && v.Age() >= Staleness {
			if v, at, err = s.still(ctx, c.Key, at); err != nil {
				return 0, err
			}
		}
		if writes, err = s.alongside(ctx, v, c); err != nil {
			return 0, err
		}
	}
	rev, err := s.Append(ctx, v, append(writes, write(&at))...)
	if err != nil {
		return 0, appendError{err, len(writes) > 0}
	}
	if t == nil {
		s.acknowledge(rev)
	}
	return rev, nil
}

// still returns the newest view and the state of the key in that view. It fails if that view has another version of the
// object.
func (s *store) still(ctx context.Context, key eventlog.Key, was projection.State) (*projection.View, projection.State, error) {
	v, err := s.latest(ctx)
	if err != nil {
		return nil, was, err
	}
	at, err := v.State(ctx, key)
	if err != nil {
		return nil, was, err
	}
	had, _ := was.Row()
	if has, _ := at.Row(); has.Revision != had.Revision {
		return nil, was, appendError{error: fmt.Errorf("%w while this one was decided about", eventlog.ErrConflict)}
	}
	return v, at, nil
}

// alongside returns the writes of a change's claims, and the writes that Alongside returns.
func (s *store) alongside(ctx context.Context, v *projection.View, c Change) ([]projection.Write, error) {
	writes, err := s.claimWrites(ctx, v, c.Before, c.After)
	if err != nil || s.Resource.Alongside == nil {
		return writes, err
	}
	others, err := s.Resource.Alongside(ctx, v, c)
	return append(writes, others...), err
}

// Append appends writes in one batch and returns the revision of the last write. The writes come from States of the
// view, which give each write its base and precondition. Append serves requests, and also parts of Logplane that write
// without a request. The context names the author of the writes (Request.Author) and their id (Request.SetID). Errors
// are those of View.Append. If the request has ended, or while the log is known to refuse writes, Append writes nothing
// and fails with ErrNotPublished. In a transaction Append keeps the writes for the transaction's end, and the revision
// is provisional.
func (c Cell) Append(ctx context.Context, v *projection.View, writes ...projection.Write) (eventlog.Revision, error) {
	if author, ok := AuthorOf(ctx); ok {
		for i, w := range writes {
			if w.Author() == (eventlog.Author{}) {
				writes[i] = w.By(author)
			}
		}
	}
	if t := transactionOf(ctx); t != nil {
		return t.add(ctx, writes)
	}
	return c.appending(ctx, func(id string) (eventlog.Revision, error) { return v.Append(ctx, id, writes...) })
}

// appending calls 'write' with the id under which 'write' appends events for the context's request. If the request may
// append nothing, appending fails without calling 'write'. It records whether the request may have written, and the
// last written revision.
func (c Cell) appending(ctx context.Context, write func(id string) (eventlog.Revision, error)) (eventlog.Revision, error) {
	end, err := c.beginAppend(ctx)
	if err != nil {
		return 0, err
	}
	defer end()
	r := requestViewOf(ctx)
	if r == nil {
		return write(requestID(ctx))
	}
	r.mu.Lock()
	r.open++
	r.mu.Unlock()
	rev, err := write(requestID(ctx))
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil:
		r.wrote = max(r.wrote, rev) // later views must include it
	case !errors.Is(err, eventlog.ErrUnknown):
		r.open--
	}
	return rev, err
}

// writeFailed returns the answer to a client whose write failed. A refusal by upstream's functions is itself the
// answer.
func (s *store) writeFailed(ctx context.Context, err error, path string) error {
	var no refused
	var failed appendError
	var unread *projection.ReadError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &unread):
		return Answer(ctx, err)
	case errors.As(err, &no):
		return no.error
	case errors.As(err, &failed):
		return appendAnswer(ctx, failed.error, s.GroupResource, s.key(path))
	}
	return Answer(ctx, err)
}
