package envtest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"
)

// NewAssets returns the command that makes the folder in which test frameworks look for binaries.
func NewAssets() *cobra.Command {
	return &cobra.Command{
		Use:   "envtest-assets",
		Short: "Print a folder in which test frameworks find etcd and kube-apiserver: KUBEBUILDER_ASSETS=$(logplane envtest-assets)",
		Long: "Makes a folder below the user's cache with the names etcd and kube-apiserver for this binary, and kubectl if there is\n" +
			"one on PATH or beside this binary, and prints it. As etcd and kube-apiserver the binary takes the flags with which\n" +
			"test frameworks start these. As upstream, it then runs no controllers, unless " + controllersVariable + " is 1.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			folder, err := makeAssets()
			if err == nil {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), folder)
			}
			return err
		},
	}
}

// makeAssets makes the folder, or mends it, and returns its path. Several processes may do so at once.
func makeAssets() (string, error) {
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if err != nil {
		return "", fmt.Errorf("find this binary: %w", err)
	}
	cached, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the user's cache: %w: set HOME or XDG_CACHE_HOME", err)
	}
	folder := filepath.Join(cached, "logplane", "envtest")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", fmt.Errorf("make the folder of the binaries: %w", err)
	}
	links := map[string]string{"etcd": self, "kube-apiserver": self}
	if kubectl := findKubectl(filepath.Dir(self)); kubectl != "" {
		links["kubectl"] = kubectl
	}
	for name, target := range links {
		if err := link(target, filepath.Join(folder, name)); err != nil {
			return "", fmt.Errorf("name the binary '%s': %w", name, err)
		}
	}
	return folder, nil
}

// findKubectl returns the path of kubectl, empty if there is none.
func findKubectl(beside string) string {
	found, err := exec.LookPath("kubectl")
	if err != nil {
		found, err = exec.LookPath(filepath.Join(beside, "kubectl"))
	}
	if err == nil {
		found, err = filepath.Abs(found)
	}
	if err != nil {
		return ""
	}
	return found
}

// link makes a symbolic link, or replaces a link that leads elsewhere. There is a link at all times.
func link(target, path string) error {
	if is, err := os.Readlink(path); err == nil && is == target {
		return nil
	}
	staged := fmt.Sprintf("%s.%d", path, os.Getpid())
	if err := os.Remove(staged); err != nil && !errors.Is(err, fs.ErrNotExist) { // of a killed process with this id
		return err
	}
	if err := os.Symlink(target, staged); err != nil {
		return err
	}
	return os.Rename(staged, path)
}
