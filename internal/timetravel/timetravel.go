// Package timetravel implements 'logplane history', 'changes', 'show', 'diff', 'blame', 'undelete', 'undo' and
// 'restore'. Like kubectl it is only a client: it knows nothing of the log and the bucket, and needs only the rights of
// its user.
//
// Nouns. A moment is a revision, a time, an age or a day (internal/moment). A side is the API at one revision, or the
// API of now (internal/sides). A plan is what a command would write. The server computes the plan
// (internal/apiserver/plans), the command prints it, and after a yes the server carries it out.
package timetravel

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/term"
)

// ErrDifferent is the result of a diff that has found differences. No message is printed for it.
var ErrDifferent = errors.New("there are differences")

// Tool carries out one command.
type Tool struct {
	*Client
	In  io.Reader
	Out io.Writer
	// Text and YAML make a text and an object safe for a terminal. Text returns a single line.
	Text func(string) string
	YAML func(any) (string, error)
}

// terminal returns the file if it is a terminal.
func terminal(stream any) (*os.File, bool) {
	file, ok := stream.(*os.File)
	return file, ok && term.IsTerminal(int(file.Fd()))
}

// confirm returns nil if the printed plan is to be carried out.
func (t *Tool) confirm(ctx context.Context, yes bool) error {
	if yes {
		return nil
	}
	if _, ok := terminal(t.In); !ok {
		return errors.New("nothing was changed: this was the plan, give --yes to carry it out")
	}
	fmt.Fprint(t.Out, "Do it? [y/N] ")
	answered := make(chan string, 1)
	go func() { // if nobody answers, it ends with the process
		answer, _ := bufio.NewReader(t.In).ReadString('\n') // no answer is a no
		answered <- strings.ToLower(strings.TrimSpace(answer))
	}()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case answer := <-answered:
		if answer == "y" || answer == "yes" {
			return nil
		}
		return errors.New("nothing was changed")
	}
}

// line prints one line that cannot move a terminal's cursor.
func (t *Tool) line(format string, args ...any) {
	fmt.Fprintln(t.Out, t.Text(fmt.Sprintf(format, args...)))
}

// print writes an object as 'yaml' or 'json'.
func (t *Tool) print(object any, output string) error {
	if output == "json" {
		text, err := json.MarshalIndent(object, "", "    ")
		if err != nil {
			return fmt.Errorf("print as JSON: %w", err)
		}
		_, err = fmt.Fprintf(t.Out, "%s\n", text)
		return err
	}
	text, err := t.YAML(object)
	if err != nil {
		return fmt.Errorf("print as YAML: %w", err)
	}
	_, err = io.WriteString(t.Out, text)
	return err
}

// checkOutput refuses an --output that the command does not support.
func checkOutput(output string, known ...string) error {
	if slices.Contains(known, output) {
		return nil
	}
	var named []string
	for _, k := range known {
		if k != "" {
			named = append(named, "'"+k+"'")
		}
	}
	return fmt.Errorf("--output is '%s': it must be %s", output, strings.Join(named, " or "))
}
