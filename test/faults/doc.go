// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package faults throws at a real server, in front of the development cluster, what may go wrong,
// in an order left to chance, and has a witness watch who sees only what every client sees.
//
// TestProtocol is about Evacuations. Instigators of several names ask for pods to leave, join,
// withdraw and delete; evacuators of several classes report, fall silent, report after the
// deadline, claim to be done while the pod is there, forbid the cancellation, delete the pod, and
// try to write what is not theirs; pods end, vanish and come back under the same name; budgets
// open, close and contradict each other; a maintenance drains a node and is cancelled; namespaces
// are deleted; the server is killed. All of it at the same time. A witness (test/oracle) holds
// against it: one Evacuation per pod, turns in their order that end by completion or deadline only,
// no eviction before all turns are over, nothing that changes after the end. When the storm is
// over, some more pods are asked to leave, so that there is something left; whatever has not ended
// has to say what blocks it; and when that is cleared away, everything has to end.
//
// Run it with `make e2e RUN=TestProtocol`; E2E_FULL=1 makes the storm long, E2E_SEED=n makes the
// choices of an earlier run again (what comes of them depends on the machine, too). On a cluster of
// your own (E2E_CLUSTER_DIR), start the server with the flags that this test would give it:
// HAULOUT_FLAGS="--evacuator-start-deadline=2s --completed-evacuation-ttl=10s".
//
// TestRandomFaults and TestRandomFaultsOfEtcdCluster are about drains. Two maintenances take out
// nodes, one of which a user has cordoned, and may be cancelled, while two faults at a time last up
// to six seconds each: a process of the cluster is killed, stopped or gets a fifth of the
// processor; a connection between the server, kube-apiserver and the members of etcd is cut, silent
// or slow; the disk of the embedded etcd is full, or etcd's leader is lost; a webhook denies
// evictions, events, or changes of pods or Deployments. An observer reads the same etcd through a
// kube-apiserver of its own. When all runs again, the drains have to finish and to put everything
// back, and the observer has to have seen no broken budget, no eviction that no maintenance asked
// for, no cordon of others undone and no acknowledged write lost. Each seed is a subtest: a failed
// one runs once more by itself, and E2E_SEED=n runs it alone. E2E_FULL=1 plays a hundred seeds,
// E2E_SEEDS=n so many.
//
// What fails here is in this package and not a library: the proxies for tests that exist as Go
// modules were last published years ago, and it takes a hundred lines.
package faults
