#!/bin/sh
# Installs Chromium and its driver for the browser tests of the console, if it can: as root, with
# apt-get. Without them these tests are skipped, so this script never fails.
LIMIT_S=300
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  exit 0
fi
echo "Installing Chromium and its driver for the tests of the console (apt-get, once)"
export DEBIAN_FRONTEND=noninteractive
options="-qq -o Acquire::Retries=1 -o Acquire::http::Timeout=20 -o DPkg::Lock::Timeout=60"
packages="chromium chromium-driver"
{
  timeout "$LIMIT_S" apt-get $options install --yes --no-install-recommends $packages ||
    { timeout "$LIMIT_S" apt-get $options update &&
      timeout "$LIMIT_S" apt-get $options install --yes --no-install-recommends $packages; }
} >/dev/null 2>&1 </dev/null || echo "apt-get could not install $packages"
exit 0
