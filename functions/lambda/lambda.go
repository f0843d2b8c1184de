// Package lambda runs handlers on AWS Lambda's runtime API.
//
// Nouns. An invocation is one call of the function, with an event that says what for. A front is what makes an HTTP
// request into an event and our answer into a response: a function URL or one of the kinds of API Gateway. A job is
// work that a schedule or a queue asks for.
//
// The path of an invocation through the package:
//
//  1. runtime.go asks the runtime API for the next one. Nothing runs until it comes: the platform freezes the process.
//  2. After a freeze the handler's connections may be dead. Thawed is called before the invocation is handled.
//  3. request.go makes the event an http.Request, and response.go the answer what the front passes on, streamed where
//     it streams.
//  4. metrics.go writes what was counted, once a minute at most. The client has its answer, and the platform waits
//     until the next invocation is asked for.
//
// The platform ends an idle process. It kills a process without extensions, and tells others before: so extension.go
// registers one that does nothing. The loop then ends, what was counted since the last line is written, and the caller
// closes its connections.
//
// The library of AWS for Go has such a loop too. It does not set Lambda-Runtime-Function-Response-Mode, which AWS's
// specification of custom runtimes requires for a response that is streamed, and which AWS's runtime for Rust sends. It
// does not let the process tell the platform that its initialization failed, and it has no form for the events of API
// Gateway REST. So this package has its own, and takes only the events' types from there.
package lambda

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"runtime/debug"
	"time"
)

// Config of a function.
type Config struct {
	// Address of the runtime API.
	Address string
	// Buffered answers a function URL whose InvokeMode is BUFFERED, which is what AWS chooses when nobody says. The
	// default is RESPONSE_STREAM.
	Buffered bool
	// Thawed, if set, is called before an invocation that comes after the process may have been frozen. It must return
	// within a second or so: the client waits.
	Thawed func(ctx context.Context)
	// Metrics, if set, are written after invocations.
	Metrics *Metrics
}

// Address is where the runtime API is, empty where the process does not run on Lambda.
func Address() string { return os.Getenv("AWS_LAMBDA_RUNTIME_API") }

const (
	// margin is how long before the platform's deadline an invocation ends by itself, with an answer.
	margin = 500 * time.Millisecond
	// still is after how long without an invocation the process may have been frozen for long enough to matter.
	still = 2 * time.Second
)

// ErrServing is an error of a function that had begun to serve. It is too late then for FailInit.
var ErrServing = errors.New("the function's process must end")

// ServeHTTP answers invocations that are HTTP requests until ctx ends or the runtime API fails.
func ServeHTTP(ctx context.Context, h http.Handler, c Config) error {
	f := front{handler: h, buffered: c.Buffered}
	return loop(ctx, c, f.invoke)
}

// RunJob runs the job once for each invocation, whatever its event is, until ctx ends or the runtime API fails. The
// report of a job is the function's answer, as JSON; its error is the function's. A job is the work that there is, and
// never that of one message: so a queue's messages are all done, or all delivered again.
//
// A job that panics is a failed invocation, and the end of the process, as with AWS's own runtimes: what it had in
// memory is not to be trusted.
func RunJob(ctx context.Context, job func(context.Context) (report any, err error), c Config) error {
	return loop(ctx, c, func(ctx context.Context, i *invocation) error {
		report, err := guarded(ctx, job)
		if err != nil {
			failed := i.fail(ctx, err)
			if errors.Is(err, errPanicked) {
				return err
			}
			return failed
		}
		encoded, err := json.Marshal(report)
		if err != nil {
			return i.fail(ctx, fmt.Errorf("encode a report: %w", err))
		}
		return i.answer(ctx, encoded)
	})
}

var errPanicked = errors.New("the job panicked: see the function's log")

// guarded is the job, whose panics are errors.
func guarded(ctx context.Context, job func(context.Context) (any, error)) (report any, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			slog.Error("a job panicked", "panic", cause, "stack", string(debug.Stack()))
			err = errPanicked
		}
	}()
	return job(ctx)
}

// FailInit tells the platform why the process cannot begin. Otherwise it would only learn that the process ended.
func FailInit(ctx context.Context, address string, why error) error {
	return newRuntime(address).failInit(ctx, why)
}

// loop handles one invocation after the other.
func loop(ctx context.Context, c Config, handle func(context.Context, *invocation) error) error {
	r := newRuntime(c.Address)
	r.extend(ctx)
	defer c.Metrics.write(true)
	began, last := time.Now().Round(0), time.Time{}
	for {
		i, err := r.next(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("%w: %w", ErrServing, err)
		}
		limited, cancel := i.context(ctx)
		// A process that was frozen need not know: its clock may have stood still. The deadlines are by the platform's,
		// one timeout after each invocation began. So this also finds a freeze in the middle of the last one.
		rested := i.deadline.Sub(last)
		if last.IsZero() { // the platform may have started the process long before it is needed
			rested = time.Now().Round(0).Sub(began)
		}
		if c.Thawed != nil && rested > still {
			c.Thawed(limited)
		}
		last = i.deadline
		err = handle(limited, i)
		cancel()
		if err != nil && (errors.Is(err, errPanicked) || i.deadline.IsZero() || time.Now().Before(i.deadline)) {
			return fmt.Errorf("%w: invocation %s: %w", ErrServing, i.id, err)
		}
		if err != nil { // it was frozen in the middle, and nobody waits for this answer any more
			slog.Warn("an answer came too late", "invocation", i.id, "error", err)
		}
		c.Metrics.write(false)
	}
}

// errNotHTTP is for whoever sends an event that is no request.
var errNotHTTP = errors.New("this function serves the Kubernetes API behind a function URL or API Gateway, and the event is no HTTP request: " +
	"schedules and queues call a function whose handler is 'projector', 'lifecycle' or 'expiry'")
