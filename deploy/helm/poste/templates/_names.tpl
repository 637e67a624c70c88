{{- define "poste.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{/* Labels of every object; call with the context and the component. */}}
{{- define "poste.labels" -}}
{{ include "poste.selector" . }}
app.kubernetes.io/version: {{ .context.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .context.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .context.Chart.Name .context.Chart.Version | quote }}
{{- end -}}

{{- define "poste.selector" -}}
app.kubernetes.io/name: poste
app.kubernetes.io/instance: {{ include "poste.name" .context }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "poste.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* What all pods have in common, at the level of a pod's spec. */}}
{{- define "poste.pod" -}}
serviceAccountName: {{ include "poste.name" . }}
automountServiceAccountToken: false
# Else variables such as POSTE_PORT describe services to the containers.
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "poste.container" -}}
image: {{ include "poste.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{- define "poste.logEnvironment" -}}
- {name: KEY_FILE, value: /etc/poste/mediator-keys.json}
- {name: POSTE_LOG, value: {{ .Values.log.url | quote }}}
- {name: POSTE_SHARDS, value: {{ .Values.log.shards | quote }}}
- {name: POSTE_PUBLIC_URL, value: {{ .Values.publicUrl | quote }}}
- name: PGPASSWORD
  valueFrom:
    secretKeyRef: {name: {{ .Values.secretName }}, key: pgpassword}
{{- end -}}

{{- define "poste.mounts" -}}
- {name: secrets, mountPath: /etc/poste, readOnly: true}
- {name: data, mountPath: /var/lib/poste}
- {name: scratch, mountPath: /tmp}
- {name: shared-memory, mountPath: /dev/shm}
{{- end -}}

{{/* Each pod gets the secrets that it needs and no other; call with the context and their keys. */}}
{{- define "poste.volumes" -}}
- name: secrets
  secret:
    secretName: {{ .context.Values.secretName }}
    defaultMode: 0440
    items:
      {{- range .secrets }}
      - {key: {{ . }}, path: {{ . }}}
      {{- end }}
- {name: data, emptyDir: {}}
- {name: scratch, emptyDir: {}}
- name: shared-memory
  emptyDir: {medium: Memory, sizeLimit: 256Mi}
{{- end -}}

{{/* The secrets of a process that opens the log and shows metrics, as a list in JSON. */}}
{{- define "poste.secrets" -}}
{{- $secrets := list "mediator-keys.json" -}}
{{- if contains "/etc/poste/postgres-ca.pem" .Values.log.url -}}
{{- $secrets = append $secrets "postgres-ca.pem" -}}
{{- end -}}
{{- if .Values.metrics.enabled -}}
{{- $secrets = append $secrets "operators-token" -}}
{{- end -}}
{{- toJson $secrets -}}
{{- end -}}
