#!/bin/sh
# Imports the topology into a running RabbitMQ and compares: the broker answers 204 also where it changed nothing.
#
#   import-definitions.sh http://guest:guest@127.0.0.1:15672 [VHOST]
set -eu

api=${1:?"usage: import-definitions.sh http://user:password@host:15672 [vhost]"}
vhost=$(printf '%s' "${2:-/}" | sed 's|/|%2F|g')
here=$(cd "$(dirname "$0")" && pwd)

curl --fail --silent --show-error -X POST -H 'content-type: application/json' \
    --data-binary "@$here/definitions.json" "$api/api/definitions/$vhost"

curl --fail --silent --show-error "$api/api/definitions/$vhost" | python3 "$here/compare.py" "$here/definitions.json"
