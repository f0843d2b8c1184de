#!/usr/bin/env bash
# Tests the local stack as a user would use it, through the one address of the front: writes, reads, watches, and the
# work of the projector and the lifecycle. If 'lambda' runs, the script also tests 'lambda'. It ends with 'smoke: ok',
# or with the step that failed.
set -euo pipefail
cd "$(dirname "$0")/.."
kubectl=${KUBECTL:?run it by make smoke}
read -r -a compose <<<"${COMPOSE:?run it by make smoke}"
namespace=smoke-$$-$RANDOM
seen=$(mktemp)
redirected=$(mktemp) # the output of a watch through a function
watches=()
step=start

finish() {
  code=$?
  kill "${watches[@]}" 2>/dev/null || true
  if [ $code -ne 0 ]; then
    "${compose[@]}" logs --no-color --tail 30 >&2 || true
    echo "--- the watches saw:" >&2
    cat "$seen" "$redirected" >&2
    echo "smoke: failed: $step" >&2
  fi
  rm -f "$seen" "$redirected"
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
# refused asks for the log's head as another user: the request must fail, and say why.
refused() {
  local said
  if said=$("${compose[@]}" run --rm --no-deps "$@" init inspect head 2>&1); then return 1; fi
  grep -F "$why" <<<"$said" >/dev/null
}
states() { containers | xargs docker inspect --format "{{.Name}} $1"; }

step='nothing had to be started again, and nothing runs as root'
if states '{{.RestartCount}}' | grep -v ' 0$'; then false; fi
if states '"{{.Config.User}}"' | grep -E '"(0|0:.*|root|)"$'; then false; fi

step='the log speaks TLS, and to nobody without a password'
"${compose[@]}" run --rm --no-deps init inspect head
why='Authorization Violation'
refused -e LOGPLANE_NATS=tls://nats:4222
refused -e LOGPLANE_NATS=tls://operator:guessed@nats:4222
why='certificate signed by unknown authority'
refused -e LOGPLANE_NATS_CA_FILE=

step='the API is ready, and a namespace can be created'
$kubectl get --raw /readyz >/dev/null
$kubectl create namespace "$namespace"

step='a watch needs no other address'
$kubectl -n "$namespace" get configmaps --watch --output-watch-events -v=6 >"$seen" 2>&1 &
watches+=($!)
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

lambda=$(docker ps --quiet --filter "label=com.docker.compose.project=$STACK" --filter label=com.docker.compose.service=lambda)
if [ -n "$lambda" ]; then
  function="$kubectl --server https://$(docker port "$lambda" 7373/tcp) -n $namespace"
  sandboxes() { docker top "$lambda" -o pid,stat,args | grep -c "$1 *bootstrap"; }
  frozen() { test "$(sandboxes ' T[^ ]*')" = "$(sandboxes '')"; }

  step='what a function writes is read at once by every other process, and the other way round'
  $function create configmap function --from-literal=color=blue
  for _ in 1 2 3 4; do named function color blue; done
  $kubectl -n "$namespace" patch configmap function --type=merge -p '{"data":{"color":"green"}}'
  for _ in 1 2 3 4; do test "$($function get configmap function -o 'jsonpath={.data.color}')" = green; done
  $function patch configmap function --type=merge -p '{"data":{"color":"red"}}'
  named function color red
  test "$($function get configmaps -o name | sort)" = "$($kubectl -n "$namespace" get configmaps -o name | sort)"
  until_true saw '^MODIFIED +function'

  step='a function sends a watch to the front'
  $function get configmaps --watch --output-watch-events -v=6 >"$redirected" 2>&1 &
  watches+=($!)
  until_true grep -q '307' "$redirected"
  until_true grep -q '^ADDED  *function' "$redirected"
  $function delete configmap function
  until_true grep -q '^DELETED  *function' "$redirected"

  step='functions are frozen while nobody asks them'
  sandboxes ''
  until_true frozen
fi

step='the API goes on while one of its processes is killed'
killed=$("${compose[@]}" ps -q api)
killed=${killed%%$'\n'*} # 'head' would end before compose has written all of its output, and compose would then fail
docker kill "$killed" >/dev/null
for i in 1 2 3 4 5 6; do $kubectl -n "$namespace" create configmap "after-$i" >/dev/null; done
docker start "$killed" >/dev/null

step='the contents of a deleted namespace go at once'
$kubectl delete namespace "$namespace" --wait=false
until_true saw '^DELETED +applied'

step='the projector has committed to the bucket'
until_true "${compose[@]}" run --rm --no-deps init inspect root
"${compose[@]}" run --rm --no-deps init inspect root | grep '"applied"'

# The lifecycle waits until every create has ended that may have seen the namespace alive.
step='a deleted namespace goes'
$kubectl wait --for=delete "namespace/$namespace" --timeout=120s
echo 'smoke: ok'
