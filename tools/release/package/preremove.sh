#!/bin/sh
# dpkg calls this with 'remove' or 'upgrade', rpm with the number of versions that stay: 0 or 1.
set -e
case "$1" in remove | 0) ;; *) exit 0 ;; esac
if [ -d /run/systemd/system ]; then systemctl stop logplane.service; fi
if command -v systemctl >/dev/null; then systemctl --quiet disable logplane.service; fi
