package embedded

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// A door is a file that lets other processes of the same user read the log of a running server. It holds the server's
// URL, with the password of a NATS user who may make the requests of readers. Each server writes a new door when it
// starts.
//
// That user may not publish events or ask for a purge. This prevents mistakes, not attacks, since answers can be sent
// to any subject. So only users who may also write the server's folder should be able to read the file.

// reader is the NATS user of a door.
const reader = "reader"

// readerPermissions are the permissions that eventlog needs to read the log: its bounds, its events, and consumers to
// follow it.
func readerPermissions() *server.Permissions {
	return &server.Permissions{
		Publish: &server.SubjectPermission{Allow: []string{
			"$JS.API.STREAM.INFO.*", "$JS.API.STREAM.MSG.GET.*", "$JS.API.DIRECT.GET.*",
			"$JS.API.CONSUMER.CREATE.*", "$JS.API.CONSUMER.DELETE.*.*", "$JS.FC.>",
		}},
		Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}},
	}
}

// writeDoor replaces the file as a whole, so that nobody reads half of it. A file that remains after a crash names a
// server that no longer runs.
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
// the next server once that server has replaced the file.
func Enter(file string) (*nats.Conn, error) {
	nc, err := Follow("logplane reader", func() (string, error) {
		text, err := os.ReadFile(file)
		return strings.TrimSuffix(string(text), "\n"), err
	})
	if err != nil {
		return nil, fmt.Errorf("read the running log by '%s': %w", file, err)
	}
	return nc, nil
}

// Follow connects to the running server whose URL find returns. The connection outlives the server: to reconnect, it
// calls find again.
func Follow(name string, find func() (string, error)) (*nats.Conn, error) {
	d := &door{find: find}
	return nats.Connect("nats://127.0.0.1", nats.SetCustomDialer(d), nats.UserInfoHandler(d.credentials), nats.IgnoreAuthErrorAbort(),
		nats.Name(name), nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.ReconnectWait(reconnectWait))
}

// door makes a connection go to the server that has the URL at the time of dialling.
type door struct {
	find func() (string, error)
	user *url.Userinfo // at the server that was dialled last
}

// Dial ignores the address that it is given, and dials the address in the URL.
func (d *door) Dial(network, _ string) (net.Conn, error) {
	text, err := d.find()
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(text)
	if err != nil || u.User == nil {
		return nil, errors.New("the log's URL is damaged: it names no server and user")
	}
	d.user = u.User
	return net.DialTimeout(network, u.Host, time.Second)
}

// credentials is called after Dial.
func (d *door) credentials() (name, password string) {
	password, _ = d.user.Password()
	return d.user.Username(), password
}
