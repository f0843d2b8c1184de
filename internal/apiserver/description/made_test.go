package description

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func newLengths(budget int) *madeOnce[string, string] {
	return newMadeOnce[string](budget, func(v string) int { return len(v) })
}

// TestMadeOnceWaitsForItsOwnOnly: while one value is made, other values can be made. Callers who want the first value
// share that value, or leave.
func TestMadeOnceWaitsForItsOwnOnly(t *testing.T) {
	m := newLengths(100)
	begun, finish := make(chan struct{}), make(chan struct{})
	count := 0
	slow := func(context.Context) (string, error) {
		count++
		close(begun)
		<-finish
		return "slow", nil
	}
	type got struct {
		value string
		err   error
	}
	answers := make(chan got)
	ask := func() {
		v, err := m.get(t.Context(), "a", slow)
		answers <- got{v, err}
	}
	go ask()
	<-begun
	v, err := m.get(t.Context(), "b", func(context.Context) (string, error) { return "other", nil })
	require.NoError(t, err)
	require.Equal(t, "other", v)
	gone, leave := context.WithCancel(t.Context())
	leave()
	_, err = m.get(gone, "a", slow)
	require.ErrorIs(t, err, context.Canceled)
	go ask()
	close(finish)
	require.Equal(t, got{"slow", nil}, <-answers)
	require.Equal(t, got{"slow", nil}, <-answers)
	require.Equal(t, 1, count)
}

// TestMadeOnceEndsWithTheLastWhoWaits: making a value ends when no caller waits for it any more. A later caller makes
// the value again.
func TestMadeOnceEndsWithTheLastWhoWaits(t *testing.T) {
	m := newLengths(100)
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan struct{})
	_, err := m.get(ctx, "a", func(making context.Context) (string, error) {
		leave()
		<-making.Done()
		close(ended)
		return "", making.Err()
	})
	require.ErrorIs(t, err, context.Canceled)
	<-ended
	v, err := m.get(t.Context(), "a", func(context.Context) (string, error) { return "again", nil })
	require.NoError(t, err)
	require.Equal(t, "again", v)
}

func TestMadeOnceKeepsUpToItsBudget(t *testing.T) {
	m := newLengths(10)
	made := func(key, value string) bool {
		anew := false
		v, err := m.get(t.Context(), key, func(context.Context) (string, error) { anew = true; return value, nil })
		require.NoError(t, err)
		require.Equal(t, value, v)
		return anew
	}
	require.True(t, made("a", "12345"))
	require.True(t, made("b", "12345"))
	require.False(t, made("a", "12345"))
	require.True(t, made("c", "1"), "takes the place of b")
	require.False(t, made("a", "12345"))
	require.True(t, made("b", "12345"))
	require.True(t, made("large", "12345678901"))
	require.False(t, made("large", "12345678901"))
	require.Equal(t, 11, m.used)
}

// TestMadeOnceFails: a panic is an error for the callers who wait, and does not end the process. No error is kept.
func TestMadeOnceFails(t *testing.T) {
	m := newLengths(10)
	_, err := m.get(t.Context(), "a", func(context.Context) (string, error) { panic("no") })
	require.EqualError(t, err, "panic: no")
	_, err = m.get(t.Context(), "a", func(context.Context) (string, error) { return "", errors.New("nor now") })
	require.EqualError(t, err, "nor now")
	v, err := m.get(t.Context(), "a", func(context.Context) (string, error) { return "now", nil })
	require.NoError(t, err)
	require.Equal(t, "now", v)
}
