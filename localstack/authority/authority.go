// Package authority makes and opens authorities, which sign the certificates of a cell's servers and users.
package authority

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
	"fmt"
	"math/big"
	"net"
	"slices"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// Life is how long certificates are valid.
const Life = 365 * 24 * time.Hour

// tolerance is how far the clock of a machine that verifies a certificate may be behind.
const tolerance = time.Hour

// Authority signs certificates.
type Authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
}

// New makes an authority that is valid for ten years. All keys and certificates are PEM.
func New(name string) (a *Authority, certificate, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("make the authority: %w", err)
	}
	signed, err := cert.NewSelfSignedCACert(cert.Config{CommonName: name, NotBefore: time.Now().Add(-tolerance)}, private)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("make the authority: %w", err)
	}
	key, err = keyutil.MarshalPrivateKeyToPEM(private)
	a = &Authority{signed, private}
	return a, a.PEM(), key, err
}

// Open reads an authority's certificate and its key.
func Open(certificateFile, keyFile string) (*Authority, error) {
	pair, err := tls.LoadX509KeyPair(certificateFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("read the authority: %w", err)
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA {
		return nil, fmt.Errorf("'%s' must not sign other certificates: give the certificate of an authority", certificateFile)
	}
	return &Authority{pair.Leaf, key}, nil
}

// PEM returns the authority's certificate.
func (a *Authority) PEM() []byte { return encode(a.certificate.Raw) }

// Server signs a certificate for a server on loopback and on the given hosts.
func (a *Authority) Server(hosts ...string) (certificate, key []byte, err error) {
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "logplane"}, DNSNames: []string{"localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, host := range hosts {
		ip := net.ParseIP(host)
		switch {
		case ip != nil && !slices.ContainsFunc(template.IPAddresses, ip.Equal):
			template.IPAddresses = append(template.IPAddresses, ip)
		case ip == nil && host != "" && host != "localhost":
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	return a.Sign(template, Life)
}

// User signs a certificate for a user in groups, valid for the given time.
func (a *Authority) User(life time.Duration, name string, groups ...string) (certificate, key []byte, err error) {
	return a.Sign(&x509.Certificate{Subject: pkix.Name{CommonName: name, Organization: groups}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, life)
}

// Sign makes a key and signs a certificate for that key.
func (a *Authority) Sign(template *x509.Certificate, life time.Duration) (certificate, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	if certificate, err = a.sign(template, private.Public(), life); err != nil {
		return nil, nil, err
	}
	key, err = keyutil.MarshalPrivateKeyToPEM(private)
	return certificate, key, err
}

// Renew signs a certificate again, for the same names and the same key, valid from now on for as long as a new one.
func (a *Authority) Renew(old *x509.Certificate) (certificate []byte, err error) {
	return a.sign(&x509.Certificate{Subject: old.Subject, DNSNames: old.DNSNames, IPAddresses: old.IPAddresses, ExtKeyUsage: old.ExtKeyUsage}, old.PublicKey, Life)
}

// Signed says whether the authority has signed the certificate.
func (a *Authority) Signed(certificate *x509.Certificate) bool {
	return certificate.CheckSignatureFrom(a.certificate) == nil
}

// sign signs a certificate for a public key.
func (a *Authority) sign(template *x509.Certificate, key crypto.PublicKey, life time.Duration) (certificate []byte, err error) {
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	template.NotBefore, template.NotAfter = a.certificate.NotBefore, time.Now().Add(life)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	// Without these key ids, OpenSSL regards a certificate as self-signed if its subject equals that of the authority.
	public, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return nil, fmt.Errorf("name a key: %w", err)
	}
	id := sha256.Sum256(public)
	template.SubjectKeyId, template.AuthorityKeyId = id[:20], a.certificate.SubjectKeyId
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign a certificate: %w", err)
	}
	return encode(der), nil
}

func encode(certificate []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: certificate})
}
