#!/usr/bin/env bash
# Drives the local stack as a user would, through the one address of the front: writes, reads, watches, and what the
# projector and the lifecycle make of them. Ends with 'smoke: ok', or with the step that failed.
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
containers() { docker ps --all --quiet --filter "label=com.docker.compose.project=${STACK:?run it by make smoke}"; }
states() { containers | xargs docker inspect --format "{{.Name}} $1"; }

step='nothing had to be started again, and nothing runs as root'
if states '{{.RestartCount}}' | grep -v ' 0$'; then false; fi
if states '"{{.Config.User}}"' | grep -E '"(0|0:.*|root|)"$'; then false; fi

step='the API is ready, and a namespace can be created'
$kubectl get --raw /readyz >/dev/null
$kubectl create namespace "$namespace"

step='a watch needs no other address'
$kubectl -n "$namespace" get configmaps --watch --output-watch-events -v=6 >"$seen" 2>&1 &
watch=$!
until_true saw 'watch=true.*200 OK'
if saw '307'; then false; fi

step='what is written is read at once, by any process'
$kubectl -n "$namespace" create configmap spine --from-literal=color=blue
for _ in 1 2 3 4; do named spine color blue; done
$kubectl -n "$namespace" patch configmap spine --type=merge -p '{"data":{"color":"green"}}'
for _ in 1 2 3 4; do named spine color green; done
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

step='a service account signs in'
token=$($kubectl -n "$namespace" create token default)
$kubectl --kubeconfig /dev/null --server "$($kubectl config view -o 'jsonpath={.clusters[0].cluster.server}')" \
  --certificate-authority "$(dirname "$KUBECONFIG")/ca.crt" --token "$token" auth whoami | grep "system:serviceaccount:$namespace:default"

step='the API goes on while one of its processes is killed'
killed=$("${compose[@]}" ps -q api | head -1)
docker kill "$killed" >/dev/null
for i in 1 2 3 4 5 6; do $kubectl -n "$namespace" create configmap "after-$i" >/dev/null; done
docker start "$killed" >/dev/null

step='the contents of a deleted namespace go at once'
$kubectl delete namespace "$namespace" --wait=false
until_true saw '^DELETED +applied'

step='the projector has committed to the bucket'
until_true "${compose[@]}" run --rm --no-deps init inspect root
"${compose[@]}" run --rm --no-deps init inspect root | grep '"applied"'

# The lifecycle outwaits every create that may have seen the namespace alive.
step='a deleted namespace goes'
$kubectl wait --for=delete "namespace/$namespace" --timeout=120s
echo 'smoke: ok'
