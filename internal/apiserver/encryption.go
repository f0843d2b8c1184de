package apiserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/storage/value"
)

// readEncryption reads kube-apiserver's encryption configuration once; a change needs a restart. A KMS
// provider is refused: upstream's polls its plugin in the background.
func readEncryption(path string) (value.ResourceTransformers, error) {
	if path == "" {
		return nil, nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c, err := encryptionconfig.LoadEncryptionConfig(ctx, path, false, "")
	if err != nil {
		return nil, fmt.Errorf("read the encryption configuration: %w", err)
	}
	if len(c.HealthChecks) != 0 {
		return nil, errors.New("the encryption configuration names a KMS provider, which is not supported: use 'aesgcm', 'aescbc' or 'secretbox'")
	}
	return encryptionconfig.StaticTransformers(c.Transformers), nil
}

// Encrypts says whether values of the resource are encrypted at rest by the configuration in this file.
func Encrypts(path string, resource schema.GroupResource) (bool, error) {
	transformers, err := readEncryption(path)
	if err != nil || transformers == nil {
		return false, err
	}
	// Which provider is the first, and for which resources, only the transformer itself knows.
	sample := []byte("a value")
	stored, err := transformers.TransformerForResource(resource).TransformToStorage(context.Background(), sample, value.DefaultContext("sample"))
	if err != nil {
		return false, fmt.Errorf("try the encryption of %s: %w", resource, err)
	}
	return !bytes.Equal(stored, sample), nil
}
