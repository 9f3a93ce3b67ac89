// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package staticpods stops static pods and keeps them stopped: it is the evacuator kubelet.k8s.io.
//
// A static pod runs as long as its manifest is in the kubelet's static pod folder. So the Keeper
// moves ("parks") the manifest to a folder beside it, on the same mount:
//
//	<parent>/manifests/web.yaml  ->  <parent>/.nm-parked/<UID of the NodeMaintenance>/web.yaml
//
// <parent>/.nm-parked/index.json has an entry for each parked manifest. The kubelet then terminates
// the pod within its grace period, and does not start it again after a restart of the kubelet, of
// the agent or of the machine: nothing has to be done for that. The Keeper holds the pod: a
// manifest of it that a tool puts into the folder is parked as well. When no NodeMaintenance in
// stage Drain targets the pod any more, the manifests return to their paths, and the pod gets the
// UID that it had.
//
// All changes can be interrupted at any point. An entry is in the index before its manifest is
// moved, and every operation first brings the index in line with what is on the disk: an entry
// without a parked manifest is dropped, and a parked manifest without an entry gets one, made from
// its path and its content.
//
// The Keeper parks a manifest only while the kubelet is healthy: a kubelet that starts without the
// manifest of a running pod kills its containers immediately.
package staticpods
