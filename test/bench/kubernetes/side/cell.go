package side

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// natsConfig is the configuration that a log's server needs: the server syncs before it acknowledges, and accepts
// objects of the largest size.
const natsConfig = "max_payload: 8MB\njetstream { store_dir: %q, sync_interval: always }\n"

// Cell is Logplane with users and RBAC, as it runs in production: one or three NATS servers, a watcher, which serves
// every request, a projector, and the lifecycle. The lifecycle waits only a second after a deletion, because the
// clients here wait for its work.
func Cell(nats, binary string, servers int) Side {
	return Side{"logplane", func(ctx context.Context, folder string) (*System, error) {
		files, err := generateCredentials(folder)
		if err != nil {
			return nil, err
		}
		address, _, err := freeAddresses()
		if err != nil {
			return nil, err
		}
		s := files.system(address)
		begun := time.Now()
		urls, err := s.startLog(ctx, folder, nats, servers)
		if err == nil {
			err = s.startCell(ctx, folder, binary, urls, servers, files, begun)
		}
		return s.orStop(err)
	}}
}

// startLog starts the servers of the log, and returns their URLs.
func (s *System) startLog(ctx context.Context, folder, nats string, servers int) (string, error) {
	var urls, routes, clients []string
	for range servers {
		client, route, err := freeAddresses()
		if err != nil {
			return "", err
		}
		clients, urls, routes = append(clients, client), append(urls, "nats://"+client), append(routes, "nats://"+route)
	}
	for i, client := range clients {
		name := fmt.Sprintf("log%d", i)
		text := fmt.Sprintf(natsConfig, filepath.Join(folder, name))
		if servers > 1 {
			text += fmt.Sprintf("server_name: %s\ncluster { name: peer, listen: %q, routes: [%s] }\n", name, strings.TrimPrefix(routes[i], "nats://"), strings.Join(routes, ", "))
		}
		config := filepath.Join(folder, name+".conf")
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			return "", err
		}
		host, port, err := net.SplitHostPort(client)
		if err != nil {
			return "", err
		}
		if err := s.exec(ctx, folder, nats, "--config", config, "--addr", host, "--port", port); err != nil {
			return "", err
		}
	}
	for _, client := range clients {
		if err := awaitListener(ctx, client); err != nil {
			return "", err
		}
	}
	return strings.Join(urls, ","), nil
}

func (s *System) startCell(ctx context.Context, folder, binary, urls string, servers int, files credentials, begun time.Time) error {
	where := []string{"--nats", urls, "--bucket", "file://" + filepath.Join(folder, "bucket")}
	initialize := func() error {
		written, err := exec.CommandContext(ctx, binary, append([]string{"init", "--replicas", strconv.Itoa(servers)}, where...)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("make the cell: %w: %s", err, written)
		}
		return nil
	}
	err := initialize()
	for servers > 1 && err != nil && time.Since(begun) < startTimeout { // the servers must find each other first
		time.Sleep(100 * time.Millisecond)
		err = initialize()
	}
	if err != nil {
		return err
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
