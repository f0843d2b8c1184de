#!/usr/bin/env bash
# Moves every module of this repository that follows the product to another version of Kubernetes, for example
# 'tools/upgrade.sh 1.38.0'. docs/upgrading-kubernetes.md has the steps that come after it.
set -euo pipefail
cd "$(dirname "$0")/.."
from=$(awk '$1 == "k8s.io/kubernetes" { print $2 }' go.mod)
to=v${1#v}
sed -i "s/KubernetesVersion = \"$from\"/KubernetesVersion = \"$to\"/" internal/apiserver/description/spec/spec.go
# Kubernetes' other modules have the same version but for the major number: 0.37.2 for 1.37.2. The modules of other
# products, cert-manager and kro, choose their own versions.
for module in go.mod $(git ls-files '*/go.mod' | grep -vE '^tools/(certmanager|kro|goreleaser)/'); do
  sed -i -E "s#\b(k8s\.io/kubernetes) $from\b#\1 $to#; s#\b(k8s\.io/[a-z-]+) v0${from#v1}\b#\1 v0${to#v1}#" "$module"
  echo "$module"
  (cd "$(dirname "$module")" && go mod tidy)
done
