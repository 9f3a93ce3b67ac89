// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package faults makes a real server, in front of the development cluster, fail in a random order,
// and judges it by what every client sees (test/oracle).
//
// TestProtocol is about Evacuations. At the same time, instigators request, join, withdraw and
// delete Evacuations; evacuators of several classes report, fall silent, report after the deadline,
// claim to be done although the pod exists, forbid the cancellation, delete the pod, and try to
// write fields of others; pods end, vanish and return with the same name; budgets open, close and
// contradict each other; a maintenance drains a node and is cancelled; namespaces are deleted; the
// server is killed. The rules are: one Evacuation per pod, evacuators become active in their order
// and stay so until they complete or miss a deadline, no eviction before that, and no change after
// the end. After the storm some more pods are asked to leave, so that something is left. Each
// Evacuation that has not ended has to report what blocks it; when that is removed, all have to
// end.
//
// Run it with `make e2e RUN=TestProtocol`; E2E_FULL=1 makes the storm long, E2E_SEED=n repeats the
// choices of an earlier run (their effects also depend on the machine). On a cluster of your own
// (E2E_CLUSTER_DIR), start the server with the flags that this test would give it:
// HAULOUT_FLAGS="--evacuator-start-deadline=2s --completed-evacuation-ttl=10s".
//
// TestRandomFaults and TestRandomFaultsOfEtcdCluster are about drains. Two maintenances drain
// nodes, one of which a user has cordoned, and may be cancelled. Meanwhile two faults at a time
// last up to six seconds each: a process of the cluster is killed, stopped or gets a fifth of the
// processor; a connection between the server, kube-apiserver and the members of etcd is cut, silent
// or slow; the disk of the embedded etcd is full, or the leader of etcd fails; a webhook denies
// evictions, events, or changes of pods or Deployments. An observer reads the same etcd through a
// kube-apiserver of its own. After the faults the drains have to finish and to put everything back,
// and the observer must not have seen a broken budget, an eviction without a maintenance, a cordon
// of others that was undone, or the loss of an acknowledged write. Each seed is a subtest: a failed
// one runs once more by itself, and E2E_SEED=n runs it alone. E2E_FULL=1 plays a hundred seeds,
// E2E_SEEDS=n so many.
//
// TestRolloutsOutliveKills is about rollouts. The server is killed at random moments, and with
// E2E_FULL=1 also etcd and kube-apiserver. The observer must not have seen more nodes out of
// service than the limit allows, or a unit that started during a hold or outside a window, and the
// worker must have got each node once, or twice if its first work has failed.
//
// The proxies are part of this package: the Go modules for such proxies had their last release
// years ago, and a proxy takes a hundred lines.
package faults
