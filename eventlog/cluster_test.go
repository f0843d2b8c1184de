package eventlog_test

import (
	"testing"

	"github.com/logplane/logplane/eventlog/eventlogtest"
)

func TestReplicatedLog(t *testing.T) {
	t.Parallel()
	c := eventlogtest.Cluster(t)
	l := c.Log(0)
	head := fill(t, l, 20)
	if b := mustHead(t, l); b.First != 1 || b.Head != head+1 { // the barrier
		t.Fatalf("got %+v after %d", b, head)
	}
	if n := len(mustTail(t, l, 0, head+1)); n != 21 {
		t.Fatalf("got %d events", n)
	}
}
