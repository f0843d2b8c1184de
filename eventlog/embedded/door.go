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

// A door is a file that lets other processes of the same user read the log of a running server. It holds the URL of the
// server with the password of a NATS user who may ask for what readers need. Each start of a server has a new one.
//
// That user may publish no event and ask for no purge, which holds back mistakes only: the server lets the answer of a
// request, and what a consumer delivers, go to any subject. So the file is for who may write the folder beside it.

// reader is the NATS user of a door.
const reader = "reader"

// readerPermissions are what eventlog needs to read the log: ask for its bounds, get events, and follow it.
func readerPermissions() *server.Permissions {
	return &server.Permissions{
		Publish: &server.SubjectPermission{Allow: []string{
			"$JS.API.STREAM.INFO.*", "$JS.API.STREAM.MSG.GET.*", "$JS.API.DIRECT.GET.*",
			"$JS.API.CONSUMER.CREATE.*", "$JS.API.CONSUMER.DELETE.*.*", "$JS.FC.>",
		}},
		Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}},
	}
}

// writeDoor replaces the file as a whole, so that nobody reads half of it. A crash leaves a file that leads nowhere.
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

// Enter connects to the running server whose door the file is. The connection outlives the server: once another one has
// replaced the file, it leads there.
func Enter(file string) (*nats.Conn, error) {
	d := &door{file: file}
	nc, err := nats.Connect("nats://127.0.0.1", nats.SetCustomDialer(d), nats.UserInfoHandler(d.user), nats.IgnoreAuthErrorAbort(),
		nats.Name("logplane reader"), nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.ReconnectWait(reconnectWait))
	if err != nil {
		return nil, fmt.Errorf("read the running log by '%s': %w", file, err)
	}
	return nc, nil
}

// door leads a connection to where the file says at that moment.
type door struct {
	file     string
	password string // of the server that was dialled last
}

// Dial ignores the address that it is given: the file knows.
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

// user is asked after Dial.
func (d *door) user() (name, password string) { return reader, d.password }
