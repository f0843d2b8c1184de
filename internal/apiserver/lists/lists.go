// Package lists answers lists from encoded chunks that are kept (kubestore.Chunks), and compresses answers.
//
// Upstream's handler serves the list as usual: options, validation, errors, headers, metadata. But the handler's store
// (Store) gives the handler a list without items, and this package splices the encoded items into the handler's answer.
// Upstream's own encoder makes each chunk from a list with only that chunk's items, so the answer is the same as
// upstream's answer, byte for byte. Chunks of a Table are not kept, because a Table shows the objects' ages.
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
	// Serializer is the serializer from which upstream's handler negotiates the encoding. It is nil for a kind whose
	// lists are not made of chunks.
	Serializer runtime.NegotiatedSerializer
	// Decorate adds the fields that are not stored to the items of a list, as upstream's store does when it reads.
	// Decorate is nil if there are no such fields.
	Decorate func(list runtime.Object)
	// Convertor converts objects to Version. It is nil if the objects already have that version.
	Convertor runtime.ObjectConvertor
	// Tables returns the convertor to Tables, for the context in which the store answers. It is nil for a kind without
	// Tables.
	Tables func(context.Context) rest.TableConvertor
	// Verbatim returns an encoder of stored objects as a media type. ctx is the context in which the store answers.
	// Verbatim is nil for a kind whose objects must be decoded.
	Verbatim func(ctx context.Context, mediaType string) kubestore.Append
}

// Serve lets the handler answer a list. Serve calls fail to answer with an error.
func Serve(w http.ResponseWriter, r *http.Request, kind Kind, h http.Handler, fail func(http.ResponseWriter, *http.Request, error)) {
	a := &answer{ResponseWriter: w, gzip: acceptsGzip(r)}
	if a.gzip { // upstream would compress with the standard library, at twice the cost
		r = r.WithContext(r.Context())
		r.Header = r.Header.Clone()
		r.Header.Del("Accept-Encoding")
	}
	if local(r) {
		a.gzip = false
	}
	asked := r
	if made := kind.maker(r, a.gzip); made != nil {
		a.chunks, a.encoding = &made.Chunks, made.encoding
		defer a.chunks.Close()
		asked = r.WithContext(context.WithValue(r.Context(), askedKey{}, a.chunks))
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
		panic(http.ErrAbortHandler) // the client must not take this part for the whole list
	case errors.Is(err, errShape): // upstream encodes lists in a way that is unknown here
		slog.ErrorContext(r.Context(), "a list could not be made of chunks, and is encoded as a whole", "error", err)
		a.chunks, a.held = nil, false
		a.body.Reset()
		h.ServeHTTP(responsewriter.WrapForHTTP1Or2(a), r)
		a.end()
	default:
		fail(w, r, err)
	}
}

// errShape says that a list does not look as expected.
var errShape = errors.New("unexpected encoding of a list")

// maker makes the chunks of one list, several at the same time.
type maker struct {
	kubestore.Chunks
	encoding encoding
	// decorate is Kind.Decorate.
	decorate func(runtime.Object)
	// changed makes the object that is encoded in place of a list. It is nil if the list itself is encoded.
	changed func(context.Context, runtime.Object) (runtime.Object, error)
	encoder func() runtime.Encoder // made with the first chunk

	emptied  sync.Once
	empty    []byte // an encoded list without items
	emptyErr error
}

// buffers has the buffers in which chunks are encoded.
var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// mostBuffered is the largest size of a buffer that is used again. Most chunks have at most 256 KiB.
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

// maker returns the maker of the list's chunks, nil if the list must be encoded as a whole.
func (k Kind) maker(r *http.Request, gzip bool) *maker {
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
				return nil // the list's items come before its metadata
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
	m.encoding = encodingOf(chosen.MediaType, pretty, key)
	if m.encoding == nil || chosen.Serializer == nil {
		return nil
	}
	m.Resource, m.Sized = k.Resource, m.encoding.sized()
	m.Encoding = fmt.Sprintf("%s %t %v %s %t", chosen.MediaType, pretty, wanted.Convert, k.Version, gzip)
	m.encoder = sync.OnceValue(func() runtime.Encoder { return serializer.EncoderForVersion(chosen.Serializer, version) })
	m.Encode = func(ctx context.Context, list runtime.Object, large bool) (kubestore.Chunk, error) {
		return m.make(ctx, list, large, gzip)
	}
	if k.Verbatim != nil && wanted.Convert == nil && !pretty {
		m.Verbatim = func(ctx context.Context, items []projection.Row, large bool) kubestore.Chunk {
			return verbatimChunk(k.Verbatim(ctx, chosen.MediaType), items, m.encoding.separator(), large, gzip)
		}
	}
	return m
}

// anyTransform allows any transformation, but Tables only in JSON and YAML, as upstream does. A list in a
// representation that is unknown here is not made of chunks.
type anyTransform struct{}

func (anyTransform) AllowsMediaTypeTransform(_, subtype string, to *schema.GroupVersionKind) bool {
	return to == nil || to.Kind != "Table" || subtype == "json" || subtype == "yaml"
}
func (anyTransform) AllowsServerVersion(string) bool { return true }
func (anyTransform) AllowsStreamSchema(string) bool  { return true }

func (m *maker) make(ctx context.Context, list runtime.Object, large, gzip bool) (kubestore.Chunk, error) {
	m.emptied.Do(func() {
		m.emptyErr = errShape // for the other chunks, if this panics
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
	items, err := m.encoding.items(encoded.Bytes(), m.empty)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errShape, err)
	}
	return newChunk(meta.LenList(list), items, large, gzip), nil
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

// verbatimChunk makes a chunk of items that are encoded as stored. It returns nil if any of the items must be decoded.
func verbatimChunk(add kubestore.Append, items []projection.Row, separator []byte, large, gzip bool) kubestore.Chunk {
	if add == nil {
		return nil
	}
	b, done := buffer()
	defer done()
	encoded := add.All(b.AvailableBuffer(), items, separator)
	if encoded == nil {
		return nil
	}
	b.Write(encoded) // so that the buffer keeps the room for the next use
	return newChunk(len(items), encoded, large, gzip)
}

// newChunk makes a chunk of a copy of encoded items.
func newChunk(count int, items []byte, large, gzip bool) *chunk {
	p := &chunk{count: count, length: len(items)}
	if large && gzip {
		p.packed.Store(deflate(items))
	} else {
		p.kept = bytes.Clone(items)
		if gzip {
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

// chunk has its items uncompressed (kept) or compressed (packed). It has both if a request has needed an uncompressed
// chunk compressed.
type chunk struct {
	count  int // of items
	length int // of the items
	kept   []byte
	// spare is how many bytes packed may take besides kept. Spare bytes count from the beginning, because the cache
	// asks for a chunk's size only once.
	spare  int
	packed atomic.Pointer[packed]
}

// Bytes implements kubestore.Chunk.
func (p *chunk) Bytes() int {
	if p.kept == nil {
		return len(p.packed.Load().bytes)
	}
	return len(p.kept) + p.spare
}

// Size implements kubestore.Chunk.
func (p *chunk) Size() (count, length int) { return p.count, p.length }

func (p *chunk) compressed() *packed {
	c := p.packed.Load()
	if c == nil {
		c = deflate(p.kept)
		if len(c.bytes) <= p.spare {
			p.packed.Store(c)
		}
	}
	return c
}

// plain returns the encoded items.
func (p *chunk) plain() ([]byte, error) {
	if p.kept == nil {
		return p.packed.Load().inflate()
	}
	return p.kept, nil
}

// large is the size above which a list is compressed, in bytes. The figure is upstream's.
const large = 128 << 10

// acceptsGzip says that the client accepts gzip without a weight. Upstream reads the header in the same way.
func acceptsGzip(r *http.Request) bool {
	if !utilfeature.DefaultFeatureGate.Enabled(features.APIResponseCompression) {
		return false
	}
	for _, accepted := range strings.Split(r.Header.Get("Accept-Encoding"), ",") {
		if strings.TrimSpace(accepted) == "gzip" {
			return true
		}
	}
	return false
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
	chunks   *kubestore.Chunks
	encoding encoding
	// gzip says that the answer is compressed if it is large.
	gzip bool

	code int
	// held says that body holds a list without items, until the items are spliced in. Otherwise body holds the
	// beginning of the answer, until the answer is known to be large.
	held  bool
	body  bytes.Buffer
	begun bool
	out   *gzip.Writer // compresses an answer that is not made of chunks
}

func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *answer) WriteHeader(code int) {
	a.code = code
	a.held = a.chunks != nil && a.chunks.Given() && code == http.StatusOK
}

var compressors = sync.Pool{New: func() any {
	w, _ := gzip.NewWriterLevel(nil, level) // fails only for an unknown level
	return w
}}

func (a *answer) Write(p []byte) (int, error) {
	switch {
	case a.code == 0:
		a.WriteHeader(http.StatusOK)
		return a.Write(p)
	case a.held || a.gzip && !a.begun && a.body.Len()+len(p) <= large:
		return a.body.Write(p)
	case !a.begun:
		a.begin(a.gzip)
		if a.gzip {
			a.out = compressors.Get().(*gzip.Writer)
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

func (a *answer) begin(compressed bool) {
	if compressed {
		a.Header().Set("Content-Encoding", "gzip")
		a.Header().Add("Vary", "Accept-Encoding")
	}
	a.begun = true
	a.ResponseWriter.WriteHeader(a.code)
}

// end ends an answer without chunks.
func (a *answer) end() {
	switch {
	case a.out != nil:
		_ = a.out.Close() // the client is gone
		a.out.Reset(nil)
		compressors.Put(a.out)
	case !a.begun && a.code != 0:
		a.begin(false)
		_, _ = a.ResponseWriter.Write(a.body.Bytes())
	}
}

// splice writes the list with its items. After an error, the caller can write another answer if this answer has not
// begun.
func (a *answer) splice() error {
	count, total := a.chunks.Size()
	before, after, err := a.encoding.split(a.body.Bytes(), count, total)
	if err != nil {
		return fmt.Errorf("%w: %w", errShape, err)
	}
	buffered := bufio.NewWriterSize(a.ResponseWriter, 64<<10)
	compressed := a.gzip && total+a.body.Len() > large
	a.begin(compressed)
	var to sink = plainSink{buffered}
	if compressed {
		to, err = newJoiner(buffered)
	}
	if err == nil {
		err = a.spliceTo(to, before, after)
	}
	if err == nil {
		err = buffered.Flush()
	}
	if _, gone := buffered.Write(nil); gone != nil {
		return nil // the client is gone, or the broken connection tells the client that the rest is missing
	}
	return err
}

// sink writes chunks, plain or compressed.
type sink interface {
	store(plain []byte) error
	chunk(*chunk) error
	end() error
}

func (a *answer) spliceTo(to sink, before, after []byte) error {
	if err := to.store(before); err != nil {
		return err
	}
	separator, sent := []byte(nil), 0
	for p, err := range a.chunks.All() {
		if err == nil {
			err = to.store(separator)
		}
		if err == nil {
			err = to.chunk(p.(*chunk))
		}
		if err != nil {
			return err
		}
		separator = a.encoding.separator()
		sent += p.(*chunk).length
	}
	if _, length := a.chunks.Size(); a.encoding.sized() && sent != length {
		return fmt.Errorf("a list of %d bytes had %d when it was read again", length, sent)
	}
	if err := to.store(after); err != nil {
		return err
	}
	return to.end()
}

type plainSink struct{ io.Writer }

func (s plainSink) store(plain []byte) error {
	_, err := s.Write(plain)
	return err
}

func (s plainSink) chunk(p *chunk) error {
	plain, err := p.plain()
	if err != nil {
		return err
	}
	return s.store(plain)
}

func (plainSink) end() error { return nil }

func (j *joiner) chunk(p *chunk) error {
	return j.add(p.compressed())
}
