{{- define "feedd.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* The selector of a DaemonSet never changes: labels that differ between versions are not in it. */}}
{{- define "feedd.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "feedd.labels" -}}
{{ include "feedd.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* A value as a variable takes it. Helm reads numbers as floats, and would write 1e+06. */}}
{{- define "feedd.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- end }}

{{- define "feedd.list" -}}
{{- $words := list }}
{{- range . }}
{{- $words = append $words (include "feedd.text" .) }}
{{- end }}
{{- join "," $words }}
{{- end }}
