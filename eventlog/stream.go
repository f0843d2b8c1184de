package eventlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// maxMessage is the largest event, headers included, in bytes.
const maxMessage = 8 << 20

// firstSafe are the first safe versions of nats-server, one for each minor version. They sync the file that a purge or
// a compaction rewrites (nats-server's #8475 and #8629). With older versions a power cut could lose acknowledged
// events.
var firstSafe = [...][3]int{{2, 14, 8}, {2, 15, 1}}

// checkVersion returns an error if a server of that version may not keep the log. The error names the versions that
// may.
func checkVersion(version string) error {
	var v [3]int
	var rest string
	n, _ := fmt.Sscanf(version+" ", "%d.%d.%d%s", &v[0], &v[1], &v[2], &rest)
	for _, safe := range firstSafe {
		if v[0] == safe[0] && v[1] == safe[1] && (v[2] > safe[2] || v[2] == safe[2] && rest == "") {
			return nil
		}
	}
	newest := firstSafe[len(firstSafe)-1]
	if n >= 3 && slices.Compare(v[:2], newest[:2]) > 0 {
		return nil
	}
	return fmt.Errorf("nats-server %q may lose what it has acknowledged when the power fails, whatever its 'sync_interval': upgrade it to 2.15.1 or later, or 2.14.8 or later of its line", version)
}

// checkVersions asks for the versions of all servers that the connection knows. The error names the servers that may
// not keep the log. checkVersions also returns the names of all servers that could be asked.
func checkVersions(ctx context.Context, conn *nats.Conn) (asked map[string]bool, err error) {
	asked = map[string]bool{}
	var wrong []error
	ask := func(one *nats.Conn) (more bool) {
		name := one.ConnectedServerName()
		if err := checkVersion(one.ConnectedServerVersion()); err != nil && !asked[name] {
			wrong = append(wrong, fmt.Errorf("server '%s': %w", name, err))
		}
		asked[name] = true
		return true
	}
	ask(conn)
	if len(conn.Servers()) > 1 {
		eachServer(ctx, conn, ask)
	}
	return asked, errors.Join(wrong...)
}

// checkServer refuses a server whose 'max_payload' is too small for large objects: JetStream's default is 1 MiB.
func checkServer(c Config) error {
	limit := c.Conn.MaxPayload()
	if limit < maxMessage {
		return fmt.Errorf("the log's server takes messages of %d bytes; set 'max_payload' to at least %d", limit, maxMessage)
	}
	return nil
}

// Create makes the stream if it is missing. Create refuses servers of versions that do not sync all acknowledged
// events. Create fails if an existing stream has settings that break the log (MaxAge, MaxMsgsPerSubject, rollup,
// deletes, …) or fewer replicas than c asks for. It is idempotent.
func Create(ctx context.Context, c Config) error {
	c = c.withDefaults()
	if err := checkServer(c); err != nil {
		return err
	}
	js := c.jetStream()
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	if _, err := checkVersions(ctx, c.Conn); err != nil {
		return fmt.Errorf("create log: %w", err)
	}
	var s jetstream.Stream
	err := whileAllowed(ctx, c.Conn, mayNotMake, func(ctx context.Context) (err error) {
		s, err = js.Stream(ctx, c.Stream)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			s, err = js.CreateStream(ctx, streamConfig(c))
		}
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another process has just created it, with other settings
			s, err = js.Stream(ctx, c.Stream)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("create log: stream '%s': %w", c.Stream, err)
	}
	held := s.CachedInfo().Config
	if held.Replicas < c.Replicas {
		return fmt.Errorf("create log: stream '%s' has %d replicas, not %d: change it with 'nats stream edit %[1]s --replicas %[3]d', then run 'logplane init' again",
			c.Stream, held.Replicas, c.Replicas)
	}
	return checkStream(c, held)
}

func streamConfig(c Config) jetstream.StreamConfig {
	storage := jetstream.FileStorage
	if c.InMemory {
		storage = jetstream.MemoryStorage
	}
	return jetstream.StreamConfig{
		Name:        c.Stream,
		Description: "Logplane's log: every change of every object of one cell",
		Subjects:    []string{c.Prefix + ".log.>"},
		Storage:     storage,
		Replicas:    c.Replicas,
		Retention:   jetstream.LimitsPolicy,
		Discard:     jetstream.DiscardNew,
		MaxMsgSize:  maxMessage,
		DenyDelete:  true,
		// Subscribers get headers only: a body may be a Secret.
		RePublish:          &jetstream.RePublish{Source: c.Prefix + ".log.>", Destination: c.Prefix + ".events.>", HeadersOnly: true},
		AllowDirect:        true,
		AllowAtomicPublish: true,
	}
}

// checkStream names every setting that would make the log lose events, get holes or leak bodies.
func checkStream(c Config, s jetstream.StreamConfig) error {
	var wrong []string
	demand := func(ok bool, format string, args ...any) {
		if !ok {
			wrong = append(wrong, fmt.Sprintf(format, args...))
		}
	}
	demand(len(s.Subjects) == 1 && s.Subjects[0] == c.Prefix+".log.>", "`subjects` must be ['%s.log.>'], not %v: is it the log of a cell with another --subject-prefix?", c.Prefix, s.Subjects)
	demand(s.Storage == jetstream.FileStorage || c.InMemory, "`storage` must be 'file'")
	demand(s.Replicas%2 == 1, "`num_replicas` must be 1, 3 or 5, not %d", s.Replicas)
	demand(s.Retention == jetstream.LimitsPolicy, "`retention` must be 'limits'")
	demand(s.MaxAge == 0, "`max_age` must be 0: only a committed root may make events leave the log")
	demand(s.MaxMsgs <= 0, "`max_msgs` must not be set")
	demand(s.MaxMsgsPerSubject <= 0, "`max_msgs_per_subject` must not be set")
	demand(s.MaxBytes <= 0 || s.Discard == jetstream.DiscardNew, "`discard` must be 'new' where `max_bytes` is set")
	demand(!s.DiscardNewPerSubject, "`discard_new_per_subject` must be false")
	demand(s.MaxMsgSize <= 0 || s.MaxMsgSize >= maxMessage, "`max_msg_size` must be at least %d", maxMessage)
	demand(!s.NoAck, "`no_ack` must be false")
	demand(!s.Sealed, "`sealed` must be false")
	demand(s.DenyDelete, "`deny_delete` must be true: the log must stay without holes")
	demand(!s.DenyPurge, "`deny_purge` must be false")
	demand(!s.AllowRollup, "`allow_rollup_hdrs` must be false")
	demand(!s.AllowMsgTTL, "`allow_msg_ttl` must be false")
	demand(!s.AllowMsgCounter, "`allow_msg_counter` must be false")
	demand(!s.AllowMsgSchedules, "`allow_msg_schedules` must be false")
	demand(s.AllowDirect, "`allow_direct` must be true")
	demand(s.AllowAtomicPublish, "`allow_atomic` must be true")
	demand(s.Mirror == nil && len(s.Sources) == 0, "`mirror` and `sources` must not be set")
	demand(s.SubjectTransform == nil, "`subject_transform` must not be set")
	demand(s.RePublish == nil || s.RePublish.HeadersOnly, "`republish.headers_only` must be true: bodies may hold Secrets")
	if len(wrong) > 0 {
		return fmt.Errorf("stream '%s' cannot be the log; change it: %s", c.Stream, strings.Join(wrong, "; "))
	}
	return nil
}
