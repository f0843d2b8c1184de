package operate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/logplane/logplane/cmd/logplane/cells"
	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/localstack"
	"github.com/logplane/logplane/projection/bucket/filesystem"
)

// moving is a 'move': the flags of a cell's connection say where the cell goes.
type moving struct {
	to                     cells.Connection
	data, stream, subjects string
	yes                    bool
}

// newMove returns the command that moves a cell of one process to other servers.
func newMove() *cobra.Command {
	m := moving{to: cells.Connection{Command: "move", Founds: true, ReadOnly: true}}
	cmd := &cobra.Command{
		Use:   "move",
		Short: "Move the cell of 'logplane serve' to NATS servers and a bucket, where many processes can serve it",
		Long: "Copies the bucket below --data to --bucket while the cell is served, waits until 'logplane serve' is stopped, folds\n" +
			"the log below --data into the bucket, and makes the log in --nats begin with the next revision. Revisions, watches\n" +
			"and the past go on, and nothing opens the old log again (docs/run/move.md). The stream in --nats and the bucket\n" +
			"must hold no cell. Without --yes it only copies. If it is interrupted, move again.",
		Args: cobra.NoArgs,
		RunE: m.run,
	}
	flags := cmd.Flags()
	flags.StringVar(&m.data, "data", "", "folder of the cell that moves, as 'logplane serve' has it")
	m.to.RegisterPlace(flags)
	m.to.RegisterCreate(flags)
	flags.IntVar(&m.to.Replicas, "replicas", 1, "servers that keep a copy of the log: 1, 3 or 5; 3 in production")
	flags.StringVar(&m.stream, "from-stream", "logplane", "the --stream of the cell in --data")
	flags.StringVar(&m.subjects, "from-subject-prefix", "logplane", "the --subject-prefix of the cell in --data")
	flags.BoolVar(&m.yes, "yes", false, "move the cell; without this flag, only objects are copied")
	return cmd
}

func (m *moving) run(cmd *cobra.Command, _ []string) error {
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	move, err := m.plan(ctx)
	if err != nil {
		return err
	}
	moved, err := move.Moved()
	if err != nil {
		return err
	}
	config, err := m.to.Dial()
	if err != nil {
		return err
	}
	defer config.Conn.Close()
	if err := eventlog.Create(ctx, config); err != nil {
		return err
	}
	if move.Log, err = eventlog.Open(ctx, config); err != nil {
		return err
	}
	if moved == nil {
		if err := m.prepare(ctx, out, move); err != nil {
			return err
		}
		if !m.yes {
			return errors.New("nothing was moved, because --yes is missing: give it when the cell may pause for some seconds")
		}
	}
	move.Wait = func() {
		fmt.Fprintf(out, "stop the process that uses '%s' now, with SIGTERM: the move goes on when it has ended\n", m.data)
	}
	if moved, err = move.Run(ctx); err != nil {
		return err
	}
	fmt.Fprintf(out, "moved the cell to %s: the next revision is %d\nstart its processes with\n  %s\nand with the flags of certificates, keys and users that 'serve' had; the files that it made are in '%s'\n",
		moved.To, moved.Last+1, m.flags(cmd.Flags()), m.data)
	return nil
}

// plan opens the two buckets.
func (m *moving) plan(ctx context.Context) (*localstack.Move, error) {
	if m.data == "" {
		return nil, errors.New("--data is missing: give the folder of the cell that moves")
	}
	if m.to.Replicas != 1 && m.to.Replicas != 3 && m.to.Replicas != 5 {
		return nil, fmt.Errorf("--replicas is %d: it must be 1, 3 or 5", m.to.Replicas)
	}
	if err := m.to.Check(); err != nil {
		return nil, err
	}
	var err error
	if m.data, err = filepath.Abs(m.data); err != nil {
		return nil, err
	}
	into, prefix, err := m.to.OpenBucket(ctx)
	if err != nil {
		return nil, err
	}
	move := &localstack.Move{
		Folder: m.data, Stream: m.stream, Prefix: m.subjects, From: into, BucketPrefix: prefix,
		Place: localstack.Place{NATS: m.to.Servers.Redacted(), Stream: m.to.Stream, Bucket: m.to.Bucket},
	}
	folder := filepath.Join(m.data, "bucket")
	if _, err := os.Stat(folder); errors.Is(err, os.ErrNotExist) || sameBucket(cells.FolderURL(folder), m.to.Bucket) {
		return move, nil // only the log moves
	}
	if prefix != m.stream {
		return nil, fmt.Errorf("--bucket is '%s', where the cell would be below '%s': its objects keep their names, which begin with '%s', so give 's3://BUCKET/%[3]s'",
			m.to.Bucket, prefix, m.stream)
	}
	local, err := filesystem.Open(folder)
	if err != nil {
		return nil, err
	}
	move.From, move.To = local, into
	return move, nil
}

// prepare proves that the new log and bucket can take the cell, and copies the objects that can be copied while the
// cell is served.
func (m *moving) prepare(ctx context.Context, out io.Writer, move *localstack.Move) error {
	if move.To != nil {
		if _, err := m.to.ProveBucket(ctx, move.To, move.BucketPrefix); err != nil {
			return err
		}
	}
	if err := move.Check(ctx); err != nil {
		return err
	}
	objects, size, err := move.Copy(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "copied %d objects with %d bytes\n", objects, size)
	return nil
}

// flags are the given flags that the cell's processes need too.
func (m *moving) flags(flags *pflag.FlagSet) string {
	var given []string
	flags.Visit(func(f *pflag.Flag) {
		value := f.Value.String()
		switch f.Name {
		case "data", "create-bucket", "replicas", "from-stream", "from-subject-prefix", "yes", "log-level":
			return
		case "nats":
			value = eventlog.Servers{URL: value}.Redacted()
		}
		given = append(given, "--"+f.Name+"="+value)
	})
	return strings.Join(given, " ")
}
