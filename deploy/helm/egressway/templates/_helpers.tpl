{{/* The name of the objects. Labels do not change with it: the selectors of DaemonSets cannot change. */}}
{{- define "egressway.name" -}}
{{ .Values.nameOverride | default "egressway" }}
{{- end }}

{{- define "egressway.labels" -}}
app.kubernetes.io/name: egressway
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Labels of an object that the operator gives more. The argument has these, which count more than the chart's, and the chart's context. */}}
{{- define "egressway.moreLabels" -}}
{{- merge (deepCopy (.labels | default dict)) (include "egressway.labels" .context | fromYaml) | toYaml -}}
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

{{/* Whether readers of metrics need a token that the API server accepts. */}}
{{- define "egressway.tokenReview" -}}
{{- $tls := (.Values.config.status | default dict).metricsTLS | default dict -}}
{{- if $tls.tokenReview }}true{{ end -}}
{{- end }}

{{/* Whether the leader labels the hosts' Nodes, by the value or the configuration. */}}
{{- define "egressway.labelHosts" -}}
{{- $source := .Values.config.source | default dict -}}
{{- if or .Values.labelHosts ($source.kubernetes | default dict).labelHosts }}true{{ end -}}
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

{{/* Labels of a pod. The argument has the value of app.kubernetes.io/name, by which its DaemonSet selects it, and the chart's context. */}}
{{- define "egressway.podLabels" -}}
{{- merge (dict "app.kubernetes.io/name" .name) (deepCopy (.context.Values.podLabels | default dict)) | toYaml -}}
{{- end }}

{{/* The alerts, changed as prometheusRule.alerts says. */}}
{{- define "egressway.rules" -}}
{{- $rules := .Files.Get "files/egressway.rules.yaml" | replace ".*egressway.*" (printf ".*%s.*" (include "egressway.name" .)) | fromYaml -}}
{{- $changes := deepCopy (.Values.prometheusRule.alerts | default dict) -}}
{{- range $group := $rules.groups -}}
  {{- $kept := list -}}
  {{- range $rule := $group.rules -}}
    {{- $change := get $changes $rule.alert | default dict -}}
    {{- $_ := unset $changes $rule.alert -}}
    {{- with $change.severity -}}
      {{- $_ := set $rule.labels "severity" . -}}
    {{- end -}}
    {{- with $change.for -}}
      {{- $_ := set $rule "for" . -}}
    {{- end -}}
    {{- if hasKey $change "threshold" -}}
      {{- if not (regexMatch " > [0-9.]+$" $rule.expr) -}}
        {{- fail (printf "prometheusRule.alerts.%s.threshold: this alert has none, its expression is %s" $rule.alert $rule.expr) -}}
      {{- end -}}
      {{- $_ := set $rule "expr" (regexReplaceAll "[0-9.]+$" $rule.expr (toString $change.threshold)) -}}
    {{- end -}}
    {{- if dig "enabled" true $change -}}
      {{- $kept = append $kept $rule -}}
    {{- end -}}
  {{- end -}}
  {{- $_ := set $group "rules" $kept -}}
{{- end -}}
{{- with keys $changes -}}
  {{- fail (printf "prometheusRule.alerts: there is no alert %s: deploy/prometheus/egressway.rules.yaml has those that there are" (sortAlpha . | join ", ")) -}}
{{- end -}}
{{- toYaml $rules -}}
{{- end }}

{{/* The CEL expression of a label selector, for the labels of a namespace. Empty: it matches every namespace. */}}
{{- define "egressway.admits" -}}
{{- $all := list -}}
{{- range $key, $value := (. | default dict).matchLabels -}}
  {{- $all = append $all (printf "variables.namespaceLabels[?%s] == optional.of(%s)" (toJson $key) (toJson (toString $value))) -}}
{{- end -}}
{{- range (. | default dict).matchExpressions -}}
  {{- $has := printf "%s in variables.namespaceLabels" (toJson .key) -}}
  {{- $in := printf "(%s && variables.namespaceLabels[%s] in %s)" $has (toJson .key) (toJson (.values | default list)) -}}
  {{- if eq .operator "In" -}}
    {{- $all = append $all $in -}}
  {{- else if eq .operator "NotIn" -}}
    {{- $all = append $all (printf "!%s" $in) -}}
  {{- else if eq .operator "Exists" -}}
    {{- $all = append $all $has -}}
  {{- else if eq .operator "DoesNotExist" -}}
    {{- $all = append $all (printf "!(%s)" $has) -}}
  {{- else -}}
    {{- fail (printf "config.networks: namespaces.matchExpressions: operator %s: must be In, NotIn, Exists or DoesNotExist" .operator) -}}
  {{- end -}}
{{- end -}}
{{- join " && " $all -}}
{{- end }}

{{/* Not empty if daemons may have to read Pods: the configuration has hold, or serves a kind that selects them. YAML reads off as false. */}}
{{- define "egressway.readsPods" -}}
{{- if .Values.config.hold }}hold{{ end }}
{{- $kinds := default dict .Values.config.kinds }}
{{- range list "egressQoS" "egressFirewall" "egressIP" }}
{{- if not (has (toString (dig . "auto" $kinds)) (list "off" "false")) }}{{ . }}{{ end }}
{{- end }}
{{- end }}
