package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every mistake of the list can be made at every commit, so the list cannot go out of date unnoticed.
func TestEveryMistakeCanBeMade(t *testing.T) {
	tree, err := filepath.Abs("../..")
	require.NoError(t, err)
	names := map[string]bool{}
	for _, m := range list {
		require.False(t, names[m.name], "%s is there twice", m.name)
		names[m.name] = true
		require.NotEmpty(t, m.why, m.name)
		_, err := m.mutated(tree)
		require.NoError(t, err)
	}
}

func TestReason(t *testing.T) {
	for _, c := range []struct{ want, out string }{
		{"TestA/b: Not equal: expected: 1 actual  : 2 they differ", `2026/01/01 WARN noise
--- FAIL: TestA (0.01s)
    --- FAIL: TestA/b (0.01s)
        a_test.go:12: 
            	Error Trace:	a_test.go:12
            	Error:      	Not equal: 
            	            	expected: 1
            	            	actual  : 2
            	Test:       	TestA/b
            	Messages:   	they differ
FAIL`},
		{"TestA: Received unexpected error: it is gone", "--- FAIL: TestA (0.01s)\n    a_test.go:1: \n\tError:      \tReceived unexpected error:\n\t            \tit is gone\nFAIL"},
		{"TestA: no event came", "--- FAIL: TestA (0.01s)\n    a_test.go:12: no event came\n--- FAIL: TestB (0.00s)\n    b_test.go:1: more\nFAIL"},
		{"TestA: panic: nil map [recovered]", "--- FAIL: TestA (0.01s)\npanic: nil map [recovered]\n"},
		{"the test process failed: exit status 2", "exit status 2\n"},
	} {
		require.Equal(t, c.want, reason(c.out))
	}
}
