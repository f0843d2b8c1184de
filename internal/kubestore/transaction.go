package kubestore

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/projection"
)

// transactionTries bounds how often a transaction is computed. Each computation takes as long as all requests of the
// transaction.
const transactionTries = 5

// transactionWork bounds the bytes of objects that a transaction decodes and encodes, whether or not it changes these
// objects. So the transaction writes at most half as many bytes. Even a patch of a few bytes decodes and encodes a
// whole object. This takes one or two tenths of a microsecond for each byte of the object.
const transactionWork = 32 << 20

// heavyWrite is how many bytes of objects keep a processor busy for some ten milliseconds. A write of more bytes waits
// for a heavy seat.
const heavyWrite = 256 << 10

// Transaction is one attempt to append the writes of several requests together. In its context, every write of a store
// is kept until the end, and every read shows the earlier writes of the same attempt. This includes claims and writes
// alongside objects: if one quota limits two objects, the second is charged after the first.
type Transaction struct {
	mu      sync.Mutex // guards the fields below
	pending *projection.Pending
	// dry says that nothing will be appended.
	dry bool
	// ended says that nothing may be written any more.
	ended bool
	// lost says that a part could not be computed, because the state from which it is computed can no longer be read.
	lost bool
	// last is the provisional revision of the last write.
	last eventlog.Revision
	// work is how many bytes of objects were decoded and encoded.
	work int
}

// transactionOf returns the context's transaction, or nil outside of a transaction.
func transactionOf(ctx context.Context) *Transaction {
	return requestOf(ctx).transaction
}

// InTransaction says whether the context's request is part of a transaction.
func InTransaction(ctx context.Context) bool { return transactionOf(ctx) != nil }

// IsDryRun says whether the context's request is part of a transaction that is never written.
func IsDryRun(ctx context.Context) bool {
	t := transactionOf(ctx)
	return t != nil && t.dry
}

var errAttemptEnded = apierrors.NewTimeoutError("the request has outlived the transaction of which it was a part", 0)

// Transactions runs the transactions of one process. It is safe for concurrent use.
type Transactions struct {
	Cell
	// Decides returns the rows that decide about a write of the key without being written. Such a row may have been
	// deleted by the time that a long transaction ends.
	Decides func(eventlog.Key) []projection.Keys

	turns turns
}

// Run runs compute, and appends in one batch everything that was written with compute's context. It returns the attempt
// that succeeded, and the revision of the batch's last event, or 0 if there was nothing to append.
//
// If another write of one of the keys came first, Run computes everything again. Transactions that have lost in one
// namespace take turns, as other writes do. If compute fails, Run returns its error and writes nothing. A dry run
// appends nothing: its parts see each other's writes, and nobody else sees these writes.
func (ts *Transactions) Run(ctx context.Context, dry bool, compute func(context.Context, *Transaction) error) (*Transaction, eventlog.Revision, error) {
	var turn chan struct{}
	defer func() {
		if turn != nil {
			<-turn
		}
	}()
	v, err := ts.Consistent(ctx)
	for n := 1; err == nil; n++ {
		t := &Transaction{pending: v.Pending(), dry: dry}
		part := RequestOf(ctx)
		part.transaction = t
		err = compute(part.In(ctx), t)
		again := t.end()
		if err == nil && !again && dry {
			return t, 0, nil
		}
		if err == nil && !again {
			var rev eventlog.Revision
			rev, err = ts.append(ctx, t.pending)
			if err == nil {
				return t, rev, nil
			}
			again = lost(appendError{error: err})
			err = appendAnswer(ctx, err, schema.GroupResource{}, eventlog.Key{})
		}
		if again && err == nil {
			err = Unavailable("nothing was written: what the transaction was computed from is no longer there")
		}
		if !again || n == transactionTries {
			break
		}
		writeConflicts.Inc()
		err = backOff(ctx, n)
		if err == nil && turn == nil {
			turn, err = ts.turn(ctx, t.pending)
		}
		if err == nil {
			v, err = ts.latest(ctx)
		}
	}
	return nil, 0, Answer(ctx, err)
}

// turn waits for a transaction's turn among the transactions that lost in the same namespace. If the object to which
// the transaction lost has no namespace, the turn is among the transactions that lost to that object. A transaction
// that has not lost to another write does not wait.
func (ts *Transactions) turn(ctx context.Context, pending *projection.Pending) (chan struct{}, error) {
	v, err := ts.latest(ctx)
	if err != nil {
		return nil, err
	}
	to, err := pending.Rebase(ctx, v, ts.Decides)
	if err != nil || to == (eventlog.Key{}) { // for example, the floor has passed the view
		return nil, nil
	}
	return ts.turns.take(ctx, cmp.Or(to.Namespace, to.RowKey())), nil
}

// append appends the writes of a transaction. As with any write, the view that decided about the writes may be no older
// than Staleness.
func (ts *Transactions) append(ctx context.Context, pending *projection.Pending) (eventlog.Revision, error) {
	if pending.Len() > 0 && pending.Base().Age() >= Staleness {
		v, err := ts.latest(ctx)
		if err != nil {
			return 0, err
		}
		to, err := pending.Rebase(ctx, v, ts.Decides)
		if err != nil {
			return 0, err
		}
		if to != (eventlog.Key{}) {
			return 0, fmt.Errorf("%w: what the transaction was computed from has changed, of %s", eventlog.ErrConflict, to.RowKey())
		}
	}
	return ts.appending(ctx, func(id string) (eventlog.Revision, error) { return pending.Append(ctx, id) })
}

// end ends the attempt and says whether it has lost. A request that has outlived its deadline may still run, but writes
// nothing more.
func (t *Transaction) end() (lost bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	return t.lost
}

// view returns the view that the transaction's requests read.
func (t *Transaction) view() *projection.View {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pending.View()
}

// compute is store.compute in a transaction. Only the transaction itself sees its writes, so its writes cannot lose to
// another writer here.
func (t *Transaction) compute(try func(*projection.View) (eventlog.Revision, error)) (eventlog.Revision, error) {
	rev, err := try(t.view())
	if lost(err) {
		t.Lose()
	}
	return rev, err
}

// spend counts bytes of objects that a write is about to decode and encode. The request waits for a heavy seat if these
// bytes are many. In a transaction the bytes of all its writes so far count.
func spend(ctx context.Context, bytes int) error {
	if t := transactionOf(ctx); t != nil {
		t.mu.Lock()
		t.work += bytes
		bytes = t.work
		t.mu.Unlock()
	}
	if bytes > transactionWork && InTransaction(ctx) {
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("with this operation the transaction decodes and encodes %d bytes of objects, "+
			"of which it may do %d, whether or not it changes them: send fewer operations at once", bytes, transactionWork))
	}
	if bytes > heavyWrite {
		return TakeHeavySeat(ctx)
	}
	return nil
}

// Half says that the transaction has done half of the work that it may do. A caller that can continue in another
// transaction should do so.
func (t *Transaction) Half() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.work > transactionWork/2
}

// Lose says that the state from which the attempt is computed can no longer be read, so that the whole attempt must be
// computed again.
func (t *Transaction) Lose() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lost = true
}

// add keeps the writes until the transaction's end.
func (t *Transaction) add(ctx context.Context, writes []projection.Write) (eventlog.Revision, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended || ctx.Err() != nil {
		return 0, errAttemptEnded
	}
	rev, err := t.pending.Add(requestID(ctx), writes...)
	if err != nil {
		return 0, err
	}
	if n := t.pending.Len(); n > eventlog.MaxBatch {
		return 0, fmt.Errorf("with this operation the transaction has %d events, of which it may have %d, "+
			"those included that are written alongside objects: %w", n, eventlog.MaxBatch, eventlog.ErrTooLarge)
	}
	t.last = rev
	return rev, nil
}

// mayCreate refuses to create an object in place of an object that the transaction has deleted. A batch has at most one
// event of a key, and an update cannot give an object a new identity.
func (t *Transaction) mayCreate(creates bool, key eventlog.Key) error {
	if t == nil || !creates {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended || !t.pending.Deleted(key) {
		return nil
	}
	resource := schema.GroupResource{Group: key.Group, Resource: key.Resource}
	refused := apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "create", resource, key.Name, "", 0, false)
	refused.ErrStatus.Message = fmt.Sprintf("%s '%s' is deleted by the same transaction: "+
		"what takes its place can only be made after it", resource, key.Name)
	return refused
}

// Last returns the provisional revision of the last write, or 0 if there is no write.
func (t *Transaction) Last() eventlog.Revision {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last
}

// Appended turns a provisional revision into the revision of the appended event, once Run has returned. It returns 0
// for an object that the transaction both created and deleted. A revision that is not provisional is returned as it is.
func (t *Transaction) Appended(rev eventlog.Revision) eventlog.Revision {
	return t.pending.Appended(rev)
}
