#!/bin/sh
# dpkg calls this with 'purge' when nothing may stay. rpm has no such call.
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
if [ "$1" = purge ]; then
	rm -rf /var/lib/logplane /etc/logplane
	if getent passwd logplane >/dev/null; then userdel logplane; fi
fi
