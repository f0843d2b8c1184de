// Package mutants makes small mistakes in the code, one at a time, each of which a test must notice. It finds the place
// of a mistake by the name of a function, and by a name that the function uses. So a mistake stays valid through most
// changes of the lines around it.
//
// All mistakes are compiled at once, by an overlay of the source tree, and the environment says which mistake a process
// makes. So each package's tests are linked once, and not once for each mistake.
package mutants

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// mutant is one mistake.
type mutant struct {
	// name describes the mistake.
	name string
	// breaks are the invariants of docs/architecture.md and the guarantees of docs/guarantees.md that the mistake
	// breaks.
	breaks string
	// in is the function in which the mistake is made: 'folder.name' or 'folder.Type.name'.
	in string
	do edit
	// noticed is the test that must fail: 'folder.TestName'.
	noticed string
}

// test returns the folder and the name of the test that must fail.
func (m *mutant) test() (folder, name string) {
	folder, name, _ = strings.Cut(m.noticed, ".Test")
	return folder, "Test" + name
}

func repository(t *testing.T) string {
	t.Helper()
	tree, err := filepath.Abs("../..")
	require.NoError(t, err)
	return tree
}

func read(t *testing.T, pattern string) string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	require.NoError(t, err)
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		all.Write(text)
	}
	return all.String()
}

// TestEveryMistakeCanBeMade: each mistake has exactly one place, all mistakes compile, and each invariant has a
// mistake.
func TestEveryMistakeCanBeMade(t *testing.T) {
	tree := repository(t)
	overlaid, folders := overlay(t, tree)
	guarantees, broken, names := read(t, "../../docs/guarantees.md"), map[string]bool{}, map[string]bool{}
	for _, m := range list {
		require.False(t, names[m.name], "%s is there twice", m.name)
		names[m.name] = true
		for name := range strings.SplitSeq(m.breaks, ", ") {
			broken[name] = true
			require.True(t, strings.HasPrefix(name, "invariant ") || strings.Contains(guarantees, "\n### "+name+". "), name)
		}
		folder, name := m.test()
		tests := read(t, filepath.Join("../..", folder, "*_test.go"))
		if !strings.Contains(tests, "\nfunc "+name+"(") {
			t.Errorf("%s has no test '%s'", folder, name)
		}
	}
	_, invariants, _ := strings.Cut(read(t, "../../docs/architecture.md"), "\n## Invariants\n")
	invariants, _, _ = strings.Cut(invariants, "\n## ")
	numbers := regexp.MustCompile(`(?m)^(\d+)\. `).FindAllStringSubmatch(invariants, -1)
	require.NotEmpty(t, numbers)
	for _, number := range numbers {
		require.True(t, broken["invariant "+number[1]], "no mistake breaks invariant %s", number[1])
	}
	if testing.Short() {
		return
	}
	out, err := run(t, tree, nil, "go", append([]string{"build", "-overlay", overlaid}, folders...)...)
	require.NoError(t, err, out)
}

// run runs a command, and returns the command's output.
func run(t *testing.T, folder string, environment []string, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, name, args...)
	// The tests run without the race detector, which would need one more build of all programs.
	command.Dir, command.Env = folder, append(append(os.Environ(), "CGO_ENABLED=0"), environment...)
	out, err := command.CombinedOutput()
	return string(out), err
}

// patience is how long a test may take to notice a mistake. It is shorter than the timeouts of the tests themselves,
// because a failure that is only a timeout takes long to explain.
const patience = "25s"

// TestMistakesAreNoticed makes each mistake, and runs the test that must notice it.
func TestMistakesAreNoticed(t *testing.T) {
	if os.Getenv("LOGPLANE_MUTANTS") == "" {
		t.Skip("'make mutants' runs it")
	}
	tree := repository(t)
	overlaid, _ := overlay(t, tree)
	binaries := t.TempDir()
	byFolder := map[string][]mutant{}
	for _, m := range list {
		folder, _ := m.test()
		byFolder[folder] = append(byFolder[folder], m)
	}
	for folder, mutants := range byFolder {
		t.Run(strings.ReplaceAll(folder, "/", "."), func(t *testing.T) {
			folder, binary := filepath.Join(tree, folder), filepath.Join(binaries, strings.ReplaceAll(folder, "/", "+"))
			compile := sync.OnceValues(func() (string, error) {
				return run(t, folder, nil, "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", overlaid, "-o", binary, ".")
			})
			for _, m := range mutants {
				t.Run(m.name, func(t *testing.T) {
					t.Parallel()
					out, err := compile()
					require.NoError(t, err, out)
					_, test := m.test()
					try := func(name string) (string, error) {
						return run(t, folder, []string{"LOGPLANE_MUTANT=" + name},
							binary, "-test.run", "^"+test+"$", "-test.failfast", "-test.timeout", patience)
					}
					out, err = try("")
					require.NoError(t, err, "%s fails without the mistake: %s", test, out)
					out, err = try(m.name)
					require.Error(t, err, "%s does not notice it", test)
					require.NotContains(t, out, "panic: test timed out", "%s notices it only by its timeout", test)
				})
			}
		})
	}
}
