#!/bin/bash
# node.sh: the container calico-node, which runs these programs of one file. Calico's image has a supervisor, which restarts each of them.
# Here the container ends with the first one that does, and kubelet restarts it.
set -eu
PATH=$PATH:/lab/bin/calico/bin
calico-node -startup
calico-node -allocate-tunnel-addrs -allocate-tunnel-addrs-run-once
calico-node -allocate-tunnel-addrs &
calico-node -monitor-addresses &
calico-node -monitor-token &
export FELIX_FELIXHOSTNAME=$NODENAME FELIX_DATASTORETYPE=$DATASTORE_TYPE FELIX_LOGFILEPATH=None FELIX_LOGSEVERITYSYS=None
calico-node -felix &
wait -n
