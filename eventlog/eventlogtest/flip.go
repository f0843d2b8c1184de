package eventlogtest

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/logplane/logplane/eventlog"
)

// A record of a server's file: its length, the revision, the time, the subject's length, subject, the headers' length,
// headers, body and the server's checksum. That is of neither length.
const (
	atRevision = 4
	atSubject  = 20
	recordHead = 22
	recordSum  = 8
)

// Flip flips a bit of the event at a revision, in the files of a server that is stopped: one of the body; or, so that
// the server does not notice, the lowest of the headers' length that is set, which makes them shorter.
func Flip(t testing.TB, folder string, rev eventlog.Revision, unnoticed bool) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "jetstream", "*", "streams", "logplane", "msgs", "*.blk"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		block, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for record := block; len(record) > recordHead; {
			size := binary.LittleEndian.Uint32(record) &^ (1 << 31)
			if binary.LittleEndian.Uint64(record[atRevision:]) != uint64(rev) {
				record = record[size:]
				continue
			}
			if unnoticed {
				headers := record[recordHead+uint32(binary.LittleEndian.Uint16(record[atSubject:])):]
				length := binary.LittleEndian.Uint32(headers)
				binary.LittleEndian.PutUint32(headers, length&(length-1))
			} else {
				record[size-recordSum-1] ^= 1
			}
			if err := os.WriteFile(file, block, 0o600); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("no file in %s has revision %d: %d files", folder, rev, len(files))
}
