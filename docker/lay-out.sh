#!/bin/sh
# lay-out.sh FOLDER: what an image that stands in for Apache Pulsar's has at /pulsar.
# Needs `pybroker`'s own python as python3: conf/standalone.conf is written from what it knows.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
cp -R "$here/pulsar/." "$1"
mkdir -p "$1/data" "$1/logs"
python3 "$here/standalone_conf.py" >"$1/conf/standalone.conf"
cp "$1/conf/standalone.conf" "$1/conf/broker.conf"
chmod 755 "$1"/bin/pulsar* "$1"/bin/apply-*
# Whoever the container runs as has the group 0, as with Apache Pulsar's image.
chmod -R g=u "$1"
