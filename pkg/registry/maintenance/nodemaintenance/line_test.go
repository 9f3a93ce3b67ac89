// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/registry/registrytest"
	"haulout.dev/haulout/pkg/testing/is"
)

func wantLine(t *testing.T, nm *maintenance.NodeMaintenance, want *metav1.Time) {
	t.Helper()
	if got := nm.Status.NewestNodeTimestamp; !got.Equal(want) {
		t.Errorf("stage %s: got the newest node of %v, want %v", nm.Spec.Stage, got, want)
	}
}

func TestLineIsDrawnWithTheStage(t *testing.T) {
	r := newRegistry(t, registrytest.RunEtcd(t))
	first, second := &metav1.Time{Time: start.Truncate(time.Second)}, &metav1.Time{Time: start.Truncate(time.Second).Add(time.Hour)}
	r.newest = first
	wantLine(t, r.mustCreate(ann, newMaintenance(t, "drain", atStage(drain))), first)
	wantLine(t, r.mustCreate(ann, newMaintenance(t, "later")), nil)
	wantLine(t, r.mustCreate(ann, newMaintenance(t, "uncordon")), nil)
	r.newest = second
	wantLine(t, r.mustUpdate(ann, "later", setStage(cordon)), second)
	wantLine(t, r.mustUpdate(ann, "uncordon", setStage(complete)), nil)
	r.newest = nil
	wantLine(t, r.mustUpdate(ann, "later", setStage(drain)), second)
	t.Log("in a cluster without nodes all are new")
	wantLine(t, r.mustCreate(ann, newMaintenance(t, "first", atStage(cordon))), &metav1.Time{Time: time.Unix(1, 0)})
	wantLine(t, r.get("drain"), first)
}

// TestNoStageBeforeTheNodesAreKnown has a replica that has not read the nodes since its start.
func TestNoStageBeforeTheNodesAreKnown(t *testing.T) {
	r := newRegistry(t, registrytest.RunEtcd(t))
	r.newest, r.known = nil, false
	if _, err := r.create(ann, newMaintenance(t, "drain", atStage(drain))); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("got error %v, want that the service is unavailable", err)
	}
	is.True(t, r.get("drain") == nil, "the maintenance is stored")
	r.mustCreate(ann, newMaintenance(t, "idle"))
	if _, err := r.update(ann, "idle", setStage(cordon)); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("got error %v, want that the service is unavailable", err)
	}
	if got := r.get("idle").Spec.Stage; got != idle {
		t.Errorf("got stage %s, want Idle", got)
	}
	r.mustUpdate(ann, "idle", setStage(complete))
}

// TestLineOfAnOlderServer has a maintenance without newestNodeTimestamp. Older servers stored such
// maintenances, because their controller set the timestamp. The next write of the status must set
// it.
func TestLineOfAnOlderServer(t *testing.T) {
	newest, known := &metav1.Time{Time: time.Unix(100, 0)}, false
	strategy := &StatusStrategy{NewStrategy(registrytest.Scheme, nil, nil, func() (*metav1.Time, bool) {
		if !known {
			return nil, false
		}
		return newest, true
	}, nil)}
	old := newMaintenance(t, "old", atStage(cordon))
	write := func() *maintenance.NodeMaintenance {
		nm := old.DeepCopy()
		strategy.PrepareForUpdate(t.Context(), nm, old)
		return nm
	}
	wantLine(t, write(), nil)
	known = true
	wantLine(t, write(), newest)
}
