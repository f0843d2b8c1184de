package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"k8s.io/client-go/rest"

	"github.com/logplane/logplane/test/bench/kubernetes/side"
)

// stream is a watch that only separates events, which takes very little processor time. Unlike net/http's client, a
// stream reads only on demand, and never ahead. So the arrival time of each event is known.
type stream struct {
	arrivals *arrivals
	body     io.Reader
}

// openStream opens a protobuf watch as client-go would, by HTTP/2 over TLS or by HTTP/1.1 without TLS.
func openStream(ctx context.Context, s *side.System, revision string) (viewer, error) {
	path := "/api/v1/namespaces/" + watched + "/configmaps?watch=1&resourceVersion=" + revision
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Config.Host+path, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", asProtobuf+";stream=watch")
	conn, err := dialArrivals(request.URL.Host, watchTimeout)
	if err != nil {
		return nil, err
	}
	o := &stream{arrivals: conn}
	if request.URL.Scheme == "https" {
		request.Header.Set("Authorization", "Bearer "+s.Config.BearerToken)
		o.body, err = askHTTP2(conn, s.Config, request)
	} else {
		o.body, err = askHTTP1(conn, request)
	}
	return o, err
}

func askHTTP1(conn net.Conn, request *http.Request) (io.Reader, error) {
	if err := request.Write(conn); err != nil {
		return nil, err
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), request)
	if err != nil {
		return nil, err
	}
	return answer.Body, checkStatus(answer.StatusCode)
}

func checkStatus(code int) error {
	if code != http.StatusOK {
		return fmt.Errorf("ask for a watch: status %d", code)
	}
	return nil
}

// collect receives the bytes that wait in the socket.
func (s *stream) collect(scratch []byte) error { return s.arrivals.take(scratch) }

// next reads a frame: its length, then that many bytes. The frame's time is the arrival of its last byte.
func (s *stream) next() (time.Time, []byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(s.body, length[:]); err != nil {
		return time.Time{}, nil, err
	}
	frame := make([]byte, binary.BigEndian.Uint32(length[:]))
	_, err := io.ReadFull(s.body, frame)
	return s.arrivals.last, frame, err
}

func (s *stream) stop() { _ = s.arrivals.Close() }

// These are the numbers of bytes that net/http's client allows a server to send before the next window update.
const (
	streamWindow     = 4 << 20
	connectionWindow = 1 << 30
)

// multiplexed is the body of the only request of an HTTP/2 connection.
type multiplexed struct {
	*http2.Framer
	left []byte
}

func askHTTP2(conn net.Conn, config *rest.Config, request *http.Request) (io.Reader, error) {
	trusted, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, err
	}
	trusted.NextProtos, trusted.ServerName = []string{http2.NextProtoTLS}, request.URL.Hostname()
	secure := tls.Client(conn, trusted)
	if _, err := io.WriteString(secure, http2.ClientPreface); err != nil {
		return nil, err
	}
	m := &multiplexed{Framer: http2.NewFramer(secure, secure)}
	m.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	var head bytes.Buffer
	encoder := hpack.NewEncoder(&head)
	for _, field := range []hpack.HeaderField{
		{Name: ":method", Value: request.Method}, {Name: ":scheme", Value: request.URL.Scheme},
		{Name: ":authority", Value: request.URL.Host}, {Name: ":path", Value: request.URL.RequestURI()},
		{Name: "accept", Value: request.Header.Get("Accept")}, {Name: "authorization", Value: request.Header.Get("Authorization")},
	} {
		if err := encoder.WriteField(field); err != nil {
			return nil, err
		}
	}
	err = errors.Join(
		m.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: streamWindow}),
		m.WriteWindowUpdate(0, connectionWindow),
		m.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head.Bytes(), EndStream: true, EndHeaders: true}),
	)
	for answered := false; err == nil && !answered; {
		answered, err = m.receive()
	}
	return m, err
}

// receive reads one frame. It returns true if the frame was the answer's header.
func (m *multiplexed) receive() (head bool, err error) {
	frame, err := m.ReadFrame()
	if err != nil {
		return false, err
	}
	switch f := frame.(type) {
	case *http2.MetaHeadersFrame:
		code, _ := strconv.Atoi(f.PseudoValue("status"))
		return true, checkStatus(code)
	case *http2.DataFrame:
		m.left = append(m.left, f.Data()...)
	case *http2.SettingsFrame:
		if !f.IsAck() {
			return false, m.WriteSettingsAck()
		}
	case *http2.PingFrame:
		return false, m.WritePing(true, f.Data)
	case *http2.GoAwayFrame, *http2.RSTStreamFrame:
		return false, fmt.Errorf("the server ended the stream: %v", f)
	}
	return false, nil
}

// Read implements io.Reader.
func (m *multiplexed) Read(p []byte) (int, error) {
	for len(m.left) == 0 {
		if _, err := m.receive(); err != nil {
			return 0, err
		}
	}
	n := copy(p, m.left)
	m.left = m.left[n:]
	return n, nil
}
