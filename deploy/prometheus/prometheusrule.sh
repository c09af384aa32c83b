#!/bin/sh
# prometheusrule: writes the rules as the object of the kustomize component, and copies them into the chart.
set -eu
cd "$(dirname "$0")"
cp egressway.rules.yaml ../helm/egressway/files/egressway.rules.yaml
{
	cat <<'END'
# Made by "make generate" from deploy/prometheus/egressway.rules.yaml.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: egressway
  namespace: egressway-system
  labels:
    app.kubernetes.io/name: egressway
spec:
END
	sed 's/^\(.\)/  \1/' egressway.rules.yaml
} >../kustomize/components/prometheusrule/prometheusrule.yaml
