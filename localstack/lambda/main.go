// Command lambda runs a program as a function of an emulated AWS Lambda behind a function URL, until it is told to end.
// The function gets those variables of the command's environment that begin with LOGPLANE_ or AWS_.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/logplane/logplane/test/serverless/emulator"
)

// options are the flags of the command line.
type options struct {
	program, handler         string
	listen, health           string
	certificateFile, keyFile string
	sandboxes                int
	timeout, idle            time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.program, "bootstrap", "/logplane", "program that is the function's 'bootstrap'")
	flag.StringVar(&o.handler, "handler", "api", "handler of the function")
	flag.StringVar(&o.listen, "listen", "127.0.0.1:7373", "address of the function URL, which is HTTPS")
	flag.StringVar(&o.certificateFile, "tls-cert-file", "", "certificate of the function URL")
	flag.StringVar(&o.keyFile, "tls-private-key-file", "", "private key of --tls-cert-file")
	flag.StringVar(&o.health, "health-listen", "127.0.0.1:7374", "address that answers whether this process serves, without calling the function")
	flag.IntVar(&o.sandboxes, "sandboxes", 4, "how many sandboxes run at once; requests beyond them wait")
	flag.DurationVar(&o.timeout, "timeout", time.Minute, "how long an invocation may take before its sandbox is killed")
	flag.DurationVar(&o.idle, "idle", 5*time.Minute, "how long a sandbox may rest before it is ended")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "lambda:", err)
		os.Exit(1)
	}
}

func (o *options) check() error {
	switch {
	case flag.NArg() > 0:
		return fmt.Errorf("'%s' is not a flag: --help lists them", flag.Arg(0))
	case o.certificateFile == "" || o.keyFile == "":
		return errors.New("a function URL is HTTPS: give --tls-cert-file and --tls-private-key-file")
	case o.sandboxes < 1:
		return fmt.Errorf("--sandboxes is %d: it must be at least 1", o.sandboxes)
	case o.timeout < time.Second || o.idle < time.Second:
		return errors.New("--timeout and --idle must be at least 1s")
	}
	_, err := os.Stat(o.program)
	return err
}

// stopTime is how long requests may take after the process was told to end.
const stopTime = 3 * time.Second

// run serves until ctx ends. The output of the sandboxes goes to 'log'.
func run(ctx context.Context, o options, log io.Writer) error {
	if err := o.check(); err != nil {
		return err
	}
	function := emulator.New(emulator.Config{
		Program: o.program, Handler: o.handler, Environment: given(os.Environ()), Most: o.sandboxes, Timeout: o.timeout, Strict: true, Idle: o.idle,
		Log: func(line string) { fmt.Fprintln(log, line) },
	})
	defer function.Reap()
	// A function URL speaks HTTP/1.1.
	url := &http.Server{
		Addr: o.listen, Handler: emulator.Front{Function: function, Shape: emulator.FunctionURL},
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: o.timeout, Protocols: &http.Protocols{},
	}
	url.Protocols.SetHTTP1(true)
	health := &http.Server{Addr: o.health, ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "%d sandboxes, %d of them frozen\n", function.Started(), function.Resting())
	})}
	ended := make(chan error, 2)
	go func() { ended <- url.ListenAndServeTLS(o.certificateFile, o.keyFile) }()
	go func() { ended <- health.ListenAndServe() }()
	fmt.Fprintf(log, "lambda: a function URL at %s, with the handler '%s' in at most %d sandboxes\n", o.listen, o.handler, o.sandboxes)
	var err error
	select {
	case err = <-ended:
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	return cmp.Or(err, ignoreLate(url.Shutdown(last)), health.Close())
}

// ignoreLate ignores that some request took too long.
func ignoreLate(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}

// given returns the variables for the function.
func given(environment []string) (of []string) {
	for _, variable := range environment {
		if strings.HasPrefix(variable, "LOGPLANE_") || strings.HasPrefix(variable, "AWS_") {
			of = append(of, variable)
		}
	}
	return of
}
