#!/bin/sh
# install.sh downloads a release's program, verifies it, and installs it:
#
#   tools/release/install.sh URL [FOLDER]
#
# URL is the folder that has SHA256SUMS and the archives of one release. FOLDER is /usr/local/bin by default. SIGNERS
# names the file of the allowed signers, by default the one beside this script. Take both from a checkout that you trust.
# Nothing is installed unless a signer has signed SHA256SUMS and the archive is what SHA256SUMS says.
set -eu

fail() {
	echo "install.sh: $*" >&2
	exit 1
}

[ $# = 1 ] || [ $# = 2 ] || fail "name the URL of the release's files: install.sh URL [FOLDER]"
url=${1%/} folder=${2:-/usr/local/bin}
signers=${SIGNERS:-$(dirname "$0")/signers}
case $(uname -m) in
x86_64 | amd64) processor=amd64 ;;
aarch64 | arm64) processor=arm64 ;;
*) fail "there is no program for the processor '$(uname -m)': build it from the sources" ;;
esac
system=$(uname -s | tr '[:upper:]' '[:lower:]')
archive=logplane-$system-$processor.tar.gz
for needed in curl ssh-keygen tar; do
	command -v "$needed" >/dev/null || fail "'$needed' is missing: install it"
done
[ -r "$signers" ] || fail "'$signers' cannot be read: set SIGNERS to the file of the allowed signers"
[ -d "$folder" ] && [ -w "$folder" ] || fail "'$folder' is not a folder that you may write: name another one, or run this as root"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for file in SHA256SUMS SHA256SUMS.sig "$archive"; do
	curl --fail --silent --show-error --location --output "$work/$file" "$url/$file" ||
		fail "'$url/$file' cannot be downloaded: is '$url' the folder of a release?"
done
ssh-keygen -Y verify -q -f "$signers" -I release -n logplane-release -s "$work/SHA256SUMS.sig" <"$work/SHA256SUMS" >/dev/null 2>&1 ||
	fail "no signer in '$signers' has signed '$url/SHA256SUMS': nothing was installed, do not trust these files"
sum=$(cd "$work" && if command -v sha256sum >/dev/null; then sha256sum "$archive"; else shasum -a 256 "$archive"; fi)
grep -qxF "$sum" "$work/SHA256SUMS" ||
	fail "'$url/$archive' is not what was signed: nothing was installed, do not trust this file"

# A rename replaces a program that runs, and leaves the old one if this script is stopped.
tar -xzf "$work/$archive" -C "$work" logplane
cp "$work/logplane" "$folder/.logplane.new"
chmod 0755 "$folder/.logplane.new"
mv "$folder/.logplane.new" "$folder/logplane"
ln -sf logplane "$folder/kubectl-logplane"
"$folder/logplane" version
