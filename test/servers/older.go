package servers

import (
	"bufio"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
)

// Older returns the URL of a proxy before the server. The proxy reports another version, and ends with the test.
func Older(t testing.TB, s *server.Server, version string) (url string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer in.Close()
				out, err := net.Dial("tcp", s.Addr().String())
				if err != nil {
					return
				}
				defer out.Close()
				go func() { _, _ = io.Copy(out, in) }()
				for answers := bufio.NewReader(out); err == nil; {
					var line string
					if line, err = answers.ReadString('\n'); strings.HasPrefix(line, "INFO ") {
						line = strings.Replace(line, strconv.Quote(server.VERSION), strconv.Quote(version), 1)
					}
					_, _ = io.WriteString(in, line)
				}
			}()
		}
	}()
	return "nats://" + listener.Addr().String()
}
