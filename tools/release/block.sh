#!/bin/bash
# block.sh NAME prints the commands of the block 'sh NAME' of docs/run/install.md.
set -euo pipefail
awk -v begin="\`\`\`sh $1" '$0 == begin { found = 1; next } /^```/ { found = 0 } found' docs/run/install.md | grep . ||
	{ echo "docs/run/install.md has no block 'sh $1'" >&2; exit 1; }
