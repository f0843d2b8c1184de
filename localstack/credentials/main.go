// Command credentials writes the credentials of the local stack's containers, and of the stack's one user, into the
// given folder. These are a certificate authority, the servers' certificates, the key of service accounts, the user's
// token, a kubeconfig, MinIO's keys, and the password of each user of the log. It keeps existing files. All these
// credentials are for this machine only.
package main

import (
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"k8s.io/client-go/util/keyutil"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/localstack/authority"
)

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: credentials FOLDER SERVER-URL NATS-SERVER...")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, "credentials:", err)
		os.Exit(1)
	}
}

// write makes the kubeconfig last: if the kubeconfig exists, all other files are complete.
//
// Containers run as users of their own, who must be able to read the files that are mounted. So everybody may read
// those files, but the files are in folders that only the outer folder's owner can reach.
func write(folder, server string, log []string) error {
	names := strings.Join(log, " ") + "\n"
	if _, err := os.Stat(filepath.Join(folder, "kubeconfig")); err == nil {
		if before, err := os.ReadFile(filepath.Join(folder, "log-servers")); err != nil || string(before) != names {
			return fmt.Errorf("'%s' is of a stack with %d NATS servers: give NATS_SERVERS=%[2]d, or run 'make down STACK=%s' first, which deletes its data",
				folder, len(strings.Fields(string(before))), filepath.Base(folder))
		}
		return lead(filepath.Join(folder, "kubeconfig"), server)
	}
	made, err := certify()
	if err != nil {
		return err
	}
	account, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return err
	}
	token, secret := rand.Text(), rand.Text()
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	for _, inner := range []string{"cell", "nats", "minio", "minio/CAs"} { // MinIO expects the last folder to exist
		if err := makeFolder(filepath.Join(folder, inner)); err != nil {
			return err
		}
	}
	users, passwords := logUsers(log)
	for role, url := range users {
		if err := writeFile(filepath.Join(folder, role+".env"), fmt.Sprintf(ofRole, url, secret), 0o600); err != nil {
			return err
		}
	}
	for _, f := range []struct {
		name, content string
		mode          os.FileMode
	}{
		{"cell/ca.crt", string(made.ca), 0o644},
		{"cell/tls.crt", string(made.certificate), 0o644},
		{"cell/tls.key", string(made.key), 0o644},
		{"cell/service-account.key", string(account), 0o644},
		{"cell/tokens.csv", token + ",admin,admin,system:masters\n", 0o644},
		{"nats/ca.crt", string(made.ca), 0o644},
		{"nats/tls.crt", string(made.logCertificate), 0o644},
		{"nats/tls.key", string(made.logKey), 0o644},
		{"nats/authorization.conf", "", 0o644}, // 'make up' fills it
		{"nats.env", passwords, 0o600},
		{"log-servers", names, 0o600},
		{"minio/public.crt", string(made.certificate), 0o644},
		{"minio/private.key", string(made.key), 0o644},
		{"minio.env", fmt.Sprintf(ofMinIO, secret), 0o600},
		{"ca.crt", string(made.ca), 0o600},
		{"kubeconfig", fmt.Sprintf(config, server, token), 0o600},
	} {
		if err := writeFile(filepath.Join(folder, f.name), f.content, f.mode); err != nil {
			return err
		}
	}
	return nil
}

// lead points a kubeconfig at the server, whose port may have changed.
func lead(path, server string) error {
	before, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return writeFile(path, leads.ReplaceAllLiteralString(string(before), "    server: "+server), 0o600)
}

var leads = regexp.MustCompile(`(?m)^    server: .*$`)

// logUsers makes a user of the log for each role. It returns the servers' URLs by role, and the passwords as variables
// for the servers.
func logUsers(servers []string) (urls map[string]string, passwords string) {
	urls = map[string]string{}
	for _, role := range eventlog.Roles("", "") {
		password := "p" + rand.Text() // nats-server would read a password that begins with a digit as a number
		var all []string
		for _, server := range servers {
			all = append(all, fmt.Sprintf("tls://%s:%s@%s:4222", role.Name, password, server))
		}
		urls[role.Name] = strings.Join(all, ",")
		passwords += strings.ToUpper(role.Name) + "_PASSWORD=" + password + "\n"
	}
	return urls, passwords
}

// makeFolder and writeFile set the mode regardless of the umask.
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

const (
	ofMinIO = `MINIO_ROOT_USER=logplane
MINIO_ROOT_PASSWORD=%s
`
	ofRole = `LOGPLANE_NATS=%s
AWS_ACCESS_KEY_ID=logplane
AWS_SECRET_ACCESS_KEY=%s
`
)

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

// certified is the result of certify, as PEM.
type certified struct{ ca, certificate, key, logCertificate, logKey []byte }

// certify makes an authority, one certificate and key for all servers, and another pair for the log's servers, which
// are also clients of each other. It does not keep the authority's key.
func certify() (made certified, err error) {
	signer, ca, _, err := authority.New("logplane localstack")
	if err != nil {
		return made, err
	}
	made.ca = ca
	if made.certificate, made.key, err = signer.Server("front", "api", "watcher", "lambda", "minio"); err != nil {
		return made, err
	}
	made.logCertificate, made.logKey, err = signer.Sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "nats"}, DNSNames: []string{"nats", "nats-2", "nats-3"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, authority.Life)
	return made, err
}
