package envtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/logplane/logplane/cmd/logplane/cells"
	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/eventlog/embedded"
	"github.com/logplane/logplane/internal/serving"
	"github.com/logplane/logplane/localstack"
)

const (
	prefix  = "logplane" // first part of every subject
	cluster = "main"
	// storePath is where 'etcd' says where the cell is.
	storePath = "/logplane"
	// lookInterval is how often 'etcd' looks whether its data folder is still there.
	lookInterval = time.Second
)

// store says where the cell is. Like etcd itself, 'etcd' lets everyone who reaches its client URL read and write the
// whole state.
type store struct {
	// Log is the URL of the log's owner.
	Log string `json:"log"`
	// Folder has the bucket.
	Folder string `json:"folder"`
}

// etcd has the flags that 'etcd' heeds.
type etcd struct {
	data     string
	clients  []string
	unsynced bool
}

// ignored are other flags with which test frameworks start etcd. They say how etcd finds other members, how it logs,
// and when it compacts.
var ignored = []string{
	"advertise-client-urls", "auto-compaction-mode", "auto-compaction-retention", "election-timeout", "heartbeat-interval",
	"initial-advertise-peer-urls", "initial-cluster", "initial-cluster-state", "initial-cluster-token", "listen-metrics-urls", "listen-peer-urls",
	"log-level", "log-outputs", "logger", "max-request-bytes", "max-snapshots", "max-txn-ops", "max-wals", "metrics", "name",
	"quota-backend-bytes", "snapshot-count", "wal-dir",
}

func newEtcd() *cobra.Command {
	e := &etcd{}
	cmd := standIn(&cobra.Command{
		Use:   "etcd",
		Short: "Keep the state of a test's Kubernetes API for Logplane's kube-apiserver",
		Long:  "Stands in for etcd where a test framework starts etcd and kube-apiserver. Only Logplane's kube-apiserver can use it.",
		RunE:  func(cmd *cobra.Command, _ []string) error { return e.run(cmd.Context()) },
	}, "etcd Version: "+cells.Version()+" of Logplane")
	flags := cmd.Flags()
	flags.StringVar(&e.data, "data-dir", "default.etcd", "folder that holds the state; etcd ends when the folder is removed")
	flags.StringSliceVar(&e.clients, "listen-client-urls", []string{"http://localhost:2379"}, "URLs that kube-apiserver reaches the state under")
	flags.BoolVar(&e.unsynced, "unsafe-no-fsync", false, "acknowledge writes before they are on disk")
	for _, name := range ignored {
		flags.String(name, "", "accepted, and without effect")
	}
	return cmd
}

// run keeps the state until ctx ends or the data folder is removed.
func (e *etcd) run(ctx context.Context) error {
	folder, err := filepath.Abs(e.data)
	if err != nil {
		return err
	}
	unlock, err := localstack.Lock(folder)
	if err != nil {
		return fmt.Errorf("use --data-dir: %w", err)
	}
	defer func() { _ = unlock() }() // the kernel drops the lock in any case
	listeners, err := e.listen()
	if err != nil {
		return err
	}
	server, err := embedded.Start(embedded.Config{Folder: filepath.Join(folder, "log"), Prefix: prefix, Shared: true, Unsynced: e.unsynced})
	if err != nil {
		return err
	}
	defer server.Stop()
	conn, err := server.Connect()
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := eventlog.Create(ctx, eventlog.Config{Conn: conn, Prefix: prefix, Replicas: 1}); err != nil {
		return err
	}
	handler, err := newHandler(store{Log: server.OwnerURL(), Folder: folder})
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, l := range listeners {
		slog.Info("serving the state", "address", l.Addr().String(), "folder", folder)
		group.Go(func() error { return serving.Serve(ctx, l, handler, serving.Config{}) })
	}
	group.Go(func() error { return awaitRemoval(ctx, folder) })
	return group.Wait()
}

// listen listens on the client URLs.
func (e *etcd) listen() ([]net.Listener, error) {
	var all []net.Listener
	for _, text := range e.clients {
		l, err := listenOn(text)
		if err != nil { // the process ends
			return nil, fmt.Errorf("--listen-client-urls has '%s': %w", text, err)
		}
		all = append(all, l)
	}
	return all, nil
}

func listenOn(text string) (net.Listener, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" || u.Host == "" {
		return nil, errors.New("it must be an 'http://' URL with a port")
	}
	return net.Listen("tcp", u.Host)
}

func newHandler(s store) (http.Handler, error) {
	where, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	answer := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, body)
		}
	}
	for _, path := range []string{"/health", "/livez", "/readyz"} {
		mux.Handle("GET "+path, answer(`{"health":"true","reason":""}`))
	}
	mux.Handle("GET /version", answer(`{"etcdserver":"`+cells.Version()+`","etcdcluster":"logplane"}`))
	mux.Handle("GET "+storePath, answer(string(where)))
	return mux, nil
}

// awaitRemoval ends 'etcd' whose test has removed its state.
func awaitRemoval(ctx context.Context, folder string) error {
	for eventlog.Pause(ctx, lookInterval) == nil {
		if _, err := os.Stat(folder); errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("keep the state: the data folder was removed: '%s'", folder)
		}
	}
	return nil
}

// find asks 'etcd' where the cell is.
func find(ctx context.Context, etcd string) (store, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(etcd, "/")+storePath, nil)
	if err != nil {
		return store{}, err
	}
	response, err := local.Do(request)
	if err != nil {
		return store{}, err
	}
	defer response.Body.Close()
	var s store
	if err := json.NewDecoder(io.LimitReader(response.Body, 64<<10)).Decode(&s); err != nil || s.Log == "" || s.Folder == "" {
		return store{}, errStranger
	}
	return s, nil
}

// local reaches 'etcd', past any proxy.
var local = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// errStranger says that another server answers.
var errStranger = errors.New("what answers there is not Logplane's 'etcd': start the 'etcd' of 'logplane envtest-assets'")

// patience is how long 'kube-apiserver' waits for 'etcd' to start.
const patience = time.Minute

// connect waits for 'etcd', and connects to the log. The connection finds an 'etcd' that is started again.
func connect(ctx context.Context, etcd string) (log eventlog.Config, folder string, err error) {
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for said := false; ; said = true {
		s, err := find(waiting, etcd)
		if err == nil {
			folder = s.Folder
			break
		}
		if !said {
			slog.Info("waiting for etcd", "url", etcd, "timeout", patience, "error", err)
		}
		if errors.Is(err, errStranger) || eventlog.Pause(waiting, 50*time.Millisecond) != nil {
			return log, "", errors.Join(ctx.Err(), fmt.Errorf("--etcd-servers is '%s': %w", etcd, err))
		}
	}
	conn, err := embedded.Follow("logplane kube-apiserver", func() (string, error) {
		s, err := find(context.WithoutCancel(ctx), etcd)
		return s.Log, err
	})
	if err != nil {
		return log, "", fmt.Errorf("--etcd-servers is '%s': %w", etcd, err)
	}
	return eventlog.Config{Conn: conn, Prefix: prefix, Replicas: 1}, folder, nil
}
