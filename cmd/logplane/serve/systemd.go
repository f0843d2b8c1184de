package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/logplane/logplane/eventlog"
	"github.com/logplane/logplane/internal/apiserver/loopback"
)

// takeSocket takes the socket on which systemd listens for this process, if there is one. The socket then counts as the
// value of --listen.
func (l *listening) takeSocket() error {
	passed, err := activation.Listeners() // a second call gets none
	switch {
	case err != nil:
		return fmt.Errorf("take the socket of systemd: %w", err)
	case len(passed) == 0:
		return nil
	case len(passed) > 1:
		return fmt.Errorf("systemd passes %d sockets: this process serves on one, so keep one 'ListenStream=' in the socket unit", len(passed))
	}
	socket, ok := passed[0].(*net.TCPListener)
	if !ok {
		return errors.New("the socket of systemd is not of TCP: give 'ListenStream=' a port or an address with a port")
	}
	l.socket, l.listen = socket, socket.Addr().String()
	return nil
}

// notify tells systemd when '/readyz' answers 200 for the first time, and when ctx ends. In between it feeds systemd's
// watchdog, if the unit has one. Without systemd it does nothing.
func notify(ctx context.Context, handler http.Handler) {
	if os.Getenv("NOTIFY_SOCKET") == "" {
		return
	}
	for !succeeds(ctx, handler, "/readyz") {
		if eventlog.Pause(ctx, readyPause) != nil {
			return
		}
	}
	tell(daemon.SdNotifyReady)
	watchdog, _ := daemon.SdWatchdogEnabled(false) // systemd itself has written the value
	for watchdog > 0 && eventlog.Pause(ctx, watchdog/2) == nil {
		if succeeds(ctx, handler, "/livez") {
			tell(daemon.SdNotifyWatchdog)
		}
	}
	<-ctx.Done()
	tell(daemon.SdNotifyStopping)
}

// readyPause is the time between two checks of whether a starting process is ready. '/readyz' checks no more often.
const readyPause = time.Second

// succeeds says whether a GET is answered with 200. The request does not leave the process.
func succeeds(ctx context.Context, handler http.Handler, path string) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://loopback"+path, nil)
	if err != nil {
		return false
	}
	answer, err := loopback.As(handler, loopback.Itself).RoundTrip(request)
	return err == nil && answer.StatusCode == http.StatusOK
}

func tell(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		slog.Error("systemd cannot be told about this process", "state", state, "error", err)
	}
}
