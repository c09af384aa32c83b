#!/bin/bash
# The start of the image of FRR: the daemons that /etc/frr/daemons asks for, started again when they end.
set -eu
mkdir -p /run/frr /var/log/frr /var/tmp/frr
chown frr:frr /etc/frr /run/frr /var/log/frr /var/tmp/frr
set +u
. /usr/lib/frr/frrcommon.sh
# shellcheck disable=SC2046 # words
exec /usr/lib/frr/watchfrr $(daemon_list)
