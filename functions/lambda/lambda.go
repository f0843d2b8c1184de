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
	"net/http"
	"os"
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
}

// Address is where the runtime API is, empty where the process does not run on Lambda.
func Address() string { return os.Getenv("AWS_LAMBDA_RUNTIME_API") }

const (
	// margin is how long before the platform's deadline an invocation ends by itself, with an answer.
	margin = 500 * time.Millisecond
	// still is after how long without an invocation the process may have been frozen for long enough to matter.
	still = 2 * time.Second
)

// ServeHTTP answers invocations that are HTTP requests until ctx ends or the runtime API fails.
func ServeHTTP(ctx context.Context, h http.Handler, c Config) error {
	f := front{handler: h, buffered: c.Buffered}
	return loop(ctx, c, f.invoke)
}

// RunJob runs the job once for each invocation, whatever its event is, until ctx ends or the runtime API fails. The
// report of a job is the function's answer, as JSON; its error is the function's, so that a queue delivers again.
func RunJob(ctx context.Context, job func(context.Context) (report any, err error), c Config) error {
	return loop(ctx, c, func(ctx context.Context, i *invocation) error {
		report, err := job(ctx)
		if err != nil {
			return i.fail(ctx, err)
		}
		encoded, err := json.Marshal(report)
		if err != nil {
			return i.fail(ctx, fmt.Errorf("encode a report: %w", err))
		}
		return i.answer(ctx, encoded)
	})
}

// FailInit tells the platform why the process cannot begin. Otherwise it would only learn that the process ended.
func FailInit(ctx context.Context, address string, why error) error {
	return newRuntime(address).failInit(ctx, why)
}

// loop handles one invocation after the other.
func loop(ctx context.Context, c Config, handle func(context.Context, *invocation) error) error {
	r := newRuntime(c.Address)
	rested := time.Now()
	for {
		i, err := r.next(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return err
		}
		limited, cancel := i.context(ctx)
		// The clock that only moves forward may stand still while the process is frozen, the clock on the wall does
		// not.
		if c.Thawed != nil && time.Now().Round(0).Sub(rested.Round(0)) > still {
			c.Thawed(limited)
		}
		err = handle(limited, i)
		cancel()
		if err != nil {
			return fmt.Errorf("answer invocation %s: %w", i.id, err)
		}
		rested = time.Now()
	}
}

// errNotHTTP is for whoever sends an event that is no request.
var errNotHTTP = errors.New("this function serves the Kubernetes API behind a function URL or API Gateway, and the event is no HTTP request: " +
	"schedules and queues call a function whose handler is 'projector', 'lifecycle' or 'expiry'")
