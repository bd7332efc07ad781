{{- define "gpu-dra-driver.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- /* Short enough that the longest suffix keeps object names within 63 characters. */ -}}
{{- define "gpu-dra-driver.fullname" -}}
{{- $name := include "gpu-dra-driver.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 44 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 44 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 44 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "gpu-dra-driver.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride }}
{{- end }}

{{- define "gpu-dra-driver.serviceAccountName" -}}
{{- default (printf "%s-kubelet-plugin" (include "gpu-dra-driver.fullname" .)) .Values.serviceAccount.name }}
{{- end }}

{{- define "gpu-dra-driver.selectorLabels" -}}
{{- if .Values.selectorLabelsOverride }}
{{- toYaml .Values.selectorLabelsOverride }}
{{- else -}}
app.kubernetes.io/name: {{ include "gpu-dra-driver.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: kubelet-plugin
{{- end }}
{{- end }}

{{- define "gpu-dra-driver.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" | quote }}
app.kubernetes.io/name: {{ include "gpu-dra-driver.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
{{- end }}

{{- define "gpu-dra-driver.image" -}}
{{- printf "%s:%s" .Values.image.repository (default (printf "v%s" .Chart.AppVersion) .Values.image.tag) }}
{{- end }}

{{- define "gpu-dra-driver.dataDir" -}}
{{- printf "%s/%s" (trimSuffix "/" .Values.kubeletPlugin.kubeletPluginsDirectoryPath) .Values.driverName }}
{{- end }}

{{- /* "yes" where the device nodes lie below the driver root: its mount shows them, also when
     the driver is mounted there after the start of this pod, which a mount of their own would not. */ -}}
{{- define "gpu-dra-driver.devBelowDriver" -}}
{{- if and (ne .Values.nvidiaDriverRoot "/") (hasPrefix (printf "%s/" (trimSuffix "/" .Values.nvidiaDriverRoot)) .Values.devRoot) }}yes{{ end }}
{{- end }}
{{- /* Where the container sees a tree of the host: at its own place if it is the real one. */ -}}
{{- define "gpu-dra-driver.devMount" -}}
{{- if include "gpu-dra-driver.devBelowDriver" . }}/driver-root/{{ trimPrefix (printf "%s/" (trimSuffix "/" .Values.nvidiaDriverRoot)) .Values.devRoot }}
{{- else }}{{ eq .Values.devRoot "/dev" | ternary "/dev" "/host/dev" }}
{{- end }}
{{- end }}
{{- define "gpu-dra-driver.procMount" -}}
{{- eq .Values.procRoot "/proc" | ternary "/proc" "/host/proc" }}
{{- end }}
{{- define "gpu-dra-driver.sysMount" -}}
{{- eq .Values.sysRoot "/sys" | ternary "/sys" "/host/sys" }}
{{- end }}

{{- /* Not empty where devices are shared with limits by the GPU driver, which names cgroups by the host's paths. */ -}}
{{- define "gpu-dra-driver.cgroups" -}}
{{- if eq .Values.sysRoot "/sys" }}
{{- range .Values.sharing.devices }}{{ eq .enforcement "driver" | ternary "needed" "" }}{{ end }}
{{- end }}
{{- end }}

{{- define "gpu-dra-driver.httpPort" -}}
{{- regexFind "[0-9]+$" .Values.kubeletPlugin.metrics.gpuHttpEndpoint | int64 }}
{{- end }}

{{- /* A duration such as 1m30s in milliseconds. The schema has checked its form. */ -}}
{{- define "gpu-dra-driver.milliseconds" -}}
{{- $units := dict "ms" 1.0 "s" 1000.0 "m" 60000.0 "h" 3600000.0 }}
{{- $total := 0.0 }}
{{- range regexFindAll "[0-9.]+(ms|s|m|h)" . -1 }}
{{- $total = addf $total (mulf (float64 (regexFind "^[0-9.]+" .)) (get $units (regexFind "[a-z]+$" .))) }}
{{- end }}
{{- $total }}
{{- end }}

{{- /* "on" where the cluster knows the CEL field device.allowMultipleAllocations. */ -}}
{{- define "gpu-dra-driver.consumableCapacity" -}}
{{- if ne .Values.deviceClasses.consumableCapacity "auto" }}
{{- .Values.deviceClasses.consumableCapacity }}
{{- else }}
{{- semverCompare ">=1.36.0-0" .Capabilities.KubeVersion.Version | ternary "on" "off" }}
{{- end }}
{{- end }}

{{- /* Names of DeviceClasses that exist and are not this release's, where those are to be left
     alone. Nothing is found where the chart is only rendered. */ -}}
{{- define "gpu-dra-driver.classesLeft" -}}
{{- $left := list }}
{{- if .Values.deviceClasses.leaveExisting }}
{{- range list "gpu.nvidia.com" "mig.nvidia.com" "shared.gpu.nvidia.com" }}
{{- $class := lookup "resource.k8s.io/v1" "DeviceClass" "" . }}
{{- if $class }}
{{- $owner := default dict $class.metadata.annotations }}
{{- if or (ne (get $owner "meta.helm.sh/release-name") $.Release.Name) (ne (get $owner "meta.helm.sh/release-namespace") $.Release.Namespace) }}
{{- $left = append $left . }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- toJson $left }}
{{- end }}

{{- define "gpu-dra-driver.webhookName" -}}
{{- printf "%s-webhook" (include "gpu-dra-driver.fullname" .) }}
{{- end }}

{{/* How Prometheus scrapes, from the values of a monitor. */}}
{{- define "gpu-dra-driver.scrape" -}}
{{- with .interval }}
interval: {{ . | quote }}
{{- end }}
{{- with .scrapeTimeout }}
scrapeTimeout: {{ . | quote }}
{{- end }}
{{- with .relabelings }}
relabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .metricRelabelings }}
metricRelabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* A CEL expression: whether variables.labels has all of some labels. */ -}}
{{- define "gpu-dra-driver.labelled" -}}
{{- $terms := list }}
{{- range $key, $value := . }}
{{- $terms = append $terms (printf "%s in variables.labels && variables.labels[%s] == %s" (toJson $key) (toJson $key) (toJson $value)) }}
{{- end }}
{{- printf "(%s)" (join " && " $terms) }}
{{- end }}

{{- /* The same labels for people. */ -}}
{{- define "gpu-dra-driver.labelText" -}}
{{- $texts := list }}
{{- range $key, $value := . }}
{{- $texts = append $texts (printf "%s=%s" $key $value) }}
{{- end }}
{{- join "," $texts }}
{{- end }}
