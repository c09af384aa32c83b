#!/bin/bash
# metallb.sh MODULE: deploys MetalLB's controller, of the manifests in a folder of its module, with pools of addresses. It gives Services
# their ingress IPs.
set -eu
here=$(dirname "$(readlink -f "$0")")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp "$here/metallb/kustomization.yaml" "$1/config/manifests/metallb-native.yaml" "$folder/"
chmod u+w "$folder"/*
kubectl apply -k "$folder" >/dev/null
kubectl wait --for=condition=Established crd/ipaddresspools.metallb.io --timeout=300s >/dev/null
kubectl apply -f "$here/metallb/pools.yaml" >/dev/null
kubectl -n metallb-system rollout status deployment/controller --timeout=300s >/dev/null
