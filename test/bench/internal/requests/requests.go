// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package requests counts the requests that haulout-apiserver sends to kube-apiserver, and the
// writes that its own API receives.
package requests

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/component-base/metrics/testutil"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// serverUser is the user name of haulout-apiserver.
const serverUser = "system:serviceaccount:haulout-system:haulout-apiserver"

// auditPolicy makes kube-apiserver log every request of haulout-apiserver.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  users: ["` + serverUser + `"]
%s- level: None
`

// writeVerbs are the verbs of requests that change objects.
var writeVerbs = []string{"create", "update", "patch", "delete", "deletecollection"}

// Policy returns an audit policy that makes kube-apiserver log every request of haulout-apiserver.
func Policy() string { return fmt.Sprintf(auditPolicy, "") }

// WritePolicy returns an audit policy that makes kube-apiserver log every request of
// haulout-apiserver that may change objects.
func WritePolicy() string {
	return fmt.Sprintf(auditPolicy, "  verbs: ["+strings.Join(writeVerbs, ", ")+"]\n")
}

// Count counts the requests in an audit log by verb and resource.
func Count(log io.Reader) (map[string]int, error) {
	return count(log, func(*auditv1.Event) bool { return true })
}

// CountWrites counts the requests in an audit log that change objects. It does not count those that
// only ask, those with dry run, and the renewals of Leases.
func CountWrites(log io.Reader) (map[string]int, error) {
	return count(log, func(event *auditv1.Event) bool {
		ref := event.ObjectRef
		if ref == nil || !slices.Contains(writeVerbs, event.Verb) || strings.Contains(event.RequestURI, "dryRun=") {
			return false
		}
		asks := ref.APIGroup == "authorization.k8s.io" || ref.APIGroup == "authentication.k8s.io" || ref.Subresource == "token"
		return !asks && ref.Resource != "leases"
	})
}

func count(log io.Reader, counts func(*auditv1.Event) bool) (map[string]int, error) {
	found := map[string]int{}
	lines := bufio.NewReader(log)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			// The last line is incomplete: kube-apiserver is still writing it.
			return found, nil
		}
		if err != nil {
			return nil, err
		}
		var event auditv1.Event
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, fmt.Errorf("audit log: %w", err)
		}
		// A watch counts when its response begins, all other requests when their response ends.
		goesOn := event.Verb == "watch"
		if goesOn == (event.Stage == auditv1.StageResponseStarted) && counts(&event) {
			found[kindOf(&event)]++
		}
	}
}

func kindOf(event *auditv1.Event) string {
	if event.ObjectRef == nil {
		path, _, _ := strings.Cut(event.RequestURI, "?")
		return event.Verb + " " + path
	}
	return kind(event.Verb, event.ObjectRef.Resource, event.ObjectRef.Subresource)
}

func kind(verb, resource, subresource string) string {
	if subresource != "" {
		resource += "/" + subresource
	}
	return verb + " " + resource
}

// methods are the verbs of haulout-apiserver's metrics for requests that change objects.
var methods = map[testutil.LabelValue]string{
	"POST": "create", "PUT": "update", "PATCH": "patch", "APPLY": "patch", "DELETE": "delete", "DELETECOLLECTION": "deletecollection",
}

// Writes returns how many requests that change objects the API of haulout-apiserver has received
// since its start, by verb and resource, also those of the server itself and those that were
// refused. It does not count those with dry run.
func Writes(metrics testutil.Metrics) map[string]int {
	found := map[string]int{}
	for _, sample := range metrics["apiserver_request_total"] {
		verb := methods[sample.Metric["verb"]]
		if verb != "" && sample.Metric["group"] == v1alpha1.GroupName && sample.Metric["dry_run"] == "" {
			found[kind(verb, string(sample.Metric["resource"]), string(sample.Metric["subresource"]))] += int(sample.Value)
		}
	}
	return found
}
