package localstack_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/localstack"
)

// TestFixturesOfOthers: a small archive that claims to have 16 TiB of zeros is refused before the zeros are read, and
// so is any entry that is not a plain file.
func TestFixturesOfOthers(t *testing.T) {
	for name, archive := range map[string][]byte{
		"sparse (PAX)": sparse(t, 1<<44),
		"link":         archiveOf(t, &tar.Header{Name: "logplane/root", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}, nil),
		"folder":       archiveOf(t, &tar.Header{Name: "logplane/", Typeflag: tar.TypeDir}, nil),
	} {
		file := filepath.Join(t.TempDir(), "fixture")
		require.NoError(t, os.WriteFile(file, archive, 0o600))
		_, err := localstack.Start(t.Context(), localstack.Config{InMemory: true, Listen: "127.0.0.1:0", Fixture: file})
		require.ErrorContains(t, err, "is not a whole file of 'logplane fixture save'", name)
		require.ErrorContains(t, err, "is not a plain file", name)
	}
}

// sparse returns an archive with one file of that size, of which only the last byte is in the archive.
func sparse(t *testing.T, size int64) []byte {
	t.Helper()
	body := make([]byte, 513)
	copy(body, fmt.Sprintf("1\n%d\n1\n", size-1))
	archive := archiveOf(t, &tar.Header{Name: "logplane/big", Size: int64(len(body)), Format: tar.FormatPAX, PAXRecords: map[string]string{
		"GNU_sparse_major": "1", "GNU_sparse_minor": "0", "GNU_sparse_name": "logplane/big", "GNU_sparse_realsize": fmt.Sprint(size),
	}}, body)
	return bytes.ReplaceAll(archive, []byte("GNU_sparse_"), []byte("GNU.sparse.")) // which tar's writer refuses to write
}

func archiveOf(t *testing.T, header *tar.Header, body []byte) []byte {
	t.Helper()
	var archive bytes.Buffer
	to := tar.NewWriter(&archive)
	require.NoError(t, to.WriteHeader(header))
	_, err := to.Write(body)
	require.NoError(t, err)
	require.NoError(t, to.Close())
	return archive.Bytes()
}
