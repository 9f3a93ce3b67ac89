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

// Package nodemaintenance runs NodeMaintenances: it cordons their nodes, asks for the evacuation of
// their pods wave by wave, and puts back what it changed when they are complete or deleted.
//
// Two loops work beside each other and speak through the API and the caches.
//
// The key of the first is a maintenance. Every sync gathers (informers, authorization), decides
// (pkg/drain/plan and the pure functions of this package) and applies, in this order: raised
// targets are stored in the status of every maintenance of the node, then Evacuations are created.
// A wave opens only when the cache shows all nodes cordoned; a node that cannot be cordoned for a
// minute is left out and named.
//
// The key of the second is a node (nodeReconciler). One decision (decideNode) says what its cordon,
// its taints, the annotations that record whose they are, and its conditions should be. A node is
// released by itself, when no maintenance holds it and no Evacuation of ours is left on it; a
// maintenance that ends waits for its nodes by requeue and then drops its finalizer.
//
// Everything they need to go on after a crash is in the API: the status, the annotations on the
// nodes, the finalizer on the Evacuations. What is kept in memory (authorizations, when a cordon
// was seen, when the status was written, what fails and since when) only spares calls or makes it
// wait once more, and what was worked out about each node (view.go, memory.go) only spares work.
//
// Limits: DaemonSet and static pods are left running unless their evacuator is enabled. A
// maintenance that was fast-forwarded or overridden is told so by its messages and an event on
// itself only.
package nodemaintenance
