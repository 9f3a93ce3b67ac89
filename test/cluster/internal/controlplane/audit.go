// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

// auditPolicy makes kube-apiserver log only evictions and deletions of pods, so that the log has a
// low cost. The body of an eviction has the UID of the pod.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- level: Request
  verbs: [create]
  resources: [{group: "", resources: [pods/eviction]}]
- level: Request
  verbs: [delete, deletecollection]
  resources: [{group: "", resources: [pods]}]
- level: None
`

// auditFlags returns the flags of kube-apiserver for an audit log. In the default mode of the log,
// kube-apiserver writes the line before it responds, so a client with the response finds the line.
func (c ControlPlane) auditFlags() []string {
	return []string{
		"--audit-policy-file=" + c.Layout.AuditPolicy(),
		"--audit-log-path=" + c.Layout.AuditLog(),
		// The unit is MB. kube-apiserver would rename a larger log while a program reads it.
		"--audit-log-maxsize=4096",
	}
}
