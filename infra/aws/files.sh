#!/bin/sh
# Makes the files of a cell, and gives them to AWS.
#
#   files.sh make FOLDER LOG [API]  makes the missing files in the folder. LOG are the names of the log's servers, as in
#                                   'DNS:*.logplane.internal'. API are the names of processes that show clients a
#                                   certificate
#   files.sh upload FOLDER SECRET   writes the files to Secrets Manager, and prints the version of the secret
#
# Files that you add to the folder are in the secret, too. Keep the folder where you keep keys: the authority's key, with
# which more certificates could be made, is only in the folder.
set -eu
umask 077

pair() { # file, names
  [ ! -e "$1.crt" ] || return 0
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=$1" -keyout "$1.key" -out request 2>/dev/null
  printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\n' "$2" > extensions
  openssl x509 -req -in request -CA ca.crt -CAkey ca.key -CAcreateserial -days 730 -extfile extensions -out "$1.crt" 2>/dev/null
  rm request extensions
}

make_files() {
  mkdir -p "$1"
  cd "$1"
  for name in logplane-password subscriber-password; do
    [ -e $name ] || openssl rand -hex 24 | tr -d '\n' > $name
  done
  [ -e tokens.csv ] || printf '%s,admin,admin,system:masters\n' "$(openssl rand -hex 24)" > tokens.csv
  [ -e service-account.key ] || openssl ecparam -name prime256v1 -genkey -noout -out service-account.key
  [ -e ca.crt ] || openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 \
    -subj "/CN=logplane" -keyout ca.key -out ca.crt 2>/dev/null
  cp ca.crt nats-ca.crt
  pair nats "$2"
  [ -z "$3" ] || pair tls "$3"
}

upload() {
  cd "$1"
  secret=$(mktemp)
  trap 'rm -f "$secret"' EXIT
  python3 - > "$secret" <<'PYTHON'
import json, os, sys
names = [name for name in sorted(os.listdir(".")) if name not in ("ca.key", "ca.srl") and not name.startswith(".")]
value = json.dumps({name: open(name).read() for name in names})
if len(value) > 65536:
    sys.exit("the files have %d bytes, and a secret has 65536 at most: take files out of the folder" % len(value))
print(value, end="")
PYTHON
  aws secretsmanager describe-secret --secret-id "$2" > /dev/null 2>&1 || aws secretsmanager create-secret --name "$2" > /dev/null
  aws secretsmanager put-secret-value --secret-id "$2" --secret-string "file://$secret" --query VersionId --output text
}

case "${1-} $#" in
  "make 3" | "make 4") make_files "$2" "$3" "${4-}" ;;
  "upload 3") upload "$2" "$3" ;;
  *) sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
