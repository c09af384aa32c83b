#!/bin/bash
# flannel-host-gw.sh: flannel, with routes between nodes.
exec "$(dirname "$(readlink -f "$0")")/flannel.sh" host-gw
