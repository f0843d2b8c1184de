// Command credentials writes what the containers of the local stack and their one user know each other by, into the
// folder it is given: a certificate authority, the servers' certificate, the key of service accounts, the user's token,
// a kubeconfig, and MinIO's keys. What is there already stays. All of it is for this machine only.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: credentials FOLDER SERVER-URL")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "credentials:", err)
		os.Exit(1)
	}
}

// write leaves the kubeconfig for last: where it is, the rest is complete.
//
// Containers run as a user of their own, who must read what is mounted into them. So those files are open to everybody,
// in folders that only the owner of the one around them can reach.
func write(folder, server string) error {
	kubeconfig := filepath.Join(folder, "kubeconfig")
	if _, err := os.Stat(kubeconfig); err == nil {
		return nil
	}
	made, err := certify(time.Now())
	if err != nil {
		return err
	}
	account, err := newKey()
	if err != nil {
		return err
	}
	token, secret := rand.Text(), rand.Text()
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	for _, inner := range []string{"cell", "minio", "minio/CAs"} { // the last is a folder that MinIO wants to find
		if err := makeFolder(filepath.Join(folder, inner)); err != nil {
			return err
		}
	}
	for _, f := range []struct {
		name, content string
		mode          os.FileMode
	}{
		{"cell/ca.crt", made.ca, 0o644},
		{"cell/tls.crt", made.certificate, 0o644},
		{"cell/tls.key", made.key, 0o644},
		{"cell/service-account.key", account.pem, 0o644},
		{"cell/tokens.csv", token + ",admin,admin,system:masters\n", 0o644},
		{"minio/public.crt", made.certificate, 0o644},
		{"minio/private.key", made.key, 0o644},
		{"ca.crt", made.ca, 0o600},
		{"keys.env", fmt.Sprintf(keys, secret, secret), 0o600},
		{"kubeconfig", fmt.Sprintf(config, server, token), 0o600},
	} {
		if err := writeFile(filepath.Join(folder, f.name), f.content, f.mode); err != nil {
			return err
		}
	}
	return nil
}

// makeFolder and writeFile give the mode whatever the umask is.
func makeFolder(path string) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	return os.Chmod(path, 0o755)
}

func writeFile(path, content string, mode os.FileMode) error {
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}

const keys = `MINIO_ROOT_USER=logplane
MINIO_ROOT_PASSWORD=%s
AWS_ACCESS_KEY_ID=logplane
AWS_SECRET_ACCESS_KEY=%s
`

const config = `apiVersion: v1
kind: Config
current-context: localstack
clusters:
- name: localstack
  cluster:
    server: %s
    certificate-authority: ca.crt
users:
- name: admin
  user:
    token: %s
contexts:
- name: localstack
  context:
    cluster: localstack
    user: admin
`

// certified is what certify makes, as PEM.
type certified struct{ ca, certificate, key string }

// certify makes an authority, and a certificate and key of all servers. The authority's key is forgotten.
func certify(now time.Time) (*certified, error) {
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "logplane localstack"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(1, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	authorityKey, err := newKey()
	if err != nil {
		return nil, err
	}
	ca, err := sign(authority, authority, authorityKey, authorityKey)
	if err != nil {
		return nil, err
	}
	server := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "logplane"},
		NotBefore: authority.NotBefore, NotAfter: authority.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"localhost", "front", "api", "watcher", "minio"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	serverKey, err := newKey()
	if err != nil {
		return nil, err
	}
	certificate, err := sign(server, authority, serverKey, authorityKey)
	return &certified{ca, certificate, serverKey.pem}, err
}

type key struct {
	*ecdsa.PrivateKey
	pem string
}

func newKey() (*key, error) {
	made, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(made)
	return &key{made, block("PRIVATE KEY", der)}, err
}

func sign(subject, issuer *x509.Certificate, of, by *key) (string, error) {
	der, err := x509.CreateCertificate(rand.Reader, subject, issuer, &of.PublicKey, by.PrivateKey)
	return block("CERTIFICATE", der), err
}

func block(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}
