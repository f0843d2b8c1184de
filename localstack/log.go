package localstack

import (
	"context"
	"path/filepath"
	"time"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/embedded"
)

// healCadence is how often the log server is asked whether it can write again.
const healCadence = time.Second

// logName is the folder of the log below a data folder.
const logName = "log"

// Log is the log of a process that is a whole cell.
type Log struct {
	// Config opens the log.
	Config eventlog.Config
	// Writable says whether the log's disk has room (kubestore.Cell). It is nil if the log is on other servers.
	Writable func() error

	server *embedded.Server // nil if the log is on other servers
}

// OpenLog starts the log below a data folder, which must be locked. Other processes of this user may read the log
// (Attach).
func OpenLog(folder, prefix string) (*Log, error) {
	return startLog(embedded.Config{Folder: filepath.Join(folder, logName), Prefix: prefix, Door: filepath.Join(folder, doorName)})
}

func startLog(c embedded.Config) (*Log, error) {
	if err := refuseMoved(c.Folder); err != nil {
		return nil, err
	}
	server, err := embedded.Start(c)
	if err != nil {
		return nil, err
	}
	conn, err := server.Connect()
	if err != nil {
		server.Stop()
		return nil, err
	}
	return &Log{
		Config:   eventlog.Config{Conn: conn, Local: server.Bounds, Prefix: c.Prefix, Replicas: 1},
		Writable: server.Writable, server: server,
	}, nil
}

// Heal opens the log again whenever its full disk has room, until ctx ends.
func (l *Log) Heal(ctx context.Context) error {
	if l.server == nil {
		return nil
	}
	for eventlog.Pause(ctx, healCadence) == nil {
		if err := l.server.Heal(); err != nil {
			return err
		}
	}
	return nil
}

// Stop ends the connection, and the log unless it is on other servers.
func (l *Log) Stop() {
	l.Config.Conn.Close()
	if l.server != nil {
		l.server.Stop()
	}
}
