{{- /* The helpers take {root, role}. */ -}}

{{- define "logplane.labels" -}}
{app.kubernetes.io/name: logplane, app.kubernetes.io/instance: {{ .root.Release.Name | quote }}, app.kubernetes.io/component: {{ .role }}}
{{- end }}

{{- define "logplane.image" -}}
{{ with .root.Values.image.registry }}{{ . }}/{{ end }}{{ index .root.Values.image .image }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{- /* The beginning of every Pod. */ -}}
{{- define "logplane.spec" -}}
{{- $v := .root.Values -}}
automountServiceAccountToken: false
{{- if not (has .role (list "log" "front")) }}
serviceAccountName: {{ .root.Release.Name }}
{{- end }}
{{- with $v.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  seccompProfile: {type: RuntimeDefault}
{{- if not .knative }}
  runAsGroup: 65532
  fsGroup: 65532
  fsGroupChangePolicy: OnRootMismatch # a key that its group may write would be refused
enableServiceLinks: false # a Service's variables look like flags
topologySpreadConstraints:
- maxSkew: 1
  topologyKey: {{ $v.topologyKey }}
  whenUnsatisfiable: {{ .whenUnsatisfiable | default "ScheduleAnyway" }}
  labelSelector:
    matchLabels: {{ include "logplane.labels" . }}
{{- with $v.pod }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- end }}

{{- define "logplane.container" -}}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
resources: {{- toYaml (index .root.Values .role).resources | nindent 2 }}
{{- end }}

{{- /* The Pod of a process of Logplane. */ -}}
{{- define "logplane.pod" -}}
{{- $v := .root.Values -}}
{{- $name := .root.Release.Name -}}
{{- $whole := eq .role "process" -}}
{{- $front := eq .role "front" -}}
{{- $job := eq .role "init" -}}
{{- $serves := has .role (list "api" "watcher" "process") -}}
{{- $knative := and (eq .role "api") (eq $v.layout "knative") -}}
metadata:
  labels: {{ include "logplane.labels" . }}
  annotations:
    checksum/configuration: {{ include (print .root.Template.BasePath "/configuration.yaml") .root | sha256sum }}
    {{- if $knative }}
    autoscaling.knative.dev/min-scale: "0"
    {{- end }}
spec:
  {{- include "logplane.spec" (merge (dict "knative" $knative) .) | nindent 2 }}
  {{- if $knative }}
  containerConcurrency: 100
  timeoutSeconds: 70 # the process ends a request after 60 s
  {{- else if $serves }}
  terminationGracePeriodSeconds: 90
  {{- else if $job }}
  restartPolicy: OnFailure
  {{- end }}
  containers:
  - name: logplane
    image: {{ include "logplane.image" (merge (dict "image" "logplane") .) }}
    {{- include "logplane.container" . | nindent 4 }}
    args:
    - {{ ternary "serve" .role $whole }}
    {{- if $knative }}
    - --insecure-plain-http
    {{- else if or $serves $front }}
    - --listen=:{{ ternary 7443 7373 $front }}
    - --tls-cert-file=/files/tls.crt
    - --tls-private-key-file=/files/tls.key
    {{- end }}
    {{- if $serves }}
    - --token-auth-file=/files/tokens.csv
    - --service-account-issuer={{ $v.issuer }}
    - --service-account-signing-key-file=/files/service-account.key
    {{- else if $job }}
    - --replicas={{ $v.log.replicas }}
    {{- else }}
    - --metrics-listen=:7382
    {{- end }}
    {{- if $whole }}
    - --data=/data
    {{- end }}
    {{- if $front }}
    - --api=https://{{ $name }}-api:7373
    - --watcher=https://{{ $name }}-watcher:7373
    - --api-ca-file=/files/ca.crt
    {{- else if not (or $job $knative) }}
    - --block-cache-folder=/cache
    {{- end }}
    {{- range (index $v .role).flags }}
    - {{ . | quote }}
    {{- end }}
    envFrom:
    - configMapRef: {name: {{ $name }}-cell}
    {{- if and $v.bucket.url $v.bucket.secret (not $front) }}
    - secretRef: {name: {{ $v.bucket.secret }}}
    {{- end }}
    {{- if not (or $front $whole) }}
    env:
    {{- if $v.log.outer }}
    - {name: LOGPLANE_NATS, valueFrom: {secretKeyRef: {name: {{ $v.secrets.log }}, key: LOGPLANE_NATS}}}
    {{- else }}
    - {name: LOGPLANE_PASSWORD, valueFrom: {secretKeyRef: {name: {{ $v.secrets.log }}, key: LOGPLANE_PASSWORD}}}
    - {name: LOGPLANE_NATS, value: "tls://logplane:$(LOGPLANE_PASSWORD)@{{ $name }}-log:4222"}
    {{- end }}
    {{- end }}
    {{- if $knative }}
    ports:
    - {containerPort: 8080}
    readinessProbe: {httpGet: {path: /readyz}}
    livenessProbe: {httpGet: {path: /livez}}
    {{- else if $serves }}
    ports:
    - {name: https, containerPort: 7373}
    startupProbe: {httpGet: {path: /livez, port: https, scheme: HTTPS}, failureThreshold: 30, periodSeconds: 1}
    livenessProbe: {httpGet: {path: /livez, port: https, scheme: HTTPS}}
    readinessProbe: {httpGet: {path: /readyz, port: https, scheme: HTTPS}, periodSeconds: 5}
    {{- else if not $job }}
    ports:
    {{- if $front }}
    - {name: front, containerPort: 7443}
    {{- end }}
    - {name: probes, containerPort: 7382}
    livenessProbe: {httpGet: {path: /livez, port: probes}}
    readinessProbe: {httpGet: {path: /readyz, port: probes}}
    {{- end }}
    volumeMounts:
    - {name: files, mountPath: /files, readOnly: true}
    {{- if not (or $front $job $knative) }}
    - {name: cache, mountPath: /cache}
    {{- end }}
    {{- if $whole }}
    - {name: data, mountPath: /data}
    {{- end }}
  volumes:
  - name: files
    projected:
      sources:
      - secret:
          name: {{ $v.secrets.tls }}
          items:
          - {key: ca.crt, path: ca.crt}
          {{- if and (or $serves $front) (not $knative) }}
          - {key: tls.crt, path: tls.crt}
          - {key: tls.key, path: tls.key}
          {{- end }}
      {{- if $serves }}
      - secret: {name: {{ $v.secrets.files }}}
      {{- if or $v.authentication $v.audit.policy }}
      - configMap: {name: {{ $name }}-files}
      {{- end }}
      {{- else if and $v.encryption (has .role (list "init" "lifecycle")) }}
      - secret: {name: {{ $v.secrets.files }}, items: [{key: encryption.yaml, path: encryption.yaml}]}
      {{- end }}
      {{- if and $v.secrets.logTLS (not (or $front $whole)) }}
      - secret: {name: {{ $v.secrets.logTLS }}, items: [{key: ca.crt, path: nats-ca.crt}]}
      {{- end }}
      {{- if and $v.bucket.caSecret (not $front) }}
      - secret: {name: {{ $v.bucket.caSecret }}, items: [{key: ca.crt, path: s3-ca.crt}]}
      {{- end }}
  {{- if not (or $front $job $knative) }}
  - name: cache
    emptyDir: {sizeLimit: 2Gi}
  {{- end }}
{{- end }}

{{- define "logplane.claim" -}}
metadata:
  name: data
spec:
  accessModes: [ReadWriteOnce]
  {{- with .storageClass }}
  storageClassName: {{ . }}
  {{- end }}
  resources:
    requests: {storage: {{ .storage }}}
{{- end }}
