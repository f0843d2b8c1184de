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

// Chunks is one list whose items come in encoded chunks (ChunkLister). A chunk encodes some neighbouring items, and is
// cached until one of them changes. A list whose chunks are all cached costs only the reading of its rows' keys and
// revisions.
//
// The key of an item decides whether a chunk ends with the item. So a change affects one chunk, and pages, lists of one
// namespace and selected lists share the chunks of the items that they have in common.
type Chunks struct {
	// Resource is the resource whose list is wanted in chunks.
	Resource schema.GroupResource
	// Encoding names the encoding that Encode produces.
	Encoding string
	// Encode makes a chunk of the items of a list. It must not write to the items. Large says that the whole list is
	// large. Encode and Verbatim are called concurrently, unless Fleeting is set.
	Encode func(ctx context.Context, list runtime.Object, large bool) (Chunk, error)
	// Verbatim makes a chunk of items as they are stored. It returns nil if the items must be decoded. If Verbatim
	// itself is nil, all items must be decoded.
	Verbatim func(ctx context.Context, items []projection.Row, large bool) Chunk
	// Sized says that the answer begins with the size of the whole list.
	Sized bool
	// Fleeting says that chunks depend on more than their items, so that decoded items are cached in place of chunks.
	Fleeting bool

	first         []Chunk
	rest          func() (Chunk, error, bool)
	end           func()
	count, length int
}

// Append appends an object in the form that a client gets, given the object's stored value. It returns nil if the
// object must be decoded.
type Append func(to, stored []byte, revision uint64) []byte

// All appends items with a separator between them. It returns nil if any item must be decoded.
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

// Chunk holds encoded items. It is safe for concurrent use.
type Chunk interface {
	// Bytes is how much memory the chunk takes.
	Bytes() int
	// Size is how many items the chunk has, and how many bytes they take in the answer.
	Size() (count, length int)
}

// Given says that the list was answered with chunks, and has no items.
func (p *Chunks) Given() bool { return p.rest != nil }

// Size is the total of the chunks that were read before the answer: all chunks if Sized is set, else at least the first
// chunk.
func (p *Chunks) Size() (count, length int) { return p.count, p.length }

// All yields the chunks that are held, releasing each, and then reads and yields the other chunks. It ends with an
// error, if any.
func (p *Chunks) All() iter.Seq2[Chunk, error] {
	return func(yield func(Chunk, error) bool) {
		for len(p.first) > 0 {
			chunk := p.first[0]
			p.first[0] = nil
			p.first = p.first[1:]
			if !yield(chunk, nil) {
				return
			}
		}
		for {
			chunk, err, ok := p.rest()
			if !ok || !yield(chunk, err) || err != nil {
				return
			}
		}
	}
}

// Close ends the list, whether or not all of it was read.
func (p *Chunks) Close() {
	if p.end != nil {
		p.end()
	}
}

// keepsChunks says that chunks may be made. Encrypted or padded values are transformed on every read, so that no value
// outlives its encryption key.
func (s *store) keepsChunks() bool { return s.plain && s.Objects != nil }

const (
	// aroundItems is the average number of items in a chunk. The maximum is mostItems, or mostBytes of stored values.
	aroundItems = 64
	mostItems   = 4 * aroundItems
	mostBytes   = 256 << 10
	// firstBytes is how many bytes of chunks a list holds before it answers.
	firstBytes = 8 << 20
)

// fillChunks begins a list of chunks. It reads the first chunks before the answer begins, so that an error becomes the
// answer; a later error breaks the answer off. The list is read to its end if the answer begins with the list's size,
// or if the list is a page, whose answer begins with the token of the next page. Then the chunks that are not held are
// read again in order to be sent.
func (l *listing) fillChunks(ctx context.Context, p *Chunks) error {
	next, stop := iter.Pull2(l.chunks(ctx, p))
	whole := p.Sized || l.opts.Predicate.Limit > 0
	again, held, left := *l, 0, false
	for whole || held < firstBytes {
		chunk, err, ok := next()
		if err != nil {
			stop()
			return err
		}
		if !ok {
			break
		}
		count, length := chunk.Size()
		p.count, p.length = p.count+count, p.length+length
		if held >= firstBytes {
			left = true
			continue
		}
		p.first = append(p.first, chunk)
		held += chunk.Bytes()
		again = *l
	}
	if left {
		again.keys.Start = again.last + "\x00"
		next, stop = iter.Pull2(again.chunks(ctx, p))
	}
	p.rest, p.end = next, stop
	return nil
}

// chunks cuts the matching rows into chunks. Chunks that are not cached are made ahead of the caller, some of them by
// helpers. While the caller has a chunk, the listing stands behind the chunk's last row, so that reading can continue
// after that row.
func (l *listing) chunks(ctx context.Context, p *Chunks) iter.Seq2[Chunk, error] {
	all := !p.Fleeting && l.opts.Predicate.Empty() && !sharded(&l.opts.Predicate)
	return func(yield func(Chunk, error) bool) {
		var ahead makings
		defer ahead.wait()
		working, cancel := context.WithCancel(ctx)
		defer cancel()
		give := func(left int) bool {
			for len(ahead) > left || len(ahead) > 0 && ahead[0].ready() {
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
			rows = l.upToLimit(ctx, l.scanKeys(ctx, &c))
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
			ahead = append(ahead, l.chunk(working, p, &c, true))
			if !give(mostAhead - 1) {
				return
			}
			c.rows, c.objects, c.revisions, c.bytes = c.rows[:0], c.objects[:0], c.revisions[:0], 0
		}
		if len(c.rows) > 0 {
			ahead = append(ahead, l.chunk(working, p, &c, false))
		}
		give(0)
	}
}

// scanKeys yields the rows of a list in which all rows match. It leaves out values that are not in memory. But after
// two consecutive chunks that had to be made, scanKeys reads the rest of the list in one scan, with all values, as if
// no chunk were cached.
func (l *listing) scanKeys(ctx context.Context, c *cut) iter.Seq2[projection.Row, error] {
	return func(yield func(projection.Row, error) bool) {
		start := l.keys.Start
		for row, err := range l.view.ScanKeys(ctx, start, l.keys.End, l.at) {
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

// values reads the values of a chunk's rows that scanKeys has left out.
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

// cut has the rows of one chunk, and their objects unless all rows match.
type cut struct {
	rows      []projection.Row
	objects   []runtime.Object
	revisions []projection.Revision
	bytes     int
	// missing is how many chunks in a row had to be made from rows without values.
	missing int
}

var cutSeed = maphash.MakeSeed()

// add reports whether the chunk ends with the row.
func (c *cut) add(row projection.Row, object runtime.Object) bool {
	c.rows, c.revisions = append(c.rows, row), append(c.revisions, row.Revision)
	if object != nil {
		c.objects = append(c.objects, object)
	}
	c.bytes += row.Size
	return len(c.rows) >= mostItems || c.bytes >= mostBytes || maphash.String(cutSeed, row.Key)%aroundItems == 0
}

// kept is a chunk with the revisions of its items. A revision belongs to one event, so equal revisions are equal items.
type kept struct {
	Chunk
	revisions []projection.Revision
}

func (k kept) bytes() int64 { return int64(k.Bytes() + len(k.revisions)*8) }

// making is a chunk that is cached or being made.
type making struct {
	// behind is the state of the listing after the chunk's last row. Nobody writes to it.
	behind listing
	chunk  Chunk
	err    error
	// panicked is the value of Encode's panic. The reader panics with this value, so that the reader's request ends.
	panicked any
	// done is closed when the chunk is made.
	done chan struct{}
}

// made is a channel that is already closed.
var made = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (m *making) ready() bool {
	select {
	case <-m.done:
		return true
	default:
		return false
	}
}

func (m *making) result() (Chunk, error) {
	<-m.done
	if m.panicked != nil {
		panic(m.panicked)
	}
	return m.chunk, m.err
}

// makings are chunks in the order of their rows.
type makings []*making

// first removes the first chunk and returns it.
func (q *makings) first() *making {
	m := (*q)[0]
	(*q)[0] = nil
	*q = (*q)[1:]
	return m
}

// wait returns once no chunk is being made.
func (q *makings) wait() {
	for _, m := range *q {
		<-m.done
	}
}

// mostAhead bounds how many chunks of one list are being made or wait for an earlier chunk.
const mostAhead = 4

// helpers has an element for each goroutine, other than a list's own goroutine, that makes chunks. All lists share
// these goroutines, so half of the processors remain for requests with a heavy seat.
var helpers = make(chan struct{}, goruntime.GOMAXPROCS(0)/2)

// helped reports whether another helper may start. If so, it counts that helper.
func helped() bool {
	select {
	case helpers <- struct{}{}:
		return true
	default:
		return false
	}
}

// chunk finds the chunk of these rows in the cache, or else makes it or lets a free helper make it. The last chunk is
// not given to a helper, because the caller would only wait for it.
func (l *listing) chunk(ctx context.Context, p *Chunks, c *cut, more bool) *making {
	s, m := l.store, &making{behind: *l, done: made}
	if p.Fleeting { // the chunk is not cached, and its rows have their values
		m.chunk, m.err = l.encode(ctx, p, c)
		return m
	}
	id := version{store: s.id, rowKey: c.rows[0].Key, revision: hash(c.revisions), kind: p.Encoding}
	if m.chunk = s.Objects.chunk(id, c.revisions); m.chunk != nil {
		c.missing = 0
		return m
	}
	if m.err = l.values(ctx, c); m.err != nil {
		return m
	}
	revisions := slices.Clone(c.revisions) // the caller will reuse its own slice
	encode := func(c *cut) {
		m.chunk, m.err = m.behind.encode(ctx, p, c)
		if m.err == nil {
			s.Objects.addChunk(id, s.owner(id.rowKey), kept{m.chunk, revisions})
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
				slog.ErrorContext(ctx, "making a chunk of a list panicked", "panic", m.panicked, "stack", string(debug.Stack()))
			}
		}()
		encode(own)
	}()
	return m
}

// encode makes a chunk of rows that have their values. It does not read the request's list, because others write to it
// meanwhile.
func (l *listing) encode(ctx context.Context, p *Chunks, c *cut) (Chunk, error) {
	large := l.bytes > heavyList
	if p.Verbatim != nil && len(c.objects) == 0 {
		if chunk := p.Verbatim(ctx, c.rows, large); chunk != nil {
			return chunk, nil
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
			return nil, err
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

// ChunkLister is a store that can list in chunks.
type ChunkLister interface {
	// ListChunks is GetList, but the items come in chunks and the list has no items. It does nothing and returns false
	// if p is meant for the list of another resource, if p has chunks already, or if the store may keep no chunks.
	ListChunks(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object, p *Chunks) (given bool, err error)
}

var _ ChunkLister = (*store)(nil)

// ListChunks implements ChunkLister.
func (s *store) ListChunks(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object, p *Chunks) (given bool, err error) {
	if p.Given() || p.Resource != s.GroupResource || !s.keepsChunks() {
		return false, nil
	}
	return true, s.list(ctx, key, opts, list, p)
}
