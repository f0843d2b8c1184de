#!/usr/bin/env bash
# Drives the local stack as a user would: writes through one process, watches through another, and finds
# the result in the bucket. Ends with 'smoke: ok', or with the step that failed.
set -euo pipefail
cd "$(dirname "$0")/.."
kubectl=${KUBECTL:?run it by make smoke}
read -r -a compose <<<"${COMPOSE:?run it by make smoke}"
namespace=smoke-$$-$RANDOM
seen=$(mktemp)
watch=
step=start

finish() {
  code=$?
  if [ -n "$watch" ]; then kill "$watch" 2>/dev/null || true; fi
  if [ $code -ne 0 ]; then
    "${compose[@]}" logs --no-color --tail 30 >&2 || true
    echo "--- the watch saw:" >&2
    cat "$seen" >&2
    echo "smoke: failed: $step" >&2
  fi
  rm -f "$seen"
}
trap finish EXIT

# until_true asks once a second, at most 60 times.
until_true() {
  for _ in $(seq 60); do if "$@" >/dev/null 2>&1; then return 0; fi; sleep 1; done
  "$@"
}
saw() { grep -qE "$1" "$seen"; }
named() { test "$($kubectl -n "$namespace" get configmap "$1" -o "jsonpath={.data.$2}")" = "$3"; }

step='the API is ready'
until_true $kubectl get --raw /readyz
step='a namespace can be created'
until_true $kubectl get namespace default # init ends after the API is ready
$kubectl create namespace "$namespace"

step='the API redirects a watch to the watcher'
$kubectl -n "$namespace" get configmaps --watch --output-watch-events -v=6 >"$seen" 2>&1 &
watch=$!
until_true saw 'watch=true.*307 Temporary Redirect'
until_true saw ':[0-9]+/api.*watch=true.*200 OK'

step='what is written through the API is read from it at once'
$kubectl -n "$namespace" create configmap spine --from-literal=color=blue
named spine color blue
$kubectl -n "$namespace" patch configmap spine --type=merge -p '{"data":{"color":"green"}}'
named spine color green
$kubectl -n "$namespace" apply --server-side -f - <<YAML
apiVersion: v1
kind: ConfigMap
metadata: {name: applied}
data: {by: server}
YAML
named applied by server

step='the watch delivers what was written'
until_true saw '^ADDED +spine'
until_true saw '^MODIFIED +spine'
until_true saw '^ADDED +applied'
$kubectl -n "$namespace" delete configmap spine
until_true saw '^DELETED +spine'

step='the contents of a deleted namespace go at once'
$kubectl delete namespace "$namespace" --wait=false
until_true saw '^DELETED +applied'

step='the projector has committed to the bucket'
until_true "${compose[@]}" run --rm --no-deps init inspect root
"${compose[@]}" run --rm --no-deps init inspect root | grep '"applied"'

# The lifecycle outwaits every create that may have seen the namespace alive: the deadline of requests, a minute.
step='a deleted namespace goes'
$kubectl wait --for=delete "namespace/$namespace" --timeout=120s
echo 'smoke: ok'
