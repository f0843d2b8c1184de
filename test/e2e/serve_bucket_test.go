package e2e

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/eventlog/eventlogtest"
	"github.com/logplane/logplane/projection/bucket/s3/miniotest"
)

// TestServeS3: the state is in S3, and the log below --data.
func TestServeS3(t *testing.T) {
	minio := miniotest.Start(t)
	t.Setenv("AWS_ACCESS_KEY_ID", miniotest.AccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", miniotest.SecretKey)
	endpoint, err := url.Parse(minio.Endpoint)
	require.NoError(t, err)
	link := eventlogtest.NewLink(t)
	link.ToAddress(endpoint.Host)
	where := []string{"--bucket", "s3://cell/serve", "--s3-endpoint", "http://" + link.Address(), "--s3-path-style"}
	bucketApart(t, where, []string{"--create-bucket"}, link.Cut, link.Resume)
}

// TestServeBucketOfAnotherDisk is TestServeS3 for a folder on another disk, which is away while the disk is full.
func TestServeBucketOfAnotherDisk(t *testing.T) {
	t.Parallel()
	disk := eventlogtest.MountDisk(t, 64<<20)
	where := []string{"--bucket", "file://" + filepath.Join(disk.Folder, "bucket")}
	bucketApart(t, where, nil, func() { disk.Fill(t) }, func() { disk.Free(t) })
}

// bucketApart checks a cell whose bucket is not below --data.
//
// While the bucket is away, reads go on, and writes do so until the oldest write that only the log has is as old as
// --max-tail-age. Once the bucket is back, writes succeed again.
//
// If the log is lost, the start says which command begins a new one. All writes that a commit has are there then, also
// all writes before a stop.
func bucketApart(t *testing.T, where, flags []string, leave, comeBack func()) {
	const age = 2 * time.Second
	s := newServed(t, slices.Concat(where, flags, []string{"--max-tail-age", age.String()})...)

	away := s.load("away")
	away.more(t, 20)
	leave()
	eventlogtest.Eventually(t, "writes are refused", func() bool { return away.refusal() != nil })
	require.ErrorContains(t, away.refusal(), "no commit to the bucket has succeeded for --max-tail-age")
	require.ErrorContains(t, away.refusal(), "nothing was written")
	require.Empty(t, s.lost(away.acknowledged()), "reads go on")
	comeBack()
	away.more(t, 20)
	away.stop()

	// loseLog loses the log, and continues without it. It returns what is lost: only what no commit had.
	loseLog := func(load *load) (lost map[string]ack) {
		require.NoError(t, os.RemoveAll(filepath.Join(s.data, "log")))
		said, code := logplane(t, s.args()...)
		require.NotZero(t, code)
		require.Contains(t, said, "If the disk with the log was lost, run 'logplane fence' with --data "+s.data)
		fence := slices.Concat([]string{"fence", "--data", s.data}, where)
		said, code = logplane(t, fence...)
		require.NotZero(t, code, said)
		require.Contains(t, said, "nothing was fenced, because --yes is missing")
		applied := uint64(0)
		_, err := fmt.Sscanf(said, "the snapshot reaches revision %d", &applied)
		require.NoError(t, err, said)
		said, code = logplane(t, append(fence, "--yes")...)
		require.Zero(t, code, said)
		s.start()
		_, err = create(t.Context(), s.client(), fmt.Sprint("after-", applied))
		require.NoError(t, err)
		lost = s.lost(load.acknowledged())
		for name, ack := range lost {
			require.Greater(t, ack.revision, applied, name)
		}
		return lost
	}
	span := func(lost map[string]ack) (first, last time.Time) {
		for _, a := range lost {
			if first.IsZero() || a.at.Before(first) {
				first = a.at
			}
			if a.at.After(last) {
				last = a.at
			}
		}
		return first, last
	}

	stopped := s.load("stopped")
	stopped.more(t, 20)
	s.process.Stop()
	stopped.stop()
	require.Empty(t, loseLog(stopped), "a process that stops commits everything")

	healthy := s.load("healthy")
	healthy.more(t, 200)
	s.process.Kill()
	killed := time.Now()
	healthy.stop()
	lost := loseLog(healthy)
	first, last := span(lost)
	t.Logf("a healthy cell was killed and lost its log: %d of %d acknowledged writes are lost, %s to %s before the kill",
		len(lost), len(healthy.acknowledged()), killed.Sub(first).Round(time.Millisecond), killed.Sub(last).Round(time.Millisecond))

	cut := s.load("cut")
	cut.more(t, 20)
	leave()
	eventlogtest.Eventually(t, "writes are refused", func() bool { return cut.refusal() != nil })
	s.process.Kill()
	cut.stop()
	comeBack()
	lost = loseLog(cut)
	first, last = span(lost)
	require.NotEmpty(t, lost)
	t.Logf("with the bucket away, %d of %d acknowledged writes are lost, those of %s; --max-tail-age was %s",
		len(lost), len(cut.acknowledged()), last.Sub(first).Round(time.Millisecond), age)
	s.process.Stop()
}
