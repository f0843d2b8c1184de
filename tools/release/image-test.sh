#!/bin/bash
# image-test.sh runs the commands of docs/run/install.md about the image, which 'make image-test' has built.
set -euo pipefail

: "${KUBECTL:?}"
export PATH=$(dirname "$KUBECTL"):$PATH
if docker inspect logplane >/dev/null 2>&1; then
	echo "a container or volume has the name 'logplane' already, which the page's commands use: remove it first" >&2
	exit 1
fi
work=$(mktemp -d)
trap 'docker rm --force logplane >/dev/null 2>&1; docker volume rm logplane >/dev/null 2>&1; rm -rf "$work"' EXIT

page() {
	local block
	block=$(tools/release/block.sh "$1")
	(cd "$work" && bash -euo pipefail -c "$block")
}
healthy() {
	local deadline=$((SECONDS + 180))
	until [ "$(docker inspect --format '{{ .State.Health.Status }}' logplane)" = healthy ]; do
		((SECONDS < deadline)) || { docker logs logplane; exit 1; }
		sleep 0.2
	done
}

page image
healthy
page image-kubectl
kubectl --kubeconfig "$work/admin.kubeconfig" create configmap kept --from-literal=a=1
rm "$work/admin.kubeconfig"

# Another container on the same volume has the same cell. Its first words say how its kubeconfig gets out.
docker rm --force logplane >/dev/null
page image
healthy
said=$(docker logs logplane 2>/dev/null)
(cd "$work" && eval "$(grep 'docker cp' <<<"$said")")
kubectl --kubeconfig "$work/admin.kubeconfig" get configmap kept

[ "$(docker inspect --format '{{ .Config.User }}' logplane)" = 65532:65532 ]
docker run --rm --network none "$(docker inspect --format '{{ .Image }}' logplane)" permissions --roles | grep -q publish
page image-remove
if docker inspect logplane >/dev/null 2>&1; then
	echo "the container or its volume is left"
	exit 1
fi
