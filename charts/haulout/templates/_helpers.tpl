{{/*
The labels of every object. Names are fixed: a cluster has one API group, and so one Haulout.
*/}}
{{- define "haulout.labels" -}}
app.kubernetes.io/part-of: haulout
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
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
{{- if $annotations }}
{{- $_ := set $metadata "annotations" (mustMergeOverwrite (default dict $metadata.annotations) $annotations) }}
{{- end }}
---
{{ toYaml $object }}
{{ end }}
{{- end }}

{{- define "haulout.image" -}}
{{- $repository := required "image.repository is required: no image is published, make image builds one" .Values.image.repository }}
{{- with .Values.image.digest }}
{{- printf "%s@%s" $repository . }}
{{- else }}
{{- printf "%s:%s" $repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}
{{- end }}

{{- define "haulout.nodeAgentImage" -}}
{{- $image := .Values.nodeAgent.image }}
{{- $repository := required "nodeAgent.image.repository is required: no image is published, make image builds one" $image.repository }}
{{- with $image.digest }}
{{- printf "%s@%s" $repository . }}
{{- else }}
{{- printf "%s:%s" $repository ($image.tag | default .Chart.AppVersion) }}
{{- end }}
{{- end }}
