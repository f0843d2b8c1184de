package eventlog_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/logplane/logplane/eventlog"
)

// Decoding is total: any headers on any subject give an event or an error.
func FuzzDecode(f *testing.F) {
	f.Add("p.log.main.%core.pods.default.a", "1.0", "dev.logplane.object.added", "id", "/pods", "0", "0", "1", "60", "2/3", []byte("body"))
	f.Add("p.log.main.%core.pods.default.a", "1.0", "dev.logplane.object.deleted", "id", "/pods", "7", "7", "18446744073709551615", "4294967295", "", []byte(nil))
	f.Add("p.log.%barrier", "1.0", "dev.logplane.barrier", "id", "", "", "", "0", "", "", []byte(nil))
	f.Add("p.log.x", "", "", "", "", "-1", "1e9", "99999999999999999999", "4294967296", "0/0", []byte("x"))
	f.Fuzz(func(t *testing.T, subject, spec, kind, id, prefix, base, precondition, epoch, ttl, batch string, body []byte) {
		h := nats.Header{
			"ce-specversion": {spec}, "ce-type": {kind}, "ce-id": {id}, "Logplane-Prefix": {prefix}, "Logplane-Base": {base},
			"Logplane-Precondition": {precondition}, "Logplane-Epoch": {epoch}, "Logplane-Ttl": {ttl}, "Logplane-Batch": {batch},
		}
		at := time.Unix(1, 0)
		e, err := eventlog.Decode("p", subject, h, body, 7, at)
		if err != nil {
			if e.Revision != 0 || e.Body != nil {
				t.Fatalf("an error came with %+v", e)
			}
			return
		}
		if e.Revision != 7 || !e.Time.Equal(at) || e.RequestID != id || string(e.Body) != string(body) {
			t.Fatalf("got %+v", e)
		}
		if e.Op == eventlog.Barrier {
			return
		}
		if got, err := e.Key.Subject("p"); err != nil || got != subject || e.Key.Prefix != prefix {
			t.Fatalf("%q is %+v, which is %q (%v)", subject, e.Key, got, err)
		}
	})
}
