// Command platforms prints the table of infra/README.md that shows the needs of each platform. It reads
// infra/platforms.yaml.
package main

import (
	"fmt"
	"os"
	"strings"

	"sigs.k8s.io/yaml"
)

func main() {
	p, err := Read("../platforms.yaml")
	if err != nil {
		fmt.Fprintf(os.Stderr, "platforms: %v\n", err)
		os.Exit(1)
	}
	fmt.Print(p.Table())
}

// Platforms are all platforms on which 'api' is deployed. Everywhere are the flags that all platforms set.
type Platforms struct {
	Everywhere []string   `json:"everywhere"`
	Platforms  []Platform `json:"platforms"`
}

// Platform is one platform. In are the files that configure 'api' there, or the chart with the set of values Values.
// Flags are the other flags that these set.
type Platform struct {
	Name    string   `json:"name"`
	In      []string `json:"in"`
	Values  string   `json:"values"`
	Program string   `json:"program"`
	Listens string   `json:"listens"`
	Flags   []string `json:"flags"`
	Watches string   `json:"watches"`
	Jobs    string   `json:"jobs"`
}

// Read reads the file, and refuses unknown fields.
func Read(name string) (p Platforms, err error) {
	content, err := os.ReadFile(name)
	if err != nil {
		return p, err
	}
	return p, yaml.UnmarshalStrict(content, &p)
}

// Table returns a Markdown table with a row for each platform.
func (p Platforms) Table() string {
	var out strings.Builder
	out.WriteString("| platform | `api` is | it listens on | flags besides | watches | the rest | in |\n|---|---|---|---|---|---|---|\n")
	for _, one := range p.Platforms {
		fmt.Fprintf(&out, "| %s | %s | %s | `%s` | %s | %s | `%s` |\n",
			one.Name, one.Program, one.Listens, strings.Join(one.Flags, "`, `"), one.Watches, one.Jobs, strings.Join(one.In, "`, `"))
	}
	return out.String()
}
