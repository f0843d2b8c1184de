package embedded

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// A door is a file that lets other processes of the same user read the log of a running server. It holds the server's
// URL, with the password of a NATS user who may ask for what readers need. Each server writes a new door when it
// starts.
//
// That user may not publish events or ask for a purge. This prevents mistakes, not attacks: the user can make the
// server send an answer, or what a consumer delivers, to any subject. So only users who may also write the server's
// folder should be able to read the file.

// reader is the NATS user of a door.
const reader = "reader"

// readerPermissions are what eventlog needs to read the log: its bounds, its events, and consumers to follow it.
func readerPermissions() *server.Permissions {
	return &server.Permissions{
		Publish: &server.SubjectPermission{Allow: []string{
			"$JS.API.STREAM.INFO.*", "$JS.API.STREAM.MSG.GET.*", "$JS.API.DIRECT.GET.*",
			"$JS.API.CONSUMER.CREATE.*", "$JS.API.CONSUMER.DELETE.*.*", "$JS.FC.>",
		}},
		Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}},
	}
}

// writeDoor replaces the file as a whole, so that nobody reads half of it. After a crash the file leads nowhere.
func writeDoor(file string, address *net.TCPAddr, password string) error {
	u := url.URL{Scheme: "nats", User: url.UserPassword(reader, password), Host: address.String()}
	staged := file + ".new"
	if err := os.WriteFile(staged, []byte(u.String()+"\n"), 0o600); err != nil {
		return fmt.Errorf("let readers in: %w", err)
	}
	if err := os.Rename(staged, file); err != nil {
		return fmt.Errorf("let readers in: %w", err)
	}
	return nil
}

// Enter connects to the running server that has written the door. The connection outlives the server: it reconnects to
// the next server once that has replaced the file.
func Enter(file string) (*nats.Conn, error) {
	d := &door{file: file}
	nc, err := nats.Connect("nats://127.0.0.1", nats.SetCustomDialer(d), nats.UserInfoHandler(d.user), nats.IgnoreAuthErrorAbort(),
		nats.Name("logplane reader"), nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.ReconnectWait(reconnectWait))
	if err != nil {
		return nil, fmt.Errorf("read the running log by '%s': %w", file, err)
	}
	return nc, nil
}

// door makes a connection go to the server that the file names at the time of dialling.
type door struct {
	file     string
	password string // of the server that was dialled last
}

// Dial ignores the address that it is given, and dials the one in the file.
func (d *door) Dial(network, _ string) (net.Conn, error) {
	text, err := os.ReadFile(d.file)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(string(text[:max(0, len(text)-1)]))
	if err != nil || u.User == nil {
		return nil, fmt.Errorf("'%s' holds no URL of a log", d.file)
	}
	d.password, _ = u.User.Password()
	return net.DialTimeout(network, u.Host, time.Second)
}

// user is called after Dial.
func (d *door) user() (name, password string) { return reader, d.password }
