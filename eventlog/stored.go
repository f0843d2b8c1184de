package eventlog

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

// codeMessageNotFound is JetStream's answer to a get of what it does not have.
const codeMessageNotFound = 10037

var errNoMessage = errors.New("the log holds no such message")

// stored is a message with its place in the log, not yet decoded.
type stored struct {
	Subject  string    `json:"subject"`
	Revision Revision  `json:"seq"`
	Time     time.Time `json:"time"`
	header   nats.Header
	Body     []byte `json:"data"`
	Raw      []byte `json:"hdrs"` // the headers as the leader has them; nil from elsewhere
}

// get asks the stream's leader for one message, and is errNoMessage if it has none. While a batch is being written, the
// answer waits for all of it. The only server of a log is its leader, so there a direct get asks the same; its answer
// is the message itself, where the other one is JSON, which takes longer to read than to write an event of 1 MB.
//
// That answer has the message's own headers, which may say anything, such as that there is no server ('Status: 503').
// So what a direct get does not tell is asked for in JSON.
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
	var refused *serverError
	if errors.As(err, &refused) && refused.Code == codeMessageNotFound {
		return stored{}, errNoMessage
	}
	return m, err
}

// quoted reads a message in JSON.
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
		m.header, _ = nats.DecodeHeadersMsg(m.Raw) // damaged ones are none
		return nil
	}
}

// plain reads the answer to a direct get. The server adds its place in the log to a message; anything else has a
// status.
func plain(m *stored) reading {
	return func(msg *nats.Msg) (err error) {
		status := msg.Header.Get("Status")
		switch {
		case lastOf(msg.Header, headerSequence) != "":
			*m, err = direct(msg)
			return err
		case status == "404", status == "": // without a status, its headers are damaged: then another copy must be read
			return &serverError{Status: 404, Code: codeMessageNotFound, Description: msg.Header.Get("Description")}
		default:
			return fmt.Errorf("read the answer of the log's server: status '%s', %s", status, msg.Header.Get("Description"))
		}
	}
}

// direct reads a message that answers a direct get. The server appends its place in the log to its headers; of several
// headers of one name, the last is the server's.
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
