package logplanetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
)

// readCRDs reads the CustomResourceDefinitions of files, and of the YAML and JSON files in folders. It leaves out other
// objects, as envtest does.
func readCRDs(paths []string) (definitions []*apiextensionsv1.CustomResourceDefinition, err error) {
	for _, path := range paths {
		files, err := filesOf(path)
		if err != nil {
			return nil, fmt.Errorf("read CustomResourceDefinitions: %w", err)
		}
		before := len(definitions)
		for _, file := range files {
			if definitions, err = readFile(definitions, file); err != nil {
				return nil, fmt.Errorf("read CustomResourceDefinitions: '%s': %w", file, err)
			}
		}
		if len(definitions) == before {
			return nil, fmt.Errorf("'%s' has no CustomResourceDefinition: name another file or folder", path)
		}
	}
	return definitions, nil
}

// filesOf returns the path itself if it is a file, or else the files in the folder that may have objects.
func filesOf(path string) (files []string, err error) {
	at, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !at.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		if slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(entry.Name())) {
			files = append(files, filepath.Join(path, entry.Name()))
		}
	}
	return files, nil
}

func readFile(definitions []*apiextensionsv1.CustomResourceDefinition, file string) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	content, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer content.Close()
	for decoder := yaml.NewYAMLOrJSONDecoder(content, 4096); ; {
		var definition apiextensionsv1.CustomResourceDefinition
		if err := decoder.Decode(&definition); errors.Is(err, io.EOF) {
			return definitions, nil
		} else if err != nil {
			return nil, err
		}
		if definition.Kind == "CustomResourceDefinition" {
			definitions = append(definitions, &definition)
		}
	}
}

// createCRDs creates the definitions. The API serves a definition's resource as soon as the definition is there.
func createCRDs(ctx context.Context, config *rest.Config, definitions []*apiextensionsv1.CustomResourceDefinition) error {
	client, err := clientset.NewForConfig(config)
	if err != nil {
		return err
	}
	for _, definition := range definitions {
		if _, err := client.ApiextensionsV1().CustomResourceDefinitions().Create(ctx, definition, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create the CustomResourceDefinition '%s': %w", definition.Name, err)
		}
	}
	return nil
}
