#!/bin/sh
# dpkg calls this with 'configure' and the version that was there before, rpm with the number of versions: 1 or 2.
set -e
case "$1" in configure | 1 | 2) ;; *) exit 0 ;; esac
if ! getent passwd logplane >/dev/null; then
	useradd --system --user-group --home-dir /var/lib/logplane --no-create-home --shell /usr/sbin/nologin logplane
fi
install -d -m 0700 -o logplane -g logplane /var/lib/logplane
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	if [ "$1" = 2 ] || [ -n "$2" ]; then systemctl try-restart logplane.service || true; fi
fi
