package aggregation

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/retry"
)

// Trust has the data that a remote server needs in order to trust the user names that this server sends.
type Trust struct {
	// RequestHeaderCAFile holds the authorities of the certificate that Config.CertFile names. If the path is empty,
	// nothing is published. ClientCAFile holds the authorities of clients, and may be empty.
	RequestHeaderCAFile, ClientCAFile string
	// AllowedNames are the common names that the certificate may have. If the list is empty, any name is allowed.
	AllowedNames []string
}

const (
	trustNamespace = metav1.NamespaceSystem
	trustName      = "extension-apiserver-authentication"
	allowedNames   = "requestheader-allowed-names"
)

// authorities are the ConfigMap's keys whose values are certificates.
var authorities = []string{"client-ca-file", "requestheader-client-ca-file"}

// Check returns an error if a file cannot be used.
func (t Trust) Check() error {
	if t.RequestHeaderCAFile == "" {
		return nil
	}
	if _, err := t.data(); err != nil {
		return fmt.Errorf("--requestheader-client-ca-file: %w", err)
	}
	return nil
}

// Publish writes the ConfigMap 'extension-apiserver-authentication', which remote servers read. As in kube-apiserver,
// Publish adds to the data that other processes have published. If all of its data are published already, Publish
// writes nothing.
func (t Trust) Publish(ctx context.Context, client kubernetes.Interface) error {
	if t.RequestHeaderCAFile == "" {
		return nil
	}
	wanted, err := t.data()
	if err != nil {
		return err
	}
	configMaps := client.CoreV1().ConfigMaps(trustNamespace)
	raced := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }
	err = retry.OnError(retry.DefaultRetry, raced, func() error {
		found, err := configMaps.Get(ctx, trustName, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			_, err = configMaps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: trustName}, Data: wanted}, metav1.CreateOptions{})
			return err
		}
		if err != nil {
			return err
		}
		changed := found.DeepCopy()
		if changed.Data, err = combined(found.Data, wanted); err != nil {
			return fmt.Errorf("combine it with the flags: %w", err)
		}
		_, err = configMaps.Update(ctx, changed, metav1.UpdateOptions{}) // an update without a change appends nothing
		return err
	})
	if err != nil {
		return fmt.Errorf("publish ConfigMap %s/%s: %w", trustNamespace, trustName, err)
	}
	return nil
}

// data returns the data that this process publishes. The headers are the headers that Forward sets.
func (t Trust) data() (map[string]string, error) {
	data := map[string]string{}
	for key, path := range map[string]string{authorities[0]: t.ClientCAFile, authorities[1]: t.RequestHeaderCAFile} {
		if path == "" {
			continue
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read authorities to publish: %w", err)
		}
		if data[key], err = canonical(content); err != nil {
			return nil, fmt.Errorf("read authorities to publish from '%s': %w", path, err)
		}
	}
	for key, names := range map[string][]string{
		"requestheader-username-headers":     {"X-Remote-User"},
		"requestheader-uid-headers":          {"X-Remote-Uid"},
		"requestheader-group-headers":        {"X-Remote-Group"},
		"requestheader-extra-headers-prefix": {"X-Remote-Extra-"},
		allowedNames:                         append([]string{}, t.AllowedNames...),
	} {
		encoded, err := json.Marshal(names)
		if err != nil {
			return nil, err
		}
		data[key] = string(encoded)
	}
	return data, nil
}

// combined returns the found data, together with the wanted certificates and names that the found data lack.
func combined(found, wanted map[string]string) (map[string]string, error) {
	all := maps.Clone(found)
	if all == nil {
		all = map[string]string{}
	}
	for key, value := range wanted {
		var err error
		switch {
		case found[key] == "":
			all[key] = value
		case slices.Contains(authorities, key):
			all[key], err = canonical([]byte(found[key] + "\n" + value))
		default:
			all[key], err = union(found[key], value)
		}
		if err != nil {
			return nil, fmt.Errorf("key '%s': %w", key, err)
		}
	}
	return all, nil
}

// union returns the union of two lists in JSON.
func union(found, wanted string) (string, error) {
	var all, more []string
	if err := json.Unmarshal([]byte(found), &all); err != nil {
		return "", err
	}
	if err := json.Unmarshal([]byte(wanted), &more); err != nil {
		return "", err
	}
	for _, name := range more {
		if !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	encoded, err := json.Marshal(all)
	return string(encoded), err
}

// canonical returns the certificates of a text, each once, and nothing else.
func canonical(text []byte) (string, error) {
	certificates, err := cert.ParseCertsPEM(text)
	if err != nil {
		return "", err
	}
	seen := map[string]bool{}
	var out bytes.Buffer
	for _, c := range certificates {
		if seen[string(c.Raw)] {
			continue
		}
		seen[string(c.Raw)] = true
		if err := pem.Encode(&out, &pem.Block{Type: cert.CertificateBlockType, Bytes: c.Raw}); err != nil {
			return "", err
		}
	}
	return out.String(), nil
}
