#!/bin/sh
# lay-out.sh FOLDER: creates /pulsar of the image that replaces Apache Pulsar's.
# python3 must have pybroker installed: conf/standalone.conf is generated from its settings.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
cp -R "$here/pulsar/." "$1"
mkdir -p "$1/data" "$1/logs"
python3 "$here/standalone_conf.py" >"$1/conf/standalone.conf"
cp "$1/conf/standalone.conf" "$1/conf/broker.conf"
chmod 755 "$1"/bin/pulsar* "$1"/bin/apply-*
# Any user of the container has the group 0, as in Apache Pulsar's image.
chmod -R g=u "$1"
