#!/bin/sh
# Makes the files of a cell, and gives them to AWS.
#
#   files.sh make FOLDER LOG [API]  makes what is missing in the folder. LOG are the names of the log's servers, as in
#                                   'DNS:*.logplane.internal'. API are those of processes that show clients a certificate
#   files.sh upload FOLDER SECRET   writes them to Secrets Manager and to a Lambda layer, and prints the layer's ARN
#
# Keep the folder where you keep keys: what is not in the secret is the authority's key, with which others could be made.
set -eu
umask 077
files="nats.crt nats.key nats-ca.crt tokens.csv service-account.key logplane-password subscriber-password"

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
  # shellcheck disable=SC2086
  python3 - $files > secret.json <<'PYTHON'
import json, sys
print(json.dumps({name: open(name).read() for name in sys.argv[1:]}))
PYTHON
  aws secretsmanager put-secret-value --secret-id "$2" --secret-string file://secret.json > /dev/null 2>&1 ||
    aws secretsmanager create-secret --name "$2" --secret-string file://secret.json > /dev/null
  python3 - <<'PYTHON'
import zipfile
with zipfile.ZipFile("layer.zip", "w") as layer:
    for name in ("nats-ca.crt", "tokens.csv", "service-account.key"):
        info = zipfile.ZipInfo("logplane/" + name)
        info.external_attr = 0o644 << 16 # a function is nobody in particular
        layer.writestr(info, open(name).read())
PYTHON
  aws lambda publish-layer-version --layer-name "$(echo "$2" | tr / -)" --zip-file fileb://layer.zip --query LayerVersionArn --output text
  rm secret.json layer.zip
}

case "${1-} $#" in
  "make 3" | "make 4") make_files "$2" "$3" "${4-}" ;;
  "upload 3") upload "$2" "$3" ;;
  *) sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
