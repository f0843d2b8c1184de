package apiserver

import (
	"context"
	"errors"
	"fmt"

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
