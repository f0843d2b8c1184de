package localstack

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"github.com/logplane/logplane/internal/trust"
)

const (
	authorityFile    = "ca.crt"
	authorityKeyFile = "ca.key"
	// CertificateLife is how long certificates are valid. dev makes its own anew at each start.
	CertificateLife = 365 * 24 * time.Hour
)

// Authority signs the certificates of a cell's server and of its users.
type Authority struct {
	// Path of the file with its certificate.
	Path        string
	certificate *x509.Certificate
	key         crypto.Signer
}

// OpenAuthority reads a certificate and its key, both PEM.
func OpenAuthority(certificateFile, keyFile string) (*Authority, error) {
	pair, err := tls.LoadX509KeyPair(certificateFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("read the authority: %w", err)
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA {
		return nil, fmt.Errorf("'%s' is no authority: it must not sign other certificates", certificateFile)
	}
	return &Authority{certificateFile, pair.Leaf, key}, nil
}

// AuthorityOf opens the authority of the 'logplane dev --secure' with that data folder. It fails if another user may be
// able to write the authority.
func AuthorityOf(folder string) (*Authority, error) {
	certificate, key := filepath.Join(folder, authorityFile), filepath.Join(folder, authorityKeyFile)
	for _, path := range []string{certificate, key} {
		if err := trust.File(path); err != nil {
			return nil, fmt.Errorf("read the authority: %w", err)
		}
	}
	return OpenAuthority(certificate, key)
}

// ensureAuthority opens the authority below the folder, and makes it if it is missing. The folder must be locked.
func ensureAuthority(folder string) (*Authority, error) {
	path := filepath.Join(folder, authorityFile)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		certificate, key, err := newAuthority("logplane dev")
		if err != nil {
			return nil, err
		}
		// The certificate is written last, so a process killed earlier leaves no half-made authority.
		if err := errors.Join(replaceFile(filepath.Join(folder, authorityKeyFile), key), replaceFile(path, certificate)); err != nil {
			return nil, fmt.Errorf("write the authority: %w", err)
		}
	}
	return AuthorityOf(folder)
}

// newAuthority makes a certificate that is valid for ten years, and its key. Both are PEM.
func newAuthority(name string) (certificate, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make the authority: %w", err)
	}
	signed, err := cert.NewSelfSignedCACert(cert.Config{CommonName: name}, private)
	if err != nil {
		return nil, nil, fmt.Errorf("make the authority: %w", err)
	}
	if key, err = keyutil.MarshalPrivateKeyToPEM(private); err != nil {
		return nil, nil, fmt.Errorf("make the authority: %w", err)
	}
	return certificatePEM(signed.Raw), key, nil
}

// PEM returns the authority's certificate.
func (a *Authority) PEM() []byte { return certificatePEM(a.certificate.Raw) }

// server signs a certificate for a server on loopback and on the given host. Certificate and key are PEM.
func (a *Authority) server(host string) (certificate, key []byte, err error) {
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "logplane"}, DNSNames: []string{"localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	ip := net.ParseIP(host)
	switch {
	case ip != nil && !slices.ContainsFunc(template.IPAddresses, ip.Equal):
		template.IPAddresses = append(template.IPAddresses, ip)
	case ip == nil && host != "" && host != "localhost":
		template.DNSNames = append(template.DNSNames, host)
	}
	return a.sign(template, CertificateLife)
}

// User signs a certificate for a user in groups, valid for the given time. Certificate and key are PEM.
func (a *Authority) User(life time.Duration, name string, groups ...string) (certificate, key []byte, err error) {
	return a.sign(&x509.Certificate{Subject: pkix.Name{CommonName: name, Organization: groups}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, life)
}

// admin signs a certificate of an administrator.
func (a *Authority) admin() (certificate, key []byte, err error) {
	return a.User(CertificateLife, "logplane-admin", user.SystemPrivilegedGroup)
}

func (a *Authority) sign(template *x509.Certificate, life time.Duration) (certificate, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return nil, nil, fmt.Errorf("make a serial number: %w", err)
	}
	template.NotBefore, template.NotAfter = a.certificate.NotBefore, time.Now().Add(life)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	// Without these ids OpenSSL takes a certificate for self-signed if its subject is the authority's.
	public, err := x509.MarshalPKIXPublicKey(private.Public())
	if err != nil {
		return nil, nil, fmt.Errorf("name a key: %w", err)
	}
	id := sha256.Sum256(public)
	template.SubjectKeyId, template.AuthorityKeyId = id[:20], a.certificate.SubjectKeyId
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, private.Public(), a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("sign a certificate: %w", err)
	}
	key, err = keyutil.MarshalPrivateKeyToPEM(private)
	return certificatePEM(der), key, err
}

func certificatePEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: der})
}

// replaceFile writes a file that only its owner may read. If the process is killed, the old or the new file is
// complete.
func replaceFile(path string, content []byte) error {
	written := path + ".new"
	if err := os.WriteFile(written, content, 0o600); err != nil {
		return err
	}
	return os.Rename(written, path)
}
