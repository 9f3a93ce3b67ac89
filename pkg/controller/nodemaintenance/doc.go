/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

// Package nodemaintenance runs NodeMaintenances: it cordons their nodes, asks for the evacuation of their pods wave by wave, and puts back what
// it changed when they are complete or deleted.
//
// Every sync of a maintenance gathers (informers, authorization), decides (pkg/drainplan and the pure functions of this package) and applies,
// in this order: nodes that no longer match are released; the others are cordoned; only when all of them have been seen cordoned the plan
// may go on; raised targets are stored in the status of every maintenance of the node; where they include DaemonSet pods the node is tainted; then Evacuations are made. Everything it needs to go
// on after a crash stands in the API: the status, the annotation on the cordoned nodes, the finalizer on the Evacuations. What it keeps in
// memory (authorizations, when a cordon was seen, when the status was written) only spares calls or makes it wait once more, and what it has
// worked out about each node (view.go, memory.go) only spares work.
//
// Beside the syncs, the conditions of every node are kept for all maintenances of the node together (conditions.go): what they say follows from
// the stages and from the pods that are left, and nothing waits for them but the release of a node.
//
// Limits: DaemonSet and static pods are left running unless their evacuator is enabled. A maintenance that was fast-forwarded or overridden is
// told so by its messages and an event on itself only.
package nodemaintenance
