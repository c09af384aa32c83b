{{- define "egressway.labels" -}}
app.kubernetes.io/name: egressway
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "egressway.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* The address where the daemon serves metrics, from the configuration or its default. Empty: no address. */}}
{{- define "egressway.metricsAddress" -}}
{{- $status := .Values.config.status | default dict -}}
{{- if hasKey $status "metricsAddress" -}}
{{ $status.metricsAddress }}
{{- else if .Values.podMonitor.enabled -}}
:9479
{{- else -}}
127.0.0.1:9479
{{- end -}}
{{- end }}

{{/* Whether it serves them by TLS. */}}
{{- define "egressway.metricsByTLS" -}}
{{- $tls := (.Values.config.status | default dict).metricsTLS | default dict -}}
{{- if $tls.certFile }}true{{ end -}}
{{- end }}

{{/* The node's address for the kubelet's probes. */}}
{{- define "egressway.probeHost" -}}
{{- $host := include "egressway.metricsAddress" . | regexFind "^.*:" | trimSuffix ":" | trimPrefix "[" | trimSuffix "]" -}}
{{- if has $host (list "" "0.0.0.0" "::") -}}
127.0.0.1
{{- else -}}
{{ $host }}
{{- end -}}
{{- end }}
