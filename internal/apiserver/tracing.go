package apiserver

import (
	"errors"
	"fmt"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/options"

	"github.com/logplane/logplane/internal/serving"
)

// startTracing sends spans to an OpenTelemetry collector, as kube-apiserver's --tracing-config-file says. A request
// that the server sends to itself joins the trace of the request that caused it.
func (s *Server) startTracing(c *genericapiserver.Config) error {
	o := options.TracingOptions{ConfigFile: s.config.TracingConfigFile}
	if err := errors.Join(o.Validate()...); err != nil {
		return fmt.Errorf("read --tracing-config-file: %w", err)
	}
	if err := o.ApplyTo(nil, c); err != nil {
		return fmt.Errorf("read --tracing-config-file: %w", err)
	}
	return nil
}

// StopTracing sends the spans that have not been sent yet. The server must not be used after that.
func (s *Server) StopTracing() { serving.StopTracing(s.generic.TracerProvider) }
