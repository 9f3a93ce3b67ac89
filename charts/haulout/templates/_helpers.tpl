{{/*
The labels of every object. Names are fixed: a cluster has one API group, and so one Haulout.
*/}}
{{- define "haulout.labels" -}}
{{- $labels := dict
  "app.kubernetes.io/part-of" "haulout"
  "app.kubernetes.io/instance" .Release.Name
  "app.kubernetes.io/version" .Chart.AppVersion
  "app.kubernetes.io/managed-by" .Release.Service
  "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_") }}
{{- mustMergeOverwrite (deepCopy .Values.commonLabels) $labels | toYaml }}
{{- end }}

{{/*
The memory limit of Go: below that of the container, which counts memory that Go does not know.
*/}}
{{- define "haulout.goMemoryLimit" -}}
{{- $limit := get (.Values.resources.limits | default dict) "memory" | default "" | toString }}
{{- if .Values.goMemoryLimit }}
{{- .Values.goMemoryLimit }}
{{- else if $limit }}
{{- $units := dict "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 }}
{{- $number := regexFind "^[0-9]+([.][0-9]+)?" $limit }}
{{- $unit := trimPrefix $number $limit }}
{{- if or (not $number) (not (hasKey $units $unit)) }}
{{- fail (printf "resources.limits.memory is %s: write it with a unit, such as 4Gi, or set goMemoryLimit" $limit) }}
{{- end }}
{{- printf "%dMiB" (divf (mulf (float64 $number) (get $units $unit) 0.9) 1048576 | int64) }}
{{- end }}
{{- end }}

{{/*
The objects of a file of artifacts/base, in the namespace of the release, or of another folder of
artifacts. It takes the root, the name of the file, and annotations for its objects.
*/}}
{{- define "haulout.objects" -}}
{{- $root := index . 0 }}
{{- $name := index . 1 }}
{{- $file := printf "files/%s.yaml" (contains "/" $name | ternary $name (printf "base/%s" $name)) }}
{{- $annotations := index . 2 }}
{{- $text := $root.Files.Get $file | required (printf "the chart has no %s; package it with make chart" $file) }}
{{- range $document := splitList "\n---\n" $text }}
{{- $object := $document | replace "haulout-system" $root.Release.Namespace | fromYaml }}
{{- with $object.Error }}
{{- fail (printf "%s: %s" $file .) }}
{{- end }}
{{- $metadata := $object.metadata }}
{{- $_ := set $metadata "labels" (mustMergeOverwrite (default dict $metadata.labels) (include "haulout.labels" $root | fromYaml)) }}
{{- if and $root.Values.nodeHeldWarnings.deny (eq $metadata.name "haulout-node-held") (hasKey $object.spec "validationActions") }}
{{- $_ := set $object.spec "validationActions" (list "Deny") }}
{{- end }}
{{- if $annotations }}
{{- $_ := set $metadata "annotations" (mustMergeOverwrite (default dict $metadata.annotations) $annotations) }}
{{- end }}
---
{{ toYaml $object }}
{{ end }}
{{- end }}

{{/*
A reference of an image. It takes the root, the name of the values of the image, and the values.
*/}}
{{- define "haulout.imageOf" -}}
{{- $root := index . 0 }}
{{- $image := index . 2 }}
{{- $repository := required (printf "%s.repository is required: no image is published, make image builds one" (index . 1)) $image.repository }}
{{- with $image.digest }}
{{- printf "%s@%s" $repository . }}
{{- else }}
{{- printf "%s:%s" $repository ($image.tag | default $root.Chart.AppVersion) }}
{{- end }}
{{- end }}

{{- define "haulout.image" -}}
{{- include "haulout.imageOf" (list . "image" .Values.image) }}
{{- end }}

{{/*
Sets the image of a pod, and where it runs. It takes the root, the pod, the name of the values of
the image, these, and the values nodeSelector and tolerations. It prints nothing.
*/}}
{{- define "haulout.setPod" -}}
{{- $root := index . 0 }}
{{- $pod := index . 1 }}
{{- $image := include "haulout.imageOf" (list $root (index . 2) (index . 3)) }}
{{- $pullPolicy := (index . 3).pullPolicy }}
{{- $values := index . 4 }}
{{- range concat (default list $pod.initContainers) $pod.containers }}
{{- $_ := set . "image" $image }}
{{- $_ := set . "imagePullPolicy" $pullPolicy }}
{{- end }}
{{- with $root.Values.imagePullSecrets }}
{{- $_ := set $pod "imagePullSecrets" . }}
{{- end }}
{{- $_ := set $pod "nodeSelector" (mustMergeOverwrite (deepCopy $values.nodeSelector) $pod.nodeSelector) }}
{{- with concat (default list $pod.tolerations) (default list $values.tolerations) }}
{{- $_ := set $pod "tolerations" . }}
{{- end }}
{{- end }}

{{/*
A worker. It takes the root, its file without the suffix, and its values.
*/}}
{{- define "haulout.worker" -}}
{{- $root := index . 0 }}
{{- $file := printf "files/%s.yaml" (index . 1) }}
{{- $values := index . 2 }}
{{- $object := $root.Files.Get $file | required (printf "the chart has no %s; package it with make chart" $file) | fromYaml }}
{{- with $object.Error }}
{{- fail (printf "%s: %s" $file .) }}
{{- end }}
{{- $_ := mustMergeOverwrite $object.metadata.labels (include "haulout.labels" $root | fromYaml) }}
{{- $pod := $object.spec.template.spec }}
{{- include "haulout.setPod" (list $root $pod "workers.image" $root.Values.workers.image $values) }}
{{- with $values.rebootRequiredFile }}
{{- $container := first $pod.containers }}
{{- $_ := set $container "args" (append $container.args (printf "--reboot-required-file=/host/reboot-required/%s" (base .))) }}
{{- $_ := set $container "volumeMounts" (append $container.volumeMounts (dict "name" "reboot-required" "mountPath" "/host/reboot-required" "readOnly" true)) }}
{{- $_ := set $pod "volumes" (append $pod.volumes (dict "name" "reboot-required" "hostPath" (dict "path" (dir .) "type" "Directory"))) }}
{{- end }}
---
{{ toYaml $object }}
{{ end }}

{{/*
The DaemonSet of the node agent for one operating system, and its configuration. It takes the root,
the name of its values, the values, and the folder of its files.
*/}}
{{- define "haulout.nodeAgent" -}}
{{- $root := index . 0 }}
{{- $name := index . 1 }}
{{- $values := index . 2 }}
{{- $folder := printf "files/%s" (index . 3) }}
{{- $labels := include "haulout.labels" $root | fromYaml }}
{{- $config := $root.Files.Get (printf "%s/config.yaml" $folder) | required (printf "the chart has no %s/config.yaml; package it with make chart" $folder) }}
{{- with $values.config }}
{{- $config = mustMergeOverwrite ($config | fromYaml) (deepCopy .) | toYaml }}
{{- end }}
{{- $set := $root.Files.Get (printf "%s/daemonset.yaml" $folder) | fromYaml }}
{{- with $set.Error }}
{{- fail (printf "%s/daemonset.yaml: %s" $folder .) }}
{{- end }}
{{- $_ := mustMergeOverwrite $set.metadata.labels $labels }}
{{- $template := $set.spec.template }}
{{- /* A change of the configuration updates the nodes. */}}
{{- $_ := set $template.metadata "annotations" (dict "haulout.dev/config" (sha256sum $config)) }}
{{- include "haulout.setPod" (list $root $template.spec (printf "%s.image" $name) $values.image $values) }}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ $set.metadata.name }}
  namespace: {{ $set.metadata.namespace }}
  labels:
    {{- toYaml $labels | nindent 4 }}
data:
  config.yaml: |
    {{- $config | nindent 4 }}
---
{{ toYaml $set }}
{{ end }}

{{/*
The text of a file of artifacts/monitoring, for the namespace and the certificate of the release. It
takes the root and the name of the file.
*/}}
{{- define "haulout.monitoringFile" -}}
{{- $root := index . 0 }}
{{- $file := printf "files/monitoring/%s" (index . 1) }}
{{- $text := $root.Files.Get $file | required (printf "the chart has no %s; package it with make chart" $file) }}
{{- $text | replace "haulout-system" $root.Release.Namespace | replace "haulout-apiserver-serving" ($root.Values.servingCertificate.secretName | default "haulout-apiserver-serving") }}
{{- end }}

{{/*
The objects of a file of artifacts/monitoring. It takes the root, the name of the file, and the
subjects of its bindings, which are unchanged if there are none.
*/}}
{{- define "haulout.monitoring" -}}
{{- $root := index . 0 }}
{{- $subjects := index . 2 }}
{{- range $document := splitList "\n---\n" (include "haulout.monitoringFile" (list $root (index . 1))) }}
{{- $object := $document | fromYaml }}
{{- with $object.Error }}
{{- fail . }}
{{- end }}
{{- $labels := include "haulout.labels" $root | fromYaml }}
{{- if hasPrefix "monitoring.coreos.com/" $object.apiVersion }}
{{- $labels = mustMergeOverwrite (deepCopy $root.Values.monitoring.labels) $labels }}
{{- end }}
{{- $_ := set $object.metadata "labels" $labels }}
{{- if and $object.subjects $subjects }}
{{- $_ := set $object "subjects" $subjects }}
{{- end }}
---
{{ toYaml $object }}
{{ end }}
{{- end }}
