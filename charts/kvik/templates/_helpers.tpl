{{/* Name of every object of the operator. */}}
{{- define "kvik.name" -}}
{{ printf "%s-operator" .Release.Name | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{/* What KEDA has of the operator's, in KEDA's namespace and in none: installations in other namespaces have their own. */}}
{{- define "kvik.kedaClient" -}}
{{ printf "%s-%s" .Release.Namespace (include "kvik.name" .) | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{- define "kvik.selectorLabels" -}}
app.kubernetes.io/name: kvik-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "kvik.labels" -}}
{{ include "kvik.selectorLabels" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* A whole image reference. Call with (list IMAGE DEFAULT-TAG). */}}
{{- define "kvik.image" -}}
{{- $image := index . 0 -}}
{{ printf "%s:%s" $image.repository ($image.tag | default (index . 1)) }}
{{- end -}}

{{/* The settings that --network-policy takes, as JSON; the operator's own pods are named, so that they keep their way in. */}}
{{- define "kvik.networkPolicy" -}}
{{- $namespace := dict "matchLabels" (dict "kubernetes.io/metadata.name" .Release.Namespace) -}}
{{- $pods := dict "matchLabels" (include "kvik.selectorLabels" . | fromYaml) -}}
{{- dict
  "enabled" .Values.networkPolicy.enabled
  "apiFrom" (.Values.networkPolicy.apiFrom | default list)
  "metricsFrom" (.Values.networkPolicy.metricsFrom | default list)
  "egress" (.Values.networkPolicy.egress | default "Open")
  "operatorPeer" (dict "namespaceSelector" $namespace "podSelector" $pods)
  | toJson -}}
{{- end -}}

{{/* The APIServices that lead to the operator, as JSON. */}}
{{- define "kvik.apiServices" -}}
{{- $names := list "v1beta1.custom.metrics.k8s.io" "v1beta2.custom.metrics.k8s.io" -}}
{{- if .Values.metricsAPI.external }}{{ $names = append $names "v1beta1.external.metrics.k8s.io" }}{{ end -}}
{{ $names | toJson }}
{{- end -}}

{{/* What the operator may do where pools live: exactly the verbs it uses. */}}
{{- define "kvik.poolRules" -}}
- apiGroups: [kvik.dev]
  resources: [inferencepools]
  verbs: [get, list, watch]
- apiGroups: [kvik.dev]
  resources: [inferencepools/status, inferencepools/scale]
  verbs: [patch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch]
- apiGroups: [apps]
  resources: [controllerrevisions]
  verbs: [list, create, patch, delete]
- apiGroups: [""]
  resources: [services, serviceaccounts]
  verbs: [get, list, watch, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, patch]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
{{- if .Values.keda.enabled }}
- apiGroups: [keda.sh]
  resources: [scaledobjects]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}
{{- end -}}
