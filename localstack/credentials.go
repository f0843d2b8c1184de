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

// Credentials are the files with which the processes of a cell and its first administrator authenticate to each other.
type Credentials struct {
	// Authority has signed the certificates of the server and of the administrator. Its key is needed only to sign more
	// of them.
	Authority, AuthorityKey string
	// Server is the server's certificate, valid for a year.
	Server, ServerKey string
	// SigningKey signs the tokens of service accounts.
	SigningKey string
	// Kubeconfig is the administrator's, valid for a year.
	Kubeconfig string
}

// EnsureCredentials makes the missing files in the folder, for an API that clients reach under the address. It replaces
// no file: an existing file is used. It must fit the address, and only this user may be able to write it. Only the
// owner may read the files that EnsureCredentials makes.
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

// checkServer refuses a server certificate that clients of the host would not accept.
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

// checkKubeconfig refuses a kubeconfig for another URL.
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

// Flags returns the flags of 'api' and 'watcher' for these files, except --root-ca-file.
func (c *Credentials) Flags(address string) string {
	return strings.Join([]string{
		"--tls-cert-file " + c.Server, "--tls-private-key-file " + c.ServerKey, "--client-ca-file " + c.Authority,
		"--service-account-issuer https://" + address, "--service-account-signing-key-file " + c.SigningKey, "--external-address " + address,
	}, " \\\n  ")
}

// kubeconfig returns an administrator's kubeconfig.
func (a *Authority) kubeconfig(url string) ([]byte, error) {
	certificate, key, err := a.admin()
	if err != nil {
		return nil, err
	}
	return clientcmd.Write(*kubeconfigOf(url, a.PEM(), certificate, key))
}

// ensurePair makes a certificate and its key if both are missing. If only one is missing, the other may belong to
// somebody's pair, so that is an error.
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

// writeNew writes a file that does not exist yet. If the process is killed, the file is complete or missing.
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
	return os.Link(written.Name(), path) // unlike a rename, it never replaces a file
}
