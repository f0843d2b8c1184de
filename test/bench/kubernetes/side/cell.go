package side

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// natsConfig is the configuration that a log's server needs: the server syncs before it acknowledges, and accepts
// objects of the largest size.
const natsConfig = "max_payload: 8MB\njetstream { store_dir: %q, sync_interval: always }\n"

// Cell is Logplane with users and RBAC, as it runs in production: a NATS server, a watcher, which serves every request,
// and the lifecycle. The lifecycle waits only a second after a deletion, because the clients here wait for its work.
func Cell(nats, binary string) Side {
	return Side{"logplane", func(ctx context.Context, folder string) (*System, error) {
		files, err := generateCredentials(folder)
		if err != nil {
			return nil, err
		}
		log, address, err := freeAddresses()
		if err != nil {
			return nil, err
		}
		s := files.system(address)
		return s.orStop(s.startCell(ctx, folder, nats, binary, log, files))
	}}
}

func (s *System) startCell(ctx context.Context, folder, nats, binary, log string, files credentials) error {
	config := filepath.Join(folder, "nats.conf")
	if err := os.WriteFile(config, fmt.Appendf(nil, natsConfig, filepath.Join(folder, "log")), 0o600); err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(log)
	if err != nil {
		return err
	}
	begun := time.Now()
	if err := s.exec(ctx, folder, nats, "--config", config, "--addr", host, "--port", port); err != nil {
		return err
	}
	if err := awaitListener(ctx, log); err != nil {
		return err
	}
	where := []string{"--nats", "nats://" + log, "--bucket", "file://" + filepath.Join(folder, "bucket")}
	if written, err := exec.CommandContext(ctx, binary, append([]string{"init"}, where...)...).CombinedOutput(); err != nil {
		return fmt.Errorf("make the cell: %w: %s", err, written)
	}
	address := strings.TrimPrefix(s.Config.Host, "https://")
	return errors.Join(
		s.exec(ctx, folder, binary, append([]string{"watcher", "--listen", address, "--token-auth-file", files.tokens,
			"--tls-cert-file", files.certificate, "--tls-private-key-file", files.key,
			"--service-account-issuer", issuer, "--service-account-signing-key-file", files.key,
			"--kubelet-client-certificate", files.certificate, "--kubelet-client-key", files.key}, where...)...),
		s.exec(ctx, folder, binary, append([]string{"projector"}, where...)...),
		s.exec(ctx, folder, binary, append([]string{"lifecycle", "--settle", "1s"}, where...)...),
		s.await(ctx, begun),
	)
}

// awaitListener waits until a process listens at the address.
func awaitListener(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for a listener at %s: %w", address, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
