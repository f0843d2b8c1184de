package simulate

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// message is one frame of NATS's protocol, in its parts.
type message struct {
	words []string // of the first line, without the sizes
	head  []byte   // headers, with the empty line after them
	body  []byte
}

func open(f *frame) *message {
	line, rest, _ := bytes.Cut(f.data, []byte("\r\n"))
	m := &message{words: strings.Fields(string(line))}
	n := len(m.words)
	rest = rest[:len(rest)-2]
	if strings.HasPrefix(m.words[0], "H") {
		size, _ := strconv.Atoi(m.words[n-2])
		m.head, m.body, m.words = rest[:size], rest[size:], m.words[:n-2]
	} else {
		m.body, m.words = rest, m.words[:n-1]
	}
	return m
}

func (m *message) seal() []byte {
	var b bytes.Buffer
	b.WriteString(strings.Join(m.words, " "))
	if m.head != nil {
		fmt.Fprintf(&b, " %d", len(m.head))
	}
	fmt.Fprintf(&b, " %d\r\n", len(m.head)+len(m.body))
	b.Write(m.head)
	b.Write(m.body)
	b.WriteString("\r\n")
	return b.Bytes()
}

// header returns the value of the last header with a name.
func (m *message) header(name string) string {
	at := bytes.LastIndex(m.head, []byte("\r\n"+name+": "))
	if at < 0 {
		return ""
	}
	value, _, _ := bytes.Cut(m.head[at+len(name)+4:], []byte("\r\n"))
	return string(value)
}

// key returns the key of the event in the message.
func (m *message) key() string {
	return strings.TrimPrefix(m.header("ce-source"), "/clusters/") + m.header("ce-subject")
}

// carry changes a message on its way from the server. It may set wrong log times, make the log seem to have three
// servers, or replace an answer by that of an outdated server.
func (w *world) carry(l *link, f *frame) {
	if bytes.HasPrefix(f.data, []byte("HPUB ")) || bytes.HasPrefix(f.data, []byte("PUB ")) {
		return
	}
	if w.config.leap > 0 && w.leapt() {
		w.misdate(f)
	}
	if w.config.deposed == 0 {
		return
	}
	f.data = bytes.Replace(f.data, []byte(`"num_replicas":1`), []byte(`"num_replicas":3`), 1) // as long as before
	m := open(f)
	l.mu.Lock()
	last, refused := l.refused[m.words[1]]
	delete(l.refused, m.words[1])
	l.mu.Unlock()
	if refused && bytes.HasPrefix(m.body, []byte(`{"stream"`)) {
		m.body = fmt.Appendf(nil, `{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: %d"},"stream":"logplane","seq":0}`, last)
		f.data, f.label = m.seal(), "a refusal of a server that is behind"
	}
}

func (w *world) leapt() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.leaps) > 0
}

var quotedTime = regexp.MustCompile(`"seq":(\d+),.*"time":"([^"]+)"`)

// misdate replaces the time of an event by the time of the log's wrong clock.
func (w *world) misdate(f *frame) {
	m := open(f)
	shift := func(revision, at string) (string, bool) {
		n, _ := strconv.ParseUint(revision, 10, 64)
		by := w.wrong(n)
		t, err := time.Parse(time.RFC3339Nano, at)
		return t.Add(by).Format(time.RFC3339Nano), err == nil && by != 0
	}
	if at := m.header("Nats-Time-Stamp"); at != "" {
		if wrong, ok := shift(m.header("Nats-Sequence"), at); ok {
			m.head = bytes.Replace(m.head, []byte("Nats-Time-Stamp: "+at), []byte("Nats-Time-Stamp: "+wrong), 1)
			f.data = m.seal()
		}
		return
	}
	if last := len(m.words) - 1; strings.HasPrefix(m.words[last], "$JS.ACK.") { // a message for a consumer
		tokens := strings.Split(m.words[last], ".")
		n := len(tokens)
		if n > 9 { // the form with a domain, an account and a random token
			n = 11
		}
		revision, _ := strconv.ParseUint(tokens[n-4], 10, 64)
		nanos, _ := strconv.ParseInt(tokens[n-2], 10, 64)
		if by := w.wrong(revision); by != 0 {
			tokens[n-2] = strconv.FormatInt(nanos+int64(by), 10)
			m.words[last] = strings.Join(tokens, ".")
			f.data = m.seal()
		}
		return
	}
	if found := quotedTime.FindSubmatchIndex(m.body); found != nil {
		if wrong, ok := shift(string(m.body[found[2]:found[3]]), string(m.body[found[4]:found[5]])); ok {
			m.body = bytes.Join([][]byte{m.body[:found[4]], []byte(wrong), m.body[found[5]:]}, nil)
			f.data = m.seal()
		}
	}
}

// depose looks at the next message of a wire. If the message is an append, a server that is behind may refuse the
// append, while another server takes it.
func (w *world) depose(s *step) {
	l := s.wire.link
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(s.wire.queue) == 0 || !bytes.HasPrefix(s.wire.queue[0].data, []byte("HPUB ")) {
		return
	}
	m := open(&s.wire.queue[0])
	expected := m.header("Nats-Expected-Last-Subject-Sequence")
	if expected == "" {
		return
	}
	n, _ := strconv.ParseUint(expected, 10, 64)
	if place := m.header("Nats-Batch-Sequence"); place == "" || place == "1" {
		l.staged = nil
	}
	l.staged = append(l.staged, expectation{m.key(), n})
	if len(m.words) < 3 || w.choices.choose(10) >= w.config.deposed { // only the last event of a batch is answered
		return
	}
	all := l.staged
	if last, refused := w.staleRefusal(all); refused {
		w.say("%s: a server that is behind refuses it: the last is %d", s.from, last)
		if l.refused == nil {
			l.refused = map[string]uint64{}
		}
		l.refused[m.words[2]] = last
		w.meetAll("a server of the log is behind")
	}
}
