package resources

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/storage/value"
)

// Transformers encrypt and pad values at rest. The zero value encrypts nothing. They are safe for concurrent use.
type Transformers struct {
	encryption value.ResourceTransformers // nil if nothing is encrypted
}

// For returns the transformer of a resource's values, or nil if they are stored as they are.
func (t Transformers) For(resource schema.GroupResource) value.Transformer {
	var encrypt value.Transformer
	if t.encryption != nil {
		encrypt = t.encryption.TransformerForResource(resource)
	}
	if resource == paddedResource {
		return newPadded(encrypt)
	}
	return encrypt
}

// ReadEncryption reads kube-apiserver's encryption configuration once; a change needs a restart. An empty path means no
// encryption. It refuses a KMS provider, because upstream's KMS client polls its plugin in the background.
func ReadEncryption(path string) (Transformers, error) {
	if path == "" {
		return Transformers{}, nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c, err := encryptionconfig.LoadEncryptionConfig(ctx, path, false, "")
	if err != nil {
		return Transformers{}, fmt.Errorf("read the encryption configuration: %w", err)
	}
	if len(c.HealthChecks) != 0 {
		return Transformers{}, errors.New("the encryption configuration names a KMS provider, which is not supported: use 'aesgcm', 'aescbc' or 'secretbox'")
	}
	return Transformers{encryptionconfig.StaticTransformers(c.Transformers)}, nil
}

// Encrypts reports whether the configuration in this file encrypts values of the resource at rest.
func Encrypts(path string, resource schema.GroupResource) (bool, error) {
	transformers, err := ReadEncryption(path)
	if err != nil || transformers.encryption == nil {
		return false, err
	}
	// The transformer does not tell which provider a resource is written with, so a sample is encrypted.
	sample := []byte("a value")
	stored, err := transformers.encryption.TransformerForResource(resource).TransformToStorage(context.Background(), sample, value.DefaultContext("sample"))
	if err != nil {
		return false, fmt.Errorf("try the encryption of %s: %w", resource, err)
	}
	return !bytes.Equal(stored, sample), nil
}
