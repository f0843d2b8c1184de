package product

import (
	"bytes"
	"sync"
)

// Output is the text that a process has printed so far. It is safe for concurrent use.
type Output struct {
	mu   sync.Mutex
	said bytes.Buffer // guarded by mu
}

// Write implements io.Writer.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.said.Write(p)
}

// String implements fmt.Stringer.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.said.String()
}
