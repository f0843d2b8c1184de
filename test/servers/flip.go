// Package servers damages files of the log's servers as disks do, and makes servers report the versions of older
// releases.
package servers

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/logplane/logplane/eventlog"
)

// These constants are about a record of a server's file. A record has: its length, the revision, the time, the
// subject's length, the subject, the headers' length, the headers, the body and the server's checksum. The checksum
// does not cover the two inner lengths.
const (
	atRevision = 4
	atSubject  = 20
	recordHead = 22
	recordSum  = 8
)

// Flip flips a bit of the event at a revision, in the files of a stopped server. The bit is in the body. If the server
// must not notice, the bit is instead the lowest set bit of the headers' length, so that the headers get shorter.
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
		found := false
		eachRecord(block, func(record []byte) {
			if binary.LittleEndian.Uint64(record[atRevision:]) == uint64(rev) {
				found = true
				flip(record, unnoticed)
			}
		})
		if !found {
			continue
		}
		if err := os.WriteFile(file, block, 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatalf("none of %d files in %s has revision %d", len(files), folder, rev)
}

// FlipSome flips a bit in about one of n events of a server's file, and returns the number of flipped bits. The server
// does not check half of these bits.
func FlipSome(block []byte, n int, random *rand.Rand) (flipped int) {
	eachRecord(block, func(record []byte) {
		if random.IntN(n) == 0 {
			flip(record, random.IntN(2) == 0)
			flipped++
		}
	})
	return flipped
}

func flip(record []byte, unnoticed bool) {
	if unnoticed {
		headers := record[recordHead+uint32(binary.LittleEndian.Uint16(record[atSubject:])):]
		length := binary.LittleEndian.Uint32(headers)
		binary.LittleEndian.PutUint32(headers, length&(length-1))
	} else {
		record[len(record)-recordSum-1] ^= 1
	}
}

// eachRecord calls do with each record, until the end of the file or an incomplete record.
func eachRecord(block []byte, do func(record []byte)) {
	for len(block) > recordHead {
		size := binary.LittleEndian.Uint32(block) &^ (1 << 31)
		if size < recordHead+recordSum || int(size) > len(block) {
			return
		}
		do(block[:size])
		block = block[size:]
	}
}
