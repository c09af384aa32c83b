#!/bin/sh
# Before a removal (dpkg: remove, rpm: 0), not before an upgrade. Pods leave as if they were not selected from then on.
set -e
case "$1" in
remove | 0) ;;
*) exit 0 ;;
esac
if [ -d /run/systemd/system ]; then
	systemctl disable --now egressway.service egressway-speaker.service
fi
if [ -f /etc/egressway/config.yaml ]; then
	/usr/bin/egressway cleanup --config /etc/egressway/config.yaml
fi
