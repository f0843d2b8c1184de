#!/bin/sh
# Azure's host names a port on loopback when it starts the handler. Before it does so, it takes variables that it does not
# know itself out of the arguments in host.json, so this one can only be read here. Everything else is an application
# setting.
#
# Everybody reaches the host, and the host reaches this process on loopback, where Logplane serves without credentials if
# it is given no way to ask for them. On all addresses it refuses to start then.
cd "$(dirname "$0")" && exec ./logplane api --listen ":${FUNCTIONS_CUSTOMHANDLER_PORT:?is set by the host}" --insecure-plain-http
