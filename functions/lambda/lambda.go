// Package lambda runs handlers on AWS Lambda's runtime API.
//
// Nouns. An invocation is one call of the function, with an event that says what the call is for. A front is a function
// URL or one of the kinds of API Gateway: it turns an HTTP request into an event, and our answer into a response. A job
// is work that a schedule or a queue asks for.
//
// The path of an invocation through the package:
//
//  1. runtime.go asks the runtime API for the next invocation. Nothing runs until an invocation comes: the platform
//     freezes the process.
//  2. After a freeze the handler's connections may be dead. So Thawed is called before the invocation is handled.
//  3. request.go turns the event into an http.Request. response.go turns the answer into the form that the front passes
//     on, and streams the answer if the front streams.
//  4. metrics.go writes the metrics, at most once a minute. The client already has its answer, and the platform waits
//     until the loop asks for the next invocation.
//
// The platform ends an idle process. It kills a process without extensions at once, but warns a process with an
// extension first. So extension.go registers an extension that does nothing. When the warning comes, the loop ends and
// writes the counts since the last line, and the caller closes its connections.
//
// AWS's library for Go has such a loop too. It does not set the header Lambda-Runtime-Function-Response-Mode. AWS's
// specification of custom runtimes requires this header for a streamed response, and AWS's runtime for Rust sends it.
// AWS's library does not let the process tell the platform that its initialization failed, and it has no form for the
// events of API Gateway REST. So this package has its own loop, and uses only the library's types of events.
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
	// Buffered is set for a function URL whose InvokeMode is BUFFERED, which is AWS's default. If Buffered is not set,
	// the InvokeMode must be RESPONSE_STREAM.
	Buffered bool
	// Thawed, if set, is called before an invocation if the process may have been frozen before that invocation. Thawed
	// must return within a second or so, since the client waits.
	Thawed func(ctx context.Context)
	// Metrics, if set, are written after invocations.
	Metrics *Metrics
}

// Address is the address of the runtime API. It is empty if the process does not run on Lambda.
func Address() string { return os.Getenv("AWS_LAMBDA_RUNTIME_API") }

const (
	// margin is the time before the platform's deadline at which an invocation ends by itself, with an answer.
	margin = 500 * time.Millisecond
	// still is the least time without an invocation after which a freeze matters.
	still = 2 * time.Second
)

// ErrServing is an error of a function that has begun to serve. It is then too late for FailInit.
var ErrServing = errors.New("the function's process must end")

// ServeHTTP answers invocations that are HTTP requests until ctx ends or the runtime API fails.
func ServeHTTP(ctx context.Context, h http.Handler, c Config) error {
	f := front{handler: h, buffered: c.Buffered}
	return loop(ctx, c, f.invoke)
}

// RunJob runs the job once for each invocation, whatever its event is, until ctx ends or the runtime API fails. The
// function's answer is the job's report, as JSON; the function's error is the job's error. A job does all the work that
// there is, not only the work of one message. So all messages of a queue are done, or all are delivered again.
//
// If a job panics, the invocation fails and the process ends, because the process's memory cannot be trusted any more.
// AWS's own runtimes do the same.
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

// guarded runs the job, and turns a panic into an error.
func guarded(ctx context.Context, job func(context.Context) (any, error)) (report any, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			slog.Error("a job panicked", "panic", cause, "stack", string(debug.Stack()))
			err = errPanicked
		}
	}()
	return job(ctx)
}

// FailInit tells the platform why the process cannot start. Otherwise the platform learns only that the process ended.
func FailInit(ctx context.Context, address string, why error) error {
	return newRuntime(address).fail(ctx, "init/error", "Logplane.InitFailed", why)
}

// loop handles one invocation after another.
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
		// A process may not notice that it was frozen, because its clock may have stood still. The deadlines are by the
		// platform's clock: each deadline is one timeout after the beginning of its invocation. So a comparison of two
		// deadlines shows a freeze, even a freeze in the middle of the last invocation.
		rested := i.deadline.Sub(last)
		if last.IsZero() { // the platform may have started the process long before its first invocation
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
		if err != nil { // the process was frozen during the invocation, and nobody waits for the answer any more
			slog.Warn("an answer came too late", "invocation", i.id, "error", err)
		}
		c.Metrics.write(false)
	}
}

// errNotHTTP is the answer to an event that is not an HTTP request.
var errNotHTTP = errors.New("this function serves the Kubernetes API behind a function URL or API Gateway, and the event is no HTTP request: " +
	"schedules and queues call a function whose handler is 'projector', 'lifecycle' or 'expiry'")
