package kubestore

import (
	"context"
	"fmt"
	"hash/maphash"
	"iter"
	"log/slog"
	"reflect"
	goruntime "runtime"
	"runtime/debug"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"

	"github.com/logplane/logplane/projection"
)

// Pieces is one list in encoded pieces in place of objects (Pieced). A piece encodes some neighbouring items,
// and is cached for as long as none of them changes. A list whose pieces are all cached costs only the reading of its
// rows' keys and revisions.
//
// The key of an item decides whether a piece ends with the item. So a change affects one piece, and pages, lists of one
// namespace and selected lists share the pieces of the items that they have in common.
type Pieces struct {
	// Resource is the resource whose list is wanted in pieces.
	Resource schema.GroupResource
	// Form names the encoding that Encode produces.
	Form string
	// Encode makes a piece of the items of a list, to which it must not write. Large says that the whole list is large.
	// Encode and Verbatim are called concurrently, unless Fleeting is set.
	Encode func(ctx context.Context, list runtime.Object, large bool) (Piece, error)
	// Verbatim makes a piece of items as they are stored. It returns nil if they must be decoded. If Verbatim itself is
	// nil, all items must be decoded.
	Verbatim func(ctx context.Context, items []projection.Row, large bool) Piece
	// Sized says that the answer begins with the size of the whole list.
	Sized bool
	// Fleeting says that pieces depend on more than their items, so that decoded items are cached in place of pieces.
	Fleeting bool

	first         []Piece
	rest          func() (Piece, error, bool)
	end           func()
	count, length int
}

// Append appends an object as a client gets it, given its stored value. It returns nil if the object must be decoded.
type Append func(to, stored []byte, revision uint64) []byte

// All appends items with a separator between them. It returns nil if any of them must be decoded.
func (add Append) All(to []byte, items []projection.Row, separator []byte) []byte {
	for i, item := range items {
		if i > 0 {
			to = append(to, separator...)
		}
		if to = add(to, item.Value, uint64(item.Revision)); to == nil {
			return nil
		}
	}
	return to
}

// Piece holds encoded items. It is safe for concurrent use.
type Piece interface {
	// Bytes is how much memory the piece takes.
	Bytes() int
	// Size is how many items the piece has, and how many bytes they take in the answer.
	Size() (count, length int)
	// Denser returns the same piece in less memory, which takes longer to read. It returns nil if there is no such
	// piece, or if it was called before.
	Denser() Piece
}

// Given says that the list was answered with pieces, and has no items.
func (p *Pieces) Given() bool { return p.rest != nil }

// Size is the total of the pieces that were read before the answer: all of them if Sized is set, else at least the
// first.
func (p *Pieces) Size() (count, length int) { return p.count, p.length }

// All yields the pieces that are held, releasing each, and then reads and yields the others. It ends with an error, if
// any.
func (p *Pieces) All() iter.Seq2[Piece, error] {
	return func(yield func(Piece, error) bool) {
		for len(p.first) > 0 {
			piece := p.first[0]
			p.first[0] = nil
			p.first = p.first[1:]
			if !yield(piece, nil) {
				return
			}
		}
		for {
			piece, err, ok := p.rest()
			if !ok || !yield(piece, err) || err != nil {
				return
			}
		}
	}
}

// Close ends the list, whether or not all of it was read.
func (p *Pieces) Close() {
	if p.end != nil {
		p.end()
	}
}

// keepsPieces says that pieces may be made. Encrypted or padded values are transformed on every read, so that nothing
// outlives its encryption key. While corrupt objects may be deleted, a list names all of them.
func (s *store) keepsPieces() bool { return s.plain && s.Objects != nil && !unsafeDeletion() }

const (
	// aroundItems is the average number of items in a piece. The maximum is mostItems, or mostBytes of stored values.
	aroundItems = 64
	mostItems   = 4 * aroundItems
	mostBytes   = 256 << 10
	// firstBytes is how many bytes of pieces a list holds before it answers.
	firstBytes = 8 << 20
)

// fillPieces begins a list of pieces. It reads the first pieces before the answer begins, so that an error becomes the
// answer; a later error breaks the answer off. The list is read to its end if the answer begins with the list's size,
// or if it is a page, whose answer begins with what follows the page. Then the pieces that are not held are read again,
// to be sent.
func (l *listing) fillPieces(ctx context.Context, p *Pieces) error {
	next, stop := iter.Pull2(l.pieces(ctx, p))
	whole := p.Sized || l.opts.Predicate.Limit > 0
	again, held, left := *l, 0, false
	for whole || held < firstBytes {
		piece, err, ok := next()
		if err != nil {
			stop()
			return err
		}
		if !ok {
			break
		}
		count, length := piece.Size()
		p.count, p.length = p.count+count, p.length+length
		if held >= firstBytes {
			left = true
			continue
		}
		p.first = append(p.first, piece)
		held += piece.Bytes()
		again = *l
	}
	if left {
		again.keys.Start = again.last + "\x00"
		next, stop = iter.Pull2(again.pieces(ctx, p))
	}
	p.rest, p.end = next, stop
	return nil
}

// pieces cuts the matching rows into pieces. Pieces that are not cached are made ahead of the caller, some of them by
// helpers. While the caller has a piece, the listing stands behind the piece's last row, so that reading can go on from
// there.
func (l *listing) pieces(ctx context.Context, p *Pieces) iter.Seq2[Piece, error] {
	all := !p.Fleeting && l.opts.Predicate.Empty() && !sharded(&l.opts.Predicate)
	return func(yield func(Piece, error) bool) {
		var ahead makings
		defer ahead.wait()
		beside, cancel := context.WithCancel(ctx)
		defer cancel()
		give := func(left int) bool {
			for len(ahead) > left || ahead.ready() {
				m, at := ahead.first(), *l
				*l = m.behind
				if !yield(m.result()) || m.err != nil {
					return false
				}
				*l = at
			}
			return true
		}
		c := cut{rows: make([]projection.Row, 0, 2*aroundItems), revisions: make([]projection.Revision, 0, 2*aroundItems)}
		rows := l.scan(ctx)
		if all {
			rows = l.upToLimit(ctx, l.outline(ctx, &c))
		}
		for row, err := range rows {
			var object runtime.Object
			if err == nil && !all {
				object, err = l.match(ctx, row)
				if err == nil && object == nil {
					continue
				}
			}
			if err != nil {
				if give(0) {
					yield(nil, err)
				}
				return
			}
			l.taken++
			if !c.add(row, object) {
				continue
			}
			ahead = append(ahead, l.piece(beside, p, &c, true))
			if !give(mostAhead - 1) {
				return
			}
			c.rows, c.objects, c.revisions, c.bytes = c.rows[:0], c.objects[:0], c.revisions[:0], 0
		}
		if len(c.rows) > 0 {
			ahead = append(ahead, l.piece(beside, p, &c, false))
		}
		give(0)
	}
}

// outline yields the rows of a list in which all rows match. It leaves out values that are not at hand. But once more
// than one piece in a row had to be made, it reads the rest in one go, with all values, like a list that nobody caches.
func (l *listing) outline(ctx context.Context, c *cut) iter.Seq2[projection.Row, error] {
	return func(yield func(projection.Row, error) bool) {
		start := l.keys.Start
		for row, err := range l.view.Outline(ctx, start, l.keys.End, l.at) {
			if !yield(row, err) {
				return
			}
			if start = row.Key + "\x00"; c.missing > 1 {
				break
			}
		}
		if c.missing <= 1 {
			return
		}
		for row, err := range l.view.ScanOnce(ctx, start, l.keys.End, l.at) {
			if !yield(row, err) {
				return
			}
		}
	}
}

// values reads those values of a piece's rows that outline has left out.
func (l *listing) values(ctx context.Context, c *cut) error {
	if !slices.ContainsFunc(c.rows, func(r projection.Row) bool { return len(r.Value) < r.Size }) {
		c.missing = 0
		return nil
	}
	c.missing++
	read := make([]projection.Row, 0, len(c.rows))
	for row, err := range l.view.ScanOnce(ctx, c.rows[0].Key, c.rows[len(c.rows)-1].Key+"\x00", l.at) {
		if err != nil {
			return l.failed(ctx, err)
		}
		if !l.store.foreign(row.ContentType) {
			read = append(read, row)
		}
	}
	if !slices.EqualFunc(read, c.revisions, func(r projection.Row, rev projection.Revision) bool { return r.Revision == rev }) {
		return fmt.Errorf("list %q: rows as of revision %d are not those of a moment ago", c.rows[0].Key, l.at)
	}
	copy(c.rows, read)
	return nil
}

// cut has the rows of one piece, and their objects unless all rows match.
type cut struct {
	rows      []projection.Row
	objects   []runtime.Object
	revisions []projection.Revision
	bytes     int
	// missing is how many pieces in a row had to be made from rows without values.
	missing int
}

var cutSeed = maphash.MakeSeed()

// add reports whether the piece ends with the row.
func (c *cut) add(row projection.Row, object runtime.Object) bool {
	c.rows, c.revisions = append(c.rows, row), append(c.revisions, row.Revision)
	if object != nil {
		c.objects = append(c.objects, object)
	}
	c.bytes += row.Size
	return len(c.rows) >= mostItems || c.bytes >= mostBytes || maphash.String(cutSeed, row.Key)%aroundItems == 0
}

// kept is a piece with the revisions of its items. A revision belongs to one event, so equal revisions are equal items.
type kept struct {
	Piece
	revisions []projection.Revision
}

func (k kept) bytes() int64 { return int64(k.Bytes() + len(k.revisions)*8) }

// making is a piece that is cached or being made.
type making struct {
	// behind is the listing as it stands behind the piece's last row. Nobody writes to it.
	behind listing
	piece  Piece
	err    error
	// panicked is the value of Encode's panic. The reader panics with it, so that the reader's request ends.
	panicked any
	done     chan struct{} // nil if there was nothing to make
}

func (m *making) ready() bool {
	if m.done == nil {
		return true
	}
	select {
	case <-m.done:
		return true
	default:
		return false
	}
}

func (m *making) wait() {
	if m.done != nil {
		<-m.done
	}
}

func (m *making) result() (Piece, error) {
	m.wait()
	if m.panicked != nil {
		panic(m.panicked)
	}
	return m.piece, m.err
}

// makings are pieces in the order of their rows.
type makings []*making

func (q *makings) ready() bool { return len(*q) > 0 && (*q)[0].ready() }

// first removes the first piece and returns it.
func (q *makings) first() *making {
	m := (*q)[0]
	(*q)[0] = nil
	*q = (*q)[1:]
	return m
}

// wait returns once no piece is being made.
func (q *makings) wait() {
	for _, m := range *q {
		m.wait()
	}
}

// mostAhead bounds how many pieces of one list are being made or wait for an earlier one.
const mostAhead = 4

// helpers has a place for each goroutine that makes pieces for a list besides the list's own. All lists share the
// places, so half of the processors remain for requests that have the turn.
var helpers = make(chan struct{}, goruntime.GOMAXPROCS(0)/2)

// helped takes a free place for a helper. It returns false if there is none.
func helped() bool {
	select {
	case helpers <- struct{}{}:
		return true
	default:
		return false
	}
}

// piece finds the piece of these rows in the cache, or else makes it or lets a free helper make it. The last piece is
// not given to a helper, because the caller would only wait for it.
func (l *listing) piece(ctx context.Context, p *Pieces, c *cut, more bool) *making {
	s, m := l.store, &making{behind: *l}
	if p.Fleeting { // it is not cached, and its rows have their values
		m.piece, m.err = l.encode(ctx, p, c)
		return m
	}
	id := version{store: s.id, rowKey: c.rows[0].Key, revision: hash(c.revisions), kind: p.Form}
	if m.piece = s.Objects.piece(id, c.revisions); m.piece != nil {
		c.missing = 0
		return m
	}
	if m.err = l.values(ctx, c); m.err != nil {
		return m
	}
	revisions := slices.Clone(c.revisions) // the caller goes on to use its own
	encode := func(c *cut) {
		m.piece, m.err = m.behind.encode(ctx, p, c)
		if m.err == nil {
			s.Objects.addPiece(id, s.owner(id.rowKey), kept{m.piece, revisions})
		}
	}
	if !more || !helped() {
		encode(c)
		return m
	}
	own := &cut{rows: slices.Clone(c.rows), objects: slices.Clone(c.objects)}
	m.done = make(chan struct{})
	go func() {
		defer close(m.done)
		defer func() {
			<-helpers
			if m.panicked = recover(); m.panicked != nil {
				slog.ErrorContext(ctx, "making a piece of a list panicked", "panic", m.panicked, "stack", string(debug.Stack()))
			}
		}()
		encode(own)
	}()
	return m
}

// encode makes a piece of rows that have their values. It does not read the request's list, because others write to it
// meanwhile.
func (l *listing) encode(ctx context.Context, p *Pieces, c *cut) (Piece, error) {
	large := l.bytes > heavyList
	if p.Verbatim != nil && len(c.objects) == 0 {
		if piece := p.Verbatim(ctx, c.rows, large); piece != nil {
			return piece, nil
		}
	}
	list := reflect.New(reflect.TypeOf(l.list).Elem()).Interface().(runtime.Object)
	if u, ok := list.(*unstructured.UnstructuredList); ok {
		u.SetGroupVersionKind(l.kind)
	}
	items, err := itemsOf(list)
	if err != nil {
		return nil, err
	}
	items.Set(reflect.MakeSlice(items.Type(), len(c.rows), len(c.rows)))
	for i, row := range c.rows {
		if err := ctx.Err(); err != nil { // decoding an object may take a webhook
			return nil, err
		}
		var object runtime.Object
		if len(c.objects) > 0 {
			object = c.objects[i]
		} else if object, err = l.decode(ctx, row); err != nil {
			return nil, l.keepCorrupt(row, err)
		}
		items.Index(i).Set(reflect.ValueOf(object).Elem())
	}
	return p.Encode(ctx, list, large)
}

func hash(revisions []projection.Revision) projection.Revision {
	var h maphash.Hash
	h.SetSeed(cutSeed)
	for _, r := range revisions {
		maphash.WriteComparable(&h, r)
	}
	return projection.Revision(h.Sum64())
}

// Pieced is a store that can list in pieces.
type Pieced interface {
	// ListPieces is GetList, but that the items come in pieces and the list has none. It does nothing, and says so, if
	// another resource's list is meant, if that was listed already, or if no piece may be kept of what is stored.
	ListPieces(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object, p *Pieces) (given bool, err error)
}

var _ Pieced = (*store)(nil)

// ListPieces implements Pieced.
func (s *store) ListPieces(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object, p *Pieces) (given bool, err error) {
	if p.Given() || p.Resource != s.GroupResource || !s.keepsPieces() {
		return false, nil
	}
	return true, s.list(ctx, key, opts, list, p)
}
