#!/bin/sh
# keys.sh FOLDER BROKERS [HOST…]: creates certificates, a key pair for tokens, and tokens of two roles.
# BROKERS gets only what the broker needs: no key that can sign, and no token except the one for its
# health check. Existing files are kept, so it can run before each start.
set -eu
folder=$1
brokers=$2
shift 2
umask 077
mkdir -p "$folder" "$brokers"
for host in localhost "$@"; do hosts="${hosts:-} --host $host"; done
# shellcheck disable=SC2086
pybroker certificates --output "$folder" $hosts
if [ ! -e "$folder/public.key" ]; then
    rm -f "$folder"/*.key.new
    pybroker tokens create-key-pair \
        --output-private-key "$folder/private.key.new" --output-public-key "$folder/public.key.new"
    for key in private public; do mv "$folder/$key.key.new" "$folder/$key.key"; done
fi
for role in admin app health; do
    [ -s "$folder/$role.token" ] && continue
    pybroker tokens create --private-key "file://$folder/private.key" --subject "$role" >"$folder/$role.new"
    mv "$folder/$role.new" "$folder/$role.token"
done
for role in admin app; do
    printf '%s\n' brokerServiceUrl=pulsar+ssl://localhost:6651 webServiceUrl=https://localhost:8443 \
        authPlugin=AuthenticationToken "authParams=file://$folder/$role.token" \
        "tlsTrustCertsFilePath=$folder/ca.crt" >"$folder/$role.conf"
done
for file in ca.crt broker.crt broker.key public.key health.token; do
    cp "$folder/$file" "$brokers/$file.new"
    mv "$brokers/$file.new" "$brokers/$file"
done
