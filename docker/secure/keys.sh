#!/bin/sh
# keys.sh FOLDER [HOST…]: certificates, the secret that signs tokens, and the tokens of two roles.
# What is there stays, so it may run before each start.
set -eu
folder=$1
shift
mkdir -p "$folder"
for host in localhost "$@"; do hosts="${hosts:-} --host $host"; done
# shellcheck disable=SC2086
pybroker certificates --output "$folder" $hosts
[ -e "$folder/secret.key" ] || pybroker tokens create-secret-key --output "$folder/secret.key"
umask 077
for role in admin app; do
    [ -s "$folder/$role.token" ] && continue
    pybroker tokens create --secret-key "file://$folder/secret.key" --subject "$role" >"$folder/$role.new"
    mv "$folder/$role.new" "$folder/$role.token"
done
for role in admin app; do
    printf '%s\n' brokerServiceUrl=pulsar+ssl://localhost:6651 webServiceUrl=https://localhost:8443 \
        authPlugin=AuthenticationToken "authParams=file://$folder/$role.token" \
        "tlsTrustCertsFilePath=$folder/ca.crt" >"$folder/$role.conf"
done
