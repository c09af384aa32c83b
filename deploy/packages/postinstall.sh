#!/bin/sh
# After an installation or an upgrade. A new speaker would end its sessions: it stays the former one until an operator restarts it.
set -e
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	systemctl try-restart egressway.service
fi
