#!/bin/sh
# Before a removal (dpkg: remove, rpm: 0), not before an upgrade. Pods leave as if they were not selected from then on. The cleanup has the
# speaker withdraw its announcements: a speaker that is stopped leaves them to the routers for a graceful restart. The unit that holds pods'
# egress at boot waits for a daemon, which there will not be.
set -e
case "$1" in
remove | 0) ;;
*) exit 0 ;;
esac
if [ -d /run/systemd/system ]; then
	systemctl disable --now egressway.service
	if systemctl is-enabled --quiet egressway-boot.service; then
		systemctl disable --now egressway-boot.service
	fi
fi
if [ -f /etc/default/egressway ]; then
	set -a # its variables count more than the configuration
	# shellcheck source=/dev/null
	. /etc/default/egressway
	set +a
fi
if [ -f /etc/egressway/config.yaml ]; then
	/usr/bin/egressway cleanup --config /etc/egressway/config.yaml
fi
if [ -d /run/systemd/system ]; then
	systemctl disable --now egressway-speaker.service
fi
