#!/bin/sh
# Azure's host names a port on loopback when it starts the handler. Before that start, the host removes from the
# arguments in host.json the variables that the host itself does not know, so this script has to read the port's
# variable. All other settings are application settings.
#
# Everybody can reach the host, and the host reaches this process on loopback. If Logplane has no setting for
# authentication, it serves clients on loopback without credentials, but it refuses to start on all addresses. So this
# process listens on all addresses.
cd "$(dirname "$0")" && exec ./logplane api --listen ":${FUNCTIONS_CUSTOMHANDLER_PORT:?is set by the host}" --insecure-plain-http
