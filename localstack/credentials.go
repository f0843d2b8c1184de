package localstack

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/trust"
	"github.com/logplane/logplane/localstack/authority"
)

const (
	authorityFile    = "ca.crt"
	authorityKeyFile = "ca.key"
	serverFile       = "tls.crt"
	serverKeyFile    = "tls.key"
	adminKubeconfig  = "admin.kubeconfig"
)

// Credentials are the files with which the processes of a cell and its first administrator authenticate to each other.
type Credentials struct {
	// Authority has signed the certificates of the server and of the administrator. The authority's key is needed only
	// to sign more certificates.
	Authority, AuthorityKey string
	// Server is the server's certificate, valid for a year unless it is renewed.
	Server, ServerKey string
	// SigningKey signs the tokens of service accounts.
	SigningKey string
	// Kubeconfig is the administrator's kubeconfig, valid for a year unless it is renewed.
	Kubeconfig string
}

// CredentialsIn returns the names of the files in the folder, whether the files are there or not.
func CredentialsIn(folder string) *Credentials {
	return &Credentials{
		Authority: filepath.Join(folder, authorityFile), AuthorityKey: filepath.Join(folder, authorityKeyFile),
		Server: filepath.Join(folder, serverFile), ServerKey: filepath.Join(folder, serverKeyFile),
		SigningKey: filepath.Join(folder, signingKeyName), Kubeconfig: filepath.Join(folder, adminKubeconfig),
	}
}

// EnsureCredentials makes the missing files in the folder, for an API that clients reach under the address. It never
// replaces a file: an existing file must fit the address, and only this user may be able to write the file. Only the
// owner may read the files that EnsureCredentials makes.
func EnsureCredentials(folder, address string) (*Credentials, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil || host == "" {
		return nil, fmt.Errorf("--external-address is '%s': it must be HOST:PORT, for example 'localhost:7373'", address)
	}
	if err := trust.Folder(folder); err != nil {
		return nil, fmt.Errorf("open the folder of the credentials: %w", err)
	}
	c := CredentialsIn(folder)
	if err := ensurePair(c.Authority, c.AuthorityKey, func() (certificate, key []byte, err error) {
		_, certificate, key, err = authority.New("logplane authority")
		return certificate, key, err
	}); err != nil {
		return nil, err
	}
	signer, err := authority.Open(c.Authority, c.AuthorityKey)
	if err != nil {
		return nil, err
	}
	if err := ensurePair(c.Server, c.ServerKey, func() ([]byte, []byte, error) { return signer.Server(host) }); err != nil {
		return nil, err
	}
	if err := c.checkServer(host); err != nil {
		return nil, err
	}
	if err := ensureFile(c.SigningKey, keyutil.MakeEllipticPrivateKeyPEM); err != nil {
		return nil, err
	}
	url := "https://" + address
	if err := ensureFile(c.Kubeconfig, func() ([]byte, error) {
		certificate, key, err := admin(signer)
		if err != nil {
			return nil, err
		}
		return clientcmd.Write(*kubeconfigOf(url, signer.PEM(), certificate, key))
	}); err != nil {
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
		address := strings.TrimPrefix(config.Host, "https://")
		return fmt.Errorf("'%s' leads to '%s' and not to '%s': give --external-address %s, or remove the file to have it made anew", c.Kubeconfig, config.Host, url, address)
	}
	return nil
}

const (
	// renewBefore is how long before its end a certificate is renewed. A copy of the kubeconfig is valid for at least
	// this long.
	renewBefore = authority.Life / 3
	// renewPause is the time between two looks at the certificates.
	renewPause = time.Hour
)

// KeepValid renews certificates until ctx ends. A failure is logged, and tried again later.
func (c *Credentials) KeepValid(ctx context.Context) {
	for eventlog.Pause(ctx, renewPause) == nil {
		if err := c.Renew(); err != nil {
			slog.Error("certificates are not renewed", "error", err)
		}
	}
}

// Renew signs the certificates of the server and of the administrator again if they end soon. It leaves alone
// certificates that another authority has signed. The keys stay. So each renewal replaces one file, and a killed
// process leaves no certificate without its key.
func (c *Credentials) Renew() error {
	signer, err := authority.Open(c.Authority, c.AuthorityKey)
	if err != nil {
		return err
	}
	old, err := os.ReadFile(c.Server)
	if err == nil {
		var renewed []byte
		if renewed, err = renew(signer, old); renewed != nil {
			err = replaceWith(c.Server, renewed)
		}
	}
	if err != nil {
		return fmt.Errorf("renew '%s': %w", c.Server, err)
	}
	if err := c.renewKubeconfig(signer); err != nil {
		return fmt.Errorf("renew '%s': %w", c.Kubeconfig, err)
	}
	return nil
}

func (c *Credentials) renewKubeconfig(signer *authority.Authority) error {
	config, err := clientcmd.LoadFromFile(c.Kubeconfig)
	if err != nil {
		return err
	}
	admin := config.AuthInfos[kubeconfigName]
	if admin == nil || len(admin.ClientCertificateData) == 0 { // the user has another way to authenticate
		return nil
	}
	renewed, err := renew(signer, admin.ClientCertificateData)
	if renewed == nil {
		return err
	}
	admin.ClientCertificateData = renewed
	content, err := clientcmd.Write(*config)
	if err != nil {
		return err
	}
	return replaceWith(c.Kubeconfig, content)
}

// renew returns nil if the certificate is another authority's, or does not end soon.
func renew(signer *authority.Authority, pem []byte) ([]byte, error) {
	old, err := cert.ParseCertsPEM(pem)
	if err != nil || !signer.Signed(old[0]) || time.Until(old[0].NotAfter) > renewBefore {
		return nil, err
	}
	return signer.Renew(old[0])
}

// replaceWith replaces a file by a renewed one.
func replaceWith(path string, content []byte) error {
	if err := trust.Replace(path, content); err != nil {
		return err
	}
	slog.Info("renewed a certificate", "file", path)
	return nil
}

// Flags returns the flags of 'api' and 'watcher' for these files, except --root-ca-file.
func (c *Credentials) Flags(address string) string {
	return strings.Join([]string{
		"--tls-cert-file " + c.Server, "--tls-private-key-file " + c.ServerKey, "--client-ca-file " + c.Authority,
		"--service-account-issuer https://" + address, "--service-account-signing-key-file " + c.SigningKey, "--external-address " + address,
	}, " \\\n  ")
}

// admin signs a certificate of an administrator.
func admin(signer *authority.Authority) (certificate, key []byte, err error) {
	return signer.User(authority.Life, "logplane-admin", user.SystemPrivilegedGroup)
}

// AuthorityOf opens the authority of the 'logplane dev --secure' with that data folder. It fails if another user may be
// able to write the authority.
func AuthorityOf(folder string) (*authority.Authority, error) {
	certificate, key := filepath.Join(folder, authorityFile), filepath.Join(folder, authorityKeyFile)
	if err := cmp.Or(trust.File(certificate), trust.File(key)); err != nil {
		return nil, fmt.Errorf("read the authority: %w", err)
	}
	return authority.Open(certificate, key)
}

// ensureAuthority opens the authority below the folder, and makes it if it is missing. The folder must be locked.
func ensureAuthority(folder string) (*authority.Authority, error) {
	path := filepath.Join(folder, authorityFile)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		_, certificate, key, err := authority.New("logplane dev")
		if err != nil {
			return nil, err
		}
		// The certificate is written last, so a process killed earlier leaves no half-made authority.
		err = trust.Replace(filepath.Join(folder, authorityKeyFile), key)
		if err == nil {
			err = trust.Replace(path, certificate)
		}
		if err != nil {
			return nil, fmt.Errorf("write the authority: %w", err)
		}
	}
	return AuthorityOf(folder)
}

// ensurePair makes a certificate and its key if both are missing. If only one of the two is missing, ensurePair returns
// an error, because the existing file may belong to a pair of the user's own. Until both are there, a pending file has
// the key too. So ensurePair continues where a killed process stopped.
func ensurePair(certificate, key string, generate func() (certificate, key []byte, err error)) error {
	pending := filepath.Join(filepath.Dir(key), "."+filepath.Base(key)+".pending")
	if err := finishPair(certificate, key, pending); err != nil {
		return err
	}
	var missing, there []string
	for _, path := range []string{certificate, key} {
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
			missing = append(missing, path)
		} else if err := errors.Join(err, trust.File(path)); err != nil {
			return err
		} else {
			there = append(there, path)
		}
	}
	switch len(missing) {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("'%s' is missing, although '%s' is there: bring it back, or remove '%[2]s' to have both made anew", missing[0], there[0])
	}
	made, private, err := generate()
	if err != nil {
		return err
	}
	if err := trust.Replace(pending, private); err != nil {
		return err
	}
	if err := trust.WriteNew(certificate, made); err != nil {
		return err
	}
	if err := trust.WriteNew(key, private); err != nil {
		return err
	}
	return os.Remove(pending)
}

// finishPair writes the key of a certificate that a killed process has made, and removes the pending file.
func finishPair(certificate, key, pending string) error {
	private, err := os.ReadFile(pending)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := errors.Join(err, trust.File(pending)); err != nil {
		return err
	}
	if _, err := os.Lstat(key); errors.Is(err, os.ErrNotExist) {
		if _, err := tls.LoadX509KeyPair(certificate, pending); err == nil {
			if err := trust.WriteNew(key, private); err != nil {
				return err
			}
		}
	}
	return os.Remove(pending)
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
	return trust.WriteNew(path, content)
}
