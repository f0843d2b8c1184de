package side

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// credentials are the files without which kube-apiserver does not start, and the client's tokens.
type credentials struct {
	certificate, key, tokens string // paths
	bearer                   string // the token of a member of system:masters
	stranger                 string // the token of a user without rights
	worker                   string // the token of Worker
}

// Worker is a user who has only the rights that RBAC gives.
const Worker = "worker"

// issuer is the issuer of the tokens of service accounts.
const issuer = "https://kubernetes.default.svc"

// generateCredentials writes the credentials into the folder. The same key is for TLS and for service accounts.
func generateCredentials(folder string) (credentials, error) {
	c := credentials{filepath.Join(folder, "certificate.pem"), filepath.Join(folder, "key.pem"), filepath.Join(folder, "tokens.csv"), rand.Text(), rand.Text(), rand.Text()}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return c, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "peer"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return c, err
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return c, err
	}
	return c, errors.Join(
		os.WriteFile(c.certificate, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}), 0o600),
		os.WriteFile(c.key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private}), 0o600),
		os.WriteFile(c.tokens, []byte(c.bearer+`,peer,1,"system:masters"`+"\n"+c.stranger+",stranger,2\n"+c.worker+","+Worker+",3\n"), 0o600),
	)
}
