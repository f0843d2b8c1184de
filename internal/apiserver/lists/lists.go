// Package lists answers lists from encoded pieces that are kept (kubestore.Pieces), and compresses answers.
//
// Upstream's handler serves the list as usual: options, validation, errors, headers, metadata. But its store (Store)
// gives the handler a list without items, and this package splices the encoded items into the handler's answer.
// Upstream's own encoder makes each piece from a list with only that piece's items, so the answer is the one that
// upstream would give, byte for byte. Pieces of a Table are not kept, because a Table shows the objects' ages.
package lists

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/apihelpers"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/logplane/logplane/internal/kubestore"
	"github.com/logplane/logplane/projection"
)

// Kind of objects that are listed.
type Kind struct {
	Resource schema.GroupResource
	// Version that the request asks for.
	Version schema.GroupVersion
	// Serializer is the one from which upstream's handler negotiates the encoding. It is nil for a kind whose lists are
	// not made of pieces.
	Serializer runtime.NegotiatedSerializer
	// Decorate adds the fields that are not stored to the items of a list, as upstream's store does when it reads. It
	// is nil if there are none.
	Decorate func(list runtime.Object)
	// Convertor converts objects to the version. It is nil if they already have it.
	Convertor runtime.ObjectConvertor
	// Tables returns the convertor to Tables, for the context in which the store answers. It is nil for a kind without
	// Tables.
	Tables func(context.Context) rest.TableConvertor
	// Verbatim returns a function that encodes stored objects as a media type, for the context in which the store
	// answers. It is nil for a kind whose objects must be decoded.
	Verbatim func(ctx context.Context, mediaType string) kubestore.Append
}

// Serve lets the handler answer a list. fail answers with an error.
func Serve(w http.ResponseWriter, r *http.Request, kind Kind, h http.Handler, fail func(http.ResponseWriter, *http.Request, error)) {
	a := &answer{ResponseWriter: w, encoding: wanted(r)}
	if a.encoding != identity { // upstream would compress with the standard library, at twice the cost
		r = r.WithContext(r.Context())
		r.Header = r.Header.Clone()
		r.Header.Del("Accept-Encoding")
	}
	if local(r) {
		a.encoding = identity
	}
	asked := r
	if made := kind.maker(r, a.encoding); made != nil {
		a.pieces, a.form = &made.Pieces, made.form
		defer a.pieces.Close()
		asked = r.WithContext(context.WithValue(r.Context(), askedKey{}, a.pieces))
	}
	h.ServeHTTP(responsewriter.WrapForHTTP1Or2(a), asked)
	if !a.held {
		a.end()
		return
	}
	err := a.splice()
	switch {
	case err == nil:
	case a.begun:
		panic(http.ErrAbortHandler) // the client must not take this for the whole list
	case errors.Is(err, errShape): // upstream encodes lists in a way that is unknown here
		slog.ErrorContext(r.Context(), "a list could not be made of pieces, and is encoded as a whole", "error", err)
		a.pieces, a.held = nil, false
		a.body.Reset()
		h.ServeHTTP(responsewriter.WrapForHTTP1Or2(a), r)
		a.end()
	default:
		fail(w, r, err)
	}
}

// errShape says that a list does not look as expected.
var errShape = errors.New("unexpected encoding of a list")

// maker makes the pieces of one list, several at the same time.
type maker struct {
	kubestore.Pieces
	form form
	// decorate is Kind.Decorate.
	decorate func(runtime.Object)
	// changed makes the object that is encoded in place of a list. It is nil if the list itself is encoded.
	changed func(context.Context, runtime.Object) (runtime.Object, error)
	encoder func() runtime.Encoder // made with the first piece

	emptied  sync.Once
	empty    []byte // an encoded list without items
	emptyErr error
}

// buffers has the buffers in which pieces are encoded.
var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// mostBuffered is the largest size of a buffer that is used again. Most pieces have at most 256 KiB.
const mostBuffered = 1 << 20

func buffer() (b *bytes.Buffer, done func()) {
	b = buffers.Get().(*bytes.Buffer)
	b.Reset()
	return b, func() {
		if b.Cap() <= mostBuffered {
			buffers.Put(b)
		}
	}
}

// maker returns nil if the list must be encoded as a whole.
func (k Kind) maker(r *http.Request, encoding encoding) *maker {
	if k.Serializer == nil {
		return nil
	}
	wanted, chosen, err := negotiation.NegotiateOutputMediaType(r, k.Serializer, anyTransform{})
	if err != nil || wanted.Stream != "" || wanted.Profile != "" {
		return nil
	}
	m, key, serializer, version := &maker{decorate: k.Decorate}, "items", k.Serializer, k.Version
	if to := wanted.Convert; to != nil {
		serializer, version = apihelpers.GetMetaInternalVersionCodecs(), to.GroupVersion()
		_, as, err := negotiation.NegotiateOutputMediaType(r, serializer, anyTransform{})
		if err != nil || as.MediaType != chosen.MediaType || version != metav1.SchemeGroupVersion && version != metav1beta1.SchemeGroupVersion {
			return nil
		}
		chosen = as
		switch to.Kind {
		case "PartialObjectMetadataList":
			if version == metav1beta1.SchemeGroupVersion && chosen.MediaType == runtime.ContentTypeProtobuf {
				return nil // its items come before its metadata
			}
			m.changed = func(_ context.Context, list runtime.Object) (runtime.Object, error) { return metadataOf(list, version) }
		case "Table":
			key, m.Fleeting, m.changed = "rows", true, k.tables(r, version)
		}
		if m.changed == nil {
			return nil
		}
	}
	pretty := chosen.Serializer == chosen.PrettySerializer
	m.form = formOf(chosen.MediaType, pretty, key)
	if m.form == nil || chosen.Serializer == nil {
		return nil
	}
	m.Resource, m.Sized = k.Resource, m.form.sized()
	m.Form = fmt.Sprintf("%s %t %v %s %s", chosen.MediaType, pretty, wanted.Convert, k.Version, encoding)
	m.encoder = sync.OnceValue(func() runtime.Encoder { return serializer.EncoderForVersion(chosen.Serializer, version) })
	m.Encode = func(ctx context.Context, list runtime.Object, large bool) (kubestore.Piece, error) {
		return m.make(ctx, list, large, encoding)
	}
	if k.Verbatim != nil && wanted.Convert == nil && !pretty {
		m.Verbatim = func(ctx context.Context, items []projection.Row, large bool) kubestore.Piece {
			return verbatim(k.Verbatim(ctx, chosen.MediaType), items, m.form.separator(), large, encoding)
		}
	}
	return m
}

// anyTransform allows any transformation, but Tables only in JSON and YAML, as upstream does. A list in a
// representation that is unknown here is not made of pieces.
type anyTransform struct{}

func (anyTransform) AllowsMediaTypeTransform(_, subtype string, to *schema.GroupVersionKind) bool {
	return to == nil || to.Kind != "Table" || subtype == "json" || subtype == "yaml"
}
func (anyTransform) AllowsServerVersion(string) bool { return true }
func (anyTransform) AllowsStreamSchema(string) bool  { return true }

func (m *maker) make(ctx context.Context, list runtime.Object, large bool, encoding encoding) (kubestore.Piece, error) {
	m.emptied.Do(func() {
		m.emptyErr = errShape // for the other pieces, if this panics
		m.empty, m.emptyErr = m.encodeEmpty(ctx, list)
	})
	if m.emptyErr != nil {
		return nil, m.emptyErr
	}
	encoded, done := buffer()
	defer done()
	if err := m.encode(ctx, list, encoded); err != nil {
		return nil, err
	}
	items, err := m.form.items(encoded.Bytes(), m.empty)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errShape, err)
	}
	return newPiece(meta.LenList(list), items, large, encoding), nil
}

// encodeEmpty encodes a list of the same type without items.
func (m *maker) encodeEmpty(ctx context.Context, list runtime.Object) ([]byte, error) {
	none := reflect.New(reflect.TypeOf(list).Elem()).Interface().(runtime.Object)
	if u, ok := none.(*unstructured.UnstructuredList); ok {
		u.SetGroupVersionKind(list.GetObjectKind().GroupVersionKind())
	}
	if items := reflect.ValueOf(none).Elem().FieldByName("Items"); items.IsValid() {
		items.Set(reflect.MakeSlice(items.Type(), 0, 0))
	}
	var encoded bytes.Buffer
	err := m.encode(ctx, none, &encoded)
	return encoded.Bytes(), err
}

// verbatim makes a piece of items that are encoded as stored. It returns nil if any of the items must be decoded.
func verbatim(add kubestore.Append, items []projection.Row, separator []byte, large bool, encoding encoding) kubestore.Piece {
	if add == nil {
		return nil
	}
	b, done := buffer()
	defer done()
	encoded := add.All(b.AvailableBuffer(), items, separator)
	if encoded == nil {
		return nil
	}
	b.Write(encoded) // so that the buffer keeps the room for its next user
	return newPiece(len(items), encoded, large, encoding)
}

// newPiece makes a piece of encoded items. It copies them.
func newPiece(count int, items []byte, large bool, encoding encoding) *piece {
	p := &piece{count: count, length: len(items), encoding: encoding}
	if large && encoding != identity {
		p.packed.Store(pack(encoding, items))
	} else {
		p.kept = bytes.Clone(items)
		if encoding != identity {
			p.spare = len(items) / 4
		}
	}
	return p
}

func (m *maker) encode(ctx context.Context, list runtime.Object, to *bytes.Buffer) (err error) {
	if m.decorate != nil {
		list = list.DeepCopyObject() // other requests read the items, too
		m.decorate(list)
	}
	if m.changed != nil {
		list, err = m.changed(ctx, list)
		if err != nil {
			return err
		}
	}
	return m.encoder().Encode(list, to)
}

// piece has its items plain (kept) or compressed (packed), or both if it was plain and is later needed compressed.
type piece struct {
	count  int // of items
	length int // of the items
	// kept has the encoded items, or a shorter block of S2 that holds them.
	kept []byte
	// spare is how many bytes packed may take besides kept. It counts from the beginning, because the cache asks for a
	// piece's size only once.
	spare    int
	encoding encoding
	packed   atomic.Pointer[packed]
	// tried says that Denser has already tried to make kept shorter.
	tried atomic.Bool
}

func (p *piece) isDense() bool { return p.kept != nil && len(p.kept) < p.length }

// worthDense is the size in bytes from which Denser compresses kept items, if that halves them. Small lists are asked
// for often.
const worthDense = 16 << 10

// Denser implements kubestore.Piece.
func (p *piece) Denser() kubestore.Piece {
	if len(p.kept) < worthDense || p.tried.Swap(true) {
		return nil
	}
	short := s2.EncodeBetter(nil, p.kept)
	if len(short) > len(p.kept)/2 {
		return nil
	}
	d := &piece{count: p.count, length: p.length, kept: bytes.Clone(short), spare: p.spare, encoding: p.encoding}
	d.packed.Store(p.packed.Load())
	d.tried.Store(true)
	return d
}

// Bytes implements kubestore.Piece.
func (p *piece) Bytes() int {
	if p.kept == nil {
		return len(p.packed.Load().bytes)
	}
	return len(p.kept) + p.spare
}

// Size implements kubestore.Piece.
func (p *piece) Size() (count, length int) { return p.count, p.length }

func (p *piece) compressed() (*packed, error) {
	c := p.packed.Load()
	if c == nil {
		plain, err := p.plain(nil)
		if err != nil {
			return nil, err
		}
		c = pack(p.encoding, plain)
		if len(c.bytes) <= p.spare {
			p.packed.Store(c)
		}
	}
	return c, nil
}

// addTo calls add with the compressed piece.
func (p *piece) addTo(add func(*packed) error) error {
	c, err := p.compressed()
	if err != nil {
		return err
	}
	return add(c)
}

// plain returns the encoded items. It may use room for them.
func (p *piece) plain(room []byte) ([]byte, error) {
	switch {
	case p.kept == nil:
		return p.packed.Load().unpack()
	case p.isDense():
		return s2.Decode(room, p.kept)
	}
	return p.kept, nil
}

// large is the size above which a list is compressed, in bytes. The figure is upstream's.
const large = 128 << 10

// encoding is an answer's Content-Encoding.
type encoding string

const (
	identity encoding = ""
	byGzip   encoding = "gzip"
	byZstd   encoding = "zstd"
)

// wanted returns the first encoding known here that the client names without a weight. Upstream reads the header in the
// same way, but knows only gzip.
func wanted(r *http.Request) encoding {
	if !utilfeature.DefaultFeatureGate.Enabled(features.APIResponseCompression) {
		return identity
	}
	for _, accepted := range strings.Split(r.Header.Get("Accept-Encoding"), ",") {
		if e := encoding(strings.TrimSpace(accepted)); e == byGzip || e == byZstd {
			return e
		}
	}
	return identity
}

// local says that the client is on this machine, where compression costs both sides more than it saves. A request that
// a proxy forwarded does not count as local.
func local(r *http.Request) bool {
	for _, forwarded := range []string{"X-Forwarded-For", "Forwarded", "Via", "X-Real-Ip"} {
		if r.Header.Get(forwarded) != "" {
			return false
		}
	}
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && peer.Addr().Unmap().IsLoopback()
}

// answer is the ResponseWriter that the handler writes to. It is not safe for concurrent use.
type answer struct {
	http.ResponseWriter
	pieces *kubestore.Pieces
	form   form
	// encoding is the encoding of the answer if it is large.
	encoding encoding

	code int
	// held says that body holds a list without items, until these are spliced in. Otherwise body holds the beginning of
	// the answer, until it is known to be large.
	held  bool
	body  bytes.Buffer
	begun bool
	out   compressor
}

// compressor compresses an answer that is not made of pieces.
type compressor interface {
	io.WriteCloser
	Reset(io.Writer)
}

func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *answer) WriteHeader(code int) {
	a.code = code
	a.held = a.pieces != nil && a.pieces.Given() && code == http.StatusOK
}

var compressors = map[encoding]*sync.Pool{
	byGzip: {New: func() any {
		w, _ := gzip.NewWriterLevel(nil, level) // fails only for an unknown level
		return w
	}},
	byZstd: &framers,
}

func (a *answer) Write(p []byte) (int, error) {
	switch {
	case a.code == 0:
		a.WriteHeader(http.StatusOK)
		return a.Write(p)
	case a.held || a.encoding != identity && !a.begun && a.body.Len()+len(p) <= large:
		return a.body.Write(p)
	case !a.begun:
		a.begin(a.encoding)
		if a.encoding != identity {
			a.out = compressors[a.encoding].Get().(compressor)
			a.out.Reset(a.ResponseWriter)
		}
		if _, err := a.write(a.body.Bytes()); err != nil {
			return 0, err
		}
	}
	return a.write(p)
}

func (a *answer) write(p []byte) (int, error) {
	if a.out != nil {
		return a.out.Write(p)
	}
	return a.ResponseWriter.Write(p)
}

func (a *answer) begin(e encoding) {
	if e != identity {
		a.Header().Set("Content-Encoding", string(e))
		a.Header().Add("Vary", "Accept-Encoding")
	}
	a.begun = true
	a.ResponseWriter.WriteHeader(a.code)
}

// end ends an answer without pieces.
func (a *answer) end() {
	switch {
	case a.out != nil:
		_ = a.out.Close() // the client is gone
		a.out.Reset(nil)
		compressors[a.encoding].Put(a.out)
	case !a.begun && a.code != 0:
		a.begin(identity)
		_, _ = a.ResponseWriter.Write(a.body.Bytes())
	}
}

// splice writes the list with its items. After an error, if the answer has not begun, the caller can still write
// another.
func (a *answer) splice() error {
	count, total := a.pieces.Size()
	before, after, err := a.form.split(a.body.Bytes(), count, total)
	if err != nil {
		return fmt.Errorf("%w: %w", errShape, err)
	}
	buffered := bufio.NewWriterSize(a.ResponseWriter, 64<<10)
	used := a.encoding
	if total+a.body.Len() <= large {
		used = identity
	}
	a.begin(used)
	var to sink
	switch used {
	case byGzip:
		to, err = newJoiner(buffered)
	case byZstd:
		to = frames{buffered}
	default:
		to = &plainSink{Writer: buffered}
	}
	if err == nil {
		err = a.spliceTo(to, before, after)
	}
	if err == nil {
		err = buffered.Flush()
	}
	if _, gone := buffered.Write(nil); gone != nil {
		return nil // the client is gone, and if not, the broken connection tells it that the rest is missing
	}
	return err
}

// sink writes pieces in one encoding.
type sink interface {
	store(plain []byte) error
	piece(*piece) error
	end() error
}

func (a *answer) spliceTo(to sink, before, after []byte) error {
	if err := to.store(before); err != nil {
		return err
	}
	separator, sent := []byte(nil), 0
	for p, err := range a.pieces.All() {
		if err == nil {
			err = to.store(separator)
		}
		if err == nil {
			err = to.piece(p.(*piece))
		}
		if err != nil {
			return err
		}
		separator = a.form.separator()
		sent += p.(*piece).length
	}
	if _, length := a.pieces.Size(); a.form.sized() && sent != length {
		return fmt.Errorf("a list of %d bytes had %d when it was read again", length, sent)
	}
	if err := to.store(after); err != nil {
		return err
	}
	return to.end()
}

type plainSink struct {
	io.Writer
	room []byte // for the items of dense pieces
}

func (s *plainSink) store(plain []byte) error {
	_, err := s.Write(plain)
	return err
}

func (s *plainSink) piece(p *piece) error {
	if p.isDense() && len(s.room) < p.length {
		s.room = make([]byte, 2*p.length) // the next pieces may be larger
	}
	plain, err := p.plain(s.room)
	if err != nil {
		return err
	}
	return s.store(plain)
}

func (*plainSink) end() error { return nil }

// piece adds a compressed piece.
func (j *joiner) piece(p *piece) error { return p.addTo(j.add) }
