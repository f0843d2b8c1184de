package localstack

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/keyutil"

	"github.com/logplane/logplane/internal/trust"
)

const (
	serverFile      = "tls.crt"
	serverKeyFile   = "tls.key"
	adminKubeconfig = "admin.kubeconfig"
)

// Credentials are the files by which the processes of a cell and their first administrator know each other.
type Credentials struct {
	// Authority has signed the certificates of the server and of the administrator. Only whoever signs more of them
	// needs its key.
	Authority, AuthorityKey string
	// Server is the server's certificate, for a year.
	Server, ServerKey string
	// SigningKey signs the tokens of service accounts.
	SigningKey string
	// Kubeconfig is the administrator's, for a year.
	Kubeconfig string
}

// EnsureCredentials makes the files that are missing in the folder, for an API that clients reach under the address.
// It replaces nothing: what is there already stays and is used, and must fit the address and be this user's alone to
// write. Only the owner may read the files that it makes.
func EnsureCredentials(folder, address string) (*Credentials, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil || host == "" {
		return nil, fmt.Errorf("the external address is '%s': it must be HOST:PORT", address)
	}
	if err := trust.Folder(folder); err != nil {
		return nil, fmt.Errorf("open the folder of the credentials: %w", err)
	}
	c := &Credentials{
		Authority: filepath.Join(folder, authorityFile), AuthorityKey: filepath.Join(folder, authorityKeyFile),
		Server: filepath.Join(folder, serverFile), ServerKey: filepath.Join(folder, serverKeyFile),
		SigningKey: filepath.Join(folder, signingKeyName), Kubeconfig: filepath.Join(folder, adminKubeconfig),
	}
	if err := ensurePair(c.Authority, c.AuthorityKey, func() ([]byte, []byte, error) { return newAuthority("logplane authority") }); err != nil {
		return nil, err
	}
	authority, err := OpenAuthority(c.Authority, c.AuthorityKey)
	if err != nil {
		return nil, err
	}
	if err := ensurePair(c.Server, c.ServerKey, func() ([]byte, []byte, error) { return authority.server(host) }); err != nil {
		return nil, err
	}
	if err := c.checkServer(host); err != nil {
		return nil, err
	}
	if err := ensureFile(c.SigningKey, keyutil.MakeEllipticPrivateKeyPEM); err != nil {
		return nil, err
	}
	url := "https://" + address
	if err := ensureFile(c.Kubeconfig, func() ([]byte, error) { return authority.kubeconfig(url) }); err != nil {
		return nil, err
	}
	return c, c.checkKubeconfig(url)
}

// checkServer refuses a certificate that clients of the host would not believe.
func (c *Credentials) checkServer(host string) error {
	pair, err := tls.LoadX509KeyPair(c.Server, c.ServerKey)
	if err != nil {
		return fmt.Errorf("read the server's certificate: %w", err)
	}
	if err := pair.Leaf.VerifyHostname(host); err != nil {
		return fmt.Errorf("'%s' is not for '%s': remove it and '%s' to have both made anew, or give the address that it is for: %w", c.Server, host, c.ServerKey, err)
	}
	return nil
}

// checkKubeconfig refuses one that leads elsewhere.
func (c *Credentials) checkKubeconfig(url string) error {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return fmt.Errorf("read '%s': %w", c.Kubeconfig, err)
	}
	if config.Host != url {
		return fmt.Errorf("'%s' leads to '%s' and not to '%s': remove it to have it made anew", c.Kubeconfig, config.Host, url)
	}
	return nil
}

// Flags are those of 'api' and 'watcher' that use the files, but for --root-ca-file.
func (c *Credentials) Flags(address string) string {
	return strings.Join([]string{
		"--tls-cert-file " + c.Server, "--tls-private-key-file " + c.ServerKey, "--client-ca-file " + c.Authority,
		"--service-account-issuer https://" + address, "--service-account-signing-key-file " + c.SigningKey, "--external-address " + address,
	}, " \\\n  ")
}

// kubeconfig is an administrator's.
func (a *Authority) kubeconfig(url string) ([]byte, error) {
	certificate, key, err := a.admin()
	if err != nil {
		return nil, err
	}
	return clientcmd.Write(*kubeconfigOf(url, a.PEM(), certificate, key))
}

// ensurePair makes a certificate and its key if both are missing. One without the other may be half of somebody's.
func ensurePair(certificate, key string, generate func() (certificate, key []byte, err error)) error {
	var missing []string
	for _, path := range []string{certificate, key} {
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
			missing = append(missing, path)
		} else if err := errors.Join(err, trust.File(path)); err != nil {
			return err
		}
	}
	switch len(missing) {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("'%s' is missing, and what belongs to it is there: bring it back, or remove both", missing[0])
	}
	made, private, err := generate()
	if err != nil {
		return err
	}
	return errors.Join(writeNew(key, private), writeNew(certificate, made))
}

// ensureFile makes a file if it is missing.
func ensureFile(path string, generate func() ([]byte, error)) error {
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		return errors.Join(err, trust.File(path))
	}
	content, err := generate()
	if err != nil {
		return fmt.Errorf("make '%s': %w", path, err)
	}
	return writeNew(path, content)
}

// writeNew writes a file that is not there yet. A kill leaves all of it or none.
func writeNew(path string, content []byte) error {
	written, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // only its owner may read it
	if err != nil {
		return err
	}
	defer os.Remove(written.Name())
	_, err = written.Write(content)
	if err := errors.Join(err, written.Sync(), written.Close()); err != nil {
		return fmt.Errorf("write '%s': %w", path, err)
	}
	return os.Link(written.Name(), path) // unlike a rename, it replaces nothing
}
