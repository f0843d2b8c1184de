package eventlog

import (
	"context"
	"encoding/base64"
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
	subject  string
	revision Revision
	time     time.Time
	header   nats.Header
	body     []byte
}

// get asks the stream's leader for one message, and is errNoMessage if it has none. While a batch is being written, the
// answer waits for all of it.
func (l *Log) get(ctx context.Context, request string) (stored, error) {
	var answer struct {
		refusal
		Message struct {
			Subject  string    `json:"subject"`
			Revision Revision  `json:"seq"`
			Header   string    `json:"hdrs"`
			Body     []byte    `json:"data"`
			Time     time.Time `json:"time"`
		} `json:"message"`
	}
	err := l.call(ctx, "tail", "STREAM.MSG.GET."+l.config.Stream, []byte(request), &answer)
	var refused *serverError
	if errors.As(err, &refused) && refused.Code == codeMessageNotFound {
		return stored{}, errNoMessage
	}
	if err != nil {
		return stored{}, err
	}
	m := answer.Message
	header := nats.Header{}
	if m.Header != "" {
		raw, err := base64.StdEncoding.DecodeString(m.Header)
		if err == nil {
			header, err = nats.DecodeHeadersMsg(raw)
		}
		if err != nil {
			return stored{}, fmt.Errorf("read the headers at revision %d: %w", m.Revision, err)
		}
	}
	return stored{m.Subject, m.Revision, m.Time, header, m.Body}, nil
}

// direct reads a message that answers a direct get. The server appends its place in the log to its headers; of several
// headers of one name, the last is the server's.
func direct(msg *nats.Msg) (stored, error) {
	revision, err := strconv.ParseUint(lastOf(msg.Header, "Nats-Sequence"), 10, 64)
	if err != nil {
		return stored{}, fmt.Errorf("read a message of the log: %w", err)
	}
	at, err := time.Parse(time.RFC3339Nano, lastOf(msg.Header, "Nats-Time-Stamp"))
	if err != nil {
		return stored{}, fmt.Errorf("read the message at revision %d: %w", revision, err)
	}
	return stored{lastOf(msg.Header, "Nats-Subject"), Revision(revision), at, msg.Header, msg.Data}, nil
}

// delivered reads a message that a consumer delivers: its place in the log is in its reply subject.
func delivered(msg *nats.Msg) (stored, error) {
	place, err := msg.Metadata()
	if err != nil {
		return stored{}, fmt.Errorf("read a message of the log: %w", err)
	}
	return stored{msg.Subject, Revision(place.Sequence.Stream), place.Timestamp, msg.Header, msg.Data}, nil
}

func lastOf(h nats.Header, name string) string {
	v := h[name]
	if len(v) > 0 {
		return v[len(v)-1]
	}
	return ""
}
