package eventlog

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unique"

	"github.com/nats-io/nats.go"
)

// The event on the wire, a permanent format: CloudEvents 1.0 in binary mode, and Logplane's own headers. docs/format.md
// describes each header and says which headers may be absent.
const (
	headerSpec        = "ce-specversion"
	headerID          = "ce-id"
	headerTime        = "ce-time"
	headerType        = "ce-type"
	headerSource      = "ce-source"
	headerSubject     = "ce-subject"
	headerContentType = "content-type"

	headerPrefix       = "Logplane-Prefix"
	headerBase         = "Logplane-Base"
	headerPrecondition = "Logplane-Precondition"
	headerInherits     = "Logplane-Inherits"
	headerEpoch        = "Logplane-Epoch"
	headerTTL          = "Logplane-Ttl"
	headerUser         = "Logplane-User"
	headerAs           = "Logplane-As"
	headerAgent        = "Logplane-Agent"
	headerCause        = "Logplane-Cause"
	headerTrace        = "ce-traceparent"
	headerBatch        = "Logplane-Batch"
	headerOutdates     = "Logplane-Outdates"
	headerChecksum     = "Logplane-Checksum"

	headerExpected = "Nats-Expected-Last-Subject-Sequence"
)

// mostHeaders is how many headers an event has, unless it is in a batch, traced or caused.
const mostHeaders = 18

const specVersion = "1.0"

// typeOfOp is the value of ce-type for each op.
var typeOfOp = [...]string{
	Barrier:  "dev.logplane.barrier",
	Added:    "dev.logplane.object.added",
	Modified: "dev.logplane.object.modified",
	Deleted:  "dev.logplane.object.deleted",
}

// encode makes the message of one write. The server enforces the write's precondition.
func encode(prefix string, epoch uint64, id string, now time.Time, w Write) (*nats.Msg, error) {
	if w.Op != Added && w.Op != Modified && w.Op != Deleted {
		return nil, fmt.Errorf("encode event of %s: op %d is not a change", w.Key.RowKey(), w.Op)
	}
	subject, err := w.Key.Subject(prefix)
	if err != nil {
		return nil, err
	}
	header := make(nats.Header, mostHeaders)
	values := make([]string, 0, mostHeaders) // the values of all headers, in one array to save allocations
	set := func(name, value string) {
		values = append(values, value)
		header[name] = values[len(values)-1 : len(values) : len(values)]
	}
	set(headerSpec, specVersion)
	set(headerID, id)
	set(headerTime, now.UTC().Format(time.RFC3339Nano))
	set(headerType, typeOfOp[w.Op])
	set(headerSource, "/clusters/"+w.Key.Cluster)
	set(headerSubject, w.Key.Path())
	set(headerContentType, w.ContentType)
	set(headerPrefix, w.Key.Prefix)
	set(headerBase, formatRevision(w.Base))
	set(headerPrecondition, formatRevision(w.Precondition))
	set(headerEpoch, strconv.FormatUint(epoch, 10))
	set(headerTTL, strconv.FormatUint(uint64(w.TTL), 10))
	set(headerExpected, formatRevision(w.Precondition))
	if w.Inherits > 0 {
		set(headerInherits, formatRevision(w.Inherits))
	}
	by := w.Author.clean()
	for _, named := range [...]struct{ header, value string }{
		{headerUser, by.User}, {headerAs, by.As}, {headerAgent, by.Agent}, {headerCause, by.Cause.header()},
	} {
		if named.value != "" {
			set(named.header, named.value)
		}
	}
	msg := &nats.Msg{Subject: subject, Data: w.Body, Header: header}
	if _, err := decodeHeaders(prefix, subject, msg.Header); err != nil { // readers must be able to decode it
		return nil, fmt.Errorf("encode event of %s: %w", w.Key.RowKey(), err)
	}
	return msg, nil
}

// encodeBarrier makes the no-op event. It has no object and no precondition. Readers ignore its body.
func encodeBarrier(prefix string, epoch uint64, headers nats.Header, body []byte) *nats.Msg {
	msg := &nats.Msg{Subject: barrierSubject(prefix), Data: body, Header: nats.Header{
		headerSpec:   {specVersion},
		headerID:     {rand.Text()},
		headerTime:   {time.Now().UTC().Format(time.RFC3339Nano)},
		headerType:   {typeOfOp[Barrier]},
		headerSource: {"/barrier"},
		headerEpoch:  {strconv.FormatUint(epoch, 10)},
	}}
	maps.Copy(msg.Header, headers)
	seal(msg)
	return msg
}

func barrierSubject(prefix string) string { return prefix + ".log.%barrier" }

// summed are the headers that decide something or that clients are shown, in the order of the checksum.
var summed = [...]string{
	headerSpec, headerID, headerType, headerContentType, headerPrefix, headerBase, headerPrecondition, headerEpoch, headerTTL,
	headerUser, headerAs, headerAgent, headerBatch, headerOutdates,
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seal gives a message its checksum, once nothing in the message will change. seal also puts a zero before the epoch:
// an event that has the zero but no checksum is damaged. An event that has neither is from before there were checksums.
func seal(m *nats.Msg) {
	m.Header[headerEpoch] = []string{"0" + m.Header.Get(headerEpoch)}
	m.Header[headerChecksum] = []string{strconv.FormatUint(uint64(checksum(m.Subject, m.Header, m.Data)), 16)}
}

// scratch holds buffers for the subject and headers of a checksum.
var scratch = sync.Pool{New: func() any { return new([]byte) }}

// checksum covers the subject, the headers and the body. A zero byte, which no subject or header can contain, precedes
// each header and the body. The cause, and after two zero bytes what the key inherits, are included only if the event
// has them, so that events from before there were such headers keep their checksum.
func checksum(subject string, h nats.Header, body []byte) uint32 {
	parts := scratch.Get().(*[]byte)
	defer scratch.Put(parts)
	*parts = append((*parts)[:0], subject...)
	for _, name := range summed {
		*parts = append(append(*parts, 0), h.Get(name)...)
	}
	if cause := h.Get(headerCause); cause != "" {
		*parts = append(append(*parts, 0), cause...)
	}
	if inherits := h.Get(headerInherits); inherits != "" {
		*parts = append(append(*parts, 0, 0), inherits...)
	}
	return crc32.Update(crc32.Checksum(append(*parts, 0), castagnoli), castagnoli, body)
}

// errDamaged: a copy of an event differs from the appended event.
var errDamaged = errors.New("its checksum is wrong")

// event decodes a message. If that fails, this copy may be damaged, or somebody published without this package.
//
// On the barriers' subject neither fault matters, as no object can be lost there. A message that cannot be decoded
// there is taken for a barrier with Outdates set, which is the most that a barrier can say. No other copy is asked for:
// every role may publish there, and asking would hold up all readers.
func (m stored) event(prefix string) (Event, error) {
	e, err := m.decode(prefix)
	if err != nil && m.Subject == barrierSubject(prefix) {
		e, err = m.skipped(err), nil
		e.Outdates = true
	}
	return e, err
}

// skipped returns the barrier in place of a message that is not an event. The barrier has no request id, since the
// message may contain anything.
func (m stored) skipped(why error) Event {
	malformed.Inc()
	slog.Warn("skipped a message of the log that is not an event", "revision", m.Revision, "subject", m.Subject, "error", why)
	return Event{Revision: m.Revision, Time: m.Time}
}

func (m stored) decode(prefix string) (Event, error) {
	_, sealed := m.header[headerChecksum]
	epoch := m.header.Get(headerEpoch)
	if sealed || len(epoch) > 1 && epoch[0] == '0' {
		said, err := strconv.ParseUint(m.header.Get(headerChecksum), 16, 32)
		if err != nil || uint32(said) != checksum(m.Subject, m.header, m.Body) {
			return Event{}, fmt.Errorf("decode event at revision %d: %w", m.Revision, errDamaged)
		}
	}
	e, err := decodeHeaders(prefix, m.Subject, m.header)
	if err != nil {
		return Event{}, fmt.Errorf("decode event at revision %d: %w", m.Revision, err)
	}
	e.Revision, e.Time = m.Revision, m.Time
	if e.Op == Barrier {
		e.Epoch = min(e.Epoch, uint64(e.Revision)) // an epoch's number is its first revision, never a later one
		return e, nil
	}
	e.Body = bytes.Clone(m.Body) // a part of the message would keep all of the message, with its headers, in memory
	return e, nil
}

func decodeHeaders(prefix, subject string, h nats.Header) (Event, error) {
	if h.Get(headerSpec) != specVersion {
		return Event{}, fmt.Errorf("'%s' is %q, not '%s'", headerSpec, h.Get(headerSpec), specVersion)
	}
	known := slices.Index(typeOfOp[:], h.Get(headerType))
	if known < 0 {
		return Event{}, fmt.Errorf("'%s' %q is not known", headerType, h.Get(headerType))
	}
	op := Op(known)
	if (op == Barrier) != (subject == barrierSubject(prefix)) {
		return Event{}, fmt.Errorf("type %q does not belong on subject %q", h.Get(headerType), subject)
	}
	e := Event{RequestID: strings.Clone(h.Get(headerID))} // all headers of a message share one block of memory
	e.Op = op
	if !validID(e.RequestID) {
		return Event{}, fmt.Errorf("'%s' %q is not 1 to %d printable characters", headerID, e.RequestID, maxID)
	}
	var errs [7]error
	e.Epoch, errs[0] = parseNumber[uint64](h, headerEpoch, 64)
	if op == Barrier {
		e.Outdates = h.Get(headerOutdates) != ""
		return e, errs[0]
	}
	key, err := parseSubject(prefix, subject, false)
	if err != nil {
		return Event{}, err
	}
	key.Prefix = one(h.Get(headerPrefix))
	if p := key.Prefix; len(p) < 2 || p[0] != '/' || p[len(p)-1] == '/' {
		return Event{}, fmt.Errorf("'%s' %q does not start with a slash and end without one", headerPrefix, p)
	}
	e.Base, errs[1] = parseNumber[Revision](h, headerBase, 64)
	e.Precondition, errs[2] = parseNumber[Revision](h, headerPrecondition, 64)
	if h.Get(headerInherits) != "" {
		e.Inherits, errs[6] = parseNumber[Revision](h, headerInherits, 64)
	}
	e.TTL, errs[3] = parseNumber[uint32](h, headerTTL, 32)
	e.Before, e.Left, errs[5] = batchPosition(h)
	if op == Added && e.Base != 0 {
		errs[4] = fmt.Errorf("an added object has base %d, not 0", e.Base)
	}
	e.Key, e.ContentType = key, one(h.Get(headerContentType))
	if parent := h.Get(headerTrace); len(parent) <= maxTrace {
		e.Trace = strings.Clone(parent)
	}
	by := Author{User: h.Get(headerUser), As: h.Get(headerAs), Agent: h.Get(headerAgent), Cause: causeOf(h.Get(headerCause))}.clean()
	e.Author = Author{User: one(by.User), As: one(by.As), Agent: one(by.Agent),
		Cause: Cause{by.Cause.Revision, one(by.Cause.User), one(by.Cause.As)}}
	return e, errors.Join(errs[:]...)
}

// one returns the one shared copy of a text that many events have.
func one(text string) string { return unique.Make(text).Value() }

// The longest trace (version 00 of W3C's format) and the longest id of an event, in bytes.
const (
	maxTrace = 55
	maxID    = 256
)

// validID accepts only ids that are unchanged when they are read back, since the outcomes of appends are resolved by
// these ids.
func validID(id string) bool {
	return id != "" && len(id) <= maxID && !strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' })
}

func parseNumber[N ~uint32 | ~uint64](h nats.Header, name string, bits int) (N, error) {
	n, err := strconv.ParseUint(h.Get(name), 10, bits)
	if err != nil {
		return 0, fmt.Errorf("'%s' %q is not a number of %d bits", name, h.Get(name), bits)
	}
	return N(n), nil
}

// batchPosition reads how many events come before and after an event in its batch.
func batchPosition(h nats.Header) (before, left uint32, err error) {
	v := h.Get(headerBatch)
	if v == "" {
		return 0, 0, nil
	}
	a, b, _ := strings.Cut(v, "/")
	position, errPosition := strconv.ParseUint(a, 10, 32)
	size, errSize := strconv.ParseUint(b, 10, 32)
	if errPosition != nil || errSize != nil || position < 1 || position > size || size > MaxBatch {
		return 0, 0, fmt.Errorf("'%s' %q is not a position in a batch", headerBatch, v)
	}
	return uint32(position - 1), uint32(size - position), nil
}

func formatRevision(r Revision) string { return strconv.FormatUint(uint64(r), 10) }
