package eventlog

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

// One page of a tail: enough to be few round trips, little enough for the server's and our own buffers.
const (
	pageEvents = 1024
	pageBytes  = 4 << 20
	// directTries is how often a replica that is behind is asked again before the leader is.
	directTries = 2
)

var errNoMessage = errors.New("the log holds no such message")

// Tail calls yield for every event in (after, upto], in order, barriers included. It is ErrPurged if one
// of them has left the log. The event is valid until yield returns an error or Tail returns; its Body may be kept.
//
// upto must be a revision that Head or Append returned. Any replica may answer, so the proof of
// completeness is the contiguous sequence up to upto, never what a replica says of its end.
func (l *Log) Tail(ctx context.Context, after, upto Revision, yield func(Event) error) error {
	next := after + 1
	for tries := 0; next <= upto; {
		got, err := l.page(ctx, next, upto, yield)
		if got > next {
			next, tries = got, 0
		}
		if err != nil {
			return fmt.Errorf("read the tail from %d to %d: %w", next, upto, err)
		}
		if next > upto {
			break
		}
		if tries++; tries < directTries {
			continue
		}
		e, err := l.fromLeader(ctx, next)
		if err == nil {
			err = yield(e)
		}
		if err != nil {
			return fmt.Errorf("read the tail from %d to %d: %w", next, upto, err)
		}
		next++
	}
	return nil
}

// page reads what one replica has of [next, upto], at most one page, and returns the next revision to read.
func (l *Log) page(ctx context.Context, next, upto Revision, yield func(Event) error) (Revision, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	inbox := l.config.Conn.NewInbox()
	sub, err := l.config.Conn.SubscribeSync(inbox)
	if err != nil {
		return next, err
	}
	defer sub.Unsubscribe()
	request := fmt.Sprintf(`{"seq":%d,"batch":%d,"max_bytes":%d}`, next, min(upto-next+1, pageEvents), pageBytes)
	roundTrips.WithLabelValues("tail").Inc()
	if err := l.config.Conn.PublishRequest("$JS.API.DIRECT.GET."+l.config.Stream, inbox, []byte(request)); err != nil {
		return next, err
	}
	for {
		msg, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return next, err
		}
		if msg.Header.Get("Status") != "" { // 204: end of batch; 404, 503: this replica has no more
			return next, nil
		}
		e, err := l.decodeDirect(msg)
		if err != nil {
			return next, err
		}
		if e.Revision != next {
			return next, l.explainGap(ctx, next)
		}
		if err := yield(e); err != nil {
			return next, err
		}
		if next++; next > upto {
			return next, nil
		}
	}
}

// decodeDirect decodes a message in the form that direct gets answer with: the place in the log is in
// headers that the server appended, the last ones of their name.
func (l *Log) decodeDirect(msg *nats.Msg) (Event, error) {
	rev, err := strconv.ParseUint(lastOf(msg.Header, "Nats-Sequence"), 10, 64)
	if err != nil {
		return Event{}, fmt.Errorf("read a message of the log: %w", err)
	}
	at, err := time.Parse(time.RFC3339Nano, lastOf(msg.Header, "Nats-Time-Stamp"))
	if err != nil {
		return Event{}, fmt.Errorf("read the message at revision %d: %w", rev, err)
	}
	return decode(l.config.Prefix, lastOf(msg.Header, "Nats-Subject"), msg.Header, msg.Data, Revision(rev), at)
}

func lastOf(h nats.Header, name string) string {
	if v := h[name]; len(v) > 0 {
		return v[len(v)-1]
	}
	return ""
}

// fromLeader reads one revision from the stream's leader. During a leader change the one that answers
// may not have it yet, so it is asked again until the deadline.
func (l *Log) fromLeader(ctx context.Context, rev Revision) (Event, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	for try := 0; ; try++ {
		e, err := l.storedMessage(ctx, fmt.Sprintf(`{"seq":%d}`, rev))
		if !errors.Is(err, errNoMessage) {
			return e, err
		}
		if err := l.explainGap(ctx, rev); errors.Is(err, ErrPurged) || errors.Is(err, ErrDiverged) && try > 0 {
			return Event{}, err
		}
		if err := pause(ctx, try); err != nil {
			return Event{}, fmt.Errorf("revision %d is not to be had: %w", rev, err)
		}
	}
}

// explainGap says why a revision at or below the head is missing: it was purged, or else the log has a
// hole, which no setting of it allows.
func (l *Log) explainGap(ctx context.Context, missing Revision) error {
	b, err := l.info(ctx)
	if err != nil {
		return err
	}
	if b.First > missing {
		return fmt.Errorf("revision %d is before the first, %d: %w", missing, b.First, ErrPurged)
	}
	if b.Head < missing {
		return fmt.Errorf("revision %d is after the leader's head, %d", missing, b.Head)
	}
	return fmt.Errorf("revision %d is missing between the first and the head: %w", missing, ErrDiverged)
}

// nextOf reads the first event of a subject at or after a revision from the leader.
func (l *Log) nextOf(ctx context.Context, subject string, from Revision) (Event, error) {
	request, err := json.Marshal(map[string]any{"seq": from, "next_by_subj": subject})
	if err != nil {
		return Event{}, err
	}
	return l.storedMessage(ctx, string(request))
}

// storedMessage asks the stream's leader for one message; errNoMessage if it has none.
func (l *Log) storedMessage(ctx context.Context, request string) (Event, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	roundTrips.WithLabelValues("tail").Inc()
	answer, err := l.config.Conn.RequestWithContext(ctx, "$JS.API.STREAM.MSG.GET."+l.config.Stream, []byte(request))
	if err != nil {
		return Event{}, err
	}
	var stored struct {
		Error   *serverError `json:"error"`
		Message struct {
			Subject  string    `json:"subject"`
			Sequence Revision  `json:"seq"`
			Header   string    `json:"hdrs"`
			Data     []byte    `json:"data"`
			Time     time.Time `json:"time"`
		} `json:"message"`
	}
	if err := json.Unmarshal(answer.Data, &stored); err != nil {
		return Event{}, fmt.Errorf("read a stored message: %w", err)
	}
	if stored.Error != nil && stored.Error.Code == codeMessageNotFound {
		return Event{}, errNoMessage
	}
	if stored.Error != nil {
		return Event{}, stored.Error
	}
	m := stored.Message
	raw, err := base64.StdEncoding.DecodeString(m.Header)
	if err != nil {
		return Event{}, fmt.Errorf("read the headers at revision %d: %w", m.Sequence, err)
	}
	header, err := nats.DecodeHeadersMsg(raw)
	if err != nil {
		return Event{}, fmt.Errorf("read the headers at revision %d: %w", m.Sequence, err)
	}
	return decode(l.config.Prefix, m.Subject, header, m.Data, m.Sequence, m.Time)
}

// EventAt reads the event at one revision from the leader: whoever resumes a tail compares it with the
// one it remembers (invariant 9). ErrPurged if it has left the log.
func (l *Log) EventAt(ctx context.Context, rev Revision) (Event, error) {
	e, err := l.fromLeader(ctx, rev)
	if err != nil {
		return Event{}, fmt.Errorf("read the event at revision %d: %w", rev, err)
	}
	return e, nil
}
