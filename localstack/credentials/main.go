// Command credentials writes what the containers of the local stack and their one user know each other by, into the
// folder it is given: a certificate authority, the API's certificate, the user's token, a kubeconfig, and MinIO's keys.
// What is there already stays. All of it is for this machine only.
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
func write(folder, server string) error {
	kubeconfig := filepath.Join(folder, "kubeconfig")
	if _, err := os.Stat(kubeconfig); err == nil {
		return nil
	}
	ca, certificate, key, err := certify(time.Now())
	if err != nil {
		return err
	}
	token, secret := rand.Text(), rand.Text()
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	for _, f := range []struct{ name, content string }{
		{"ca.crt", ca},
		{"tls.crt", certificate},
		{"tls.key", key},
		{"tokens.csv", token + ",admin,admin,system:masters\n"},
		{"keys.env", fmt.Sprintf(keys, secret, secret)},
		{"kubeconfig", fmt.Sprintf(config, server, token)},
	} {
		if err := os.WriteFile(filepath.Join(folder, f.name), []byte(f.content), 0o600); err != nil {
			return err
		}
	}
	return nil
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

// certify returns an authority, and a certificate and key of all servers, as PEM. The authority's key is
// forgotten.
func certify(now time.Time) (ca, certificate, key string, err error) {
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "logplane localstack"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(1, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	authorityKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", "", err
	}
	ca, err = sign(authority, authority, &authorityKey.PublicKey, authorityKey)
	if err != nil {
		return "", "", "", err
	}
	server := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "logplane"},
		NotBefore: authority.NotBefore, NotAfter: authority.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: []string{"localhost", "api", "watcher"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	serverKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", "", err
	}
	certificate, err = sign(server, authority, &serverKey.PublicKey, authorityKey)
	if err != nil {
		return "", "", "", err
	}
	der, err := x509.MarshalPKCS8PrivateKey(serverKey)
	return ca, certificate, block("PRIVATE KEY", der), err
}

func sign(subject, issuer *x509.Certificate, public *ecdsa.PublicKey, by *ecdsa.PrivateKey) (string, error) {
	der, err := x509.CreateCertificate(rand.Reader, subject, issuer, public, by)
	return block("CERTIFICATE", der), err
}

func block(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}
