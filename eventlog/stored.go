package eventlog

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

// codeMessageNotFound is JetStream's answer if it does not have the requested message.
const codeMessageNotFound = 10037

var errNoMessage = errors.New("the log holds no such message")

// stored is a message with its revision and time, not yet decoded.
type stored struct {
	Subject  string    `json:"subject"`
	Revision Revision  `json:"seq"`
	Time     time.Time `json:"time"`
	header   nats.Header
	Body     []byte `json:"data"`
	Raw      []byte `json:"hdrs"` // the headers as the leader stores them; nil in the answer to a direct get
}

// get asks the stream's leader for one message. It returns errNoMessage if the leader does not have the message. While
// a batch is being written, the answer waits for all of the batch.
//
// If the log has only one server, that server is the leader, and get uses a direct get, whose answer is the message
// itself. Parsing the answer of the other request, in JSON, takes longer than writing an event of 1 MB. But the answer
// to a direct get has the message's own headers, which may contain anything, such as 'Status: 503'. So if a direct get
// is not conclusive, get asks again in JSON.
func (l *Log) get(ctx context.Context, request string) (m stored, err error) {
	told := false
	if !l.replicated() {
		attempt, cancel := context.WithTimeout(ctx, l.tryTime(0))
		err = l.callOnce(attempt, "tail", &nats.Msg{Subject: "$JS.API.DIRECT.GET." + l.config.Stream, Data: []byte(request)}, plain(&m))
		cancel()
		told = conclusive(err)
	}
	if !told {
		err = l.call(ctx, "tail", "STREAM.MSG.GET."+l.config.Stream, []byte(request), quoted(&m))
	}
	if refused, ok := errors.AsType[*serverError](err); ok && refused.Code == codeMessageNotFound {
		return stored{}, errNoMessage
	}
	return m, err
}

// quoted returns the reading of a message in JSON.
func quoted(m *stored) reading {
	var answer struct {
		refusal
		Message stored `json:"message"`
	}
	read := decoded(&answer, &answer.refusal)
	return func(msg *nats.Msg) error {
		if err := read(msg); err != nil {
			return err
		}
		*m = answer.Message
		m.header, _ = nats.DecodeHeadersMsg(m.Raw) // damaged headers are treated as no headers
		return nil
	}
}

// plain returns the reading of the answer to a direct get: a message with its revision, or a status.
func plain(m *stored) reading {
	return func(msg *nats.Msg) (err error) {
		status := msg.Header.Get("Status")
		switch {
		case lastOf(msg.Header, headerSequence) != "":
			*m, err = direct(msg)
			return err
		case status == "404", status == "": // without a status, the headers are damaged, and another copy must be read
			return &serverError{Status: 404, Code: codeMessageNotFound, Description: msg.Header.Get("Description")}
		default:
			return fmt.Errorf("read the answer of the log's server: status '%s', %s", status, msg.Header.Get("Description"))
		}
	}
}

// direct reads a message that answers a direct get. The server appends the revision, time and subject to the message's
// headers. If several headers have one name, the last is the server's.
func direct(msg *nats.Msg) (stored, error) {
	revision, err := strconv.ParseUint(lastOf(msg.Header, headerSequence), 10, 64)
	if err != nil {
		return stored{}, fmt.Errorf("read a message of the log: %w", err)
	}
	at, err := time.Parse(time.RFC3339Nano, lastOf(msg.Header, headerTimestamp))
	if err != nil {
		return stored{}, fmt.Errorf("read the message at revision %d: %w", revision, err)
	}
	return stored{lastOf(msg.Header, headerStored), Revision(revision), at, msg.Header, msg.Data, nil}, nil
}

func lastOf(h nats.Header, name string) string {
	v := h[name]
	if len(v) > 0 {
		return v[len(v)-1]
	}
	return ""
}
